"""A stream opened for writing: what the journal stands on.

Rules:

1. Whoever calls `append` writes at once, on its own thread, with one write; several callers take
   turns. `wait_synced` says when that is as safe as the policy promises.
2. Under `always` a sync is shared: who comes first syncs for all that is written by then. The
   others wait, each on a lock of its own, and one whose record came too late does the next. So one
   caller alone costs a write and a sync, and no thread is ever woken for it.
3. An event loop that must not wait for a slow disk (`is_slow`) gives a callback to `when_synced`: a
   thread, begun when it is first needed, then waits in its place.
4. No lock that an append needs is held across a sync, whoever makes it: only a rotation waits for
   one. Under `interval` a timer syncs what was written since it last did.
5. A write that found no space, or was cut short, and was undone, is an error to its own caller
   only; so is a rotation that could not make its segment. Any other fault ends acknowledging for
   good: every waiter and every later call gets `Stopped`, or `OutcomeUnknown` if its record may be
   there; reading goes on. It is told once, loudly. Policy `die` ends the process instead. A failed
   sync is never tried again.
6. Under `always` room is reserved ahead (see `segment_writer`) while `preallocate()` says so.
"""

import logging
import os
import struct
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any, Final, Self

from mypy_extensions import i64

from fastjournal.errors import (
    AppenderPoisoned,
    BadRequest,
    Closed,
    JournalError,
    RequestError,
    SettingError,
    Stopped,
    because,
)
from fastjournal.log.care.recovery import Recovery, recover
from fastjournal.log.record import encode, encode_many
from fastjournal.log.segment import Position
from fastjournal.log.segment_directory import DEFAULT_SEGMENT_SIZE, SegmentDirectory
from fastjournal.log.write.active_standby import SegmentPair, is_harmless
from fastjournal.log.write.appender import (
    DEFAULT_SYNC_INTERVAL,
    AppendOptions,
    ThreadTicker,
    Ticker,
)
from fastjournal.log.write.commit_queue import Answers, Done, Waiter, answer_all, stopped, unknown
from fastjournal.log.write.counters import Counters, LogStatus

__all__ = ["EXIT_DIE", "LogWriter", "always", "never"]

EXIT_DIE: Final = 4
_NOBODY_YET: Final = -1  # no thread has this number: the leader is chosen and not yet awake
_SLOW: Final = 0.005  # seconds of a sync, on average, that an event loop should not wait for
_log: Final = logging.getLogger(__name__)


def always() -> bool:
    """For `preallocate`."""
    return True


def never() -> bool:
    """For `preallocate`: the Workq server does not start on a file with room reserved in it."""
    return False


