"""The commit log on files in memory: queue, groups, rotation, closing, failure, the direct door."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from fastjournal.errors import (
    BadRequest,
    Closed,
    JournalError,
    LockTimeout,
    NoSpace,
    OutcomeUnknown,
    QueueFull,
    RotationFailed,
    SettingError,
    Stopped,
    TooLarge,
)
from fastjournal.log import Stream
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.write.async_commit_log import AsyncCommitLog
from fastjournal.log.write.commit_log import EXIT_DIE, CommitLog
from fastjournal.log.write.commit_queue import CommitQueue, Queued, Waiter
from fastjournal.log.write.counters import Counters
from fastjournal.log.write.log_writer import never
from fastjournal.testing import Fault, ManualClock, ManualTicker, MemoryFiles
from fastjournal.testing.files import MemoryHandle

HERE = Path("/log")
LIMIT = 20.0  # seconds until a test that waits for another thread gives up
SEGMENT = 4096

Opener = Callable[..., CommitLog]


class Handle(MemoryHandle):
    """An open file whose writes are told."""

    def write(self, data: bytes | memoryview) -> int:
        self._tell()
        return super().write(data)

    def write_at(self, data: bytes, offset: int) -> int:
        self._tell()
        return super().write_at(data, offset)

    def _tell(self) -> None:
        assert isinstance(self.files, Disk)
        if self.files.on_write is not None:
            self.files.on_write(self.path)


class Disk(MemoryFiles):
    """Files in memory whose next operations of one kind can be told to fail."""

    handle_class = Handle

    def __init__(self) -> None:
        super().__init__(failing=self._planned)
        self.on_write: Callable[[Path], None] | None = None
        """Called before each write, outside the lock: may block."""
        self.threads: list[tuple[str, str]] = []
        """Every operation with the thread that did it."""
        self._plans: list[tuple[str, str, Fault]] = []
        self.make_directory(HERE)

    def fail_next(self, kind: str, fault: Fault, *, count: int = 1, name: str = "") -> None:
        """Let the next operations of one kind, on files whose name begins so, fail."""
        self._plans += [(kind, name, fault)] * count

    def _planned(self, operation: str) -> Fault | None:
        kind, name = operation.split(" ", 1)
        self.threads.append((kind, threading.current_thread().name))
        for plan in self._plans:
            if plan[0] == kind and name.startswith(plan[1]):
                self._plans.remove(plan)
                return plan[2]
        return None


@pytest.fixture
def files() -> Disk:
    return Disk()


@pytest.fixture
def opened(files: Disk) -> Iterator[Opener]:
    """Opens logs, and closes them at the end whatever happened to them."""
    logs: list[CommitLog] = []

    def start(**options: Any) -> CommitLog:
        clock = options.pop("clock", None) or ManualClock()
        log = CommitLog(Stream(HERE, files=files, clock=clock), **{"lock_timeout": 0, **options})
        logs.append(log)
        return log

    yield start
    for log in logs:
        try:
            log.close()
        except JournalError:
            continue


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


class Gate:
    """Holds the next sync of a file whose name ends so until it is opened."""

    def __init__(self, files: MemoryFiles, ending: str = ".log") -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        self._ending = ending
        files.on_sync = self

    def __call__(self, path: Path) -> None:
        if path.name.endswith(self._ending):
            self.reached.set()
            assert self._open.wait(LIMIT)

    def wait(self) -> None:
        assert self.reached.wait(LIMIT)

    def open(self) -> None:
        self._open.set()


class Outcomes:
    """Completion callbacks that remember what they were told, and when all were."""

    def __init__(self, expected: int) -> None:
        self.times: list[int] = []
        self.errors: list[JournalError] = []
        self._expected = expected
        self._all = threading.Event()

    def __call__(self, time: int, error: JournalError | None) -> None:
        if error is None:
            self.times.append(time)
        else:
            self.errors.append(error)
        if len(self.times) + len(self.errors) == self._expected:
            self._all.set()

    def wait(self) -> None:
        assert self._all.wait(LIMIT)


def stored(files: MemoryFiles) -> list[bytes]:
    return [record.payload for record in Stream(HERE, files=files).open_cursor()]


def times(files: MemoryFiles) -> list[int]:
    return [record.time for record in Stream(HERE, files=files).open_cursor()]


def settle() -> None:
    """Wait until no standby is being made."""
    for thread in threading.enumerate():
        if thread.name == "fastjournal-standby":
            thread.join(LIMIT)


def until(condition: Callable[[], object]) -> None:
    """Let other threads run until something they do is seen."""
    deadline = monotonic() + LIMIT
    while not condition():
        assert monotonic() < deadline
        sleep(0)


class HeldWrite:
    """Holds the next write to a segment, before it happens, until it is let go."""

    def __init__(self, files: Disk) -> None:
        self.reached = threading.Event()
        self.let_go = threading.Event()
        files.on_write = self

    def __call__(self, path: Path) -> None:
        if path.suffix == ".log" and not self.reached.is_set():
            self.reached.set()
            assert self.let_go.wait(LIMIT)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strategy", "later"),
        ("on_failure", "ignore"),
        ("queue_size", 0),
        ("sync", "never"),
        ("segment_size", 10),
        ("sync_interval", 0),
    ],
)
def test_a_setting_out_of_range_is_named_and_nothing_is_opened(
    files: Disk, opened: Opener, name: str, value: object
) -> None:
    with pytest.raises(SettingError) as caught:
        opened(**{name: value})
    assert caught.value.name == name
    assert not files.operations


def test_only_one_commit_log_writes_a_stream(opened: Opener) -> None:
    opened()
    with pytest.raises(LockTimeout):
        opened()


def test_an_open_that_failed_lets_the_next_one_in(files: Disk, opened: Opener) -> None:
    for number in range(1, 12):
        files.faults = {len(files.operations) + number: Fault()}
        try:
            opened().close()
        except JournalError:
            continue
    files.faults = {}
    assert opened().write(b"in") is not None


@pytest.mark.parametrize("sync", ["os", "interval", "always"])
def test_a_write_returns_the_time_of_its_record(files: Disk, opened: Opener, sync: str) -> None:
    """M3-API-1."""
    log = opened(sync=sync)
    told = [log.write(b"a"), log.write_batch([b"b", b"c"]), log.write(b"")]
    assert stored(files) == [b"a", b"b", b"c", b""]
    found = times(files)
    assert told == [found[0], found[2], found[3]]
    assert sorted(set(found)) == found


def test_a_batch_stands_together_in_one_segment(files: Disk, opened: Opener) -> None:
    """M3-Q-2."""
    log = opened(segment_size=SEGMENT, sync="os")
    log.write(bytes(SEGMENT - 100))
    batch = [b"%04d" % number * 100 for number in range(50)]
    log.write_batch(batch)
    records = list(Stream(HERE, files=files).open_cursor())
    assert [record.payload for record in records[1:]] == batch
    assert len({record.segment for record in records[1:]}) == 1


def test_an_empty_batch_writes_nothing(files: Disk, opened: Opener) -> None:
    log = opened()
    before = len(files.operations)
    assert log.write_batch([]) is None
    assert log.append([]) == log.written_time == 0
    assert len(files.operations) == before


@pytest.mark.parametrize("door", ["write", "submit", "append", "append_one"])
def test_what_is_not_bytes_is_refused_and_harms_nothing(
    files: Disk, opened: Opener, door: str
) -> None:
    log = opened()
    call = {
        "write": lambda payloads: log.write_batch(payloads),
        "submit": lambda payloads: log.submit(payloads, None),
        "append": lambda payloads: log.append(payloads),
        "append_one": lambda payloads: log.append_one(payloads[1]),
    }[door]
    for bad in ("text", None, 1.5):
        with pytest.raises(BadRequest):
            call([b"good", bad])
    log.write(b"next")
    assert stored(files) == [b"next"]
    assert log.failure is None and log.status().counters.errors == 0


def test_a_payload_above_the_limit_is_refused(files: Disk) -> None:
    with CommitLog(Stream(HERE, files=files, max_payload=10)) as log:
        with pytest.raises(TooLarge):
            log.write(bytes(11))
        log.write(bytes(10))
    assert stored(files) == [bytes(10)]


def test_a_queued_write_is_safe_from_later_changes_by_its_caller(
    files: Disk, opened: Opener
) -> None:
    log = opened(sync="always")
    gate, outcomes = Gate(files), Outcomes(2)
    log.submit([b"first"], outcomes)
    gate.wait()
    buffer = bytearray(b"as it was")
    payloads: list[Any] = [buffer, memoryview(buffer)]
    log.submit(payloads, outcomes)
    buffer[:] = b"different"
    payloads.append(b"more")
    gate.open()
    outcomes.wait()
    assert stored(files) == [b"first", b"as it was", b"as it was"]


def test_under_always_a_write_returns_only_after_its_sync(
    files: Disk, opened: Opener, pool: ThreadPoolExecutor
) -> None:
    log = opened(sync="always")
    gate = Gate(files)
    writing: Future[int | None] = pool.submit(log.write, b"a")
    gate.wait()
    assert not writing.done() and log.synced_time == 0 and log.written_time > 0
    gate.open()
    assert writing.result(LIMIT) == log.synced_time


@pytest.mark.parametrize("sync", ["os", "interval"])
def test_under_os_and_interval_a_write_waits_for_no_sync(
    files: Disk, opened: Opener, sync: str
) -> None:
    log = opened(sync=sync)
    before = files.syncs
    assert log.write(b"a") == log.written_time
    assert files.syncs == before and log.synced_time == 0
    log.close()
    assert log.synced_time == log.written_time


def test_behind_returns_when_queued_and_still_syncs_under_always(
    files: Disk, opened: Opener
) -> None:
    log = opened(sync="always", strategy="behind")
    gate = Gate(files)
    assert log.write(b"a") is None
    gate.wait()
    assert log.write_batch([b"b", b"c"]) is None
    assert log.queue_length() == 2
    gate.open()
    log.rotate()
    assert log.synced_time == log.written_time == times(files)[-1]
    assert stored(files) == [b"a", b"b", b"c"]


def test_all_that_waits_goes_with_one_write_and_one_sync(files: Disk, opened: Opener) -> None:
    """M3-Q-1, D-31."""
    log = opened(sync="always")
    gate, outcomes = Gate(files), Outcomes(21)
    log.submit([b"first"], outcomes)
    gate.wait()
    for number in range(20):
        log.submit([b"%d" % number], outcomes)
    assert log.queue_length() == 20
    begin = len(files.operations)
    gate.open()
    outcomes.wait()
    log.close()
    done = [what for what in files.operations[begin:] if what.endswith("000000001.log")]
    steps = ("sync", "write", "sync", "truncate", "sync", "close")
    assert done == [f"{what} 000000001.log" for what in steps]
    counters = log.status().counters
    assert (counters.group_size.count, counters.group_size.total) == (2, 21)
    assert (counters.writes, counters.queued, counters.syncs) == (21, 21, 3), "one to close"
    assert outcomes.times == times(files)


def test_a_full_queue_refuses_at_once_and_counts_it(files: Disk, opened: Opener) -> None:
    """M3-API-3, M3-Q-4: counted in writes, not in batches."""
    log = opened(sync="always", queue_size=5)
    gate, outcomes = Gate(files), Outcomes(4)
    log.submit([b"first"], outcomes)
    gate.wait()
    log.submit([b"a", b"b"], outcomes)
    log.submit([b"c", b"d"], outcomes)
    assert log.queue_length() == 4
    with pytest.raises(QueueFull):
        log.submit([b"x", b"y"], outcomes)
    with pytest.raises(QueueFull):
        log.write_batch([b"x", b"y"])
    log.submit([b"e"], outcomes)
    with pytest.raises(QueueFull):
        log.write(b"x")
    status = log.status()
    assert (status.queue_length, status.queue_capacity, status.counters.refused) == (5, 5, 5)
    gate.open()
    outcomes.wait()
    log.write(b"f")
    assert stored(files) == [b"first", b"a", b"b", b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize("strategy", ["wait", "behind"])
def test_a_batch_that_can_never_fit_the_queue_is_too_large(opened: Opener, strategy: str) -> None:
    log = opened(queue_size=5, strategy=strategy)
    with pytest.raises(TooLarge):
        log.write_batch([b""] * 6)
    log.write_batch([b""] * 5)


def test_with_slow_syncs_groups_grow_and_nobody_waits_for_more_than_two(
    files: Disk, opened: Opener
) -> None:
    """The callers come in while a sync is under way, each time twice as many."""
    log = opened(sync="always")
    waited: list[int] = []
    outcomes = Outcomes(1 + 2 + 4 + 8 + 16 + 32)
    rounds = iter([2, 4, 8, 16, 32])

    def submit() -> None:
        begin = files.syncs

        def done(time: int, error: JournalError | None) -> None:
            waited.append(files.syncs - begin)
            outcomes(time, error)

        log.submit([b"x"], done)

    def slow(path: Path) -> None:
        for _ in range(next(rounds, 0)):
            submit()

    files.on_sync = slow
    submit()
    outcomes.wait()
    assert max(waited) == 2 and min(waited) == 1
    sizes = log.status().counters.group_size
    assert (sizes.count, sizes.total) == (6, 63)


def test_a_lone_writer_needs_no_other_thread(files: Disk, opened: Opener) -> None:
    log = opened(sync="always")
    threads: set[str] = set()
    files.on_sync = lambda _: threads.add(threading.current_thread().name)
    log.write(b"a")
    log.wait_synced(log.append([b"b"]))
    assert threads == {threading.current_thread().name}
    assert stored(files) == [b"a", b"b"]


def test_rotation_goes_on_in_the_standby_and_keeps_every_record(
    files: Disk, opened: Opener
) -> None:
    """M3-ROT-2, M3-ROT-3, M3-API-2."""
    log = opened(sync="os", auto_rotate=False)
    assert [path.name for path in log.active_logs()] == ["000000001.log", "000000002.log"]
    for number in range(5):
        log.write(b"%d" % number)
        _, standby = log.active_logs()
        fresh = log.rotate()
        assert fresh == standby == log.active_logs()[0]
        assert len(set(log.active_logs())) == 2
        assert log.synced_time == log.written_time
    log.write(b"5")
    assert [(r.segment, r.payload) for r in Stream(HERE, files=files).open_cursor()] == [
        (number + 1, b"%d" % number) for number in range(6)
    ]
    assert log.status().counters.rotations == 5


def test_the_thread_that_swaps_creates_no_file(files: Disk, opened: Opener) -> None:
    """M3-ROT-4, M3-ROT-5."""
    log = opened(sync="always")
    files.threads.clear()
    for _ in range(3):
        log.write(b"x")
        log.rotate()
    settle()
    standby = {"create", "rename", "sync_directory", "close"}
    assert {name for kind, name in files.threads if kind in standby} == {"fastjournal-standby"}
    assert sum(kind == "create" for kind, _ in files.threads) == 3


def test_the_next_rotation_waits_until_the_standby_is_made(
    files: Disk, opened: Opener, pool: ThreadPoolExecutor
) -> None:
    """M3-ROT-6; meanwhile writing goes on and there are two active logs."""
    log = opened(sync="os")
    gate = Gate(files, ".new")
    log.rotate()
    gate.wait()
    log.write(b"meanwhile")
    assert [path.name for path in log.active_logs()] == ["000000002.log", "000000003.log"]
    assert not files.exists(log.active_logs()[1])
    rotating = pool.submit(log.rotate)
    assert not rotating.done()
    gate.open()
    assert rotating.result(LIMIT).name == "000000003.log"


def test_a_full_segment_is_left_before_the_next_write(files: Disk, opened: Opener) -> None:
    """D-06: the size rule calls the same mechanism."""
    log = opened(segment_size=SEGMENT, sync="os")
    for number in range(10):
        log.write(bytes([number]) * SEGMENT)
    assert log.status().counters.rotations == 9
    assert [r.segment for r in Stream(HERE, files=files).open_cursor()] == list(range(1, 11))


def test_without_auto_rotate_only_a_request_rotates(files: Disk, opened: Opener) -> None:
    """M3-ROT-1."""
    log = opened(segment_size=SEGMENT, sync="os", auto_rotate=False)
    for _ in range(10):
        log.write(bytes(SEGMENT))
        log.append([bytes(SEGMENT)])
    assert {r.segment for r in Stream(HERE, files=files).open_cursor()} == {1}
    log.rotate()
    log.write(b"x")
    assert [r.segment for r in Stream(HERE, files=files).open_cursor()][-1] == 2


def test_a_swap_waits_for_the_sync_under_way(
    files: Disk, opened: Opener, pool: ThreadPoolExecutor
) -> None:
    """Records in a newer segment imply that no older one can be lost."""
    log = opened(sync="always", segment_size=SEGMENT)
    gate, outcomes = Gate(files), Outcomes(1)
    log.submit([bytes(SEGMENT)], outcomes)
    gate.wait()
    appending = pool.submit(log.append, [b"next"])
    wait([appending], timeout=0.05)
    assert not appending.done()
    gate.open()
    appending.result(LIMIT)
    order = [what for what in files.operations if "00001.log" in what or "00002.log" in what]
    assert order.index("sync 000000001.log") < order.index("write 000000002.log")


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_directory"])
def test_a_standby_that_could_not_be_made_is_made_by_the_next_rotation(
    files: Disk, opened: Opener, kind: str
) -> None:
    """M3-ROT-6, F08."""
    log = opened(sync="os")
    files.fail_next(kind, Fault(), name="log" if kind == "sync_directory" else "000000003")
    log.rotate()
    settle()
    assert not files.exists(HERE / "000000003.log")
    assert log.status().counters.errors == 1
    log.write(b"a")
    assert log.rotate().name == "000000003.log"
    log.write(b"b")
    assert stored(files) == [b"a", b"b"]


@pytest.mark.parametrize("kind", ["create", "write", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_rotation_that_fails_tells_its_caller_and_is_tried_again(
    files: Disk, opened: Opener, kind: str, error: int
) -> None:
    """Fact 1.4.7 avoided: no error of a rotation is swallowed. And it is no failed sync."""
    log = opened(sync="os")
    log.write(b"a")
    name = "log" if kind == "sync_directory" else "000000003"
    files.fail_next(kind, Fault(error), count=2, name=name)
    log.rotate()
    log.write(b"b")
    with pytest.raises(RotationFailed):
        log.rotate()
    log.write(b"c")
    assert log.active_logs()[0].name == "000000002.log"
    assert log.rotate().name == "000000003.log"
    log.write(b"d")
    assert log.failure is None
    assert stored(files) == [b"a", b"b", b"c", b"d"]


def test_a_rotation_without_space_is_an_error_to_its_caller_only(
    files: Disk, opened: Opener
) -> None:
    log = opened(sync="os")
    files.fail_next("create", Fault(errno.ENOSPC), count=3, name="000000003")
    log.rotate()
    for _ in range(2):
        with pytest.raises(NoSpace):
            log.rotate()
        log.write(b"goes on")
        assert log.active_logs()[0].name == "000000002.log"
    assert log.rotate().name == "000000003.log"
    assert stored(files) == [b"goes on", b"goes on"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_a_full_segment_is_written_on_while_there_is_no_next_one(
    files: Disk, opened: Opener, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    """Descriptors used up: no write is refused for it, and the next segment comes by itself."""
    log = opened(sync="os", segment_size=SEGMENT)
    log.write(bytes(SEGMENT))
    files.fail_next("create", Fault(error), count=4, name="000000003")
    log.write(bytes(SEGMENT))
    log.write(b"write")
    log.append([b"append"])
    log.append_one(b"append one")
    assert log.position.segment == 2
    log.write(b"in the next")
    assert log.position.segment == 3
    assert stored(files)[2:] == [b"write", b"append", b"append one", b"in the next"]
    told = [r.getMessage() for r in caplog.records if "cannot be made" in r.getMessage()]
    assert len(told) == (error == errno.EMFILE)
    assert log.failure is None


def test_that_writing_has_stopped_is_told_once_with_its_cause(
    files: Disk, opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(sync="always")
    files.fail_next("sync", Fault(), name="000000001")
    for _ in range(3):
        with pytest.raises(Stopped):
            log.write(b"a")
    (told,) = [r for r in caplog.records if r.levelname == "CRITICAL"]
    assert "writing has stopped" in told.getMessage()
    assert "Input/output error" in told.getMessage()
    assert "000000001.log" in told.getMessage()


def test_an_old_segment_that_cannot_be_closed_stops_the_log(files: Disk, opened: Opener) -> None:
    """M3-ERR-1, F06."""
    log = opened(sync="os")
    log.write(b"a")
    files.fail_next("close", Fault(), name="000000001")
    with contextlib.suppress(Stopped):  # the other thread may be faster than the rotation's answer
        log.rotate()
    settle()
    with pytest.raises(Stopped):
        log.write(b"b")
    assert stored(files) == [b"a"]


def test_close_writes_and_syncs_what_is_queued(files: Disk, opened: Opener) -> None:
    log = opened(sync="os", strategy="behind")
    for number in range(100):
        log.write(b"%d" % number)
    log.append([b"direct"])
    log.close()
    recovered = {len(stored(image)) for image in files.images()}
    assert recovered == {101}
    assert files.names(HERE).count("000000002.log") == 0  # the standby is gone


def test_close_waits_for_writes_under_way(
    files: Disk, opened: Opener, pool: ThreadPoolExecutor
) -> None:
    """M3-SYN-1."""
    log = opened(sync="always")
    gate = Gate(files)
    writing = pool.submit(log.write, b"a")
    gate.wait()
    closing = pool.submit(log.close)
    gate.open()
    assert writing.result(LIMIT) is not None
    assert closing.result(LIMIT) is None
    assert stored(files) == [b"a"]


def test_close_waits_for_an_append_under_way_and_syncs_it(
    files: Disk, opened: Opener, pool: ThreadPoolExecutor
) -> None:
    log = opened(sync="os")
    held = HeldWrite(files)
    appending = pool.submit(log.append, [b"a"])
    assert held.reached.wait(LIMIT)
    closing = pool.submit(log.close)
    wait([closing], timeout=0.05)
    assert not closing.done()
    held.let_go.set()
    assert appending.result(LIMIT) == log.written_time
    assert closing.result(LIMIT) is None
    assert log.synced_time == log.written_time
    assert {tuple(stored(image)) for image in files.images()} == {(b"a",)}


def test_every_operation_after_close_says_closed(opened: Opener) -> None:
    """Fact 1.4.9."""
    log = opened(sync="always")
    log.write(b"a")
    log.close()
    log.close()
    calls: list[Callable[[], object]] = [
        lambda: log.write(b""),
        lambda: log.write_batch([b"", b""]),
        lambda: log.write_batch([]),
        lambda: log.submit([b""], None),
        lambda: log.append([b""]),
        lambda: log.append([]),
        log.rotate,
        log.active_logs,
        log.queue_length,
    ]
    for call in calls:
        with pytest.raises(Closed):
            call()
    status = log.status()
    assert status.closed and not status.failure
    log.wait_synced(log.written_time)


def test_after_a_failure_too_a_closed_log_says_closed(files: Disk, opened: Opener) -> None:
    log = opened(sync="always")
    files.fail_next("sync", Fault())
    with pytest.raises(Stopped):
        log.write(b"a")
    with pytest.raises(Stopped):
        log.close()
    log.close()
    with pytest.raises(Closed):
        log.write(b"b")
    with pytest.raises(Stopped):
        log.wait_synced(log.written_time)


def test_leaving_a_block_by_an_error_does_not_hide_it(files: Disk) -> None:
    def leave(error: Exception | None) -> None:
        with CommitLog(Stream(HERE, files=files), sync="os", strategy="behind") as log:
            files.fail_next("write", Fault())
            log.write(b"a")
            if error is not None:
                raise error

    with pytest.raises(KeyError):
        leave(KeyError("mine"))
    with pytest.raises(Stopped):
        leave(None)


@pytest.mark.parametrize("kind", ["close", "remove", "sync_directory", "sync"])
def test_a_fault_while_closing_is_reported_once_and_the_lock_is_given_back(
    files: Disk, opened: Opener, kind: str
) -> None:
    log = opened(sync="os")
    log.write(b"a")
    files.fail_next(kind, Fault(), name="log" if kind == "sync_directory" else "00000000")
    with pytest.raises(Stopped):
        log.close()
    log.close()
    files.faults.clear()
    opened().write(b"b")
    assert stored(files) == [b"a", b"b"]


def test_every_waiter_of_a_failed_group_gets_the_error(files: Disk, opened: Opener) -> None:
    log = opened(sync="always")
    gate, outcomes = Gate(files), Outcomes(12)
    log.submit([b"first"], outcomes)
    gate.wait()
    for _ in range(10):
        log.submit([b"x"], outcomes)
    log.when_synced(log.written_time, outcomes)
    files.fail_next("sync", Fault())
    gate.open()
    outcomes.wait()
    assert not outcomes.times and all(isinstance(one, Stopped) for one in outcomes.errors)
    assert isinstance(outcomes.errors[0].__cause__, JournalError)
    assert log.queue_length() == 0


@pytest.mark.parametrize("strategy", ["wait", "behind"])
def test_after_a_stop_nothing_is_acknowledged_but_state_and_records_can_be_read(
    files: Disk, opened: Opener, strategy: str
) -> None:
    """M3-ERR-1, M3-ERR-2, D-07 stop, P-STOP, P-READ."""
    log = opened(sync="os", strategy=strategy)
    log.append([b"a"])
    files.fail_next("write", Fault())
    with pytest.raises(Stopped):
        log.append([b"b"])
    for call in (log.rotate, lambda: log.write(b"c"), lambda: log.append([b"d"])):
        with pytest.raises(Stopped):
            call()
    outcomes = Outcomes(1)
    log.when_synced(log.written_time, outcomes)
    assert outcomes.errors and not outcomes.times
    assert len(log.active_logs()) == 2 and log.queue_length() == 0
    assert "stopped" in log.status().failure and log.failure is not None
    assert log.status().counters.errors == 1
    assert stored(files) == [b"a"]


def test_a_group_that_was_refused_is_not_written_afterwards(
    files: Disk, opened: Opener, pool: ThreadPoolExecutor
) -> None:
    """An append fails while the writer thread, a group in its hands, waits for the file."""
    log = opened(sync="always")
    held, outcomes = HeldWrite(files), Outcomes(1)
    appending = pool.submit(log.append, [b"a"])
    assert held.reached.wait(LIMIT)
    log.submit([b"b"], outcomes)
    until(lambda: log.queue_length() == 0)
    files.faults[len(files.operations) + 1] = Fault()
    held.let_go.set()
    with pytest.raises(Stopped):
        appending.result(LIMIT)
    outcomes.wait()
    with pytest.raises(Stopped):
        log.close()
    assert len(outcomes.errors) == 1 and not outcomes.times
    assert stored(files) == []


def test_a_caller_can_stop_the_log_itself(files: Disk, opened: Opener) -> None:
    log = opened(sync="os")
    cause = RuntimeError("my state cannot follow")
    assert log.stop(cause).__cause__ is cause
    with pytest.raises(Stopped, match="my state cannot follow"):
        log.write(b"a")
    assert log.stop(ValueError()) is log.failure
    assert log.status().counters.errors == 1


def test_the_policy_die_ends_the_process_before_anybody_is_told(
    files: Disk, opened: Opener
) -> None:
    """D-07 die: exit code 4."""
    outcomes = Outcomes(2)
    ends: list[tuple[int, int]] = []
    log = opened(
        sync="always", on_failure="die", die=lambda code: ends.append((code, len(outcomes.errors)))
    )
    gate = Gate(files)
    log.submit([b"a"], outcomes)
    gate.wait()
    log.submit([b"b"], outcomes)
    files.fail_next("sync", Fault())
    gate.open()
    outcomes.wait()
    with pytest.raises(Stopped):
        log.write(b"c")
    with pytest.raises(Stopped):
        log.close()
    assert ends == [(EXIT_DIE, 0)] == [(4, 0)]
    assert len(outcomes.errors) == 2


def test_no_space_hits_its_own_group_only(files: Disk, opened: Opener) -> None:
    """F02."""
    log = opened(sync="always", preallocate=never)
    log.write(b"before")
    gate, outcomes = Gate(files), Outcomes(4)
    log.submit([b"held"], outcomes)
    gate.wait()
    for _ in range(3):
        log.submit([bytes(1000)], outcomes)
    files.capacity = files.used() + 500
    gate.open()
    outcomes.wait()
    assert len(outcomes.times) == 1
    assert [type(one) for one in outcomes.errors] == [NoSpace] * 3
    with pytest.raises(NoSpace):
        log.append([bytes(1000)])
    log.write(b"small")
    files.capacity = None
    log.write(bytes(1000))
    assert stored(files) == [b"before", b"held", b"small", bytes(1000)]
    assert log.failure is None and log.status().counters.errors == 2
    log.close()


@pytest.mark.parametrize("door", ["write", "append", "queue"])
def test_a_short_write_is_undone_and_hits_its_own_callers_only(
    files: Disk, opened: Opener, door: str
) -> None:
    """F01."""
    log = opened(sync="os")
    log.write(b"before")
    for length in range(25):
        files.fail_next("write", Fault(short=length))
        outcomes = Outcomes(1)
        if door == "queue":
            log.submit([b"hello"], outcomes)
            outcomes.wait()
            assert len(outcomes.errors) == 1
        else:
            with pytest.raises(JournalError):
                log.write(b"hello") if door == "write" else log.append([b"hello"])
    log.write(b"after")
    assert stored(files) == [b"before", b"after"]


def test_writes_behind_that_find_no_space_are_counted_and_reported_by_close(
    files: Disk, opened: Opener
) -> None:
    log = opened(sync="os", strategy="behind")
    files.capacity = files.used() + 100
    log.write_batch([bytes(200), bytes(200)])
    outcomes = Outcomes(1)
    log.submit([b"small"], outcomes)
    outcomes.wait()
    files.capacity = None
    assert log.status().counters.lost in (2, 3)
    with pytest.raises(NoSpace):
        log.close()
    assert log.failure is None


def test_the_interval_policy_syncs_by_its_own_timer(files: Disk) -> None:
    """The one real timer, of one millisecond."""
    for door in ("write", "append", "append_one"):
        synced = threading.Event()
        with CommitLog(Stream(HERE, files=files), sync="interval", sync_interval=1) as log:
            files.on_sync = lambda _, synced=synced: synced.set()  # type: ignore[misc]
            if door == "write":
                log.write(b"a")
            elif door == "append":
                log.append([b"a"])
            else:
                log.append_one(b"a")
            assert synced.wait(LIMIT)
            files.on_sync = None


def test_the_interval_policy_syncs_no_more_often_than_told(files: Disk, opened: Opener) -> None:
    ticker = ManualTicker()
    log = opened(sync="interval", sync_interval=70, ticker=ticker)
    assert ticker.interval_ms == 70
    for _ in range(10):
        log.write(b"x")
        log.append([b"y"])
        assert log.synced_time < log.written_time
        for _ in range(3):
            ticker.fire()
            assert log.synced_time == log.written_time
    log.close()
    ticker.fire()
    assert log.status().counters.syncs == 10


def test_a_write_beside_the_timers_sync_is_synced_by_the_next_one(
    files: Disk, pool: ThreadPoolExecutor
) -> None:
    """It begins before that sync and ends after it."""
    with CommitLog(Stream(HERE, files=files), sync="interval", sync_interval=1) as log:
        first = log.append([b"a"])
        held = HeldWrite(files)
        appending = pool.submit(log.append, [b"b"])
        assert held.reached.wait(LIMIT)
        until(lambda: log.synced_time == first)
        held.let_go.set()
        second = appending.result(LIMIT)
        until(lambda: log.synced_time == second)


def test_under_interval_a_write_does_not_wait_for_a_sync_under_way(
    files: Disk, opened: Opener, pool: ThreadPoolExecutor
) -> None:
    ticker = ManualTicker()
    log = opened(sync="interval", sync_interval=1000, ticker=ticker)
    log.write(b"a")
    gate = Gate(files)
    ticking = pool.submit(ticker.fire)
    gate.wait()
    assert log.write(b"b") == log.written_time > log.synced_time
    assert log.append([b"c"]) == log.written_time
    outcomes = Outcomes(1)
    log.submit([b"d"], outcomes)
    outcomes.wait()
    assert stored(files) == [b"a", b"b", b"c", b"d"]
    assert not ticking.done()
    gate.open()
    ticking.result(LIMIT)
    assert log.synced_time == times(files)[0]


def test_a_write_never_overtakes_what_its_thread_has_queued(files: Disk, opened: Opener) -> None:
    for sync in ("os", "always"):
        log = opened(sync=sync)
        for number in range(200):
            log.submit([b"%d" % number], None)
            if number % 3 == 0:
                log.write(b"%d waits" % number)
        log.close()
        found = [int(payload.split()[0]) for payload in stored(files)]
        assert found[-267:] == sorted(found[-267:])


def test_a_busy_lone_writer_does_not_starve_the_timer(files: Disk) -> None:
    with CommitLog(Stream(HERE, files=files), sync="interval", sync_interval=1) as log:
        writes = 0
        while log.synced_time == 0 and writes < 200_000:
            log.write(b"x")
            writes += 1
        assert log.synced_time > 0


def test_appending_and_waiting_for_the_sync_is_the_direct_door(files: Disk, opened: Opener) -> None:
    log = opened(sync="always")
    first = log.append([b"a", b"b"])
    assert log.synced_time == 0 and stored(files) == [b"a", b"b"]
    outcomes = Outcomes(2)
    log.when_synced(first - 1, outcomes)
    log.when_synced(first, outcomes)
    outcomes.wait()
    assert outcomes.times == [first - 1, first] and log.synced_time == first
    before = files.syncs
    log.wait_synced(first)
    assert files.syncs == before
    second = log.append([b"c"])
    log.wait_synced(second)
    assert log.synced_time == second == times(files)[-1]


@pytest.mark.parametrize("sync", ["os", "interval", "always"])
def test_a_sync_on_request_makes_all_that_is_written_safe(
    files: Disk, opened: Opener, sync: str
) -> None:
    log = opened(sync=sync)
    log.sync()
    time = log.append([b"a", b"b"])
    outcomes = Outcomes(1)
    log.when_synced(time, outcomes)
    log.sync()
    outcomes.wait()
    assert log.synced_time == time
    assert {tuple(stored(image)) for image in files.images()} == {(b"a", b"b")}
    log.append([b"c"])
    files.fail_next("sync", Fault(), name="000000001")
    with pytest.raises(Stopped):
        log.sync()
    with pytest.raises(Stopped):
        log.sync()
    assert files.operations.count("sync 000000001.log") == 2


def test_whoever_asked_is_called_once_when_acknowledging_ends(opened: Opener) -> None:
    log = opened()
    calls: list[bool] = []
    log.on_stop = lambda: calls.append(log.failure is not None)
    log.stop(OSError("first"))
    log.stop(OSError("second"))
    assert calls == [True]


def test_waiting_for_a_record_that_was_never_written_is_refused(opened: Opener) -> None:
    log = opened(sync="always")
    time = log.append([b"a"])
    with pytest.raises(BadRequest):
        log.wait_synced(time + 1)
    with pytest.raises(BadRequest):
        log.when_synced(time + 1, Outcomes(1))
    log.wait_synced(time)


def test_under_os_what_is_written_is_as_safe_as_promised(opened: Opener) -> None:
    log = opened(sync="os")
    time = log.append([b"a"])
    outcomes = Outcomes(1)
    log.when_synced(time, outcomes)
    assert outcomes.times == [time] and log.synced_time < time
    log.wait_synced(time)


def test_an_append_may_name_its_time_but_never_goes_back(files: Disk, opened: Opener) -> None:
    clock = ManualClock()
    log = opened(sync="os", clock=clock)
    start = clock.now()
    assert log.append([b"a", b"b"], start + 10) == start + 11
    assert log.append_one(b"c", start + 5) == start + 12
    clock.step(-3600)
    assert log.write(b"d") == start + 13
    assert times(files) == [start + 10, start + 11, start + 12, start + 13]


def test_a_callback_that_raises_harms_nobody_else(
    files: Disk, opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    log = opened(sync="always")
    gate, outcomes = Gate(files), Outcomes(2)

    def broken(time: int, error: JournalError | None) -> None:
        raise RuntimeError("mine")

    log.submit([b"a"], outcomes)
    gate.wait()
    log.submit([b"b"], broken)
    log.submit([b"c"], outcomes)
    with caplog.at_level(logging.ERROR):
        gate.open()
        outcomes.wait()
        log.close()
    assert "callback" in caplog.text
    assert stored(files) == [b"a", b"b", b"c"]


def test_an_interrupted_caller_leaves_no_turn_behind(files: Disk, opened: Opener) -> None:
    """Ctrl-C inside a sync on the caller's own thread: the log stops, and close does not hang."""

    def interrupt(path: Path) -> None:
        files.on_sync = None
        raise KeyboardInterrupt

    log = opened(sync="always")
    log.write(b"a")
    files.on_sync = interrupt
    with pytest.raises(KeyboardInterrupt):
        log.write(b"b")
    with pytest.raises(Stopped):
        log.write(b"c")
    with pytest.raises(Stopped):
        log.close()


