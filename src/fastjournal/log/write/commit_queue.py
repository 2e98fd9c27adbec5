"""What waits in a commit log: writes and rotations for the writer thread, callers for a sync.

Rules:

1. Everybody is told exactly once. Whoever takes an entry off, under the lock, tells its owner.
2. Nobody is told under the lock, and what a callback raises is logged: it harms nobody else.
3. The queue is bounded, counted in writes; a full one refuses at once.
4. A sync is worth sharing, so under `always` one at a time has the *turn* to write and sync: the
   writer thread while there is work; else a caller may have it, and then does its own work with no
   hop from thread to thread.
5. After a failure or the call of `close` nothing more can be queued; what was queued before a close
   is still handed out.
6. After a failure, who was still in the queue is told `Stopped`: nothing of it was written. Whose
   record was written, or was being written, is told `OutcomeUnknown`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fastjournal.errors import (
    Closed,
    JournalError,
    OutcomeUnknown,
    QueueFull,
    Stopped,
    TooLarge,
)
from fastjournal.log.write.appender import check_payloads
from fastjournal.log.write.counters import Counters

__all__ = ["Done", "Queued", "Rotation", "Told", "Waiter", "Waiting", "frozen", "tell", "unknown"]

Done = Callable[[int, JournalError | None], None]
"""Called once: with the TIME of the last record (of a rotation: the segment), or with an error."""

Told = list[tuple[int, Done]]
"""Whom to tell, and what."""

_GROUP_BYTES = 8 * 1024 * 1024  # payload bytes taken into one write

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Queued:
    """Payloads on their way to the disk, and whom to tell."""

    payloads: Sequence[bytes]
    done: Done | None


@dataclass(slots=True)
class Rotation:
    """A request to go on in the standby segment, and whom to tell."""

    done: Done


class Waiter:
    """A thread that waits for one outcome; a bare lock wakes it fastest."""

    __slots__ = ("_error", "_gate", "_value")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._value = 0
        self._error: JournalError | None = None

    def done(self, value: int, error: JournalError | None) -> None:
        """Tell the outcome."""
        self._value, self._error = value, error
        self._gate.release()

    def wait(self) -> int:
        """Wait for the outcome: the value, or the error raised."""
        self._gate.acquire()
        if self._error is not None:
            # One error serves a whole group: without this its traceback grows with every waiter.
            raise self._error.with_traceback(None)
        return self._value


class Waiting:
    """Everything that waits, behind one lock."""

    def __init__(self, size: int, synced_time: int, counters: Counters) -> None:
        self.size = size
        self.length = 0
        """Writes in the queue."""
        self.synced_time = synced_time
        self.failure: Stopped | None = None
        self.closing = False
        self.dozing = False
        """The writer thread sleeps, or is about to, with no sync to come: wake it for one."""
        self._counters = counters
        self._queue: deque[Queued | Rotation] = deque()
        self._inflight: Sequence[Queued | Rotation] = ()  # taken, and nobody told yet
        self._unsynced: Told = []  # written; told once their TIME is synced
        self._mutex = threading.Lock()
        self._work = threading.Condition(self._mutex)
        self._turn = 0  # the thread that has it
        self._idle = False  # the writer thread sleeps: only then is waking it worth its price

    def check_not_closed(self) -> None:
        """Raise `Closed` once `close` was called."""
        if self.closing:
            raise Closed("the commit log is closed")

    def check_open(self) -> None:
        """Raise `Closed` or, after a failure, `Stopped`."""
        self.check_not_closed()
        if self.failure is not None:
            raise stopped(self.failure.__cause__ or self.failure)

    def put(self, payloads: Sequence[bytes], done: Done | None) -> None:
        """Queue payloads that stand together."""
        count = len(payloads)
        with self._mutex:
            if self.closing or self.failure is not None:
                self.check_open()
            length = self.length + count
            if length > self.size:
                self._counters.refused += count
                if count > self.size:
                    raise TooLarge(f"{count} writes at once exceed the queue of {self.size}")
                raise QueueFull(f"{self.length} of {self.size} writes are queued")
            self.length = length
            self._counters.queued += count
            self._queue.append(Queued(payloads, done))
            self._notify()

    def put_rotation(self, done: Done) -> None:
        """Queue a request to rotate, behind the writes that wait already."""
        with self._mutex:
            self.check_open()
            self._queue.append(Rotation(done))
            self._notify()

    def put_synced(self, time: int, done: Done) -> None:
        """Tell `done` once everything up to `time` is synced; at once if that is so already."""
        with self._mutex:
            failure = self.failure
            if failure is None and time > self.synced_time:
                self._unsynced.append((time, done))
                self._notify()
                return
        tell([(time, done)], None if failure is None else unknown(failure))

    def wake(self) -> None:
        """Let the writer thread look at the clock again."""
        with self._mutex:
            self._work.notify()

    def _notify(self) -> None:
        if self._idle and not self._turn:  # else whoever has the turn looks here at its end
            self._work.notify()

    def is_clear(self) -> bool:
        """Whether nothing queued is still unwritten: a write now overtakes nobody."""
        with self._mutex:
            return not self._queue and not self._inflight

    def take_turn(self) -> bool:
        """Become the writer, if nobody is and nothing waits; end it with `end_turn`."""
        with self._mutex:
            if self._turn or self._queue or self._unsynced:
                return False
            if self.closing or self.failure is not None:
                return False
            self._turn = threading.get_ident()
            return True

    def end_turn(self) -> None:
        """Let others write; harmless for a thread that has no turn."""
        if self._turn != threading.get_ident():
            return
        with self._mutex:
            self._turn = 0
            if self._queue or self._unsynced or self.closing:
                self._work.notify()

    def take(self, due: Callable[[], float | None]) -> list[Queued] | Rotation | None:
        """On the writer thread: the next group of writes or rotation. Blocks; None at the end.

        An empty list asks for a sync: somebody waits for it, or `due` (in how many seconds, None
        for never) has come to 0.
        """
        with self._mutex:
            if self._turn == threading.get_ident():
                self._turn = 0
            while self.failure is None:
                seconds = None
                if not self._turn:
                    if self._queue:
                        self._turn = threading.get_ident()
                        return self._take_next()
                    self.dozing = True  # before `due` looks: so no write slips in between
                    seconds = due()
                    self.dozing = seconds is None
                    if self._unsynced or seconds == 0:
                        self._turn = threading.get_ident()
                        return []
                    if self.closing:
                        return None
                self._idle = True
                self._work.wait(seconds)
                self._idle = self.dozing = False
            return None

    def _take_next(self) -> list[Queued] | Rotation:
        queue = self._queue
        first = queue.popleft()
        if isinstance(first, Rotation):
            self._inflight = (first,)
            return first
        group: list[Queued] = []
        size = 0
        entry: Queued | Rotation = first
        while isinstance(entry, Queued):
            group.append(entry)
            self.length -= len(entry.payloads)
            size += sum(map(len, entry.payloads))
            if not queue or size >= _GROUP_BYTES or isinstance(queue[0], Rotation):
                break
            entry = queue.popleft()
        self._inflight = group
        return group

    def finish(self, value: int, error: JournalError | None = None) -> None:
        """Tell those in flight: the TIME of the group's last record, the new segment, an error."""
        with self._mutex:
            told = self._times(value)
        tell(told, error)

    def finish_after_sync(self, last_time: int) -> None:
        """Those in flight are written and wait for the sync."""
        with self._mutex:
            self._unsynced += self._times(last_time)

    def _times(self, value: int) -> Told:
        """Take those in flight, with the last TIME of each; none if a failure has told them."""
        told: Told = []
        for entry in reversed(self._inflight):
            if entry.done is not None:
                told.append((value, entry.done))
            if isinstance(entry, Queued):
                value -= len(entry.payloads)
        self._inflight = ()
        told.reverse()
        return told

    def synced(self, last_time: int) -> None:
        """Everything up to `last_time` is on stable storage: tell those who wait for it."""
        with self._mutex:
            if last_time > self.synced_time:
                self.synced_time = last_time
            unsynced = self._unsynced
            if not unsynced:
                return
            self._unsynced = [one for one in unsynced if one[0] > last_time]
        tell((one for one in unsynced if one[0] <= last_time), None)

    def close(self) -> bool:
        """Take no more; False if that was so already."""
        with self._mutex:
            first = not self.closing
            self.closing = True
            self._work.notify()
            return first

    def fail(self, error: BaseException) -> tuple[Stopped, Callable[[], None], bool]:
        """End for good; returns the failure, what tells those who wait, and if it is the first."""
        with self._mutex:
            first = self.failure is None
            failure = self.failure = self.failure or stopped(error)
            begun = [(0, entry.done) for entry in self._inflight if entry.done is not None]
            begun += self._unsynced
            queued = [(0, entry.done) for entry in self._queue if entry.done is not None]
            self._inflight = ()
            self._queue.clear()
            self._unsynced = []
            self.length = 0
            self._work.notify()

        def tell_all() -> None:
            tell(begun, unknown(failure))
            tell(queued, failure)

        return failure, tell_all, first


def frozen(payloads: Sequence[bytes], limit: int) -> Sequence[bytes]:
    """The payloads, checked, and safe from what the caller does with its own list and buffers."""
    if set(map(type, payloads)) == {bytes} and max(map(len, payloads)) <= limit:
        return tuple(payloads)
    check_payloads(payloads, limit)
    return tuple(map(bytes, payloads))


def tell(told: Iterable[tuple[int, Done]], error: JournalError | None) -> None:
    """Call everybody with the outcome."""
    for value, done in told:
        try:
            done(value, error)
        except Exception:
            _log.exception("a completion callback failed")


def stopped(cause: BaseException) -> Stopped:
    """What everybody is told after a failure whose request came to nothing."""
    failure = Stopped(f"the log stopped: {cause!s}" if str(cause) else "the log stopped")
    failure.__cause__ = cause
    return failure


def unknown(failure: JournalError) -> OutcomeUnknown:
    """What everybody is told after a failure whose record may be there (rule 6)."""
    if isinstance(failure, OutcomeUnknown):
        return failure
    error = OutcomeUnknown(f"{failure}; this may be there after a restart, or not")
    error.__cause__ = failure.__cause__ or failure
    return error
