"""The consumer's side of a journal: leases, their ends, and waiting for results."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from fastjournal.arguments import (
    Length,
    Text,
    id_bytes,
    length,
    queue_bytes,
    result_bytes,
    token_number,
    worker_bytes,
)
from fastjournal.clock import SECOND
from fastjournal.errors import AlreadyExists, BadRequest, LeaseLost, NotFound, TimedOut
from fastjournal.handles import LeasedJob
from fastjournal.journal.engine.engine import leases_of
from fastjournal.journal.look.access import Access
from fastjournal.journal.look.inspection import result_of
from fastjournal.model import State, Where

__all__ = ["Consuming", "where_of"]

ALL = Where()
_ALONE = nullcontext()


class Consuming(Access):
    """What consumers ask of a `Journal`."""

    def lease(
        self,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool = True,
        worker: Text = b"",
        take: bool = False,
    ) -> LeasedJob | None:
        """The next job, or None if there is none within `wait`.

        Asks one `queue`, some `queues`, those with a `prefix`, or all. `fair`: queues take turns;
        else the most urgent job of all comes first. `take`: the job goes at once instead of being
        leased.
        """
        if queues is None and prefix is None:
            where = ALL if queue is None else Where((queue_bytes(queue),))
        else:
            where = where_of(queue, queues, prefix)
        leased = self._lease(where, 1, wait, lease, fair, worker, take)
        return leased[0] if leased else None

    def lease_many(
        self,
        count: int,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool = True,
        worker: Text = b"",
        take: bool = False,
    ) -> list[LeasedJob]:
        """Up to `count` jobs; waits only for the first one."""
        if type(count) is not int or count < 1:
            raise BadRequest(f"count must be a number of at least 1, not {count!r}")
        where = where_of(queue, queues, prefix)
        return self._lease(where, count, wait, lease, fair, worker, take)

    def _lease(
        self,
        where: Where,
        count: int,
        wait: Length,
        lease: Length | None,
        fair: bool,
        worker: Text,
        take: bool,
    ) -> list[LeasedJob]:
        lasts = 0 if lease is None else length(lease, "lease")
        consumer = worker_bytes(worker) if worker else b""
        give_up = 0
        if wait:
            give_up = self._clock.monotonic() + length(wait, "wait")
        engine, operations = self._engine, self._operations
        handle = 0
        try:
            while True:
                with engine.lock:
                    if handle:
                        engine.wakeups.forget(handle)
                    self._check_open()
                    with engine.batch() if count > 1 else _ALONE:
                        rows = operations.lease(where, count, consumer, lasts, fair, take)
                    leases = leases_of(engine, rows)
                    time = engine.last_time
                    if leases or not give_up:
                        break
                    left = give_up - self._clock.monotonic()
                    if left <= 0:
                        break
                    gate = threading.Lock()
                    gate.acquire()
                    handle = engine.wakeups.wait_for_row(where, gate.release)
                    due = operations.next_due
                if due:
                    left = min(left, max(0, due - self._clock.now()))
                gate.acquire(timeout=min(left / SECOND, threading.TIMEOUT_MAX))
        except BaseException:
            if handle:  # what it was woken for, if it was, is another's to take
                with engine.lock:
                    engine.wakeups.forget(handle)
                    engine.pass_on()
            raise
        if not leases:
            return []
        engine.settle(time)
        return [LeasedJob(self, granted) for granted in leases]

    def touch(self, job_id: bytes, token: int, extend: Length | None = None) -> int:
        """Keep a lease for `extend` from now on, or its usual length; returns its end in ns."""
        id_bytes(job_id)
        lasts = 0 if extend is None else length(extend, "extend")
        engine = self._engine
        with engine.lock:
            self._check_open()
            until = self._operations.touch(job_id, token_number(token), lasts)
            time = engine.last_time
        engine.settle(time)
        return until

    def touch_many(
        self, held: Iterable[tuple[bytes, int]], extend: Length | None = None
    ) -> list[bool]:
        """Keep many leases (id, token) with one write; False where the lease was lost."""
        leases = [(id_bytes(job_id), token_number(token)) for job_id, token in held]
        lasts = 0 if extend is None else length(extend, "extend")
        engine = self._engine
        with engine.lock:
            self._check_open()
            with engine.batch():
                outcomes = [self._is_kept(job_id, token, lasts) for job_id, token in leases]
            time = engine.last_time
        engine.settle(time)
        return outcomes

    def _is_kept(self, job_id: bytes, token: int | None, lasts: int) -> bool:
        try:
            self._operations.touch(job_id, token, lasts)
        except (NotFound, LeaseLost, AlreadyExists):
            return False
        return True

    def complete(self, job_id: bytes, token: int | None, result: bytes | None = None) -> None:
        """The work is done; a result is kept until the job expires."""
        id_bytes(job_id)
        token = token_number(token)
        if result is not None:
            result_bytes(result)
        engine = self._engine
        with engine.lock:
            self._check_open()
            self._operations.complete(job_id, token, result)
            time = engine.last_time
        engine.settle(time)

    def complete_many(
        self, finished: Iterable[tuple[bytes, int | None, bytes | None]]
    ) -> list[bool]:
        """Complete many (id, token, result) with one write; False where the lease was lost."""
        ends = [
            (
                id_bytes(job_id),
                token_number(token),
                None if result is None else result_bytes(result),
            )
            for job_id, token, result in finished
        ]
        engine = self._engine
        with engine.lock:
            self._check_open()
            with engine.batch():
                outcomes = self._operations.complete_many(ends)
            time = engine.last_time
        engine.settle(time)
        return outcomes

    def fail(
        self, job_id: bytes, token: int | None, reason: bytes = b"", delay: Length | None = None
    ) -> State:
        """The work failed; returns WAITING if it will be tried again, FAILED if the job is dead.

        DELETED if newer work of the same key waits, which makes this one needless. `delay`
        overrules the back-off of the queue.
        """
        id_bytes(job_id)
        wait = None if delay is None else length(delay, "delay")
        engine = self._engine
        with engine.lock:
            self._check_open()
            state = self._operations.fail(job_id, token_number(token), result_bytes(reason), wait)
            time = engine.last_time
        engine.settle(time)
        return state

    def release(self, job_id: bytes, token: int, delay: Length | None = None) -> None:
        """Give a job back unworked, to be handed out again after `delay`."""
        id_bytes(job_id)
        wait = 0 if delay is None else length(delay, "delay")
        engine = self._engine
        with engine.lock:
            self._check_open()
            self._operations.release(job_id, token_number(token), wait)
            time = engine.last_time
        engine.settle(time)

    def result(self, job_id: bytes, wait: Length = 0) -> tuple[bool, bytes]:
        """A finished job's result: (done?, result); `TimedOut` if it is not finished in time.

        A job that was done without a result has an empty one, as long as its end is remembered.
        `NotFound` once the job is gone otherwise: deleted, or expired.
        """
        id_bytes(job_id)
        give_up = self._clock.monotonic() + length(wait, "wait")
        engine = self._engine
        found: tuple[bool, bytes] | None = None
        missing: NotFound | None = None
        while True:
            with engine.lock:
                self._check_open()
                time = engine.last_time
                try:
                    found = result_of(self._state, job_id, self._clock.now())
                except NotFound as error:
                    missing = error
                    break
                if found is not None:
                    break
                left = give_up - self._clock.monotonic()
                if left <= 0:
                    raise TimedOut("the job is not finished")
                gate = threading.Lock()
                gate.acquire()
                handle = engine.wakeups.wait_for_end(job_id, gate.release)
            try:
                gate.acquire(timeout=min(left / SECOND, threading.TIMEOUT_MAX))
            finally:
                with engine.lock:
                    engine.wakeups.forget(handle, job_id)
        engine.settle_reading(time)
        if missing is not None:
            raise missing
        assert found is not None
        return found


def where_of(queue: Text | None, queues: Sequence[Text] | None, prefix: Text | None) -> Where:
    """Which queues are meant: one, some, those with a prefix, or all."""
    if sum(given is not None for given in (queue, queues, prefix)) > 1:
        raise BadRequest("give one of queue, queues and prefix")
    if queue is not None:
        return Where((queue_bytes(queue),))
    if queues is not None:
        if isinstance(queues, (str, bytes)) or not queues:
            raise BadRequest("queues must be a list of names")
        return Where(tuple(queue_bytes(name) for name in queues))
    if prefix is not None:
        return Where(prefix=worker_bytes(prefix))
    return ALL
