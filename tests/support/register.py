"""The register of requirements and faults: which tests show each of them.

Run by itself (`make requirements`) it prints id, tests.

1. `requirements.toml` holds every id with what it asks for.
2. A test names what it shows in its docstring, at the end of its name (`..._snap_key_2`) or, as
   a case about entries, in its decorator. `FJ-GET-2..4` names three.
3. What is declined is named by a row of `docs/what-we-decline.md`.
4. What is neither stands in the list `open`, which names nothing else.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_RANGE = re.compile(r"\b([A-Z][A-Z0-9]*-[A-Z0-9]+-)(\d+)\.\.(\d+)(?!\d)")
_IN_A_NAME = re.compile(r"_((?:wq|cpt|m3f?|snap|fj)_[a-z0-9]+)_(\d+)(?:_to_(\d+))?$")
_FAULT = re.compile(r"^\| (F\d\d) \|(.*)$", re.MULTILINE)


def requirements() -> dict[str, str]:
    """Every id of the register with what it asks for."""
    return dict(_file()["requirements"])


def faults() -> dict[str, str]:
    """Every fault that is to be provoked, by its number."""
    return dict(_file()["faults"])


def still_open() -> set[str]:
    """What is neither shown by a test nor declined."""
    return set(_file()["open"])


def _file() -> dict[str, dict[str, str]]:
    return tomllib.loads((ROOT / "tests" / "requirements.toml").read_text())


def declined() -> set[str]:
    """The ids that stand in a row of what is declined."""
    text = (ROOT / "docs" / "what-we-decline.md").read_text()
    rows = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    return named_in(rows, set(requirements()) | set(faults()))


def shown() -> dict[str, list[str]]:
    """For each id the tests that name it, as `file::test`."""
    known = set(requirements())
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for name, text in _tests(path):
            for one in named_in(text, known):
                found[one].append(f"{path.relative_to(ROOT / 'tests')}::{name}")
    return found


def provoked() -> dict[str, list[str]]:
    """For each fault the tests that its rows of `docs/faults.md` name."""
    text = (ROOT / "docs" / "faults.md").read_text()
    found: dict[str, list[str]] = defaultdict(list)
    for number, row in _FAULT.findall(text):
        found[number] += re.findall(r"`(test_\w+)`", row)
    return found


def named_in(text: str, known: set[str]) -> set[str]:
    """The ids that a text names, ranges spelled out."""
    named = {
        one
        for one in known
        if one in text and re.search(rf"(?<![\w-]){re.escape(one)}(?![\w])", text)
    }
    for prefix, first, last in _RANGE.findall(text):
        named |= {f"{prefix}{number}" for number in range(int(first), int(last) + 1)} & known
    return named


def _tests(path: Path) -> Iterator[tuple[str, str]]:
    """The tests and cases of a file, each with the words in which it may name ids."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        cases = [
            str(argument.value)
            for call in node.decorator_list
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            if call.func.id == "case"
            for argument in call.args
            if isinstance(argument, ast.Constant)
        ]
        if cases or node.name.startswith("test_"):
            yield node.name, "\n".join([ast.get_docstring(node) or "", _ending(node.name), *cases])


def _ending(name: str) -> str:
    """The ids at the end of a test's name, written as elsewhere."""
    match = _IN_A_NAME.search(name)
    if match is None:
        return ""
    prefix, first, last = match.groups()
    return f"{prefix.upper().replace('_', '-')}-{first}" + (f"..{last}" if last else "")


def main() -> int:
    tests, no, left = shown(), declined(), still_open()
    for one in requirements():
        print(
            one, *tests[one], *["declined"] * (one in no), *["OPEN"] * (one in left), sep="\n    "
        )
    faulty = provoked()
    for one in faults():
        print(
            one, *faulty[one], *["declined"] * (one in no), *["OPEN"] * (one in left), sep="\n    "
        )
    total = len(requirements()) + len(faults())
    print(f"\n{total - len(left)} of {total} shown by a test or declined")
    return 0


if __name__ == "__main__":
    sys.exit(main())
