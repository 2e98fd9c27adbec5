"""Directories written by 0.1.0, opened by the code of the day: every row means what it meant.

Only the public face is used: a journal, a view, a daemon, the command line, the Spark source. Each
case is copied first; its clock stands where it stood when the directory was written.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from command_line import Command
from fastjournal import Journal, Outcome
from fastjournal.errors import JournalError
from fastjournal.journal.look.read_only import JournalView
from fastjournal.model import DEFAULT_SETTINGS
from fastjournal.testing import ManualClock
from fastjournal.testing.daemon import LocalDaemon
from golden_means import journal_means, log_means, row_means, spool_means, view_means

HERE = Path(__file__).parent / "v0_1_0"
CASES = sorted(path.parent.name for path in HERE.glob("*/means.json"))
SECOND = 10**9
KINDS = [*range(1, 9), 32, *range(34, 42), *range(44, 50)]
"""Every type of record that 0.1.0 writes."""

Case = tuple[Path, dict[str, Any]]
by_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture
def case(name: str, tmp_path: Path) -> Case:
    """A copy of a case, and what it means."""
    path = tmp_path / name
    shutil.copytree(HERE / name, path)
    means = json.loads((path / "means.json").read_text())
    (path / "journal" / "reserve").write_bytes(bytes(means["reserve"]))
    return path, means


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capfd, monkeypatch)


def opened(case: Case, **options: Any) -> Journal:
    path, means = case
    clock = ManualClock(means["now"])
    return Journal(path / "journal", background=False, clock=clock, **options)


def asked(means: dict[str, Any]) -> dict[str, Any]:
    """What was meant; settings that 0.1.0 did not know are as by default."""
    told = {name: means[name] for name in ("jobs", "queues", "entries", "results")}
    told["queues"] = {
        name: queue | {"settings": as_json(asdict(DEFAULT_SETTINGS)) | queue["settings"]}
        for name, queue in means["queues"].items()
    }
    return told


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def fingerprints(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in path.rglob("*")
        if file.is_file()
    }


def only_read(path: Path, look: Callable[[], Any]) -> Any:
    """Do `look`; no byte below `path` may change, and nothing may be left but the readers' lock."""
    before = fingerprints(path)
    seen = look()
    after = fingerprints(path)
    assert {name: after.get(name) for name in before} == before
    assert {Path(name).name for name in after.keys() - before.keys()} <= {"read.lock"}
    return seen


def test_the_cases_hold_every_kind_of_record() -> None:
    assert " ".join(CASES) == "archive entries forwarded jobs killed memory snapshot torn workq"
    seen = set()
    for name in CASES:
        means = json.loads((HERE / name / "means.json").read_text())
        seen |= {kind for record in means["records"] for kind in record[4:]}
    assert sorted(seen) == KINDS


@by_case
def test_a_journal_opens_it_with_every_row_as_it_was(case: Case) -> None:
    with opened(case) as journal:
        assert as_json(journal_means(journal)) == asked(case[1])
        assert journal.status().clean_start == (case[1]["stopped"] == "cleanly")
        digest = journal.digest()
    with opened(case) as journal:
        assert journal.digest() == digest
        assert as_json(journal_means(journal)) == asked(case[1])


@by_case
def test_a_view_shows_the_same_and_changes_nothing(case: Case) -> None:
    path, means = case

    def look() -> dict[str, Any]:
        with JournalView(path / "journal", clock=ManualClock(means["now"])) as view:
            return view_means(view)

    seen = as_json(only_read(path, look))
    told = asked(means)
    assert seen == {name: told[name] for name in seen}


@by_case
def test_verify_and_dump_read_the_same_records_and_change_nothing(
    case: Case, command: Command
) -> None:
    path, means = case
    seen = only_read(path, lambda: log_means(path / "journal", command))
    assert seen == {name: means[name] for name in seen}
    code, _, _ = command("log", "verify", str(path / "journal"))
    assert (code == 0) == (means["verify"][0] == "clean")


@pytest.mark.parametrize("shards", ["1", "3"])
@by_case
def test_sparks_fold_gives_the_same_rows_and_changes_nothing(case: Case, shards: str) -> None:
    pytest.importorskip("pyspark")
    path, means = case
    rows = only_read(path, lambda: row_means(path / "journal", shards=shards))
    assert as_json(rows) == means["rows"]


@by_case
def test_work_goes_on_and_a_second_opening_agrees(case: Case) -> None:
    _, means = case
    with opened(case, sync="always", segment_size=4096) as journal:
        for n in range(40):
            journal.put(b"new %d" % n * 10, queue="new", key=f"k{n % 30}")
        journal.entries.set("new", 1)
        clock = ManualClock(means["now"] + SECOND)
    path = case[0] / "journal"
    with Journal(path, background=False, clock=clock, segment_size=4096) as journal:
        done = journal.lease("new")
        held = journal.lease("new", worker="today")
        assert done is not None
        assert held is not None
        done.done(b"a result")
        journal.snapshot()
        journal.clean()
        assert journal.queue("new").leased == 1
        seen = as_json(journal_means(journal))
        old = {job["id"] for job in means["jobs"]}
        assert [job for job in seen["jobs"] if job["id"] in old] == means["jobs"]
        assert len(seen["jobs"]) == len(old) + 30
        assert seen["entries"].pop("new")
        assert seen["entries"] == means["entries"]
        seen, digest = as_json(journal_means(journal)), journal.digest()
    with Journal(path, background=False, clock=clock) as journal:
        assert as_json(journal_means(journal)) == seen
        assert journal.digest() == digest


