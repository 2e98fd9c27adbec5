"""A fault, a power loss or kill -9 at every file operation of a commit log: the promises hold.

The sweeps are loops over the number of the operation that fails, or before which the machine stops.
One scenario goes through every door: a caller's own write, batches, queued groups, direct appends,
rotation by request and by size, closing. Under `interval` its ticker ticks in between; `os` is the
same without these ticks.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fastjournal.errors import (
    AppenderPoisoned,
    JournalError,
    NoSpace,
    OutcomeUnknown,
    Stopped,
    WriteFailed,
)
from fastjournal.log import Stream
from fastjournal.log.write.commit_log import CommitLog
from fastjournal.testing import Crash, Fault, ManualClock, ManualTicker, MemoryFiles
from lives import no_standby, settle

HERE = Path("/log")
SEGMENT = 4096
LIMIT = 20.0  # seconds until a test that waits for another thread gives up
POLICIES = ("interval", "always")


class Run:
    """The scenario on one set of files, and everything it was told."""

    def __init__(self, files: MemoryFiles, sync: str, on_failure: str = "stop") -> None:
        self.files = files
        self.sync = sync
        self.begun: list[bytes] = []
        """Payloads given to the log, in order."""
        self.acknowledged: dict[bytes, int] = {}
        """Payload -> number of file operations when it was acknowledged."""
        self.undone: set[bytes] = set()
        """Refused for sure: nothing of them may be in the log."""
        self.unknown: set[bytes] = set()
        """Told that the log stopped: may be there or not."""
        self.rotated: list[Path] = []
        self.rotation_errors: list[JournalError] = []
        self.exits: list[int] = []
        self.closed: JournalError | None = None
        self.log: CommitLog | None = None
        self.on_failure = on_failure
        self.ticker = ManualTicker()

    def play(self) -> None:
        self.files.make_directory(HERE)
        try:
            self.log = CommitLog(
                Stream(HERE, files=self.files, clock=ManualClock()),
                sync=self.sync,
                segment_size=SEGMENT,
                on_failure=self.on_failure,
                lock_timeout=0,
                ticker=self.ticker,
                die=self.exits.append,
            )
        except (JournalError, Crash):
            return
        self.write(b"one")
        self.write(b"two", b"three")
        self.tick()
        self.submit(b"four", b"five", b"six")
        self.rotate()
        self.write(b"seven")
        self.append(b"eight", b"nine")
        self.tick()
        self.submit(b"ten" * SEGMENT)
        self.write(b"eleven")  # rolls by size
        settle()
        self.append(b"twelve" * SEGMENT)
        self.append(b"thirteen")  # and so does this
        settle()
        self.submit(b"fourteen", b"fifteen")
        self.rotate()
        self.rotate()
        self.write(b"sixteen")
        self.close()

    def write(self, *payloads: bytes) -> None:
        assert self.log is not None
        self.begun += payloads
        try:
            self.log.write_batch(payloads)
        except BaseException as error:
            self.refuse(payloads, error)
        else:
            self.acknowledge(*payloads)

    def tick(self) -> None:
        with contextlib.suppress(Crash):
            self.ticker.fire()

    def append(self, *payloads: bytes) -> None:
        assert self.log is not None
        self.begun += payloads
        try:
            self.log.wait_synced(self.log.append(payloads))
        except BaseException as error:
            self.refuse(payloads, error)
        else:
            self.acknowledge(*payloads)

    def submit(self, *payloads: bytes) -> None:
        """Queue one by one, then wait until each was told its outcome."""
        assert self.log is not None
        self.begun += payloads
        told = threading.Semaphore(0)
        count = 0
        for payload in payloads:

            def done(time: int, error: JournalError | None, payload: bytes = payload) -> None:
                if error is None:
                    self.acknowledge(payload)
                else:
                    self.refuse([payload], error)
                told.release()

            try:
                self.log.submit([payload], done)
                count += 1
            except JournalError as error:
                self.refuse([payload], error)
        for _ in range(count):
            assert told.acquire(timeout=LIMIT)

    def rotate(self) -> None:
        assert self.log is not None
        before = self.log.active_logs()[0]
        try:
            fresh = self.log.rotate()
        except Crash:
            return
        except JournalError as error:
            self.rotation_errors.append(error)
            assert self.log.active_logs()[0] in (before, before.with_name(next_name(before)))
        else:
            self.rotated.append(fresh)
            assert fresh == self.log.active_logs()[0] != before
        assert len(set(self.log.active_logs())) == 2
        settle()

    def close(self) -> None:
        assert self.log is not None
        try:
            self.log.close()
        except JournalError as error:
            self.closed = error
        except Crash:
            self.closed = Stopped("crashed")

    def acknowledge(self, *payloads: bytes) -> None:
        for payload in payloads:
            assert payload not in self.acknowledged
            self.acknowledged[payload] = len(self.files.operations)

    def refuse(self, payloads: tuple[bytes, ...] | list[bytes], error: BaseException) -> None:
        assert isinstance(error, (JournalError, Crash)), error
        if isinstance(error, (NoSpace, WriteFailed)) or type(error) is Stopped:
            self.undone |= set(payloads)
        else:
            self.unknown |= set(payloads)

    def check(self, disk: MemoryFiles, *, power_loss: bool) -> None:
        """Recover a disk: a prefix, with everything promised, and the log can be written again."""
        stream = Stream(HERE, files=disk, clock=ManualClock())
        again = CommitLog(stream, sync="always", segment_size=SEGMENT)
        found = [record.payload for record in stream.open_cursor()]
        possible = [payload for payload in self.begun if payload not in self.undone]
        assert found == possible[: len(found)]
        if not power_loss or self.sync == "always":
            assert set(self.acknowledged) <= set(found)
        if self.log is not None and self.closed is None and self.log.status().closed:
            assert set(self.acknowledged) <= set(found)
        again.write(b"after")
        again.rotate()
        again.write(b"all")
        again.close()
        records = list(stream.open_cursor())
        assert [record.payload for record in records] == [*found, b"after", b"all"]
        times = [record.time for record in records]
        assert sorted(set(times)) == times

    def check_told(self) -> None:
        """Everybody was told one thing."""
        told = [set(self.acknowledged), self.undone, self.unknown]
        assert sum(map(len, told)) == len(set().union(*told)) == len(self.begun)


def next_name(path: Path) -> str:
    return f"{int(path.stem) + 1:09d}.log"


def clean_run(sync: str, failing: Callable[[str], Fault | None] | None = None) -> list[str]:
    files = MemoryFiles(failing=failing)
    run = Run(files, sync)
    run.play()
    assert run.closed is None and len(run.acknowledged) == len(run.begun) == 16
    assert [path.name for path in run.rotated] == [f"{n:09d}.log" for n in (2, 5, 6)]
    run.check(files.killed(), power_loss=False)
    reserved = [what for what in files.operations if what.startswith("reserve ")]
    assert bool(reserved) == (sync == "always"), "the sweeps go over reserved room too"
    return list(files.operations)


def faults_of(kind: str) -> Iterator[Fault]:
    if kind == "write":
        yield from (Fault(short=0), Fault(short=7))
    if kind == "sync":
        yield from (Fault(synced="drop"), Fault(synced="half"))
    yield from (Fault(), Fault(errno.ENOSPC))


@pytest.mark.parametrize(
    ("sync", "on_failure"),
    [("interval", "stop"), ("always", "stop"), ("always", "die")],
)
def test_a_fault_at_any_operation_breaks_no_promise(sync: str, on_failure: str) -> None:
    """F01 to F08, T-IO, T-FSYNC, T-ROT."""
    runs = 0
    for number, operation in enumerate(clean_run(sync), 1):
        for fault in faults_of(operation.partition(" ")[0]):
            files = MemoryFiles(faults={number: fault})
            run = Run(files, sync, on_failure)
            run.play()
            settle()
            happened = number <= len(files.operations)  # its threads may have needed fewer
            runs += happened
            if run.log is not None:
                run.check_told()
                if happened:
                    check_failure(run, number)
            run.check(files.killed(), power_loss=False)
            if on_failure == "stop":
                for image in files.images(samples=3, seed=number):
                    run.check(image, power_loss=True)
    assert runs >= 240


def check_failure(run: Run, number: int) -> None:
    """What a failed operation must and must not lead to."""
    assert run.log is not None
    failed = run.files.operations[number - 1]
    kind, _, name = failed.partition(" ")
    failure = run.log.failure
    assert run.exits == ([4] if failure is not None and run.on_failure == "die" else [])
    assert (run.closed is not None) == (failure is not None)
    if kind == "sync" and name.endswith(".log"):
        assert failure is not None and isinstance(failure.__cause__, AppenderPoisoned)
        assert all(when < number for when in run.acknowledged.values())
        assert failed not in run.files.operations[number:]
    if failure is None:
        assert not run.unknown
    elif run.unknown:
        # Whatever came after the first unknown outcome was not acknowledged.
        first = min(map(run.begun.index, run.unknown))
        assert not set(run.begun[first:]) & set(run.acknowledged)
    # A rotation ended in a new segment or told its caller.
    assert len(run.rotated) + len(run.rotation_errors) == 3


@pytest.mark.parametrize("standby", [True, False])
@pytest.mark.parametrize("sync", POLICIES)
def test_a_stop_of_the_machine_at_any_operation_breaks_no_promise(sync: str, standby: bool) -> None:
    """F11, F12, F14, T-ALICE; a crash inside the writer thread acknowledges nothing.

    Without a standby, which could never be made ahead, the newest segment may be empty and active.
    """
    failing = None if standby else no_standby
    operations = clean_run(sync, failing)
    for number in range(1, len(operations) + 1):
        files = MemoryFiles(crash_at=number, failing=failing)
        run = Run(files, sync)
        run.play()
        settle()
        kind, _, name = files.operations[number - 1].partition(" ")
        if kind in ("write", "sync") and name.endswith(".log"):
            assert all(when < number for when in run.acknowledged.values())
        run.check(files.killed(), power_loss=False)
        for image in files.images(samples=10, seed=number):
            run.check(image, power_loss=True)


@pytest.mark.parametrize("sync", POLICIES)
def test_a_crash_while_opening_again_changes_nothing(sync: str) -> None:
    """F17: a log left by kill -9 in the middle, opened again and stopped at each operation."""
    files = MemoryFiles()
    run = Run(files, sync)
    run.close = lambda: None  # type: ignore[method-assign]
    run.play()
    settle()
    left = files.killed()
    begin = len(left.operations)
    for number in range(begin + 1, begin + 40):
        disk = left.killed()
        disk.crash_at = number
        with contextlib.suppress(Crash, Stopped):
            run.check(disk, power_loss=False)
        settle()
        recovered = disk.killed()
        extra = [b"after", b"all"]
        found = [r.payload for r in Stream(HERE, files=recovered).open_cursor()]
        assert found[:16] == run.begun and found[16:] == extra[: len(found) - 16]


def test_a_fault_in_the_middle_of_a_group_reaches_each_of_its_waiters() -> None:
    """Fifty writes wait behind a slow sync; it fails; none of them is acknowledged."""
    files = MemoryFiles()
    files.make_directory(HERE)
    log = CommitLog(Stream(HERE, files=files, clock=ManualClock()), sync="always")
    reached, opened = threading.Event(), threading.Event()

    def slow(path: Path) -> None:
        reached.set()
        assert opened.wait(LIMIT)
        files.faults[len(files.operations) + 1] = Fault(synced="drop")

    told: list[JournalError | None] = []
    everybody = threading.Semaphore(0)

    def done(time: int, error: JournalError | None) -> None:
        told.append(error)
        everybody.release()

    files.on_sync = slow
    log.submit([b"first"], done)
    assert reached.wait(LIMIT)
    for _ in range(50):
        log.submit([b"x"], done)
    opened.set()
    for _ in range(51):
        assert everybody.acquire(timeout=LIMIT)
    assert [type(error) for error in told].count(OutcomeUnknown) == 1, "the one that was written"
    assert {type(error) for error in told} == {OutcomeUnknown, Stopped}
    syncs = files.operations.count("sync 000000001.log")
    with pytest.raises(Stopped):
        log.close()
    assert files.operations.count("sync 000000001.log") == syncs == 1


def test_a_group_whose_sync_fails_is_acknowledged_to_none_of_its_writers() -> None:
    """F10: fifty writes go to the disk together behind a slow sync; theirs fails."""
    files = MemoryFiles()
    files.make_directory(HERE)
    log = CommitLog(Stream(HERE, files=files, clock=ManualClock()), sync="always")
    reached, opened = threading.Event(), threading.Event()
    syncs: list[Path] = []

    def slow(path: Path) -> None:
        syncs.append(path)
        if len(syncs) == 1:
            reached.set()
            assert opened.wait(LIMIT)
        else:
            files.faults[len(files.operations) + 1] = Fault(synced="drop")

    told: list[JournalError | None] = []
    everybody = threading.Semaphore(0)

    def done(time: int, error: JournalError | None) -> None:
        told.append(error)
        everybody.release()

    files.on_sync = slow
    log.submit([b"first"], done)
    assert reached.wait(LIMIT)
    for _ in range(50):
        log.submit([b"x"], done)
    opened.set()
    for _ in range(51):
        assert everybody.acquire(timeout=LIMIT)
    assert told[0] is None
    assert [type(error) for error in told[1:]] == [OutcomeUnknown] * 50
    assert len(syncs) == 2, "one for all of them"
    with pytest.raises(Stopped):
        log.close()
