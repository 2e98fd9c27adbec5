"""The programs in examples/ run, and what they claim holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SLOW = [pytest.mark.slow, pytest.mark.timeout(400)]  # what starts a session of Spark


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(one, id=one.name, marks=SLOW if one.name.startswith("spark") else [])
        for one in PROGRAMS
    ],
)
def test_the_example_program_runs(program: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "jobs")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300 if program.name.startswith("spark") else 100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_the_example_says_how_to_run_it(program: Path) -> None:
    assert f"python examples/{program.name}" in program.read_text()