def test_a_status_is_of_one_moment(opened: Opener) -> None:
    log = opened(sync="always")
    log.write(b"a")
    then = log.status()
    log.write_batch([b"b", b"c"])
    log.rotate()
    now = log.status()
    assert (then.counters.writes, now.counters.writes) == (1, 3)
    assert (then.counters.syncs, now.counters.syncs) == (1, 3), "the cut of a rotation is synced"
    assert (then.counters.group_size.total, now.counters.group_size.total) == (1, 3)
    assert now.counters.bytes == 3 * (15 + 1 + 1 + 4)
    assert now.counters.sync_seconds.count == 3
    assert then.active.name == "000000001.log" and now.active.name == "000000002.log"
    assert now.synced_time == now.written_time > then.written_time


def test_a_sync_made_by_a_rotation_is_counted(opened: Opener) -> None:
    log = opened(sync="os")
    log.write(b"a")
    log.rotate()
    counters = log.status().counters
    assert counters.syncs == counters.sync_seconds.count == 1


def test_the_standby_is_never_taken_for_data(files: Disk, opened: Opener) -> None:
    log = opened(sync="os")
    stream = Stream(HERE, files=files)
    follower = stream.open_cursor(follow=True)
    assert follower.next() is None
    seen = []
    for number in range(6):
        log.write(b"%d" % number)
        if number % 2:
            log.rotate()
        while (record := follower.next()) is not None:
            seen.append(record.payload)
    assert seen == stored(files) == [b"%d" % number for number in range(6)]
    follower.close()