class LogWriter:
    """The one writer of a stream; close it, or use it as a context manager."""

    def __init__(
        self,
        stream: SegmentDirectory,
        *,
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        sync: str = "interval",
        sync_interval: int | None = None,
        auto_rotate: bool = True,
        preallocate: Callable[[], bool] = always,
        on_failure: str = "stop",
        lock_timeout: float | None = 1.0,
        trust_mark: bool = False,
        floor: Callable[[], int] = int,
        ticker: Ticker | None = None,
        die: Callable[[int], object] = os._exit,
    ) -> None:
        """Open a stream for writing: lock it, recover it.

        `preallocate`: asked before room is reserved, under `always` only. `trust_mark`: read only
        the tail behind `synced.pos`, for a caller that replays all anyway. `floor`: asked, once the
        lock is held, for the lowest segment that may be written. `ticker`: calls for the syncs of
        `interval`. `die`: what ends the process under `on_failure="die"`; told the exit code 4.
        """
        if on_failure not in ("stop", "die"):
            raise SettingError(
                f"on_failure must be stop or die, not {on_failure}", name="on_failure"
            )
        self.options = AppendOptions(segment_size, sync, sync_interval)
        self.stream = stream
        self.auto_rotate = auto_rotate
        self.on_failure = on_failure
        self.counters = Counters()
        self.on_stop: Callable[[], object] | None = None
        """Called, on any thread, once acknowledging has ended; must not wait."""
        self.failure: Stopped | None = None
        """What ended acknowledging; None while all is well."""
        self._die = die
        self._always = sync == "always"
        self._io: Any = threading.Lock()  # the active segment; taken before `_mutex`
        self._mutex: Any = threading.Lock()  # all that follows
        self._leader: int = 0  # the thread that syncs for all
        self._waiting: list[tuple[int, Waiter]] = []  # by TIME
        self._callbacks: Answers = []
        self._called = threading.Condition(self._mutex)
        self._caller: threading.Thread | None = None  # waits in the place of callbacks
        self._closing = self._closed = False
        self.began_in: i64 = 0
        """The segment of what the newest `append_encoded` wrote."""
        self.began_at: i64 = 0
        """The offset in it."""
        self._ticker: Ticker = ticker or ThreadTicker()
        self._lock = stream.lock_appender(lock_timeout)
        try:
            self.recovery: Recovery = recover(stream, trust_mark=trust_mark)
            self.synced_time: i64 = self.recovery.last_time
            """TIME of the newest record known to be on stable storage."""
            self._pair = SegmentPair(
                stream,
                self.recovery.last_time,
                self.recovery.used,
                self._lock,
                segment_size if auto_rotate else None,
                self.counters,
                self.stop,
                floor(),
                preallocate if self._always else None,
            )
            try:
                if sync == "interval":
                    self._ticker.start(self._tick, sync_interval or DEFAULT_SYNC_INTERVAL)
            except BaseException:
                self._pair.close(remove_standby=True)
                raise
        except BaseException:
            self._lock.release()
            raise

    def append(self, payloads: Sequence[bytes], first_time: int = 0) -> int:
        """Write payloads that stand together; returns the TIME of the last one. Not synced yet.

        They are not checked: the caller made them. `first_time`, if given, becomes the TIME of the
        first record unless that lies before `written_time`. Lack of space leaves the log as it was;
        any other fault stops it.
        """
        if len(payloads) == 1:
            return self.append_one(payloads[0], first_time)
        try:
            with self._io:
                self._check_open()
                if not payloads:
                    return self.written_time
                pair = self._pair
                active = pair.ready()
                first = max(first_time or self.stream.clock.now(), active.last_time + 1)
                try:
                    data, count = encode_many(first, payloads, self.stream.zone)
                except (TypeError, struct.error) as error:  # nothing has happened yet
                    raise because(BadRequest(f"a payload must be bytes: {error}"), error) from error
                pair.write(active, data, count, first + count - 1)
                self.counters.group_size.observe(count)
                return first + count - 1
        except BaseException as error:
            self._judge(error, "write")
            raise

    def append_one(self, payload: Any, now: i64 = 0) -> int:
        """`append` of one payload, without what a batch costs; `now`: the clock, just read."""
        try:
            with self._io:
                if self._closing or self.failure is not None:
                    self._check_open()
                pair = self._pair
                active = pair.ready()
                time: i64 = now or self.stream.clock.now()
                if time <= active.last_time:
                    time = active.last_time + 1
                try:
                    data = encode(time, payload, self.stream.zone)
                except (TypeError, struct.error) as error:
                    raise because(BadRequest(f"a payload must be bytes: {error}"), error) from error
                pair.write(active, data, 1, time)
                return time
        except BaseException as error:
            self._judge(error, "write")
            raise

    def append_encoded(self, data: bytes, count: i64, first_time: i64, last_time: i64) -> None:
        """Write `count` records that the caller has encoded, with TIMEs behind `written_time`.

        `began_in` and `began_at` tell where the first of them begins.
        """
        try:
            with self._io:
                if self._closing or self.failure is not None:
                    self._check_open()
                pair = self._pair
                active = pair.ready()
                if first_time <= active.last_time:
                    raise BadRequest(f"TIME {first_time} is not behind {active.last_time}")
                pair.write(active, data, count, last_time)
                if count > 1:
                    self.counters.group_size.observe(float(count))
                # While nobody can go on in another segment.
                self.began_in = active.number
                self.began_at = active.offset - len(data)
        except BaseException as error:
            self._judge(error, "write")
            raise

    def tell_writes(self, on_write: Callable[[int, bytes, int, bool], object]) -> None:
        """Tell every write from now on, on its thread and in their order; `on_write` must not wait.

        It gets the TIME of the record before, the bytes, the TIME of their last record, and whether
        they are the first of their segment.
        """
        with self._io:
            self._pair.on_write = on_write

    def wait_synced(self, time: i64) -> None:
        """Block until the record of that TIME is as safe as the policy promises (rule 2)."""
        if time <= self.synced_time:
            return
        if time > self.written_time:
            raise BadRequest(f"no record of TIME {time} was written yet")
        if not self._always:
            self._check_known()
            return
        waiter: Waiter | None = None
        try:
            with self._mutex:
                if time <= self.synced_time:
                    return
                self._check_known()
                if self._leader:
                    waiter = Waiter()
                    self._waiting.append((time, waiter))
                else:
                    self._leader = get_ident()
            if waiter is not None and waiter.wait():
                waiter.outcome()
                return
            if waiter is not None:
                with self._mutex:
                    self._leader = get_ident()
                    self._check_known()
            self._sync()
            self._hand_on()
        except JournalError:
            raise
        except BaseException as error:  # an interrupt: nobody may wait for who is gone
            with self._mutex:
                leads = self._leader == get_ident() or (waiter is not None and waiter.leads)
                self._forget(waiter)
            if leads:
                self.stop(error)
            raise

    def _forget(self, waiter: Waiter | None) -> None:
        self._waiting = [one for one in self._waiting if one[1] is not waiter]

    def when_synced(self, time: int, done: Done) -> None:
        """Call `done` once the record of that TIME is as safe as the policy promises.

        At once, on this thread, if it is so already; else later, on another.
        """
        if time > self.written_time:
            raise BadRequest(f"no record of TIME {time} was written yet")
        with self._mutex:
            if self._always and self.failure is None and time > self.synced_time:
                self._callbacks.append((time, done))
                if self._caller is None:
                    self._caller = threading.Thread(
                        target=self._wait_for_callbacks, name="fastjournal-sync", daemon=True
                    )
                    self._caller.start()
                self._called.notify()
                return
            failure = None if self._always and time <= self.synced_time else self.failure
        answer_all([(time, done)], None if failure is None else unknown(failure))

    def _wait_for_callbacks(self) -> None:
        while True:
            with self._mutex:
                while not self._callbacks and not self._closing and self.failure is None:
                    self._called.wait()
                if not self._callbacks or self.failure is not None:
                    return
                time = self._callbacks[-1][0]
            try:
                self.wait_synced(time)
            except JournalError:  # which has told them
                return

    def sync(self) -> None:
        """Bring everything written so far to stable storage now, whatever the policy."""
        self._check_open()
        self._sync()

    def rotate(self) -> Path:
        """Go on in the standby segment; returns its path, all older records synced."""
        try:
            with self._io:
                self._check_open()
                fresh = self._pair.swap()
                last_time = fresh.last_time  # what others append to it from now on is not synced
        except BaseException as error:
            self._judge(error, "open")
            raise
        self._synced(last_time)
        return fresh.path

    @property
    def written_time(self) -> int:
        """TIME of the newest record handed to the system."""
        return self._pair.active.last_time

    @property
    def position(self) -> Position:
        """Where the next record goes."""
        return self._pair.position

    @property
    def last_sync(self) -> int:
        """When the newest sync ended, ns since 1970; 0: there was none yet."""
        return self.counters.last_sync

    @property
    def is_slow(self) -> bool:
        """Whether the syncs of late took so long that an event loop should not wait for one."""
        return self._pair.sync_seconds > _SLOW

    def status(self) -> LogStatus:
        """Everything countable, for metrics and people; also after close or a failure."""
        active, standby = self._pair.paths
        return LogStatus(
            0,
            0,
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
        with self._mutex:
            first = self.failure is None
            failure = self.failure = self.failure or stopped(error)
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
            self._tell_stopped(failure)
            if first and self.on_stop is not None:
                self.on_stop()
        return failure

    def close(self) -> None:
        """Sync what is written, then close; raises the failure if there was one."""
        with self._io:  # an append under way is still part of what is synced
            if self._closing:
                return
            self._closing = True
        with self._mutex:
            self._called.notify()
        try:
            if self.options.sync == "interval":
                self._ticker.stop()
            if self._caller is not None:
                self._caller.join()
            if self.failure is None:
                self._pair.active.trim()
                self._sync()
        except JournalError as error:
            self.stop(error)
        finally:
            try:
                self._pair.close(remove_standby=self.failure is None)
            except (OSError, JournalError) as error:
                self.counters.faults["close"] += 1
                self.stop(error)
            finally:
                self._closed = True
                self._lock.release()
        if self.failure is not None:
            raise self.failure

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except JournalError:
            if error is None:  # else the error under way tells more
                raise

    def _check_open(self) -> None:
        if self._closing:
            raise Closed("the commit log is closed")
        if self.failure is not None:
            raise stopped(self.failure.__cause__ or self.failure)

    def _check_known(self) -> None:
        if self.failure is not None:
            raise unknown(self.failure)

    def _sync(self) -> None:
        """On any thread, beside `append`: sync, and tell everybody who waited for it."""
        active = self._pair.active
        last_time = active.last_time  # older ones are synced, by this or by a swap meanwhile
        try:
            self._pair.sync(active)
        except BaseException as error:
            self._judge(error, "sync", written=True)
            raise
        self._synced(last_time)

    def _synced(self, last_time: int) -> None:
        with self._mutex:
            if last_time > self.synced_time:
                self.synced_time = last_time
            waiting, callbacks = self._waiting, self._callbacks
            if not waiting and not callbacks:
                return
            self._waiting = [one for one in waiting if one[0] > last_time]
            self._callbacks = [one for one in callbacks if one[0] > last_time]
        for time, waiter in waiting:
            if time <= last_time:
                waiter.done(time, None)
        answer_all([one for one in callbacks if one[0] <= last_time], None)

    def _hand_on(self) -> None:
        """Let one of those who still wait sync next; it takes the lead when it wakes.

        It no longer counts as waiting: if a sync on another thread told it too, it would go without
        leading, and nobody ever would again.
        """
        with self._mutex:
            if self._waiting:
                self._leader = _NOBODY_YET
                self._waiting.pop(0)[1].lead()
            else:
                self._leader = 0

    def _tell_stopped(self, failure: Stopped) -> None:
        with self._mutex:
            waiting, self._waiting = self._waiting, []
            callbacks, self._callbacks = self._callbacks, []
            self._called.notify()
        error = unknown(failure)
        for _, waiter in waiting:
            waiter.done(0, error)
        answer_all(callbacks, error)

    def _tick(self) -> None:
        if self._pair.active.dirty and self.failure is None:
            try:
                self._sync()
            except JournalError:  # which has stopped the log
                return

    def _judge(self, error: BaseException, what: str, *, written: bool = False) -> None:
        """Stop the log for a fault met on a caller's thread, unless it is harmless.

        `what`: which of `FAULTS` it was. `written`: the caller's record may be there, as after a
        write that could not be undone.
        """
        if is_harmless(error):
            if not isinstance(error, RequestError):
                self.counters.failed(what)
            return
        if self.failure is None:
            self.counters.faults[what] += 1
        failure = self.stop(error)
        if isinstance(error, Exception):  # an interrupt stays what it is
            raise unknown(failure) if written or isinstance(error, AppenderPoisoned) else failure