@pytest.mark.parametrize("name", ["jobs", "killed", "snapshot", "torn"])
def test_leases_go_on_under_their_tokens(case: Case) -> None:
    _, means = case
    leased = [job for job in means["jobs"] if job["state"] == "PROCESSING"]
    assert leased
    with opened(case) as journal:
        for job in leased:
            job_id = bytes.fromhex(job["id"])
            with pytest.raises(JournalError):
                journal.touch(job_id, job["attempts"] + 1)
            until = journal.touch(job_id, job["attempts"], 50)
            assert until // SECOND == means["now"] // SECOND + 50
            journal.complete(job_id, job["attempts"])


@pytest.mark.parametrize("name", ["memory", "snapshot", "jobs"])
def test_a_limit_of_memory_changes_nothing_of_what_is_seen(case: Case) -> None:
    with opened(case, memory_limit=64 * 1024) as journal:
        assert as_json(journal_means(journal)) == asked(case[1])


@pytest.mark.parametrize("name", ["archive"])
def test_the_archive_is_a_log_of_its_own(case: Case, command: Command) -> None:
    pytest.importorskip("pyspark")
    path, means = case[0] / "journal" / "archive", case[1]["archive"]
    seen = only_read(path, lambda: log_means(path, command) | {"rows": row_means(path)})
    assert as_json(seen) == means


@pytest.mark.parametrize("name", ["entries"])
def test_what_was_deleted_and_what_was_added_is_remembered(case: Case) -> None:
    now = case[1]["now"] / SECOND
    with opened(case) as journal:
        entries = journal.entries
        assert not entries.set("gone:tombstone", "older than the deletion", timestamp=now - 1000)
        assert "gone:tombstone" not in entries
        assert not entries.set("renamed:from", "older than the renaming", timestamp=now - 1000)
        assert entries.set("gone:purged", "nothing was kept of it", timestamp=now - 1000)
        assert not entries.set("stamp:old", "older", timestamp=now - 1000)
        sent = 1_700_000_000.25
        assert entries.add("sum:once", 7, sender="adder", timestamp=sent) == 7
        assert entries.add("sum:once", 7, sender="another", timestamp=sent) == 14
        assert entries["name:third"] == "found under three keys"


@pytest.mark.parametrize("name", ["jobs", "killed", "snapshot"])
def test_keys_and_ids_are_remembered(case: Case) -> None:
    with opened(case) as journal:
        assert journal.put(b"", key="mail:merged").outcome is Outcome.MERGED
        assert journal.put(b"", key="mail:merged", timestamp=1).outcome is Outcome.STALE
        assert journal.put(b"sent again", queue="mail", id=bytes(range(16))).id == bytes(range(16))
        assert journal.job(bytes(range(16))).value == b"own id"
        assert journal.lease("paused") is None
        with pytest.raises(JournalError):
            journal.put(b"", queue="drained")
        with pytest.raises(JournalError):
            journal.put(b"", key="mail:unique", mode="unique")


@pytest.mark.parametrize("name", ["forwarded"])
def test_a_spool_is_read_frame_by_frame_and_not_changed(case: Case) -> None:
    pytest.importorskip("pyspark")
    path, means = case
    seen = only_read(path, lambda: spool_means(path / "spool"))
    assert as_json(seen) == means["spool"]
    assert [frame["state"] for frame in seen] == ["done"] * 3 + ["ready"] * 4


@pytest.mark.parametrize("name", ["forwarded"])
def test_a_spool_is_forwarded_without_what_its_journal_has_already(
    case: Case, tmp_path: Path, command: Command
) -> None:
    """The journal remembers how far it took the sender, the spool had not heard of it."""
    path, means = case
    data = tmp_path / "data"
    data.mkdir()
    (path / "journal").rename(data / "default")
    with LocalDaemon(data, clock=ManualClock(means["now"])) as daemon:
        code, _, err = command(
            "forward", "--spool", str(path / "spool"), "--to", daemon.url, "--once"
        )
        assert code == 0, err
        with daemon.connect() as client:
            seen = as_json(view_means(client))["jobs"]
    known = {job["id"] for job in means["jobs"]}
    assert [job for job in seen if job["id"] in known] == means["jobs"]
    assert sorted(job["value"] for job in seen if job["id"] not in known) == [
        "nor this",
        "not yet taken",
    ]


@pytest.mark.parametrize("name", ["workq", "jobs"])
def test_a_daemon_serves_it(case: Case, tmp_path: Path) -> None:
    path, means = case
    data = tmp_path / "data"
    data.mkdir()
    (path / "journal").rename(data / "default")
    with LocalDaemon(data, clock=ManualClock(means["now"])) as daemon, daemon.connect() as client:
        assert as_json(journal_means(client)) == asked(means)


@by_case
def test_the_mark_of_what_was_synced_reads_as_its_page_says(name: str) -> None:
    """docs/log-format.md; the end of what was synced is the end of a record, or of a header."""
    data = (HERE / name / "journal" / "synced.pos").read_bytes()
    slots = [data[at : at + 44] for at in (0, 64)]
    assert all(google_crc32c.value(slot[:40]) == int.from_bytes(slot[40:], "big") for slot in slots)
    segment, offset, time, boot = max(struct.unpack(">QQq16s", slot[:40]) for slot in slots)
    assert any(boot)
    records = json.loads((HERE / name / "means.json").read_text())["records"]
    ends = {(number, at): last for number, at, last, *_ in records}
    behind = [time for place, time in ends.items() if place >= (segment, offset)]
    assert all(later > time for later in behind)
    assert (segment, offset) in ends or offset == 8 or not behind
