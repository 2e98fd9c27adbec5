"""Who imports whom, and what a bare import costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import fastjournal

ROOT = Path(__file__).parents[2]

# Whatever a producer's process must not pay for, because it uses none of it.
HEAVY = {"asyncio", "ssl", "socket", "logging.handlers", "numpy", "numba", "pandas", "pyarrow"} | {
    "pyspark", "msgspec", "typer", "rich", "structlog", "prometheus_client", "uvloop",
}  # fmt: skip


def loaded_after(statement: str) -> set[str]:
    """The modules a bare interpreter holds after one statement."""
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_the_import_contracts_hold() -> None:
    """CPT-GEN-2."""
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other, directly or not; each found by its first."""
    reached: dict[str, set[str]] = {}
    for name in imports:
        found: set[str] = set()
        left = [name]
        while left:
            fresh = imports[left.pop()] - found
            found |= fresh
            left += fresh
        reached[name] = found
    rings = {
        frozenset({other for other in reached[name] if name in reached[other]})
        for name in sorted(imports)
        if name in reached[name]
    }
    return [set(ring) for ring in rings]


def test_a_circle_of_modules_is_seen() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}
    assert sorted(map(sorted, circles(imports))) == [["b", "c"], ["d"]]


def test_no_module_imports_itself_by_others_imports_for_types_counted() -> None:
    graph = grimp.build_graph("fastjournal", exclude_type_checking_imports=False, cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert sum(map(len, imports.values())) > 1000
    assert circles(imports) == []


def test_no_folder_has_more_modules_than_one_can_look_over() -> None:
    source = ROOT / "src" / "fastjournal"
    folders = [source, *(path for path in source.rglob("*") if path.is_dir())]
    sizes = {
        str(folder.relative_to(source)): len({*folder.glob("*.py")} - {folder / "__init__.py"})
        for folder in folders
    }
    assert len(sizes) > 20
    assert {name: size for name, size in sizes.items() if size > 14} == {}


def test_tests_stand_in_folders_named_as_the_rooms() -> None:
    source, tests = ROOT / "src" / "fastjournal", ROOT / "tests"
    rooms = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    for kind in ("unit", "integration"):
        folders = {path.name for path in (tests / kind).iterdir() if path.is_dir()}
        assert folders - rooms <= {"support", "__pycache__"}, kind
    assert not [*(tests / "integration").glob("*.py")]
    assert {path.name for path in tests.glob("*.py")} == {"conftest.py"}


def test_a_bare_import_loads_nothing_else_of_ours() -> None:
    """FJ-GEN-2."""
    ours = {name for name in loaded_after("import fastjournal") if name.startswith("fastjournal")}
    there = {"fastjournal", "fastjournal.package", "fastjournal.package.compiled"}
    assert ours <= there  # the latter two in a checkout alone


def test_the_log_loads_nothing_heavy() -> None:
    statement = "from fastjournal.log import Stream; Stream('x').open_appender"
    assert not loaded_after(statement) & HEAVY


@pytest.mark.parametrize("name", [name for name in fastjournal.__all__ if name != "__version__"])
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(fastjournal, name).__name__ == name
    assert name in dir(fastjournal)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        fastjournal.nonsense  # noqa: B018


def test_helpers_of_tests_and_programs_of_bench_have_names_of_their_own() -> None:
    """Both folders stand on one path, where the first of two modules of a name hides the other."""
    helpers = {path.stem for path in (ROOT / "tests" / "support").glob("*.py")}
    programs = {path.stem for path in (ROOT / "bench").glob("*.py")}
    assert len(helpers) > 20
    assert len(programs) > 10
    assert not helpers & programs
    assert not (helpers | programs) & sys.stdlib_module_names