def test_the_cleaner_touches_neither_active_nor_standby(files: Disk, opened: Opener) -> None:
    log = opened(sync="os")
    for number in range(4):
        log.write(b"%d" % number)
        log.rotate()
    settle()
    with Stream(HERE, files=files).open_cleaner() as cleaner:
        cleaner.clean(lambda path, record: True)
        active, standby = log.active_logs()
        assert files.exists(active) and files.exists(standby)
        log.write(b"active")
        before = files.content(active)
        cleaner.clean(lambda path, record: True)
        assert files.content(active) == before and len(files.content(standby)) == HEADER_SIZE
    assert stored(files) == [b"active"]
    log.rotate()
    log.write(b"next")
    log.close()
    assert opened(sync="os").write(b"again") is not None
    assert stored(files) == [b"active", b"next", b"again"]


def test_a_standby_left_by_a_crash_is_used_again(files: Disk, opened: Opener) -> None:
    log = opened(sync="always")
    log.write(b"a")
    log.rotate()
    settle()
    log.write(b"b")
    after = files.killed()
    assert {"000000002.log", "000000003.log"} <= set(after.names(HERE))
    again = CommitLog(Stream(HERE, files=after, clock=ManualClock()), sync="always")
    assert [path.name for path in again.active_logs()] == ["000000002.log", "000000003.log"]
    again.write(b"c")
    again.rotate()
    again.write(b"d")
    again.close()
    assert stored(after) == [b"a", b"b", b"c", b"d"]
    assert [r.segment for r in Stream(HERE, files=after).open_cursor()] == [1, 2, 2, 3]


