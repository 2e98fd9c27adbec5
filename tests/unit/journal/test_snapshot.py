"""Snapshot files: written last what makes them count, refused where they are damaged."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import CorruptRecord, JournalError, NoSpace, SegmentError
from fastjournal.journal.disk.snapshot import (
    newest_snapshot,
    read_snapshot,
    remove_snapshots,
    write_snapshot,
)
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing import Fault, ManualClock, MemoryFiles, check_replay

HOME = Path("/jobs")
PARTS = [(100, [b"\x05" + bytes(16), b"\x06" + bytes(16)]), (100, []), (200, [b"\x05" * 17])]


@pytest.fixture
def files() -> MemoryFiles:
    memory = MemoryFiles()
    memory.make_directory(HOME)
    return memory


@pytest.fixture
def stream(files: MemoryFiles) -> Stream:
    files.put(HOME / "000000001.log", WORKQ.encode())
    return Stream(HOME, WORKQ, files=files)


def test_what_is_written_is_read_back_with_its_times(stream: Stream) -> None:
    snapshot = write_snapshot(stream, 7, PARTS)
    assert newest_snapshot(stream) == snapshot
    assert (snapshot.first, snapshot.records) == (7, 6)
    assert snapshot.path.name == "000000007.snapshot"
    assert list(read_snapshot(stream, snapshot)) == [PARTS[0], PARTS[2]]


def test_a_large_part_comes_in_pieces(stream: Stream) -> None:
    many = [b"\x05" + number.to_bytes(16, "big") for number in range(25_000)]
    big = [b"\x03" + bytes(16) + b"\x80\x80\x80\x03" + bytes(6 * 2**20)]
    snapshot = write_snapshot(stream, 1, [(5, many), (6, big)])
    pieces = list(read_snapshot(stream, snapshot))
    assert [as_of for as_of, _ in pieces] == [5, 5, 5, 6]
    assert [payload for _, part in pieces for payload in part] == many + big


def test_an_empty_state_has_a_snapshot_too(stream: Stream) -> None:
    snapshot = write_snapshot(stream, 2, [])
    assert list(read_snapshot(stream, snapshot)) == [(0, [])]


def test_the_newest_complete_one_counts(stream: Stream, files: MemoryFiles) -> None:
    first = write_snapshot(stream, 2, PARTS)
    write_snapshot(stream, 9, PARTS)
    files.remove(HOME / "000000009.checkpoint")
    assert newest_snapshot(stream) == first
    assert {path.name for path in remove_snapshots(stream, keep=first)} == {"000000009.snapshot"}
    assert {path.name for path in remove_snapshots(stream, keep=None)} == {
        "000000002.snapshot",
        "000000002.checkpoint",
    }
    assert newest_snapshot(stream) is None


@pytest.mark.parametrize("what", ["snapshot", "checkpoint"])
def test_every_flipped_byte_is_found_and_nothing_is_served(
    stream: Stream, files: MemoryFiles, what: str
) -> None:
    """F21: a damaged snapshot is refused by name, a damaged checkpoint does not count."""
    snapshot = write_snapshot(stream, 2, PARTS)
    path = HOME / f"000000002.{what}"
    content = files.content(path)
    for at in range(len(content)):
        damaged = bytearray(content)
        damaged[at] ^= 0xFF
        files.put(path, bytes(damaged))
        if what == "checkpoint":
            assert newest_snapshot(stream) is None
        else:
            with pytest.raises(JournalError) as refused:
                list(read_snapshot(stream, snapshot))
            assert str(path) in str(refused.value)
    for size in range(len(content)):
        files.put(path, content[:size])
        if what == "checkpoint":
            assert newest_snapshot(stream) is None
        else:
            with pytest.raises((CorruptRecord, SegmentError)):
                list(read_snapshot(stream, snapshot))


def test_a_lost_checkpoint_is_damage_once_the_segments_it_covers_are_gone(
    files: MemoryFiles,
) -> None:
    """Else the journal would open without the jobs that only the snapshot holds."""
    clock = ManualClock()
    with Journal(HOME, files=files, clock=clock, background=False) as j:
        j.put(b"only in the snapshot", queue="q")
        j.snapshot()
        j.put(b"in the log", queue="q")
        before = j.digest()
    whole = files.snapshot()
    for name in ("000000002.checkpoint", "000000002.snapshot"):
        files.remove(HOME / name)
        with pytest.raises(SegmentError, match="000000002"):
            Journal(HOME, files=files, clock=clock, background=False)
        files.put(HOME / name, whole[HOME / name])
    with Journal(HOME, files=files, clock=clock, background=False) as j:
        assert j.digest() == before


@pytest.fixture
def busy(files: MemoryFiles) -> Iterator[Journal]:
    journal = Journal(HOME, files=files, clock=ManualClock(), background=False)
    for number in range(20):
        journal.put(b"x" * 100, queue="q", key=str(number))
    yield journal
    journal.close()


def test_a_snapshot_that_finds_no_space_leaves_nothing_and_harms_nothing(
    busy: Journal, files: MemoryFiles
) -> None:
    busy.rotate()
    files.capacity = sum(map(len, files.snapshot().values())) + 500
    with pytest.raises(NoSpace):
        busy.snapshot()
    assert not [p for p in files.snapshot() if p.suffix in (".snapshot", ".checkpoint")]
    files.capacity = None
    busy.put(b"y", queue="q")
    busy.snapshot()
    check_replay(busy)


def test_a_fault_anywhere_in_a_snapshot_is_a_typed_error(busy: Journal, files: MemoryFiles) -> None:
    start = len(files.operations)
    busy.snapshot()
    steps = len(files.operations) - start
    for number in range(1, steps + 1):
        image = files.killed()
        clock = ManualClock()
        j = Journal(HOME, files=image, clock=clock, background=False)
        image.faults[len(image.operations) + number] = Fault(errno.ENOSPC)
        with contextlib.suppress(JournalError):
            j.snapshot()
        image.faults.clear()
        if j.engine.log.failure is not None:
            assert "sync failed" in str(j.engine.log.failure)  # that alone is a fault of the log
            continue
        clock.advance(1)
        j.put(b"goes on", queue="q")
        j.clean()
        check_replay(j)
        j.close()
