"""Cleaning, archiving and snapshots as one journal does them, and what its threads do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.archive.manifest import find_newest
from fastjournal.archive.restore import plan_restore, restore
from fastjournal.archive.store import DirectoryStore
from fastjournal.log.care.cleaner import sealed_segments
from fastjournal.log.care.repair import cut
from fastjournal.log.manifest import MANIFEST
from fastjournal.log.record import decode_many
from fastjournal.log.segment import WORKQ, Position
from fastjournal.log.stream import Stream
from fastjournal.testing import ManualClock, MemoryFiles, check_replay

HOME = Path("/jobs")


@pytest.fixture
def files() -> MemoryFiles:
    memory = MemoryFiles()
    memory.make_directory(HOME.parent)
    return memory


@pytest.fixture
def j(files: MemoryFiles) -> Iterator[Journal]:
    journal = Journal(HOME, files=files, clock=ManualClock(), background=False, segment_size=4096)
    yield journal
    check_replay(journal)
    journal.close()


def logs(files: MemoryFiles) -> list[str]:
    return sorted(path.name for path in files.snapshot() if path.suffix == ".log")


def fill(j: Journal, count: int = 100) -> None:
    for number in range(count):
        j.put(b"x" * 100, queue="q", key=str(number % 5))


def test_merged_rows_collapse_to_their_newest_image(j: Journal, files: MemoryFiles) -> None:
    """SNAP-IMM-4."""
    fill(j)
    before = len(logs(files))
    cleaned = j.clean()
    assert cleaned
    assert len(logs(files)) < before
    status = j.status().upkeep
    assert (status.cycles, status.segments_cleaned) == (1, len(cleaned))
    assert status.bytes_freed > 10_000


def test_cleaning_waits_for_a_batch_under_way_before_it_replaces_a_segment(
    j: Journal, files: MemoryFiles
) -> None:
    """What a batch has applied and not yet logged must not decide what is dropped."""
    for _ in range(40):
        j.put(b"x" * 100, queue="q")
    j.rotate()
    j.put(b"newer", queue="other")
    held = j.lease_many(40, "q")
    before = {p: c for p, c in files.snapshot().items() if p.name < "000000002"}
    cleaning = threading.Thread(target=j.clean)
    with j.engine.lock, j.engine.batch():
        for job in held:
            j.operations.complete(job.id, job.token)  # applied, not logged
        cleaning.start()
        cleaning.join(0.1)
        assert cleaning.is_alive()
        assert {p: c for p, c in files.snapshot().items() if p.name < "000000002"} == before
        with Journal(HOME, files=files.killed(), clock=ManualClock(), background=False) as lost:
            assert lost.status().leased == 40  # the power goes now: nothing was answered yet
    cleaning.join()
    check_replay(j)


def test_nothing_to_clean_changes_no_file(j: Journal, files: MemoryFiles) -> None:
    for number in range(100):
        j.put(b"x" * 100, queue="q", key=str(number))
    before = files.snapshot()
    assert j.clean() == []
    assert {p: c for p, c in files.snapshot().items() if p.suffix == ".log"} == {
        p: c for p, c in before.items() if p.suffix == ".log"
    }


def test_a_reader_at_work_makes_a_cycle_skip(j: Journal, files: MemoryFiles) -> None:
    """WQ-CLN-5: not within a second, then not at all this time."""
    assert j.upkeep.lock_wait == 1
    j.upkeep.lock_wait = 0.01
    fill(j)
    lock = files.lock(HOME / "read.lock", exclusive=False, timeout=0)
    assert j.clean() == []
    assert j.status().upkeep.skipped == 1
    j.snapshot()  # is taken; what it covers goes later
    assert j.status().upkeep.skipped == 2
    covered = logs(files)
    lock.release()
    j.clean()
    assert len(logs(files)) < len(covered)


def test_a_snapshot_drops_what_it_covers_and_makes_the_next_opening_short(
    j: Journal, files: MemoryFiles
) -> None:
    """M3F-SNAP-1."""
    fill(j)
    assert j.upkeep.log_bytes() > 10_000
    j.snapshot()
    assert j.upkeep.log_bytes() < 200
    assert j.status().upkeep.snapshots == 1
    with Journal(HOME, files=files.killed(), clock=ManualClock(), background=False) as again:
        assert again.digest() == j.digest()
        assert again.replayed.records == 1  # the mark
        assert again.replayed.snapshot is not None


def test_snapshots_replace_each_other(j: Journal, files: MemoryFiles) -> None:
    for _ in range(3):
        fill(j, 10)
        j.snapshot()
    kinds = [path.suffix for path in files.snapshot()]
    assert (kinds.count(".snapshot"), kinds.count(".checkpoint")) == (1, 1)


def test_what_cannot_be_archived_is_not_cleaned(files: MemoryFiles) -> None:
    j = archiving(files)
    fill(j)
    before = logs(files)
    files.capacity = sum(map(len, files.snapshot().values())) + 100
    assert j.clean() == []
    assert [name for name in logs(files) if name in before] == before
    told = j.archive_status()
    assert told is not None and told.state == "failing" and "No space" in told.last_error
    files.capacity = None
    assert j.clean()
    check_replay(j)
    j.close()


def archiving(files: MemoryFiles) -> Journal:
    """A journal with its archive beside the log."""
    return Journal(
        HOME, files=files, clock=ManualClock(), background=False, segment_size=4096,
        archive=HOME / "archive",
    )  # fmt: skip


def archived(files: MemoryFiles) -> dict[str, bytes]:
    """Every stretch of history that lies in the archive."""
    store = DirectoryStore(HOME / "archive", files)
    names = [one.name for one in store.find("") if one.name.endswith((".log", ".part"))]
    return {name: store.get(name) for name in names}


def payloads(data: bytes) -> list[bytes]:
    start = 8 if data.startswith(WORKQ.encode()) else 0
    return [record.payload for record in decode_many(data, start, len(data), 1, 0)[0]]


@pytest.mark.parametrize("manifest", [True, False], ids=["manifest", "numbers come back"])
def test_history_behind_a_cut_is_archived_beside_what_was_cut(
    files: MemoryFiles, manifest: bool
) -> None:
    """A name in the archive says nothing: after a repair it may be of another history."""
    with archiving(files) as journal:
        fill(journal)
        journal.clean()
    before = archived(files)
    stream = Stream(HOME, WORKQ, files=files, clock=ManualClock())
    cut(stream, Position(stream.segments()[0], 8))
    if not manifest:  # as a repair by 0.1.0 left it
        files.remove(HOME / MANIFEST)
        files.remove(stream.segment_path(stream.segments()[-1]))
    with archiving(files) as journal:
        for number in range(100):
            journal.put(b"new %d" % number * 20, queue="new")
        journal.clean()
        written = {
            payload
            for number in journal_segments(journal)
            for payload in payloads(files.content(stream.segment_path(number)))
        }
        journal.sync()
        journal.ship()
        digest = journal.digest()
    there = archived(files)
    assert written <= {payload for data in there.values() for payload in payloads(data)}
    assert before.items() <= there.items(), "nothing is overwritten"
    restored = Path("/back")
    store = DirectoryStore(HOME / "archive", files)
    found = find_newest(store)
    assert found is not None
    restore(store, plan_restore(found), restored, files=files)
    with Journal(restored, files=files, clock=ManualClock(), background=False) as again:
        assert again.digest() == digest


def journal_segments(journal: Journal) -> list[int]:
    """The sealed segments of a journal."""
    stream = Stream(HOME, WORKQ, files=journal.engine.log.stream.files)
    return sealed_segments(stream)


def test_the_threads_clean_and_snapshot_by_themselves(tmp_path: Path) -> None:
    """WQ-GEN-6."""
    done = threading.Event()
    with Journal(
        tmp_path / "jobs", sync="os", segment_size=4096, clean_interval=0.01, snapshot_bytes=8192
    ) as j:
        for number in range(2000):
            j.put(b"x" * 100, queue="q", key=str(number))
            status = j.status().upkeep
            if status.snapshots and status.cycles > 2:
                break
            done.wait(0.005)
        assert status.snapshots
        check_replay(j)
        digest = j.digest()
    with Journal(tmp_path / "jobs", background=False) as again:
        assert again.digest() == digest


def test_an_error_in_upkeep_is_kept_and_tried_again(
    files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    j = Journal(
        HOME, files=files, clock=ManualClock(), segment_size=4096, background=False, sync="os"
    )
    fill(j)
    files.capacity = sum(map(len, files.snapshot().values()))
    j.background.cycle()
    assert "/jobs/manifest" in j.background.last_error
    assert "/jobs/manifest" in caplog.text
    files.capacity = None
    j.background.cycle()
    assert j.background.last_error == ""
    assert j.status().upkeep.segments_cleaned
    j.close()
    j.background.cycle()  # too late: nothing happens