async def test_an_event_loop_may_have_500_writes_outstanding(files: Disk, opened: Opener) -> None:
    log = opened(sync="always", queue_size=500)
    gate = Gate(files)
    writer = AsyncCommitLog(log)
    first = writer.write(b"first")
    await asyncio.to_thread(gate.wait)
    futures = [writer.write(b"%d" % number) for number in range(498)]
    futures.append(writer.write_batch([b"x", b"y"]))
    with pytest.raises(QueueFull):
        writer.write(b"one too many")
    assert not first.done() and log.queue_length() == 500
    gate.open()
    found = [await first, *await asyncio.gather(*futures)]
    assert sorted(set(found)) == found
    assert log.status().counters.group_size.count == 2
    assert times(files)[:499] == found[:499] and times(files)[-1] == found[-1]


async def test_an_event_loop_is_told_of_a_failure_too(files: Disk, opened: Opener) -> None:
    log = opened(sync="always")
    gate = Gate(files)
    writer = AsyncCommitLog(log)
    futures = [writer.write(b"first")]
    await asyncio.to_thread(gate.wait)
    futures += [writer.write(b"x") for _ in range(50)]
    futures[3].cancel()
    files.fail_next("sync", Fault())
    gate.open()
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    assert isinstance(outcomes.pop(3), asyncio.CancelledError)
    assert {type(one) for one in outcomes} == {OutcomeUnknown, Stopped}
    assert isinstance(outcomes[0], OutcomeUnknown)
    with pytest.raises(Stopped) as later:
        writer.write(b"later")
    assert type(later.value) is Stopped, "nothing of it was written"


def test_a_closed_event_loop_stops_nobody(files: Disk, opened: Opener) -> None:
    log = opened(sync="always")
    gate = Gate(files)

    async def leave() -> None:
        AsyncCommitLog(log).write(b"a")
        await asyncio.to_thread(gate.wait)

    asyncio.run(leave())
    gate.open()
    assert log.write(b"b") is not None
    assert stored(files) == [b"a", b"b"]


def test_who_has_handed_the_lead_on_leads_no_more() -> None:
    """M3-Q-3: refused before the next one has woken, it does not tell that one a second time."""
    queue = CommitQueue(1, Counters())
    assert queue.try_lead()
    next_one = Waiter()
    queue.put(Queued((b"x",), next_one))
    queue.end_lead()
    with pytest.raises(QueueFull):
        queue.put(Queued((b"y",), Waiter()))
    queue.end_lead()  # as after every write
    assert not queue.interrupt(None)
    assert not next_one.wait()
    queue.take_lead()
    assert len(queue.take()) == 1
    queue.end_lead()
    assert queue.try_lead()
