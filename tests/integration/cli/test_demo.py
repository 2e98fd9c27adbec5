"""`make demo`: every claim holds, and one that does not is noticed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.cli.demo import run
from fastjournal.cli.demo.log_act import payload
from fastjournal.cli.demo.loss_act import LossAct
from fastjournal.cli.demo.service_act import TOMORROW, ServiceAct
from fastjournal.cli.demo.stage import Stage
from fastjournal.log.stream import Stream


def patient(place: Path) -> int:
    with Stream(place).open_appender() as appender:
        appender.append_many([payload(number) for number in range(10)])
    return 10


def steady(place: Path) -> list[bytes]:
    with Journal(place) as journal:
        receipt = journal.put(b"1", queue="busy")
    return [b"put " + receipt.id.hex().encode()]


@pytest.mark.kill
def test_the_demo_kills_real_processes_and_every_claim_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastjournal.cli.app", "demo", "--brief", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✗" not in done.stdout
    told = re.search(r"✓ all (\d+) acknowledged records are there", done.stdout)
    assert told is not None
    assert int(told[1]) >= 1000  # the writer may get a few more in before the signal reaches it
    assert "the next worker gets it" in done.stdout
    assert "no acknowledged job is lost" in done.stdout
    assert list((tmp_path / "demo" / "log").glob("*.torn-*"))


@pytest.mark.kill
def test_the_service_is_shown_with_its_worker_and_its_daemon_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = Stage()
    rows = ServiceAct(stage, tmp_path / "service").show()
    assert stage.verdict() == 0, capsys.readouterr().out
    assert len(rows) == TOMORROW + 1
    out = capsys.readouterr().out
    assert "puts while there was no daemon" in out
    assert "merged away" in out


def test_a_lost_directory_is_restored_and_nodes_are_left_out_without_etcd(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    stage = Stage()
    LossAct(stage, tmp_path / "loss").show()
    assert stage.verdict() == 0
    out = capsys.readouterr().out
    assert "all 200 letters" in out
    assert "etcd, which is not installed here" in out


@pytest.mark.slow
def test_the_whole_demo_ends_with_spark_a_summary_and_a_report(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    done = subprocess.run(
        [sys.executable, "-m", "fastjournal.cli.app", "demo", "--report", str(report)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the very 26 rows" in done.stdout
    assert "instants were fired, each of them once" in done.stdout
    assert "all 400 acknowledged letters" in done.stdout or "etcd" in done.stdout
    assert "What was shown" in done.stdout
    assert str(report) in done.stdout
    assert "<svg" in report.read_text()


@pytest.mark.kill
def test_the_demo_fails_when_an_acknowledged_record_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def forgetful(place: Path) -> int:
        with Stream(place).open_appender() as appender:
            appender.append_many([payload(number) for number in range(10)])
        return 12

    assert run(tmp_path / "demo", brief=True, write=forgetful, work=steady) == 1
    out = capsys.readouterr().out
    assert "✗ all 12 acknowledged records are there" in out
    assert out.count("✗") == 1


@pytest.mark.kill
@pytest.mark.parametrize("word", ["lost", "back"])
def test_the_demo_fails_when_a_journal_does_not_keep_its_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    def unlucky(place: Path) -> list[bytes]:
        told = steady(place)
        if word == "lost":
            return [*told, b"put " + b"00" * 16]
        return [*told, told[0].replace(b"put", b"done")]

    assert run(tmp_path / "demo", brief=True, write=patient, work=unlucky) == 1
    out = capsys.readouterr().out
    assert out.count("✗") == 1
    assert re.search(rf"✗ no acknowledged job is lost, and none .*: job \w+ .* is {word}", out)


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
