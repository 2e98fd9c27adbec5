"""The threads of a journal: they end when told, and never die in silence."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.errors import LockTimeout, NotFound, Stopped
from fastjournal.journal.language.commands import Put, Sender
from fastjournal.log.stream import Stream
from fastjournal.testing import Fault, ManualClock, MemoryFiles, wait_until

HOME = Path("/jobs")
LIMIT = 20.0


def opened(files: MemoryFiles, clock: ManualClock | None = None, **options: Any) -> Journal:
    if not files.exists(HOME.parent):
        files.make_directory(HOME.parent)
    return Journal(HOME, files=files, clock=clock or ManualClock(), **options)


class Late(threading.Event):
    """An event whose clearing is late: whatever was set just before is cleared with it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.late = False

    def clear(self) -> None:
        if self.late:
            self.reached.set()
            assert self.go_on.wait(LIMIT)
        super().clear()


def test_a_journal_closes_though_its_timer_was_about_to_sleep() -> None:
    """`close` comes between the timer's look at whether to end and its clearing of the event."""
    j = opened(MemoryFiles())
    old, late = j.engine.timer, Late()
    late.late = True
    j.engine.timer = late
    old.set()
    assert late.reached.wait(LIMIT)
    closing = threading.Thread(target=j.close)
    closing.start()
    wait_until(late.is_set, what="close has told the timer")
    late.late = False
    late.go_on.set()
    closing.join(LIMIT)
    assert not closing.is_alive()


def test_a_timer_that_meets_a_fault_of_ours_stops_the_journal_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    j = opened(MemoryFiles(), clock, background=False)
    j.put(b"x", queue="q")
    j.lease("q", lease=1)

    def broken(now: int) -> int:
        raise RuntimeError("a fault of ours")

    j.engine.read_until = broken
    clock.advance(5)
    j.background.start()
    wait_until(lambda: j.status().log.failure != "", what="the journal stops")
    j.engine.read_until = None
    assert "a fault of ours" in j.status().log.failure
    assert "a fault of ours" in caplog.text
    assert "Traceback" in caplog.text
    with pytest.raises(Stopped):
        j.put(b"y", queue="q")
    with pytest.raises(Stopped):
        j.close()


def test_upkeep_that_meets_a_fault_of_ours_says_so_and_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = MemoryFiles()
    j = opened(files, background=False, segment_size=4096, sync="os")
    for number in range(100):
        j.put(b"x" * 100, queue="q", key=str(number % 5))

    def broken(operation: str) -> Fault | None:
        if operation.startswith("create") and threading.current_thread() is threading.main_thread():
            raise RuntimeError("a fault of ours")
        return None

    j.rotate()
    j.put(b"y", queue="q")
    files.failing = broken
    j.background.cycle()
    files.failing = None
    assert "a fault of ours" in j.background.last_error
    assert "Traceback" in caplog.text
    j.background.cycle()
    assert j.background.last_error == ""
    j.close()


def test_an_opening_that_fails_late_leaves_no_lock_and_no_thread() -> None:
    """The marks of senders are told at the very end of opening: a disk that fails there."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock, background=False)
    sender = bytes(6) + b"\x80" + bytes(5)
    with j.engine.lock:
        j.engine.commit(Sender(sender, 1))
        at = clock.now()
        job_id = sender + (2).to_bytes(4, "big")
        j.engine.commit(Put(job_id, b"q", b"", 100, at, at, at, 0, 1, b"x"))
    assert j.engine.state.unwritten_marks
    files = files.killed()
    j.close()
    before = set(threading.enumerate())
    number = 0
    faults = 0
    while True:
        number += 1
        disk = files.killed()
        disk.faults = {number: Fault()}
        try:
            opened(disk, clock).close()
        except Exception:
            faults += 1
        else:
            if number > len(disk.operations):
                break
        lock = Stream(HOME, files=disk).lock_appender(timeout=0)
        lock.release()
    assert faults > 3
    wait_until(lambda: set(threading.enumerate()) <= before, what="no thread is left")


def test_what_is_shown_under_always_is_safe() -> None:
    """A reader waits for the sync under way: what it saw is there after a power loss."""
    files, clock = MemoryFiles(), ManualClock()
    j = opened(files, clock, sync="always", background=False)
    receipt = j.put(b"x", queue="q")
    held = j.lease("q")
    assert held is not None
    reached, go_on = threading.Event(), threading.Event()

    def slow(path: Path) -> None:
        if path.suffix == ".log":
            reached.set()
            assert go_on.wait(LIMIT)

    files.on_sync = slow
    done = threading.Thread(target=held.done, args=(b"result",))
    done.start()
    assert reached.wait(LIMIT)
    seen: list[Any] = []
    readers = [
        threading.Thread(target=lambda ask=ask: seen.append(ask()))  # type: ignore[misc]
        for ask in (
            lambda: j.result(receipt.id),
            lambda: j.job(receipt.id).state,
            lambda: j.jobs(),
            lambda: "k" in j.entries,
        )
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(0.05)
        assert reader.is_alive()
    assert not seen
    go_on.set()
    for reader in (*readers, done):
        reader.join(LIMIT)
        assert not reader.is_alive()
    assert (True, b"result") in seen
    files.on_sync = None
    j.close()


def test_after_a_stop_reading_waits_for_nothing() -> None:
    files = MemoryFiles()
    j = opened(files, sync="always", background=False)
    receipt = j.put(b"x", queue="q")
    files.failing = lambda operation: Fault() if operation.startswith("sync ") else None
    with pytest.raises(Stopped):
        j.put(b"y", queue="q")
    assert j.job(receipt.id).value == b"x"
    with pytest.raises(NotFound):
        j.job(bytes(16))
    files.failing = None
    with pytest.raises(Stopped):
        j.close()


def test_the_name_of_an_archive_elsewhere_is_durable() -> None:
    files = MemoryFiles()
    files.make_directory(Path("/far"))
    j = opened(files, archive="/far/archive", background=False)
    j.put(b"x", queue="q")
    j.sync()
    j.ship()
    assert "sync_directory far" in files.operations
    j.close()


def test_a_second_opening_is_refused_while_the_first_is_there() -> None:
    files = MemoryFiles()
    with opened(files), pytest.raises(LockTimeout):
        opened(files)
