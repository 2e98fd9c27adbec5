"""A crash at every file operation of what touches the manifest: nothing of it needs a repair.

Rotation, cleaning, snapshots, taking in an old directory, and repair itself. After each crash the
directory is never damaged, opens with all that was acknowledged, and is clean from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import JournalError
from fastjournal.journal.disk.directory_check import salvage, verify
from fastjournal.log.care.check import Fault
from fastjournal.log.care.repair import cut
from fastjournal.log.manifest import MANIFEST, read
from fastjournal.log.segment import WORKQ, Position
from fastjournal.log.stream import Stream
from fastjournal.testing import Crash, ManualClock, MemoryFiles, check_replay
from lives import settle

HOME = Path("/jobs")
SAMPLES = 6
PUTS = 32


def opened(files: MemoryFiles) -> Journal:
    return Journal(
        HOME, files=files, clock=ManualClock(), background=False, segment_size=4096, sync="always"
    )


def stream_on(files: MemoryFiles) -> Stream:
    return Stream(HOME, WORKQ, files=files, clock=ManualClock())


def faults(files: MemoryFiles) -> list[Fault]:
    return [fault for check in verify(stream_on(files)) for fault in check.faults]


def rows(files: MemoryFiles) -> dict[bytes, bytes]:
    with opened(files) as journal:
        check_replay(journal)
        return {job.key_bytes: job.payload for job in journal.jobs()}


def value(n: int) -> bytes:
    """Large enough that a few of them fill a segment: every operation is crashed at."""
    return b"%02d" % n * 300


def work(files: MemoryFiles, done: list[int]) -> None:
    """Fill, merge, clean and image; `done` collects the puts that were acknowledged."""
    journal = opened(files)
    for n in range(PUTS):
        journal.put(value(n), queue="q", key=str(n % 7))
        done.append(n)
        settle()
        if n in (14, 30):
            assert journal.clean()
        if n == 18:
            journal.snapshot()
            settle()
    journal.close()


def expected(upto: int) -> dict[bytes, bytes]:
    return {str(n % 7).encode(): value(n) for n in range(upto)}


def disks(files: MemoryFiles, seed: int) -> Iterator[MemoryFiles]:
    yield files.killed()
    yield from files.images(samples=SAMPLES, seed=seed)


def sweep(
    base: MemoryFiles | None, act: Callable[[MemoryFiles], object]
) -> Iterator[tuple[int, MemoryFiles]]:
    """Crash before each operation of an act; yields the number and what a crash may leave."""
    whole = MemoryFiles() if base is None else base.killed()
    act(whole)
    last = len(whole.operations)
    assert last > 5
    for number in range(1, last + 1):
        files = MemoryFiles() if base is None else base.killed()
        files.crash_at = number
        with contextlib.suppress(Crash, JournalError):
            act(files)
        for disk in disks(files, number):
            yield number, disk


def test_a_crash_in_rotation_cleaning_or_snapshot_leaves_nothing_to_repair() -> None:
    done: list[int] = []

    def act(files: MemoryFiles) -> None:
        files.make_directory(HOME)
        done.clear()
        work(files, done)

    named = 0
    for number, disk in sweep(None, act):
        promised = len(done)
        assert not [fault for fault in faults(disk) if not fault.torn], number
        found = rows(disk)
        assert found in (expected(promised), expected(promised + 1)), number
        assert faults(disk) == [], number
        manifest = read(disk, HOME)
        assert manifest is not None
        assert manifest.pending is None, "opening settles what was under way"
        named += len(manifest.sealed)
    assert named > 100


def an_old_directory() -> MemoryFiles:
    """As 0.1.0 left it: no manifest, some segments cleaned away, a snapshot."""
    files = MemoryFiles()
    files.make_directory(HOME)
    work(files, [])
    files.remove(HOME / MANIFEST)
    return files.killed()


def test_a_crash_while_an_old_directory_is_taken_in_changes_nothing() -> None:
    old = an_old_directory()
    for number, disk in sweep(old, rows):
        assert not [fault for fault in faults(disk) if not fault.torn], number
        assert rows(disk) == expected(PUTS), number
        assert faults(disk) == [], number
        manifest = read(disk, HOME)
        assert manifest is not None
        assert set(manifest.sealed) <= set(stream_on(disk).segments())
        assert manifest.floor > 1


def damaged() -> MemoryFiles:
    """One flipped byte in the middle of a sealed segment, one in the snapshot."""
    files = MemoryFiles()
    files.make_directory(HOME)
    with opened(files) as journal:
        for n in range(60):
            journal.put(b"%d" % n * 60, queue="q", key=str(n))
            if n == 18:
                journal.snapshot()
    manifest = read(files, HOME)
    assert manifest is not None
    sealed = next(one for one in manifest.sealed.values() if one.size > 2000)
    for path in (
        HOME / f"{sealed.number:09d}.log",
        next(path for path in files.snapshot() if path.suffix == ".snapshot"),
    ):
        data = bytearray(files.content(path))
        data[len(data) // 2] ^= 1
        files.put(path, bytes(data))
    return files.killed()


def test_a_salvage_that_is_cut_short_is_finished_by_the_next_one() -> None:
    base = damaged()
    assert len(faults(base)) == 2
    whole = base.killed()
    dropped = salvage(stream_on(whole))
    assert len(dropped) == 2
    left = rows(whole)
    for number, disk in sweep(base, lambda files: salvage(stream_on(files))):
        salvage(stream_on(disk))
        assert faults(disk) == [], number
        assert rows(disk) == left, number
        assert salvage(stream_on(disk)) == [], number


@pytest.mark.parametrize("manifest", [True, False], ids=["manifest", "none"])
def test_a_cut_that_is_cut_short_is_finished_by_the_next_one_and_uses_no_number_twice(
    manifest: bool,
) -> None:
    base = MemoryFiles()
    base.make_directory(HOME)
    with opened(base) as journal:
        for n in range(60):
            journal.put(b"%d" % n * 60, queue="q", key=str(n % 7))
    if not manifest:
        base.remove(HOME / MANIFEST)
    numbers = stream_on(base).segments()
    place = Position(numbers[1], 8)
    whole = base.killed()
    cut(stream_on(whole), place)
    left = rows(whole)
    for number, disk in sweep(base, lambda files: cut(stream_on(files), place)):
        cut(stream_on(disk), place)
        assert faults(disk) == [], number
        assert rows(disk) == left, number
        assert faults(disk) == [], number
        assert stream_on(disk).segments()[-1] > numbers[-1], number
