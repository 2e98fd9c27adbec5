"""The table of mutants fits the sources and the tests; `make mutants` runs it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import register
from mutation import ROOT, Mutant, mutants

TABLE = mutants()
IDS = [f"{one.id}-{number}" for number, one in enumerate(TABLE)]


def test_every_fault_has_a_mutant() -> None:
    assert set(register.faults()) == {one.id for one in TABLE if one.group == "fault"}


def test_what_is_called_a_fault_or_a_requirement_is_one() -> None:
    for group, known in (("fault", register.faults()), ("requirement", register.requirements())):
        assert {one.id for one in TABLE if one.group == group} <= set(known)


def test_no_two_mutants_are_the_same() -> None:
    counted = Counter((one.id, one.file, one.text, one.replacement) for one in TABLE)
    assert [one for one, times in counted.items() if times > 1] == []


@pytest.mark.parametrize("mutant", TABLE, ids=IDS)
def test_a_mutant_applies_once_and_still_is_python(mutant: Mutant) -> None:
    assert mutant.occurrences() == 1
    source = (ROOT / "src" / mutant.file).read_text()
    broken = source.replace(mutant.text, mutant.replacement)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source))


@pytest.mark.parametrize("mutant", TABLE, ids=IDS)
def test_the_tests_of_a_mutant_exist_and_a_fault_lists_one_of_them(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert name.partition("[")[0] in functions_of(ROOT / "tests" / file), test
    if mutant.group == "fault":
        listed = register.provoked()[mutant.id]
        named = {test.partition("::")[2].partition("[")[0] for test in mutant.tests}
        assert named & set(listed), "docs/faults.md lists none of them"


@cache
def functions_of(path: Path) -> set[str]:
    """The functions of a file, by name."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "tools/mutants", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip


def test_the_program_shows_examples_and_refuses_an_id_that_has_no_mutant() -> None:
    told = run("--help")
    assert told.returncode == 0
    assert "tools/mutants --only F12" in told.stdout
    assert run("--only", "F99").returncode == 1


def test_a_mutant_that_is_caught_is_told_so() -> None:
    """F22: a quick one, from the copy of the sources to the verdict."""
    done = run("--only", "F22")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "caught" in done.stdout
    assert done.stdout.endswith("1 of 1 mutants caught\n")
