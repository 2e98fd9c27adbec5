"""The consumer's side of a journal: leases, their ends, and waiting for results."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import nullcontext

from fastjournal.clock import SECOND
from fastjournal.edges import Length, Text, length, queue_bytes
from fastjournal.errors import BadRequest, NotFound, TimedOut
from fastjournal.journal.access import Access
from fastjournal.leased import LeasedJob
from fastjournal.model import State, Where

__all__ = ["Consuming", "where_of"]

_NO_BATCH = nullcontext(None)


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
        leased = self.lease_many(
            1, queue, queues=queues, prefix=prefix, wait=wait, lease=lease, fair=fair,
            worker=worker, take=take,
        )  # fmt: skip
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
        if count < 1:
            raise BadRequest(f"count must be at least 1, not {count}")
        where = where_of(queue, queues, prefix)
        lasts = 0 if lease is None else length(lease, "lease")
        consumer = worker if isinstance(worker, bytes) else worker.encode()
        give_up = self._clock.monotonic() + length(wait, "wait")
        engine = self._engine
        while True:
            gate = threading.Lock()
            with engine.lock:
                self._check_open()
                with engine.batch() if count > 1 else _NO_BATCH:
                    leased = self._operations.lease(
                        where, count, consumer=consumer, length=lasts, fair=fair, take=take
                    )
                time = engine.last_time
                left = give_up - self._clock.monotonic()
                if leased.leases or left <= 0:
                    break
                gate.acquire()
                handle = engine.wakeups.wait_for_row(where, gate.release)
            if leased.next_due:
                left = min(left, max(0, leased.next_due - self._clock.now()))
            gate.acquire(timeout=min(left / SECOND, threading.TIMEOUT_MAX))
            with engine.lock:
                engine.wakeups.forget(handle)
        if not leased.leases:
            return []
        engine.settle(time)
        return [LeasedJob(self, granted) for granted in leased.leases]

    def touch(self, job_id: bytes, token: int, extend: Length | None = None) -> int:
        """Keep a lease for `extend` from now on, or its usual length; returns its end in ns."""
        lasts = 0 if extend is None else length(extend, "extend")
        engine = self._engine
        with engine.lock:
            self._check_open()
            until = self._operations.touch(job_id, token, lasts)
            time = engine.last_time
        engine.settle(time)
        return until

    def complete(self, job_id: bytes, token: int | None, result: bytes | None = None) -> None:
        """The work is done; a result is kept until the job expires."""
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
        engine = self._engine
        with engine.lock:
            self._check_open()
            with engine.batch():
                outcomes = self._operations.complete_many(finished)
            time = engine.last_time
        engine.settle(time)
        return outcomes

    def fail(
        self, job_id: bytes, token: int | None, reason: bytes = b"", delay: Length | None = None
    ) -> State:
        """The work failed; returns WAITING if it will be tried again, FAILED if the job is dead.

        `delay` overrules the back-off of the queue.
        """
        wait = None if delay is None else length(delay, "delay")
        engine = self._engine
        with engine.lock:
            self._check_open()
            state = self._operations.fail(job_id, token, reason, wait)
            time = engine.last_time
        engine.settle(time)
        return state

    def release(self, job_id: bytes, token: int, delay: Length | None = None) -> None:
        """Give a job back unworked, to be handed out again after `delay`."""
        wait = 0 if delay is None else length(delay, "delay")
        engine = self._engine
        with engine.lock:
            self._check_open()
            self._operations.release(job_id, token, wait)
            time = engine.last_time
        engine.settle(time)

    def result(self, job_id: bytes, wait: Length = 0) -> tuple[bool, bytes]:
        """A finished job's result: (done?, result); `TimedOut` if it is not finished in time."""
        give_up = self._clock.monotonic() + length(wait, "wait")
        engine = self._engine
        while True:
            gate = threading.Lock()
            with engine.lock:
                self._check_open()
                row = self._state.rows.get(job_id)
                if row is None or 0 < row.expires < self._clock.now():
                    raise NotFound(f"no job {job_id.hex()}")
                if row.state in (State.COMPLETED, State.FAILED):
                    return row.state is State.COMPLETED, row.rare.result
                left = give_up - self._clock.monotonic()
                if left <= 0:
                    raise TimedOut("the job is not finished")
                gate.acquire()
                handle = engine.wakeups.wait_for_end(job_id, gate.release)
            gate.acquire(timeout=min(left / SECOND, threading.TIMEOUT_MAX))
            with engine.lock:
                engine.wakeups.forget(handle, job_id)


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
        return Where(prefix=prefix if isinstance(prefix, bytes) else prefix.encode())
    return Where()
