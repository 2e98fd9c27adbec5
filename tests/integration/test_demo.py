"""`make demo`: every claim holds, and one that does not is noticed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal.cli.demo import payload, run
from fastjournal.log.stream import Stream


@pytest.mark.kill
def test_the_demo_kills_a_real_writer_and_every_claim_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastjournal.cli.app", "demo", str(tmp_path / "log")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✗" not in done.stdout
    assert done.stdout.count("✓") == 12
    assert list((tmp_path / "log").glob("*.torn-*"))


def test_the_demo_fails_when_an_acknowledged_record_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def forgetful(place: Path) -> int:
        with Stream(place).open_appender() as appender:
            appender.append_many([payload(number) for number in range(10)])
        return 12

    assert run(tmp_path / "log", forgetful) == 1
    assert "✗ all 12 acknowledged records are there" in capsys.readouterr().out


def test_the_demo_refuses_a_directory_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    done = subprocess.run(
        [sys.executable, "-m", "fastjournal.cli.app", "demo", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
