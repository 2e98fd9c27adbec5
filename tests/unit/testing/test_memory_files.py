"""The test kit itself: what is synced stays, what is not may go in every legal way, no other."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from fastjournal.errors import LockTimeout
from fastjournal.testing import Crash, Fault, ManualClock, ManualTicker, MemoryFiles

HERE = Path("/disk")
FILE = HERE / "file"


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory(HERE)
    return files


def left(files: MemoryFiles, path: Path = FILE) -> set[bytes | None]:
    """What may stand in a file after a power loss; None if it may be gone."""
    return {
        image.content(path) if image.exists(path) else None for image in files.images(samples=5000)
    }


def test_what_was_synced_is_always_there(files: MemoryFiles) -> None:
    handle = files.create(FILE)
    handle.write(b"synced")
    handle.sync()
    assert left(files) == {None, b"synced"}, "the name is not durable yet"
    files.sync_directory(HERE)
    assert left(files) == {b"synced"}
    handle.write(b"+")
    assert b"synced" in left(files)
    handle.sync()
    assert left(files) == {b"synced+"}


def test_an_unsynced_write_may_be_absent_whole_torn_zeros_or_garbage(files: MemoryFiles) -> None:
    files.put(FILE, b"old")
    files.open(FILE).write(b"ABCD")
    found = left(files)
    assert {b"old", b"oldABCD", b"oldAB", b"old\0\0CD", b"old\0\0\0\0"} < found
    assert len(found) == 6
    assert all(content is not None and content[:3] == b"old" for content in found)


def test_a_large_write_may_be_cut_at_each_sector(files: MemoryFiles) -> None:
    files.put(FILE, b"")
    files.open(FILE).write(b"x" * 1500)
    assert {b"x" * 512, b"x" * 1024} < left(files)


def test_unsynced_writes_are_lost_in_any_order(files: MemoryFiles) -> None:
    files.put(FILE, b"")
    handle = files.open(FILE)
    handle.write(b"ab")
    handle.write(b"cd")
    found = left(files)
    assert {b"", b"ab", b"abcd", b"\0\0cd"} < found


def test_a_cut_may_be_lost_too(files: MemoryFiles) -> None:
    files.put(FILE, b"abcdef")
    handle = files.open(FILE)
    handle.truncate(2)
    assert files.content(FILE) == b"ab"
    assert left(files) == {b"ab", b"abcdef"}
    handle.truncate(4)
    assert files.content(FILE) == b"ab\0\0"
    handle.sync()
    assert left(files) == {b"ab\0\0"}


def test_a_rename_happens_in_one_step_or_not_at_all(files: MemoryFiles) -> None:
    files.put(FILE, b"old")
    other = HERE / "other"
    files.put(other, b"new")
    files.rename(other, FILE)
    assert files.content(FILE) == b"new"
    states = {(image.content(FILE), image.exists(other)) for image in files.images()}
    assert states == {(b"old", True), (b"new", False)}
    files.sync_directory(HERE)
    assert left(files) == {b"new"}


def test_a_removal_may_be_undone_until_the_directory_is_synced(files: MemoryFiles) -> None:
    files.put(FILE, b"old")
    files.remove(FILE)
    assert left(files) == {b"old", None}
    files.sync_directory(HERE)
    assert left(files) == {None}
    with pytest.raises(FileNotFoundError):
        files.remove(FILE)


def test_kill_leaves_everything_that_was_written(files: MemoryFiles) -> None:
    handle = files.create(FILE)
    handle.write(b"written")
    files.lock(HERE / "lock", exclusive=True, timeout=0)
    after = files.killed()
    assert after.content(FILE) == b"written"
    assert after.boot_id() == files.boot_id()
    after.lock(HERE / "lock", exclusive=True, timeout=0).release()
    image = next(files.images())
    assert image.boot_id() != files.boot_id()


def test_the_machine_stops_before_the_given_operation() -> None:
    files = MemoryFiles(crash_at=3)
    files.make_directory(HERE)
    handle = files.create(FILE)
    handle.write(b"one")
    for call in (
        lambda: handle.write(b"two"),
        handle.sync,
        handle.size,
        lambda: handle.read(0, 1),
        lambda: files.names(HERE),
        lambda: files.create(HERE / "more"),
        lambda: files.lock(HERE / "lock", exclusive=True, timeout=0),
    ):
        with pytest.raises(Crash):
            call()
    assert files.operations == ["create file", "write file", "write file"]
    assert files.killed().content(FILE) == b"one"
    assert not issubclass(Crash, Exception)


def test_many_pending_changes_are_sampled_the_same_way_each_time(files: MemoryFiles) -> None:
    files.put(FILE, b"")
    handle = files.open(FILE)
    for number in range(12):
        handle.write(b"%d" % number * 3)
    once = [image.content(FILE) for image in files.images(samples=30, seed=4)]
    again = [image.content(FILE) for image in files.images(samples=30, seed=4)]
    assert once == again
    assert len(once) == 30
    assert once[0] == b""
    assert once[1] == files.content(FILE)


@pytest.mark.parametrize(
    ("kept", "durable", "later"),
    [("keep", b"", b"abcd"), ("drop", b"", b""), ("half", b"ab", b"ab")],
)
def test_a_failed_sync_keeps_or_drops_what_was_pending(
    kept: str, durable: bytes, later: bytes
) -> None:
    """F04: after dropping, the next sync says yes to nothing, as Linux does."""
    files = MemoryFiles(faults={3: Fault(synced=kept)})
    files.put(FILE, b"")
    handle = files.open(FILE)
    handle.write(b"ab")
    handle.write(b"cd")
    with pytest.raises(OSError, match="Input/output error"):
        handle.sync()
    assert files.content(FILE) == b"abcd", "a reader still sees it"
    assert durable in left(files)
    handle.sync()
    assert left(files) == {later}
    assert files.syncs == 2


def test_faults_strike_the_operation_they_are_planned_for() -> None:
    files = MemoryFiles(
        faults={1: Fault(errno.EMFILE), 3: Fault(short=2), 4: Fault(errno.ENOSPC), 5: Fault()}
    )
    files.make_directory(HERE)
    with pytest.raises(OSError, match="Too many open files"):
        files.create(FILE)
    handle = files.create(FILE)
    assert handle.write(b"abc") == 2
    with pytest.raises(OSError, match="No space"):
        handle.write(b"abc")
    with pytest.raises(OSError, match="Input/output"):
        handle.truncate(0)
    assert files.content(FILE) == b"ab"


def test_a_small_disk_is_full_at_its_capacity(files: MemoryFiles) -> None:
    files.capacity = 5
    handle = files.create(FILE)
    assert handle.write(b"1234") == 4
    assert handle.write(b"56") == 1, "what fits"
    with pytest.raises(OSError, match="No space"):
        handle.write(b"6")
    assert files.content(FILE) == b"12345"
    assert files.open_in_place(FILE).write_at(b"abc", 2) == 3, "no byte more is needed"
    with pytest.raises(OSError, match="No space"):
        files.open_in_place(FILE).write_at(b"x", 5)


def test_a_fault_may_be_chosen_by_its_operation(files: MemoryFiles) -> None:
    files.failing = lambda operation: Fault() if operation == f"sync {FILE.name}" else None
    handle = files.create(FILE)
    handle.write(b"x")
    with pytest.raises(OSError, match="Input/output"):
        handle.sync()


def test_a_closed_file_cannot_be_used(files: MemoryFiles) -> None:
    handle = files.create(FILE)
    handle.write(b"x")
    handle.close()
    handle.close()
    for call in (lambda: handle.write(b"y"), handle.sync, handle.size, lambda: handle.truncate(0)):
        with pytest.raises(OSError, match="Bad file descriptor"):
            call()


def test_names_and_kinds(files: MemoryFiles) -> None:
    files.make_directory(HERE / "inner")
    files.put(FILE, b"x")
    assert sorted(files.names(HERE)) == ["file", "inner"]
    assert files.is_file(FILE)
    assert not files.is_file(HERE / "inner")
    assert files.exists(HERE / "inner")
    assert files.snapshot() == {FILE: b"x"}
    with pytest.raises(FileNotFoundError):
        files.names(Path("/nowhere"))
    with pytest.raises(FileNotFoundError):
        files.create(Path("/nowhere/file"))
    with pytest.raises(FileExistsError):
        files.create(FILE)
    with pytest.raises(FileNotFoundError):
        files.open_read(HERE / "none")


def test_locks_exclude_inside_one_process(files: MemoryFiles) -> None:
    path = HERE / "lock"
    held = files.lock(path, exclusive=True, timeout=None)
    for exclusive in (True, False):
        with pytest.raises(LockTimeout):
            files.lock(path, exclusive=exclusive, timeout=0)
    taken = threading.Event()

    def wait() -> None:
        files.lock(path, exclusive=False, timeout=None)
        taken.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert not taken.is_set()
    held.release()
    held.release()
    assert taken.wait(10)
    files.lock(path, exclusive=False, timeout=0)


def test_a_slow_disk_is_played_by_a_function(files: MemoryFiles) -> None:
    synced: list[Path] = []
    files.on_sync = synced.append
    handle = files.create(FILE)
    handle.sync()
    assert synced == [FILE]


def test_the_clock_moves_only_when_told() -> None:
    clock = ManualClock(100)
    assert (clock.now(), clock.monotonic()) == (100, 0)
    clock.advance(1.5, ns=3)
    assert (clock.now(), clock.monotonic()) == (1_500_000_103, 1_500_000_003)
    clock.step(-1)
    assert (clock.now(), clock.monotonic()) == (500_000_103, 1_500_000_003)
    with pytest.raises(ValueError, match="forward"):
        clock.advance(-1)


def test_the_ticker_ticks_only_when_told() -> None:
    ticks: list[int] = []
    ticker = ManualTicker()
    ticker.fire()
    ticker.start(lambda: ticks.append(1), 250)
    assert ticker.interval_ms == 250
    ticker.fire()
    ticker.stop()
    ticker.fire()
    assert ticks == [1]
