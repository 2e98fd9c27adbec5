"""What waits in a commit log: writes and rotations, in order.

Rules:

1. One thread at a time *leads*: it takes what waits, writes it and tells everybody. A caller that
   finds nothing waiting leads for itself. At the end the lead goes to the first in the queue if
   that one has a thread which waits, else to the writer thread: nobody is woken in vain.
2. Everybody is told exactly once: whoever takes one off the queue, under the lock, tells its owner.
   Nobody is told under the lock, and what a callback raises is logged: it harms nobody else.
3. The queue is bounded, counted in writes; a full one refuses at once.
4. After a failure or the call of `close` nothing more can be queued; what was queued before a close
   is still handed out. After a failure, who was still in the queue is told `Stopped`: nothing of it
   was written.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from threading import get_ident
from typing import Any, Final, final

from mypy_extensions import i64

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

__all__ = [
    "Answers",
    "CommitQueue",
    "Done",
    "Queued",
    "Waiter",
    "answer_all",
    "answer_batch",
    "frozen",
    "stopped",
    "unknown",
]

Done = Callable[[int, JournalError | None], None]
"""Called once: with the TIME of the last record (of a rotation: the segment), or with an error."""

Answers = list[tuple[int, Done]]
"""Whom to call, and with what."""

_BATCH_BYTES: Final[i64] = 8 * 1024 * 1024  # payload bytes taken into one write

_log: Final = logging.getLogger(__name__)


@final
class Waiter:
    """A thread that waits for one outcome; a bare lock wakes it fastest."""

    def __init__(self) -> None:
        self._gate: Any = threading.Lock()
        self._gate.acquire()
        self.leads = False
        self.answered = False
        self.value: i64 = 0
        self.error: JournalError | None = None

    def done(self, value: i64, error: JournalError | None) -> None:
        """Tell the outcome."""
        self.value = value
        self.error = error
        self.answered = True
        if not self.leads:  # else it is awake
            self._gate.release()

    def lead(self) -> None:
        """Let it do the work of all who wait."""
        self.leads = True
        self._gate.release()

    def wait(self) -> bool:
        """Wait until it is told; False: it is to lead."""
        self._gate.acquire()
        return self.answered

    def outcome(self) -> int:
        """The value that was told, or the error raised."""
        if self.error is not None:
            # One error serves a whole batch: without this its traceback grows with every waiter.
            raise self.error.with_traceback(None)
        return self.value


@final
class Queued:
    """Payloads on their way to the disk, or a request to rotate, and whom to tell."""

    def __init__(
        self, payloads: Sequence[bytes], waiter: Waiter | None, done: Done | None = None
    ) -> None:
        self.payloads = payloads
        """None of them: a request to go on in the standby segment."""
        self.waiter = waiter
        self.done: Done | None = done if waiter is None else waiter.done


@final
class CommitQueue:
    """Everything that waits, behind one lock."""

    def __init__(self, size: int, counters: Counters) -> None:
        self.size = size
        self.length = 0
        """Writes in the queue."""
        self.closing = False
        self._failure: Stopped | None = None
        self._counters = counters
        self._queue: deque[Queued] = deque()
        self._mutex: Any = threading.Lock()
        self._work = threading.Condition(self._mutex)  # for the writer thread, and for `drain`
        self._sleeping = 0  # threads to be notified
        self._leader: int = 0  # the thread that leads

    def check(self) -> None:
        """Raise `Closed` or, after a failure, `Stopped`."""
        if self.closing:
            raise Closed("the commit log is closed")
        if self._failure is not None:
            raise stopped(self._failure.__cause__ or self._failure)

    def try_lead(self) -> bool:
        """Lead if nobody does and nothing waits; end it with `end_lead`."""
        with self._mutex:
            if self._leader or self._queue:
                return False
            self.check()
            self._leader = get_ident()
            return True

    def put(self, queued: Queued) -> None:
        """Queue it; if nobody leads, its waiter is told to, or the writer thread does."""
        count = len(queued.payloads)
        with self._mutex:
            self.check()
            if self.length + count > self.size:
                self._counters.refused += count
                if count > self.size:
                    raise TooLarge(f"{count} writes at once exceed the queue of {self.size}")
                raise QueueFull(f"{self.length} of {self.size} writes are queued")
            self.length += count
            self._counters.queued += count
            self._queue.append(queued)
            if not self._leader:
                self._choose()

    def take_lead(self) -> None:
        """On a thread whose waiter was told to lead."""
        with self._mutex:
            self._leader = get_ident()

    def end_lead(self) -> None:
        """Let the next one lead; harmless for a thread that does not."""
        if self._leader == get_ident():
            with self._mutex:
                self._choose()

    def _choose(self) -> None:
        waiter = self._queue[0].waiter if self._queue else None
        if waiter is not None:
            self._leader = -1  # until that one takes it: who had it does not lead any more
            waiter.lead()
        else:
            if self._sleeping:
                self._work.notify_all()
            self._leader = 0

    def interrupt(self, waiter: Waiter | None) -> bool:
        """A thread stops waiting or leading, by an interrupt; returns whether it led."""
        with self._mutex:
            for queued in self._queue:
                if waiter is not None and queued.waiter is waiter:
                    queued.waiter = None  # what it queued goes on without it
            return self._leader == get_ident() or (waiter is not None and waiter.leads)

    def wait_to_lead(self) -> bool:
        """On the writer thread: wait until there is something to lead; False: at the end."""
        with self._mutex:
            while self._leader or not self._queue:
                if self.closing or self._failure is not None:
                    return False
                self._sleep()
            self._leader = get_ident()
            return True

    def _sleep(self) -> None:
        self._sleeping += 1
        self._work.wait()
        self._sleeping -= 1

    def take(self) -> list[Queued]:
        """As the leader: the next writes, or a rotation alone; none if a failure took them."""
        with self._mutex:
            queue = self._queue
            batch: list[Queued] = []
            size = 0
            while queue and size < _BATCH_BYTES and (queue[0].payloads or not batch):
                queued = queue.popleft()
                batch.append(queued)
                if not queued.payloads:
                    break
                self.length -= len(queued.payloads)
                size += sum(map(len, queued.payloads))
            return batch

    def close(self) -> bool:
        """Take no more; False if that was so already."""
        with self._mutex:
            first = not self.closing
            self.closing = True
            self._work.notify_all()
            return first

    def drain(self) -> None:
        """Wait until all that was queued is done."""
        with self._mutex:
            while (self._queue or self._leader) and self._failure is None:
                self._sleep()

    def fail(self, failure: Stopped) -> None:
        """End for good and tell everybody in the queue."""
        with self._mutex:
            self._failure = failure
            answers = [(0, queued.done) for queued in self._queue if queued.done is not None]
            self._queue.clear()
            self.length = 0
            self._work.notify_all()
        answer_all(answers, failure)


def answer_batch(batch: Sequence[Queued], value: int, error: JournalError | None = None) -> None:
    """Tell a batch the TIME of its last record, the new segment, or an error."""
    value -= sum([len(queued.payloads) for queued in batch])
    for queued in batch:
        value += len(queued.payloads)
        if queued.done is not None:
            _answer(queued.done, value, error)


def frozen(payloads: Sequence[bytes], limit: int) -> Sequence[bytes]:
    """The payloads, checked, and safe from what the caller does with its own list and buffers."""
    if set(map(type, payloads)) == {bytes} and max(map(len, payloads)) <= limit:
        return tuple(payloads)
    check_payloads(payloads, limit)
    return tuple(map(bytes, payloads))


def answer_all(answers: Iterable[tuple[int, Done]], error: JournalError | None) -> None:
    """Call everybody with the outcome."""
    for value, done in answers:
        _answer(done, value, error)


def _answer(done: Done, value: int, error: JournalError | None) -> None:
    """Call one; what it raises harms nobody else."""
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
    """What everybody is told after a failure whose record may be there."""
    if isinstance(failure, OutcomeUnknown):
        return failure
    error = OutcomeUnknown(f"{failure}; this may be there after a restart, or not")
    error.__cause__ = failure.__cause__ or failure
    return error
