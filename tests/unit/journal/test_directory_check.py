"""A journal's directory is judged as a whole: log, manifest, snapshot, checkpoint, marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import JournalError, SegmentError
from fastjournal.journal.disk.directory_check import salvage, verify
from fastjournal.journal.look.read_only import JournalView
from fastjournal.log.care.check import Fault
from fastjournal.log.care.repair import SALVAGED
from fastjournal.log.manifest import MANIFEST, read
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.testing import ManualClock, MemoryFiles, check_replay

HOME = Path("/jobs")
BELOW, ABOVE = 100, 30


def opened(files: MemoryFiles, **settings: object) -> Journal:
    options = {"background": False, "segment_size": 4096, **settings}
    return Journal(HOME, files=files, clock=ManualClock(), **options)  # type: ignore[arg-type]


def a_journal() -> MemoryFiles:
    """A hundred jobs in a snapshot, thirty behind it."""
    files = MemoryFiles()
    files.make_directory(HOME)
    with opened(files) as journal:
        journal.put_many([{"payload": b"%d" % n, "queue": "below"} for n in range(BELOW)])
        journal.snapshot()
        for n in range(ABOVE):
            journal.put(b"%d" % n * 100, queue="above")
    return files


def stream_on(files: MemoryFiles) -> Stream:
    return Stream(HOME, WORKQ, files=files, clock=ManualClock())


def faults(files: MemoryFiles) -> list[Fault]:
    return [fault for check in verify(stream_on(files)) for fault in check.faults]


def depths(files: MemoryFiles) -> dict[str, int]:
    with opened(files) as journal:
        check_replay(journal)
        return {one.name: one.ready for one in journal.queues()}


def snapshot_name(files: MemoryFiles, kind: str = "snapshot") -> Path:
    (path,) = (path for path in files.snapshot() if path.suffix == f".{kind}")
    return path


def flipped(files: MemoryFiles, path: Path, at: int = -5) -> None:
    data = bytearray(files.content(path))
    data[at] ^= 1
    files.put(path, bytes(data))


def test_a_whole_directory_is_clean() -> None:
    files = a_journal()
    assert faults(files) == []
    assert salvage(stream_on(files)) == []
    assert depths(files) == {"below": BELOW, "above": ABOVE}


@pytest.mark.parametrize("kinds", [("snapshot",), ("checkpoint",), ("snapshot", "checkpoint")])
def test_a_missing_snapshot_or_checkpoint_is_found_and_never_started_without(
    kinds: tuple[str, ...],
) -> None:
    """F24."""
    files = a_journal()
    for kind in kinds:
        files.remove(snapshot_name(files, kind))
    (fault,) = faults(files)
    assert not fault.torn
    assert "missing" in fault.reason
    with pytest.raises(SegmentError, match="missing") as refused:
        opened(files)
    assert refused.value.path == fault.path
    before = files.snapshot()
    dropped = salvage(stream_on(files))
    assert dropped
    assert (HOME / SALVAGED) in files.snapshot()
    assert faults(files) == []
    assert salvage(stream_on(files)) == []
    whole = "snapshot" not in kinds
    assert depths(files).get("below", 0) == (BELOW if whole else 0)
    assert depths(files)["above"] == ABOVE
    assert any("lost" in one.reason for one in dropped) != whole
    assert set(before) - set(files.snapshot()) <= {fault.path, *(one.path for one in dropped)} | {
        path for path in before if path.suffix == ".checkpoint" or path.name == "synced.pos"
    }


def test_a_damaged_checkpoint_is_made_anew_from_its_snapshot() -> None:
    files = a_journal()
    flipped(files, snapshot_name(files, "checkpoint"))
    (fault,) = faults(files)
    assert fault.path.suffix == ".checkpoint"
    with pytest.raises(SegmentError, match="checkpoint"):
        opened(files)
    assert [one.path.suffix for one in salvage(stream_on(files))] == [".checkpoint"]
    assert faults(files) == []
    assert depths(files) == {"below": BELOW, "above": ABOVE}


def test_of_a_damaged_snapshot_every_whole_image_is_kept() -> None:
    files = a_journal()
    path = snapshot_name(files)
    flipped(files, path)
    before = files.content(path)
    (fault,) = faults(files)
    assert (fault.path, fault.torn) == (path, False)
    assert fault.offset > 8
    with pytest.raises(JournalError, match="snapshot"):
        opened(files)
    (dropped,) = salvage(stream_on(files))
    assert (dropped.path, dropped.offset) == (path, fault.offset)
    assert dropped.copy is not None
    assert files.content(dropped.copy) == before
    assert faults(files) == []
    assert depths(files) == {"below": BELOW - 1, "above": ABOVE}


def test_every_flipped_byte_of_snapshot_and_checkpoint_is_a_fault_of_that_number() -> None:
    files = a_journal()
    for kind in ("snapshot", "checkpoint"):
        path = snapshot_name(files, kind)
        content = files.content(path)
        for at in range(0, len(content), 7 if kind == "snapshot" else 1):
            flipped(files, path, at)
            (fault,) = faults(files)
            assert fault.path.stem == path.stem
            assert not fault.torn
            files.put(path, content)
    assert faults(files) == []


def test_a_missing_or_damaged_segment_is_a_fault_of_its_own() -> None:
    files = a_journal()
    manifest = read(files, HOME)
    assert manifest is not None
    middle = next(iter(manifest.sealed))
    path = HOME / segment_name(middle)
    content = files.content(path)
    files.remove(path)
    (fault,) = faults(files)
    assert fault.path == path
    with pytest.raises(SegmentError, match="missing"):
        opened(files)
    with pytest.raises(SegmentError, match="missing"):
        JournalView(HOME, files=files)
    files.put(path, content)
    assert faults(files) == []


def test_a_damaged_manifest_is_refused_by_name_and_made_anew_by_salvage() -> None:
    files = a_journal()
    flipped(files, HOME / MANIFEST, 3)
    (fault,) = faults(files)
    assert fault.path == HOME / MANIFEST
    with pytest.raises(SegmentError, match=MANIFEST):
        opened(files)
    (dropped,) = salvage(stream_on(files))
    assert dropped.path == HOME / MANIFEST
    assert faults(files) == []
    assert depths(files) == {"below": BELOW, "above": ABOVE}


def test_to_remove_the_manifest_is_to_say_that_all_is_as_it_should_be() -> None:
    files = a_journal()
    manifest = read(files, HOME)
    assert manifest is not None
    files.remove(HOME / segment_name(next(iter(manifest.sealed))))
    files.remove(HOME / MANIFEST)
    assert faults(files) == []
    assert depths(files)["below"] == BELOW
    fresh = read(files, HOME)
    assert fresh is not None
    assert fresh.floor == manifest.floor


def test_a_mark_that_cannot_be_read_is_mended_by_the_next_opening() -> None:
    files = a_journal()
    files.put(HOME / "synced.pos", bytes(100))
    (fault,) = faults(files)
    assert fault.torn
    assert depths(files) == {"below": BELOW, "above": ABOVE}
    assert faults(files) == []


def without_manifest(files: MemoryFiles) -> None:
    for path in files.snapshot():
        if path.name == MANIFEST or path.suffix in (".snapshot", ".checkpoint"):
            files.remove(path)


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_log_whose_beginning_only_the_snapshot_held_is_never_taken_for_whole(
    cleaned: bool,
) -> None:
    """Manifest, snapshot and checkpoint are gone: the log itself tells that there was one."""
    files = a_journal()
    if cleaned:  # the clean stop behind the snapshot makes no earlier mark worthless
        with opened(files) as journal:
            while held := journal.lease("above"):
                journal.complete(held.id, held.token)
            journal.put_many([{"payload": b"x" * 100, "queue": "above"}] * ABOVE)
            journal.rotate()
            journal.put(b"", queue="last")
            assert journal.clean()
    name = snapshot_name(files)
    without_manifest(files)
    (fault,) = faults(files)
    assert (fault.path, fault.torn) == (name, False)
    assert "missing" in fault.reason
    for _ in range(2):  # a refused opening is no word of the operator
        with pytest.raises(SegmentError, match="missing") as refused:
            opened(files)
        assert refused.value.path == name
    with pytest.raises(SegmentError, match="missing"):
        JournalView(HOME, files=files)
    dropped = salvage(stream_on(files))
    assert [(one.path, "lost" in one.reason) for one in dropped] == [(name, True)]
    assert (HOME / SALVAGED) in files.snapshot()
    assert faults(files) == []
    assert depths(files)["above"] == ABOVE


def test_a_log_that_was_only_cleaned_needs_no_manifest() -> None:
    """As those of old and those of Workq: their first segments went because nothing was left."""
    files = MemoryFiles()
    files.make_directory(HOME)
    with opened(files) as journal:
        for n in range(20):
            journal.put(b"%d" % n * 100, queue="q")
        while held := journal.lease("q"):
            journal.complete(held.id, held.token)
        journal.put(b"stays", queue="stays")
        journal.rotate()
        journal.put(b"stays", queue="stays")
        journal.rotate()
        journal.put(b"stays", queue="stays")
        for _ in range(2):
            journal.clean()
    path = HOME / segment_name(1)
    if path in files.snapshot():  # as though all of it had been worthless
        files.remove(path)
    without_manifest(files)
    assert faults(files) == []
    assert depths(files)["stays"] >= 2


def test_a_log_that_retention_has_shortened_opens_by_its_snapshot() -> None:
    files = a_journal()
    files.remove(HOME / MANIFEST)
    assert min(stream_on(files).segments()) > 1
    assert faults(files) == []
    assert depths(files) == {"below": BELOW, "above": ABOVE}
