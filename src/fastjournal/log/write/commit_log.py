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
5. A write that found no space, or was cut short, and was undone, is an error to its own callers
   only; so is a rotation that could not make its segment. Any other fault ends acknowledging for
   good: every waiter and every later call gets `Stopped`, or `OutcomeUnknown` if its record may be
   there; reading goes on. It is told once, loudly. Policy `die` ends the process instead. A failed
   sync is never tried again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from fastjournal.errors import (
    AppenderPoisoned,
    BadRequest,
    JournalError,
    RequestError,
    SettingError,
    Stopped,
)
from fastjournal.log.care.recovery import Recovery, recover
from fastjournal.log.segment import Position
from fastjournal.log.stream import DEFAULT_SEGMENT_SIZE, Stream
from fastjournal.log.write.active_standby import SegmentPair, is_harmless
from fastjournal.log.write.appender import AppendOptions
from fastjournal.log.write.commit_queue import (
    Done,
    Queued,
    Rotation,
    Waiter,
    Waiting,
    frozen,
    unknown,
)
from fastjournal.log.write.counters import Counters, LogStatus

__all__ = ["DEFAULT_QUEUE_SIZE", "EXIT_DIE", "CommitLog"]

DEFAULT_QUEUE_SIZE = 65_536  # writes
EXIT_DIE = 4
_SECOND = 1_000_000_000
_log = logging.getLogger(__name__)


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
        floor: Callable[[], int] = int,
        die: Callable[[int], object] = os._exit,
    ) -> None:
        """Open a stream for writing: lock it, recover it, start the writer thread.

        `trust_mark`: read only the tail behind `synced.pos`, for a caller that replays all anyway.
        `floor`: asked, once the lock is held, for the lowest segment that may be written.
        `die`: what ends the process under `on_failure="die"`; told the exit code 4.
        """
        if strategy not in ("wait", "behind"):
            raise SettingError(f"strategy must be wait or behind, not {strategy}", name="strategy")
        if on_failure not in ("stop", "die"):
            raise SettingError(
                f"on_failure must be stop or die, not {on_failure}", name="on_failure"
            )
        if queue_size < 1:
            raise SettingError(f"queue_size must be 1 or more, not {queue_size}", name="queue_size")
        self.options = AppendOptions(segment_size, sync, sync_interval)
        self.stream = stream
        self.strategy = strategy
        self.auto_rotate = auto_rotate
        self.on_failure = on_failure
        self.counters = Counters()
        self._die = die
        self.on_stop: Callable[[], object] | None = None
        """Called, on any thread, once acknowledging has ended; must not wait."""
        self._always = sync == "always"
        self._interval = (self.options.sync_interval or 0) / 1000  # seconds
        self._io = threading.Lock()  # the active segment; taken before the lock of `_waiting`
        self._lost: JournalError | None = None  # what nobody waited to hear; `close` says it
        self._closed = False
        self._lock = stream.lock_appender(lock_timeout)
        try:
            self.recovery: Recovery = recover(stream, trust_mark=trust_mark)
            last_time = self.recovery.last_time
            self._waiting = Waiting(queue_size, last_time, self.counters)
            roll_at = segment_size if auto_rotate else None
            used = self.recovery.used
            self._pair = SegmentPair(
                stream, last_time, used, self._lock, roll_at, self.counters, self.stop, floor()
            )
            self._thread = threading.Thread(
                target=self._run, name="fastjournal-writer", daemon=True
            )
            try:
                self._thread.start()
            except BaseException:
                self._pair.close(remove_standby=True)
                raise
        except BaseException:
            self._lock.release()
            raise

    def write(self, payload: bytes) -> int | None:
        """Write one payload; returns its TIME, or None at once under the strategy `behind`."""
        return self.write_batch((payload,))

    def write_batch(self, payloads: Sequence[bytes]) -> int | None:
        """Write payloads that stand together in the log; returns the TIME of the last one."""
        if not payloads:
            self._waiting.check_open()
            return None
        if self.strategy == "behind":
            self.submit(payloads, None)
            return None
        payloads = frozen(payloads, self.stream.max_payload)
        waiting = self._waiting
        if len(payloads) <= waiting.size:
            if not self._always:
                if waiting.is_clear():
                    return self._write_here(payloads)
            else:
                try:
                    if waiting.take_turn():
                        return self._write_here(payloads, sync=True)
                finally:
                    waiting.end_turn()
        waiter = Waiter()
        waiting.put(payloads, waiter.done)
        return waiter.wait()

    def submit(self, payloads: Sequence[bytes], done: Done | None) -> None:
        """Queue payloads and return; `done` is called on the writer thread, also with an error.

        Without a `done`, writes that find no space are counted as lost and reported by `close`.
        """
        self._waiting.put(frozen(payloads, self.stream.max_payload), done)

    def append(self, payloads: Sequence[bytes], first_time: int = 0) -> int:
        """Write at once on this thread; returns the TIME of the last record. Not synced yet.

        The payloads are not checked: the caller made them. `first_time`, if given, becomes the TIME
        of the first record; it must lie behind `written_time`. Lack of space leaves the log as it
        was; any other fault stops it.
        """
        if not payloads:
            self._waiting.check_open()
            return self.written_time
        return self._write_here(payloads, first_time)

    def append_one(self, payload: bytes, now: int = 0) -> int:
        """`append` of one payload, without what a batch costs; `now`: the clock, just read."""
        waiting = self._waiting
        try:
            with self._io:
                if waiting.closing or waiting.failure is not None:
                    waiting.check_open()
                time = self._pair.write_one(payload, now)
        except BaseException as error:
            self._judge(error)
            raise
        if waiting.dozing and self._interval:
            waiting.wake()
        return time

    def when_synced(self, time: int, done: Done) -> None:
        """Call `done` once the record of that TIME is as safe as the policy promises.

        At once, on this thread, if it is so already; else later on the writer thread.
        """
        if time > self.written_time:
            raise BadRequest(f"no record of TIME {time} was written yet")
        if self._always:
            self._waiting.put_synced(time, done)
        else:
            failure = self._waiting.failure
            done(time, None if failure is None else unknown(failure))

    def wait_synced(self, time: int) -> None:
        """Block until the record of that TIME is as safe as the policy promises."""
        waiter = Waiter()
        try:
            if self._always and self.synced_time < time and self._waiting.take_turn():
                self._sync()
        except BaseException as error:
            self._judge(error, written=True)
            raise
        finally:
            self._waiting.end_turn()
        self.when_synced(time, waiter.done)
        waiter.wait()

    def sync(self) -> None:
        """Bring everything written so far to stable storage now, whatever the policy."""
        self._waiting.check_open()
        try:
            self._sync()
        except BaseException as error:
            self._judge(error)
            raise

    def rotate(self) -> Path:
        """Go on in the standby segment; returns its path once the writer thread has swapped."""
        waiter = Waiter()
        self._waiting.put_rotation(waiter.done)
        return self.stream.segment_path(waiter.wait())

    def active_logs(self) -> tuple[Path, Path]:
        """The segment being written and the one that comes next; always two."""
        self._waiting.check_not_closed()
        return self._pair.paths

    def queue_length(self) -> int:
        """Writes that wait in the queue."""
        self._waiting.check_not_closed()
        return self._waiting.length

    @property
    def written_time(self) -> int:
        """TIME of the newest record handed to the system."""
        return self._pair.active.last_time

    @property
    def synced_time(self) -> int:
        """TIME of the newest record known to be on stable storage."""
        return self._waiting.synced_time

    @property
    def position(self) -> Position:
        """Where the next record goes."""
        return self._pair.position

    @property
    def failure(self) -> Stopped | None:
        """What ended acknowledging; None while all is well."""
        return self._waiting.failure

    def status(self) -> LogStatus:
        """Everything countable, for metrics and people; also after close or a failure."""
        active, standby = self._pair.paths
        return LogStatus(
            self._waiting.length,
            self._waiting.size,
            self.written_time,
            self.synced_time,
            active,
            standby,
            self._closed,
            str(self.failure or ""),
            self.counters.copy(),
        )

    def stop(self, error: BaseException) -> Stopped:
        """End acknowledging for good and tell everybody who waits; under `die`, end the process.

        Also for a caller whose own state can no longer follow the log.
        """
        failure, tell_all, first = self._waiting.fail(error)
        try:
            if first:
                self.counters.errors += 1
                _log.critical(
                    "%s: writing has stopped: %s. Reading goes on, nothing more is acknowledged."
                    " Mend the cause, then open the log again: that recovers what was written",
                    self.stream.path,
                    str(error) or repr(error),
                )
                if self.on_failure == "die":
                    self._die(EXIT_DIE)
        finally:
            tell_all()
            if first and self.on_stop is not None:
                self.on_stop()
        return failure

    def close(self) -> None:
        """Write and sync what is queued, then close; raises the failure if there was one."""
        with self._io:  # an append under way is still part of what is synced
            if not self._waiting.close():
                return
        self._thread.join()
        try:
            self._pair.close(remove_standby=self.failure is None)
        except (OSError, JournalError) as error:
            self.stop(error)
        finally:
            self._closed = True
            self._lock.release()
        report = self.failure or self._lost
        if report is not None:
            raise report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except JournalError:
            if error is None:  # else the error under way tells more
                raise

    def _write_here(self, payloads: Sequence[bytes], first: int = 0, *, sync: bool = False) -> int:
        """On a caller's thread: write, and sync if so told."""
        written = False
        try:
            with self._io:
                if self._waiting.closing or self._waiting.failure is not None:
                    self._waiting.check_open()
                time = self._pair.write(payloads, first)
                written = True
                self.counters.group_size.observe(len(payloads))
            if sync:
                self._sync()
        except BaseException as error:
            self._judge(error, written=written)
            raise
        if self._waiting.dozing and self._interval:
            self._waiting.wake()
        return time

    def _judge(self, error: BaseException, *, written: bool = False) -> None:
        """Stop the log for a fault met on a caller's thread, unless it is harmless.

        `written`: the caller's record may be there, as after a write that could not be undone.
        """
        if is_harmless(error):
            self.counters.errors += not isinstance(error, RequestError)
            return
        failure = self.stop(error)
        if isinstance(error, Exception):  # an interrupt stays what it is
            raise unknown(failure) if written or isinstance(error, AppenderPoisoned) else failure

    def _run(self) -> None:
        """The writer thread."""
        try:
            while (work := self._waiting.take(self._sync_due)) is not None:
                if isinstance(work, Rotation):
                    self._rotate()
                    continue
                if work:
                    self._write_group(work)
                if self._always or self._sync_due() == 0:
                    self._sync()
            if self.failure is None:
                self._sync()
        except BaseException as error:
            self.stop(error)

    def _sync_due(self) -> float | None:
        """Seconds until the next interval sync; None if none is due by itself."""
        if not self._interval or not self._pair.active.dirty:
            return None
        passed = (self.stream.clock.monotonic() - self._pair.last_sync) / _SECOND
        return max(0.0, self._interval - passed)

    def _write_group(self, group: list[Queued]) -> None:
        payloads = group[0].payloads
        if len(group) > 1:
            payloads = [payload for entry in group for payload in entry.payloads]
        try:
            with self._io:
                if self.failure is not None:  # met on another thread, which has told the group
                    return
                last_time = self._pair.write(payloads)
                self.counters.group_size.observe(len(payloads))
        except JournalError as error:
            if not is_harmless(error):
                raise
            self.counters.errors += 1
            lost = sum(len(entry.payloads) for entry in group if entry.done is None)
            self.counters.lost += lost
            self._lost = error if lost else self._lost
            self._waiting.finish(0, error)
            return
        if self._always:
            self._waiting.finish_after_sync(last_time)
        else:
            self._waiting.finish(last_time)

    def _rotate(self) -> None:
        try:
            with self._io:
                fresh = self._pair.swap()
        except JournalError as error:
            if not is_harmless(error):
                raise
            self.counters.errors += 1
            self._waiting.finish(0, error)
            return
        self._waiting.synced(fresh.last_time)
        self._waiting.finish(fresh.number)

    def _sync(self) -> None:
        """Beside `append`, on any thread: sync and release everybody who waited for it."""
        active = self._pair.active
        last_time = active.last_time  # older ones are synced, by this or by a swap meanwhile
        self._pair.sync(active)
        self._waiting.synced(last_time)
