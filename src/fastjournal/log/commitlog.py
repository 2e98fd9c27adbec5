"""The commit log: many callers, one disk.

Rules:

1. Two doors. `write` queues, and one writer thread takes all that waits: one encoding, one write,
   one sync, then it releases its waiters. `append` writes at once on the caller's thread, for a
   caller that is the only writer and keeps its own order, as the journal does; `when_synced` tells
   it when that is safe. Both doors share the file, the order of TIME, the rotation and the sync.
2. Released means: on stable storage under `always`, handed to the system under `interval` and `os`.
   With the strategy `behind` a queued write is released at once.
3. The queue is bounded, counted in writes; a full one refuses at once (`QueueFull`).
4. Rotation happens only through the pair of segments (see `pair`), on request or, with
   `auto_rotate`, before the first write to a segment that has reached its size.
5. A write that failed and was undone for want of space is an error to its own waiters only. Any
   other fault ends acknowledging for good: every waiter and every later call gets `Stopped`;
   reading goes on. Policy `die` ends the process instead. A failed sync is never tried again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fastjournal.errors import (
    Closed,
    JournalError,
    NoSpace,
    QueueFull,
    SettingError,
    Stopped,
    WriteFailed,
)
from fastjournal.log.appender import AppendOptions, check_payloads
from fastjournal.log.counters import Counters, LogStatus
from fastjournal.log.pair import SegmentPair
from fastjournal.log.record import encode_many
from fastjournal.log.recovery import Recovery, recover
from fastjournal.log.segment import Position
from fastjournal.log.stream import DEFAULT_SEGMENT_SIZE, Stream
from fastjournal.log.waiting import Done, Queued, Rotation, Waiter

__all__ = ["DEFAULT_QUEUE_SIZE", "EXIT_DIE", "CommitLog"]

DEFAULT_QUEUE_SIZE = 65_536  # writes
EXIT_DIE = 4
_GROUP_BYTES = 8 * 1024 * 1024  # payload bytes taken into one write
_SECOND = 1_000_000_000


class CommitLog:
    """Group commit over one stream; close it, or use it as a context manager."""

    def __init__(
        self,
        stream: Stream,
        *,
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        sync: str = "interval",
        sync_interval: int | None = None,
        strategy: str = "wait",
        queue_size: int = DEFAULT_QUEUE_SIZE,
        auto_rotate: bool = True,
        on_failure: str = "stop",
        lock_timeout: float | None = 1.0,
        trust_mark: bool = False,
        die: Callable[[int], object] = os._exit,
    ) -> None:
        """Open a stream for writing: lock it, recover it, start the writer thread.

        `trust_mark`: read only the tail behind `synced.pos`, for a caller that replays all anyway.
        `die`: what ends the process under `on_failure="die"`; told the exit code 4.
        """
        _one_of("strategy", strategy, ("wait", "behind"))
        _one_of("on_failure", on_failure, ("stop", "die"))
        if queue_size < 1:
            raise SettingError(f"queue_size must be 1 or more, not {queue_size}", name="queue_size")
        self.options = AppendOptions(segment_size, sync, sync_interval)
        self.stream = stream
        self.strategy = strategy
        self.queue_size = queue_size
        self.auto_rotate = auto_rotate
        self.on_failure = on_failure
        self.counters = Counters()
        self._die = die
        self._always = sync == "always"
        self._interval = (self.options.sync_interval or 0) / 1000  # seconds
        self._queue: deque[Queued | Rotation] = deque()
        self._queued_writes = 0
        self._inflight: list[Queued | Rotation] = []  # taken off the queue, not yet released
        self._waiting: list[tuple[int, Done]] = []  # released once their TIME is synced
        self._mutex = threading.Lock()  # everything above, and the flags below
        self._work = threading.Condition(self._mutex)
        self._io = threading.Lock()  # the active segment; taken before _mutex, never after it
        self._closing = False
        self._closed = False
        self._failure: Stopped | None = None
        self._lock = stream.lock_appender(lock_timeout)
        try:
            self.recovery: Recovery = recover(stream, trust_mark=trust_mark)
            self._pair = SegmentPair(stream, self.recovery.last_time, self._stop)
        except BaseException:
            self._lock.release()
            raise
        self._synced_time = self._pair.active.last_time
        self._last_sync = stream.clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="fastjournal-writer", daemon=True)
        self._thread.start()

    def write(self, payload: bytes) -> int | None:
        """Write one payload; returns its TIME, or None at once under the strategy `behind`."""
        return self.write_batch((payload,))

    def write_batch(self, payloads: Sequence[bytes]) -> int | None:
        """Write payloads that stand together in the log; returns the TIME of the last one."""
        if not payloads:
            return None
        if self.strategy == "behind":
            self.submit(payloads, None)
            return None
        waiter = Waiter()
        self.submit(payloads, waiter.done)
        return waiter.wait()

    def submit(self, payloads: Sequence[bytes], done: Done | None) -> None:
        """Queue payloads and return; `done` is called on the writer thread, also with an error."""
        check_payloads(payloads, self.stream.max_payload)
        count = len(payloads)
        with self._mutex:
            self._check_open()
            if self._queued_writes + count > self.queue_size:
                self.counters.refused += count
                raise QueueFull(f"{self._queued_writes} of {self.queue_size} writes are queued")
            self._queued_writes += count
            self.counters.queued += count
            self._queue.append(Queued(payloads, done))
            self._work.notify()

    def append(self, payloads: Sequence[bytes]) -> int:
        """Write at once on this thread; returns the TIME of the last record. Not synced yet.

        The payloads are not checked: the caller made them. Lack of space leaves the log as it was;
        any other fault stops it.
        """
        with self._io:
            if self._failure is not None or self._closing:
                self._check_open()
            try:
                return self._write(payloads)
            except BaseException as error:
                self.counters.errors += 1
                if _undone(error):
                    raise
                raise self._stop(error) from error

    def when_synced(self, time: int, done: Done) -> None:
        """Call `done` once the record of that TIME is as safe as the policy promises.

        At once, on this thread, if it is so already; else later on the writer thread.
        """
        with self._mutex:
            failure = self._failure
            if failure is None and self._always and time > self._synced_time:
                self._waiting.append((time, done))
                self._work.notify()
                return
        done(time, failure)

    def wait_synced(self, time: int) -> None:
        """Block until the record of that TIME is as safe as the policy promises."""
        waiter = Waiter()
        self.when_synced(time, waiter.done)
        waiter.wait()

    def rotate(self) -> Path:
        """Go on in the standby segment; returns its path once the writer thread has swapped."""
        rotation = Rotation()
        with self._mutex:
            self._check_open()
            self._queue.append(rotation)
            self._work.notify()
        rotation.finished.wait()
        if rotation.error is not None:
            raise rotation.error
        assert rotation.path is not None
        return rotation.path

    def active_logs(self) -> tuple[Path, Path]:
        """The segment being written and the one that comes next; always two."""
        with self._mutex:
            self._check_open()
        return self._pair.paths

    def queue_length(self) -> int:
        """Writes that wait in the queue."""
        with self._mutex:
            self._check_open()
            return self._queued_writes

    @property
    def written_time(self) -> int:
        """TIME of the newest record handed to the system."""
        return self._pair.active.last_time

    @property
    def synced_time(self) -> int:
        """TIME of the newest record known to be on stable storage."""
        return self._synced_time

    @property
    def position(self) -> Position:
        """Where the next record goes."""
        active = self._pair.active
        return Position(active.number, active.offset)

    @property
    def failure(self) -> Stopped | None:
        """What ended acknowledging; None while all is well."""
        return self._failure

    def status(self) -> LogStatus:
        """Everything countable, for metrics and people; also after close or a failure."""
        active, standby = self._pair.paths
        self.counters.rotations = self._pair.rotations
        return LogStatus(
            self._queued_writes,
            self.queue_size,
            self.written_time,
            self._synced_time,
            active,
            standby,
            self._closed,
            str(self._failure or ""),
            self.counters,
        )

    def close(self) -> None:
        """Write and sync what is queued, then close; raises the failure if there was one."""
        with self._mutex:
            if self._closing:
                return
            self._closing = True
            self._work.notify()
        self._thread.join()
        try:
            self._pair.close(remove_standby=self._failure is None)
        except (OSError, JournalError) as error:
            self._stop(error)
        finally:
            self._closed = True
            self._lock.release()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        """The writer thread."""
        try:
            while self._take():
                if self._inflight:
                    self._write_group()
                ending = self._always or self._closing
                if self._waiting or self._sync_due() == 0 or (ending and self._pair.active.dirty):
                    self._sync()
        except BaseException as error:  # noqa: BLE001 - a bug here must stop the log as well
            self._stop(error)

    def _take(self) -> bool:
        """Wait for something to do and move a group from the queue; False at the end."""
        with self._mutex:
            while self._failure is None:
                due = self._sync_due()
                if self._queue:
                    size = 0
                    while self._queue and size < _GROUP_BYTES:
                        entry = self._queue.popleft()
                        self._inflight.append(entry)
                        if isinstance(entry, Rotation):
                            break
                        self._queued_writes -= len(entry.payloads)
                        size += sum(map(len, entry.payloads))
                    return True
                if self._waiting or due == 0:
                    return True
                if self._closing:
                    return self._pair.active.dirty
                self._work.wait(due)
            return False

    def _sync_due(self) -> float | None:
        """Seconds until the next interval sync; None if none is due by itself."""
        if not self._interval or not self._pair.active.dirty:
            return None
        passed = (self.stream.clock.monotonic() - self._last_sync) / _SECOND
        return max(0.0, self._interval - passed)

    def _write_group(self) -> None:
        """Write what is in flight with one write, then rotate if the group ends with that."""
        group = [entry for entry in self._inflight if isinstance(entry, Queued)]
        payloads = [payload for entry in group for payload in entry.payloads]
        error: JournalError | None = None
        last_time = 0
        if payloads:
            try:
                with self._io:
                    last_time = self._write(payloads)
            except (NoSpace, WriteFailed) as failure:
                self.counters.errors += 1
                if not _undone(failure):
                    raise
                error = failure
            else:
                self.counters.group_size.observe(len(payloads))
        last = self._inflight[-1]
        if isinstance(last, Rotation):
            with self._io:
                last.path = self._pair.swap().path
            self._release_synced(self.written_time)
        self._inflight = []
        self._release_group(group, last_time - len(payloads), error)
        if isinstance(last, Rotation):
            last.finished.set()

    def _release_group(self, group: list[Queued], time: int, error: JournalError | None) -> None:
        """Tell the waiters of a written group, at once or after the sync; `time` precedes it."""
        waiting: list[tuple[int, Done]] = []
        for entry in group:
            time += len(entry.payloads)
            if entry.done is not None:
                waiting.append((time, entry.done))
        if self._always and error is None:
            with self._mutex:
                self._waiting.extend(waiting)
        else:
            for last_time, done in waiting:
                done(last_time, error)

    def _write(self, payloads: Sequence[bytes]) -> int:
        """Under `_io`: roll if due, stamp, encode and write; returns the last TIME."""
        active = self._pair.active
        if self.auto_rotate and active.offset >= self.options.segment_size:
            active = self._pair.swap()
        first = max(self.stream.clock.now(), active.last_time + 1)
        data, count = encode_many(first, payloads, self.stream.zone)
        last_time = first + count - 1
        active.write(data, last_time)
        self.counters.writes += count
        self.counters.bytes += len(data)
        return last_time

    def _sync(self) -> None:
        """On the writer thread, beside `append`: sync and release everybody who waited for it."""
        with self._io:
            active = self._pair.active
            last_time = active.last_time
        if active.dirty:
            started = self.stream.clock.monotonic()
            active.sync()
            self._last_sync = self.stream.clock.monotonic()
            self.counters.syncs += 1
            self.counters.sync_seconds.observe((self._last_sync - started) / _SECOND)
        self._release_synced(last_time)

    def _release_synced(self, last_time: int) -> None:
        with self._mutex:
            self._synced_time = max(self._synced_time, last_time)
            waiting = self._waiting
            self._waiting = [waiter for waiter in waiting if waiter[0] > last_time]
        for time, done in waiting:
            if time <= last_time:
                done(time, None)

    def _check_open(self) -> None:
        if self._failure is not None:
            raise _stopped(self._failure.__cause__ or self._failure)
        if self._closing:
            raise Closed("the commit log is closed")

    def _stop(self, error: BaseException) -> Stopped:
        """End acknowledging for good and tell everybody who waits."""
        with self._mutex:
            if self._failure is None:
                self._failure = _stopped(error)
            failure = self._failure
            entries = [*self._inflight, *self._queue]
            waiting, self._waiting = self._waiting, []
            self._inflight = []
            self._queue.clear()
            self._queued_writes = 0
            self._work.notify()
        if self.on_failure == "die":
            self._die(EXIT_DIE)
        for entry in entries:
            if isinstance(entry, Rotation):
                entry.error = failure
                entry.finished.set()
            elif entry.done is not None:
                entry.done(0, failure)
        for _, done in waiting:
            done(0, failure)
        return failure


def _undone(error: BaseException) -> bool:
    """Whether a failed write left the log as trustworthy as before: no space, or cut short."""
    return isinstance(error, NoSpace) or (
        isinstance(error, WriteFailed) and error.__cause__ is None
    )


def _stopped(error: BaseException) -> Stopped:
    stopped = Stopped(f"the log stopped: {error!s}" if str(error) else "the log stopped")
    stopped.__cause__ = error
    return stopped


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SettingError(f"{name} must be one of {allowed}, not {value!r}", name=name)
