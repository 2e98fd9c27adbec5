"""The commit log on a real disk with real threads, an event loop, and processes that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from fastjournal.errors import Closed, QueueFull
from fastjournal.log import Record, Stream
from fastjournal.log.care.check import verify
from fastjournal.log.files import DiskFiles, FileHandle
from fastjournal.log.write.async_commit_log import AsyncCommitLog
from fastjournal.log.write.commit_log import CommitLog

SEGMENT = 4096
LIMIT = 60.0  # seconds until a test that waits for another thread gives up


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    return Stream(tmp_path)


def records(stream: Stream) -> list[Record]:
    return list(stream.open_cursor())


class SlowFiles(DiskFiles):
    """Files that say so before they sync, once they are `slow`."""

    def __init__(self, before_sync: Callable[[], None]) -> None:
        self.before_sync = before_sync
        self.slow = False

    def create(self, path: Path) -> FileHandle:
        return SlowHandle(self, super().create(path))  # type: ignore[return-value]


class SlowHandle:
    """An open file of those."""

    def __init__(self, files: SlowFiles, handle: FileHandle) -> None:
        self._files, self._handle = files, handle

    def __getattr__(self, name: str) -> object:
        return getattr(self._handle, name)

    def sync(self) -> None:
        """As slow as it is told to be."""
        if self._files.slow:
            self._files.before_sync()
        self._handle.sync()


def assert_in_order(found: list[Record]) -> None:
    times = [record.time for record in found]
    assert sorted(set(times)) == times


@pytest.mark.parametrize("strategy", ["wait", "behind"])
def test_a_writer_a_rotator_and_a_status_reader_for_ten_files(
    stream: Stream, strategy: str
) -> None:
    """Fact 1.4.9, M3-TST-3: all at once, until ten files were seen."""
    log = CommitLog(stream, sync="os", strategy=strategy, auto_rotate=False)
    seen: set[Path] = set()
    enough = threading.Event()

    def write() -> int:
        written = 0
        while not enough.is_set() or not written:
            try:
                log.write(b"%d" % written)
                written += 1
            except QueueFull:
                continue
        return written

    def rotate() -> list[Path]:
        made = []
        while not enough.is_set():
            made.append(log.rotate())
        return made

    def watch() -> int:
        looks = 0
        while len(seen) < 10:
            active, standby = log.active_logs()
            assert active != standby
            seen.update((active, standby))
            assert log.queue_length() >= 0 and not log.status().failure
            looks += 1
        enough.set()
        return looks

    with ThreadPoolExecutor(3) as pool:
        writing, rotating, watching = (pool.submit(work) for work in (write, rotate, watch))
        try:
            assert watching.result(LIMIT) > 0
        finally:
            enough.set()
        written, made = writing.result(LIMIT), rotating.result(LIMIT)
    log.close()
    found = records(stream)
    assert [int(record.payload) for record in found] == list(range(written))
    assert_in_order(found)
    assert made == sorted(set(made)) and log.status().counters.rotations == len(made)
    assert not any(check.faults for check in verify(stream))


@pytest.mark.parametrize("sync", ["os", "interval", "always"])
def test_every_door_at_once_keeps_one_order_of_time(stream: Stream, sync: str) -> None:
    """WQ-GEN-4, M3-Q-3.

    Waiting writers, batches, callbacks, direct appends, rotations by request and by size.
    """
    log = CommitLog(stream, sync=sync, segment_size=SEGMENT)
    rounds = 60

    def told(name: str, work: Callable[[bytes], int | None]) -> list[tuple[bytes, int]]:
        outcomes = []
        for number in range(rounds):
            payload = b"%s %d" % (name.encode(), number)
            time = work(payload)
            assert time is not None
            outcomes.append((payload, time))
        return outcomes

    def queued(payload: bytes) -> int:
        outcome: list[int] = []
        called = threading.Event()

        def done(time: int, error: object) -> None:
            assert error is None
            outcome.append(time)
            called.set()

        log.submit([payload], done)
        assert called.wait(LIMIT)
        return outcome[0]

    def direct(payload: bytes) -> int:
        time = log.append([payload])
        log.wait_synced(time)
        return time

    def direct_one(payload: bytes) -> int:
        time = log.append_one(payload)
        called = threading.Event()
        log.when_synced(time, lambda _time, error: called.set() if error is None else None)
        assert called.wait(LIMIT)
        return time

    def batch(payload: bytes) -> int | None:
        return log.write_batch([payload + b" before", payload])

    def rotate(payload: bytes) -> int | None:
        time = log.write(payload)
        log.rotate()
        return time

    doors = {
        "write": log.write,
        "again": log.write,
        "batch": batch,
        "queued": queued,
        "direct": direct,
        "one": direct_one,
        "rotate": rotate,
    }
    with ThreadPoolExecutor(len(doors)) as pool:
        running = [pool.submit(told, name, work) for name, work in doors.items()]
        outcomes = [outcome for future in running for outcome in future.result(LIMIT)]
    if sync == "always":
        assert log.synced_time == log.written_time
    log.close()
    found = records(stream)
    assert len(found) == rounds * (len(doors) + 1)
    assert_in_order(found)
    by_time = {record.time: record.payload for record in found}
    assert all(by_time[time] == payload for payload, time in outcomes)
    for name in doors:  # each thread's own order is kept
        own = [r.time for r in found if r.payload.startswith(name.encode() + b" ")]
        assert own == sorted(own)


@pytest.mark.parametrize("sync", ["os", "always"])
def test_batches_of_many_threads_stand_together_and_each_is_told_its_last_time(
    stream: Stream, sync: str
) -> None:
    """M3-Q-2: also when they are written in one group, and over rotations."""
    log = CommitLog(stream, sync=sync, segment_size=SEGMENT)
    writers, rounds, size = 8, 30, 7

    def work(name: int) -> list[tuple[bytes, int | None]]:
        told = []
        for number in range(rounds):
            batch = [b"%d %d %d" % (name, number, part) for part in range(size)]
            told.append((batch[-1], log.write_batch(batch)))
        return told

    with ThreadPoolExecutor(writers) as pool:
        told = [one for some in pool.map(work, range(writers)) for one in some]
    log.close()
    found = records(stream)
    assert len(found) == writers * rounds * size
    for at in range(0, len(found), size):
        together = [record.payload.rsplit(b" ", 1) for record in found[at : at + size]]
        assert len({batch for batch, _ in together}) == 1
        assert [int(part) for _, part in together] == list(range(size))
        assert len({record.segment for record in found[at : at + size]}) == 1
    by_payload = {record.payload: record.time for record in found}
    assert all(by_payload[payload] == time for payload, time in told)


def test_many_waiting_writers_share_their_syncs(tmp_path: Path) -> None:
    """D-31: the first of them leads alone, and its sync lasts until all others wait."""
    writers, each = 32, 20
    held = iter([True])

    def hold() -> None:
        for _ in held:
            pause = threading.Event()
            while log.queue_length() < writers - 1:
                pause.wait(0.001)

    stream = Stream(tmp_path, files=SlowFiles(hold))
    log = CommitLog(stream, sync="always")
    stream.files.slow = True  # type: ignore[attr-defined]
    with ThreadPoolExecutor(writers) as pool:
        start = threading.Barrier(writers)

        def work(name: int) -> None:
            start.wait(LIMIT)
            for number in range(each):
                assert log.write(b"%d %d" % (name, number)) <= log.synced_time  # type: ignore[operator]

        list(pool.map(work, range(writers)))
    counters = log.status().counters
    log.close()
    assert counters.writes == writers * each
    assert counters.syncs <= counters.writes - (writers - 2)
    assert len({record.payload for record in records(stream)}) == writers * each


def test_closing_under_load_answers_everybody(stream: Stream) -> None:
    """Whoever was acknowledged is in the log; everybody else is told that it is closed."""
    log = CommitLog(stream, sync="always", segment_size=SEGMENT)
    running = threading.Barrier(9)

    def work(name: int) -> list[bytes]:
        acknowledged: list[bytes] = []
        running.wait(LIMIT)
        for number in count():
            payload = b"%d %d" % (name, number)
            try:
                if name % 2:
                    log.write(payload)
                else:
                    log.wait_synced(log.append([payload]))
            except Closed:
                return acknowledged
            acknowledged.append(payload)
        raise AssertionError

    with ThreadPoolExecutor(8) as pool:
        writing = [pool.submit(work, name) for name in range(8)]
        running.wait(LIMIT)
        while log.status().counters.writes < 200:
            log.rotate()
        log.close()
        acknowledged = [payload for future in writing for payload in future.result(LIMIT)]
    found = [record.payload for record in records(stream)]
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))


async def test_an_event_loop_with_500_writes_outstanding(stream: Stream) -> None:
    log = CommitLog(stream, sync="always")
    writer = AsyncCommitLog(log)
    numbers = iter(range(2000))

    async def produce() -> list[int]:
        return [await writer.write(b"%d" % number) for number in numbers]

    outcomes = await asyncio.gather(*(produce() for _ in range(500)))
    counters = log.status().counters
    log.close()
    found = records(stream)
    assert sorted(time for each in outcomes for time in each) == [record.time for record in found]
    assert sorted(int(record.payload) for record in found) == list(range(2000))
    assert counters.syncs < 500


CHILD = """
import sys, threading
from fastjournal.log import Stream
from fastjournal.log.write.commit_log import CommitLog
log = CommitLog(Stream(sys.argv[1]), sync=sys.argv[2], segment_size=4096)
say = threading.Lock()
def work(name):
    number = 0
    while True:
        payload = b"%d %d" % (name, number)
        if name == 0:
            log.wait_synced(log.append([payload]))
        else:
            log.write(payload)
        with say:
            sys.stdout.buffer.write(payload + b"\\n")
            sys.stdout.buffer.flush()
        number += 1
        if name == 1 and number % 10 == 0:
            log.rotate()
for name in range(4):
    threading.Thread(target=work, args=(name,), daemon=True).start()
threading.Event().wait()
"""


def acknowledged_by(child: subprocess.Popen[bytes], enough: int) -> Iterator[bytes]:
    """What the child says it was told, until it is killed in the middle of it."""
    assert child.stdout is not None
    for number, line in enumerate(child.stdout):
        if number == enough:
            os.kill(child.pid, signal.SIGKILL)
        if line.endswith(b"\n"):
            yield line[:-1]


@pytest.mark.kill
@pytest.mark.parametrize("sync", ["os", "interval", "always"])
def test_what_was_acknowledged_survives_kill_9(stream: Stream, sync: str) -> None:
    """F11, T-KILL: the same directory is killed and opened again several times."""
    acknowledged: set[bytes] = set()
    for enough in (1, 50, 400):
        command = [sys.executable, "-c", CHILD, str(stream.path), sync]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            told = set(acknowledged_by(child, enough))
        with CommitLog(stream, sync="always") as log:
            log.write(b"between")
        found = records(stream)
        assert_in_order(found)
        acknowledged |= told
        assert len(told) >= enough
        assert acknowledged <= {record.payload for record in found}
        assert found[-1].payload == b"between"
