"""Pins: a reader that takes long keeps the cleaner off, and a pin ends by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.errors import LockTimeout, Unavailable
from fastjournal.log.pins import LEASE, Pin
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.testing import ManualClock, MemoryFiles, check_replay

HOME = Path("/jobs")


@pytest.fixture
def files() -> MemoryFiles:
    memory = MemoryFiles()
    memory.make_directory(HOME.parent)
    return memory


def journal_of(files: MemoryFiles, clock: ManualClock) -> Journal:
    journal = Journal(HOME, files=files, clock=clock, background=False, segment_size=4096)
    journal.upkeep.lock_wait = 0
    for number in range(100):
        journal.put(b"x" * 100, queue="q", key=str(number % 5))
    return journal


def contents(files: MemoryFiles) -> dict[Path, bytes]:
    return {path: data for path, data in files.snapshot().items() if path.suffix == ".log"}


def test_a_pin_that_cannot_be_read_stands_for_a_lease_from_its_last_change(
    files: MemoryFiles, clock: ManualClock
) -> None:
    """WQ-CLN-5: it may have been moved on; by its name alone it would be over."""
    stream = Stream(HOME, WORKQ, files=files, clock=clock)
    stream.create()
    path = HOME / f"pin-{clock.now() + 1}-word"
    files.put(path, b"\xff" * 20)
    files.times[path] = clock.now()
    clock.advance(1)
    with pytest.raises(LockTimeout):
        stream.lock_readers(exclusive=True, timeout=0)
    clock.advance(LEASE / 1e9)
    stream.lock_readers(exclusive=True, timeout=0).release()
    assert not files.exists(path)


def test_opening_a_journal_leaves_the_snapshot_that_a_pinned_reader_began_with(
    files: MemoryFiles, clock: ManualClock
) -> None:
    """WQ-CLN-5, M3F-SNAP-1: it goes when the reader is done."""
    with journal_of(files, clock) as journal:
        journal.snapshot()
        with Pin(HOME, files=files, clock=clock):
            journal.put(b"more", queue="q")
            journal.snapshot()
            both = [name for name in files.names(HOME) if name.endswith(".snapshot")]
            journal.close()
            Journal(HOME, files=files, clock=clock, background=False).close()
            assert [name for name in files.names(HOME) if name.endswith(".snapshot")] == both
    assert len(both) == 2
    with Journal(HOME, files=files, clock=clock, background=False):
        assert len([name for name in files.names(HOME) if name.endswith(".snapshot")]) == 1


def test_a_pinned_log_grows_and_is_neither_cleaned_nor_dropped(
    files: MemoryFiles, clock: ManualClock
) -> None:
    """WQ-CLN-5: the cleaner does not wait for the reader either."""
    with journal_of(files, clock) as journal:
        with Pin(HOME, files=files, clock=clock):
            before = contents(files)
            journal.put(b"more", queue="q")
            journal.snapshot()
            assert journal.clean() == []
            assert journal.status().upkeep.skipped == 2
            now = contents(files)
            assert all(now[path].startswith(data) for path, data in before.items())
        journal.clean()
        assert len(contents(files)) < len(before)
        check_replay(journal)


def test_what_a_reader_has_left_that_died_ends_by_itself(
    files: MemoryFiles, clock: ManualClock
) -> None:
    with journal_of(files, clock) as journal:
        files.put(HOME / f"pin-{clock.now() + LEASE}-ab12", b"")
        files.put(HOME / "pin-board", b"of somebody else")
        assert journal.clean() == []
        clock.advance(LEASE / 1e9 - 1)
        assert journal.clean() == []
        clock.advance(1)
        assert journal.clean()
        left = [path.name for path in files.snapshot() if path.name.startswith("pin-")]
        assert left == ["pin-board"]


def test_a_pin_is_moved_on_by_its_reader(files: MemoryFiles, clock: ManualClock) -> None:
    with journal_of(files, clock) as journal, Pin(HOME, files=files, clock=clock) as pin:
        for _ in range(5):
            clock.advance(LEASE / 1e9 - 1)
            pin.renew()
            assert journal.clean() == []
        assert not pin.ended()


def test_a_reader_that_was_too_slow_says_so_and_nothing_else(
    files: MemoryFiles, clock: ManualClock
) -> None:
    with journal_of(files, clock) as journal:
        for error in (None, FileNotFoundError("000000001.log")):

            def read_slowly(error: Exception | None = error) -> None:
                with Pin(HOME, files=files, clock=clock) as pin:
                    clock.advance(LEASE / 1e9)
                    journal.clean()
                    pin.renew()
                    assert pin.ended(), "one that has ended does not come back"
                    if error is not None:
                        raise error

            with pytest.raises(Unavailable, match="read again") as caught:
                read_slowly()
            assert caught.value.__cause__ is error
        with pytest.raises(KeyError), Pin(HOME, files=files, clock=clock):
            raise KeyError("of the work itself")


def test_who_changes_the_log_waits_for_pins_as_long_as_it_is_told(
    files: MemoryFiles, clock: ManualClock
) -> None:
    with journal_of(files, clock):
        stream = Stream(HOME, WORKQ, files=files, clock=clock)
        with Pin(HOME, files=files, clock=clock):
            with pytest.raises(LockTimeout, match="is pinned by a reader until 2"):
                stream.lock_readers(exclusive=True, timeout=0)
            stream.lock_readers(exclusive=False, timeout=0).release()
        stream.lock_readers(exclusive=True, timeout=0).release()
