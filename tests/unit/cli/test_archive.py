"""`fastjournal backup`, `restore` and `archive`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from archiving import rows, rows_in
from command_line import Command
from fastjournal import Journal
from fastjournal.testing import ManualClock


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capfd, monkeypatch)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def test_a_backup_of_a_live_journal_is_restored_as_of_any_instant(
    run: Command, jobs: Path, tmp_path: Path
) -> None:
    target, clock = str(tmp_path / "backup"), ManualClock()
    with Journal(jobs, sync="os", segment_size=4096, background=False, clock=clock) as journal:
        for n in range(100):
            clock.advance(1)
            journal.put(bytes(50), queue="q", key=f"{n}")
        journal.snapshot()
        middle, then = clock.now(), rows(journal)
        clock.advance(1)
        journal.put(b"", queue="q", key="last")
        code, out, _ = run("backup", str(jobs), target)
        assert code == 0 and "restorable up to" in out
        live = rows(journal)
    assert run("restore", target, str(tmp_path / "back"))[0] == 0
    assert rows_in(tmp_path / "back") == live
    instant = datetime.fromtimestamp(middle // 10**9, UTC).isoformat()
    code, out, _ = run("restore", target, str(tmp_path / "then"), "--to", instant, "--json")
    assert code == 0 and json.loads(out)["last_time"] <= middle
    assert rows_in(tmp_path / "then") == then


def test_a_second_backup_sends_only_what_is_new(run: Command, jobs: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "backup")
    with Journal(jobs, segment_size=4096, background=False) as journal:
        for n in range(200):
            journal.put(bytes(50), queue="q", key=f"{n}")
    first = json.loads(run("backup", str(jobs), target, "--json")[1])
    with Journal(jobs, segment_size=4096, background=False) as journal:
        journal.put(bytes(50), queue="q", key="last")
    second = json.loads(run("backup", str(jobs), target, "--json")[1])
    assert second["uploaded_bytes"] < first["uploaded_bytes"] / 2
    assert second["epoch"] == 2
    assert run("restore", target, str(tmp_path / "back"))[0] == 0
    assert rows_in(tmp_path / "back") == rows_in(jobs)


def test_a_backup_may_be_packed(run: Command, jobs: Path, tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    target = str(tmp_path / "backup")
    with Journal(jobs, segment_size=4096, background=False) as journal:
        for n in range(200):
            journal.put(bytes(50), queue="q", key=f"{n}")
    assert run("backup", str(jobs), target, "--compress")[0] == 0
    assert run("archive", "verify", target)[0] == 0
    assert run("restore", target, str(tmp_path / "back"))[0] == 0
    assert rows_in(tmp_path / "back") == rows_in(jobs)


def test_a_backup_into_the_journals_own_archive_is_refused(
    run: Command, jobs: Path, tmp_path: Path
) -> None:
    own = str(tmp_path / "own")
    with Journal(jobs, sync="always", background=False, archive=own) as journal:
        journal.put(b"", queue="q")
        journal.ship()
        code, _, error = run("backup", str(jobs), own)
        assert code == 2 and "ships there by itself" in error


def test_a_damaged_journal_is_not_backed_up_in_part(
    run: Command, jobs: Path, tmp_path: Path
) -> None:
    with Journal(jobs, background=False) as journal:
        for n in range(50):
            journal.put(bytes(50), queue="q", key=f"{n}")
    segment = jobs / "000000001.log"
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(bytes(data))
    code, _, error = run("backup", str(jobs), str(tmp_path / "backup"))
    assert code == 3 and "000000001.log" in error


def test_a_dry_run_says_what_a_restore_would_take(run: Command, jobs: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "backup")
    with Journal(jobs, background=False) as journal:
        journal.put(b"", queue="q")
    run("backup", str(jobs), target)
    code, out, _ = run("restore", target, str(tmp_path / "back"), "--dry-run")
    assert code == 0 and "to download" in out and "tail/000000001/" in out
    assert not (tmp_path / "back").exists()
    told = json.loads(run("restore", target, "x", "--dry-run", "--json")[1])
    assert told["segments"] == 0 and told["parts"] == 1 and told["bytes"] > 0


def test_archive_list_verify_and_prune(run: Command, jobs: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "backup")
    with Journal(jobs, segment_size=4096, background=False) as journal:
        for n in range(200):
            journal.put(bytes(50), queue="q", key=f"{n}")
    for _ in range(4):
        run("backup", str(jobs), target)
    code, out, _ = run("archive", "list", target)
    assert code == 0 and "restorable from" in out and "segment" in out
    lines = run("archive", "list", target, "--json")[1].splitlines()
    assert {json.loads(line)["kind"] for line in lines} == {"segment", "tail"}
    for how in ((), ("--quick",)):
        code, out, _ = run("archive", "verify", target, *how)
        assert code == 0 and "all well" in out
    code, out, _ = run("archive", "prune", target, "--keep-versions", "2", "--dry-run")
    assert code == 0 and "would go" in out and "000001/manifest" in out
    code, out, _ = run("archive", "prune", target, "--keep-versions", "2", "--json")
    assert json.loads(out)["objects"] > 0
    assert run("archive", "verify", target)[0] == 0
    victim = next((tmp_path / "backup").glob("*/segments/000000002.log"))
    victim.write_bytes(victim.read_bytes()[:-1] + b"x")
    code, out, _ = run("archive", "verify", target)
    assert code == 3 and "CRC" in out
    victim.unlink()
    code, out, _ = run("archive", "verify", target, "--quick")
    assert code == 3 and "is missing" in out


def test_the_root_of_a_daemons_archives_names_them(run: Command, tmp_path: Path) -> None:
    for name in ("default", "mail"):
        with Journal(tmp_path / name, background=False) as journal:
            journal.put(b"", queue="q")
        run("backup", str(tmp_path / name), str(tmp_path / "backup" / name))
    code, _, error = run("restore", str(tmp_path / "backup"), str(tmp_path / "back"))
    assert code == 2
    assert f"but in {tmp_path}/backup/default, {tmp_path}/backup/mail" in " ".join(error.split())


def test_no_archive_is_an_error(run: Command, tmp_path: Path) -> None:
    for words in (("list",), ("verify",), ("prune",)):
        code, _, error = run("archive", *words, str(tmp_path / "none"))
        assert code == 2 and "no archive there" in error
    assert run("restore", str(tmp_path / "none"), str(tmp_path / "back"))[0] == 2


def test_an_instant_that_the_archive_cannot_tell_is_told_in_words(
    run: Command, jobs: Path, tmp_path: Path
) -> None:
    target, clock = str(tmp_path / "backup"), ManualClock()
    with Journal(jobs, background=False, clock=clock) as journal:
        journal.put(b"", queue="q")
    run("backup", str(jobs), target)
    begin = datetime.fromtimestamp(clock.now() // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    code, _, error = run("restore", target, str(tmp_path / "x"), "--to", "2001-01-01T00:00Z")
    assert code == 2 and "at 2001-01-01T00:00:00.0" in error
    assert f"the earliest is {begin}" in error
    assert not (tmp_path / "x").exists()
    code, out, _ = run("restore", target, str(tmp_path / "x"), "--to", "2099-01-01T00:00Z")
    assert code == 0 and "before the instant asked for" in out
    assert rows_in(tmp_path / "x") == rows_in(jobs)


def test_prune_lets_instants_go_by_age(run: Command, jobs: Path, tmp_path: Path) -> None:
    target, clock = str(tmp_path / "backup"), ManualClock()  # which shows a day long ago
    with Journal(
        jobs, background=False, clock=clock, segment_size=4096, sync="always", archive=target
    ) as journal:
        for n in range(100):
            journal.put(bytes(100), queue="q", key=f"{n}")
        journal.ship()
        journal.snapshot()
        journal.ship()
        live = rows(journal)
    prune = ("archive", "prune", target, "--keep-versions", "1")
    code, out, _ = run(*prune, "--dry-run")
    assert code == 0 and "/segments/" not in out
    code, out, _ = run(*prune, "--keep-days", "30", "--dry-run")
    assert code == 0 and "/segments/" in out
    assert json.loads(run(*prune, "--keep-days", "30", "--json")[1])["objects"] > 3
    assert run("archive", "verify", target)[0] == 0
    assert "restorable from" in run("archive", "list", target)[1]
    assert run("restore", target, str(tmp_path / "back"))[0] == 0
    assert rows_in(tmp_path / "back") == live
