"""Requests of producers, consumers and operators, carried out at once: values in, values out.

Rules:

1. Whoever calls holds the engine's lock; nothing here waits, neither for a job nor for the disk.
2. What was written is safe only once `engine.settle(engine.last_time)` has returned, or
   `when_synced` has called back: the caller answers nobody before.
3. Inside `engine.batch()` all of it is logged with one write.

The embedded `Journal` and the daemon are two ways to wait around these.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fastjournal.errors import (
    AlreadyExists,
    JournalError,
    JournalFault,
    LeaseLost,
    NotFound,
    SegmentError,
)
from fastjournal.journal.decide.jobs import Deleted, Granted, Jobs
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.engine.forwarding import Forwarding
from fastjournal.journal.language.commands import Add, Schedule
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import lease_of
from fastjournal.model import (
    DEFAULT_SETTINGS,
    Lease,
    NewJob,
    Outcome,
    QueueSettings,
    Receipt,
    State,
    Where,
)

__all__ = ["Leased", "Operations", "Receipt"]

_new = tuple.__new__


# Looking a member up in its enumeration costs more than the comparison.
_MERGED, _STALE = Outcome.MERGED, Outcome.STALE


class Leased(NamedTuple):
    """What `lease` gave."""

    leases: list[Lease]
    next_due: int
    """When to ask again if there is none, ns since 1970; 0: nothing is in sight."""


class Operations(Forwarding):
    """All requests that change a journal."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: Jobs = engine.jobs
        self._state: JournalState = engine.state
        self._refusals = OrderedDict()

    def put(self, job: NewJob, now: int = 0, *, checked: bool = False) -> Receipt:
        """Take a job in; `checked`: its fields are known to be in range (`edges.new_job`)."""
        engine = self._engine
        if not engine.reserve.held:
            engine.reserve.check()
        now = now or engine.clock.now()
        command, outcome, job_id = engine.put(job, now, checked=checked)
        counts = engine.counts
        counts.puts += 1
        if command is not None:
            engine.commit(command, now)
            if outcome is _MERGED:
                counts.merges += 1
        else:
            counts.stale += 1
        return _new(Receipt, (job_id, outcome))

    def put_many(self, jobs: Sequence[NewJob], *, checked: bool = False) -> list[Receipt]:
        """Take many jobs in with few writes; if one is refused, none is taken in.

        Only a disk that fills up meanwhile leaves those before in. `checked`: as for `put`.
        """
        engine = self._engine
        if not engine.reserve.held:
            engine.reserve.check()
        now = engine.clock.now()
        self._jobs.check_all(jobs, now, checked=checked)
        put, commit = engine.put, engine.commit
        receipts: list[Receipt] = []
        with engine.batch():
            for job in jobs:
                command, outcome, job_id = put(job, now, checked=True, admitted=True)
                if command is not None:
                    commit(command)
                receipts.append(_new(Receipt, (job_id, outcome)))
        counts = engine.counts
        counts.puts += len(receipts)
        counts.merges += sum(outcome is _MERGED for _, outcome in receipts)
        counts.stale += sum(outcome is _STALE for _, outcome in receipts)
        return receipts

    def put_each(
        self, jobs: Sequence[NewJob], now: int, *, checked: bool = False
    ) -> list[Receipt | JournalError]:
        """Take many jobs in, each for itself: a refused one has its error in its place."""
        engine = self._engine
        if not engine.reserve.held:
            engine.reserve.check()
        put, commit, counts = engine.put, engine.commit, engine.counts
        receipts: list[Receipt | JournalError] = []
        for job in jobs:
            try:
                command, outcome, job_id = put(job, now, checked=checked)
                if command is not None:
                    commit(command)
            except JournalError as error:
                receipts.append(error)
                continue
            counts.puts += 1
            if command is not None:
                if outcome is _MERGED:
                    counts.merges += 1
            else:
                counts.stale += 1
            receipts.append(_new(Receipt, (job_id, outcome)))
        return receipts

    def add(self, job: Add | Schedule) -> None:
        """Take a Workq job in."""
        engine = self._engine
        if not engine.reserve.held:
            engine.reserve.check()
        engine.commit(self._jobs.add(job, engine.clock.now()))
        engine.counts.puts += 1

    def lease(
        self,
        where: Where,
        count: int = 1,
        consumer: bytes = b"",
        length: int = 0,
        fair: bool = True,
        take: bool = False,
    ) -> Leased:
        """Up to `count` jobs for a consumer; `take`: they go at once instead of being leased."""
        engine, jobs = self._engine, self._jobs
        now = engine.clock.now()
        if now >= engine.timer_at and jobs.overdue(now):
            engine.tick()
        leases: list[Lease] = []
        while len(leases) < count:
            granted = jobs.lease(where, now, consumer=consumer, length=length, fair=fair, take=take)
            if not isinstance(granted, Granted):
                if engine.log.failure is not None and not leases:
                    raise engine.log.failure
                if engine.wakeups.called:
                    engine.pass_on()
                return Leased(leases, granted.next_due)
            row = granted.row
            try:
                engine.load(row)
            except SegmentError:  # its value is damaged
                if leases:
                    break
                # Else it would stand in the way of all others.
                engine.commit(jobs.grant(row, now, length, consumer), now)
                raise
            shown = lease_of(row) if take else None
            try:
                engine.commit(granted.command, now)
            except JournalFault:
                if not leases:
                    raise
                break  # what was granted is the consumer's
            engine.asked(row.queue.name)
            engine.counts.leases += 1
            leases.append(shown or lease_of(row))
        if engine.wakeups.called:
            engine.pass_on()
        return Leased(leases, 0)

    def touch(self, job_id: bytes, token: int, length: int = 0) -> int:
        """Keep a lease for another `length` (0: as usual); returns when it ends."""
        engine = self._engine
        try:
            engine.commit(self._jobs.touch(job_id, token, engine.clock.now(), length))
        except LeaseLost:
            engine.counts.lease_lost += 1
            raise
        engine.counts.touches += 1
        return self._state.rows[job_id].lease_until

    def complete(self, job_id: bytes, token: int | None, result: bytes | None = None) -> None:
        """The work is done; a result is kept until the job expires."""
        engine = self._engine
        try:
            engine.commit(self._jobs.complete(job_id, token, engine.clock.now(), result))
        except LeaseLost:
            engine.counts.lease_lost += 1
            raise
        engine.counts.completions += 1

    def complete_many(
        self, finished: Iterable[tuple[bytes, int | None, bytes | None]]
    ) -> list[bool]:
        """Complete (id, token, result) each; False where the lease was lost."""
        outcomes = []
        for job_id, token, result in finished:
            try:
                self.complete(job_id, token, result)
            except (NotFound, LeaseLost, AlreadyExists):
                outcomes.append(False)
            else:
                outcomes.append(True)
        return outcomes

    def fail(
        self, job_id: bytes, token: int | None, reason: bytes = b"", delay: int | None = None
    ) -> State:
        """The work failed; returns WAITING if it will be tried again, else FAILED or DELETED."""
        engine = self._engine
        try:
            engine.commit(self._jobs.fail(job_id, token, engine.clock.now(), reason, delay))
        except LeaseLost:
            engine.counts.lease_lost += 1
            raise
        engine.counts.failures += 1
        row = self._state.rows.get(job_id)
        if row is not None and row.state is State.FAILED:
            engine.counts.dead += 1
        return State.DELETED if row is None else row.state

    def release(self, job_id: bytes, token: int, delay: int = 0) -> None:
        """Give a job back unworked."""
        engine = self._engine
        try:
            engine.commit(self._jobs.release(job_id, token, engine.clock.now(), delay))
        except LeaseLost:
            engine.counts.lease_lost += 1
            raise
        engine.counts.releases += 1

    def delete(self, job_id: bytes, timestamp: int = 0, *, purge: bool = False) -> Deleted:
        """Remove a job, and keep its put away should it come later; `purge`: leave nothing."""
        engine = self._engine
        deleted = self._jobs.delete(job_id, engine.clock.now(), timestamp, purge=purge)
        if deleted.command is not None:
            engine.commit(deleted.command)
        return deleted

    def delete_key(
        self, queue: bytes, key: bytes, timestamp: int = 0, *, purge: bool = False
    ) -> Deleted:
        """Remove the jobs of a key, and keep older puts of it away; `purge`: leave nothing."""
        engine = self._engine
        deleted = self._jobs.delete_key(queue, key, engine.clock.now(), timestamp, purge=purge)
        if deleted.command is not None:
            engine.commit(deleted.command)
        return deleted

    def delete_everywhere(self, key: bytes, timestamp: int = 0, *, purge: bool = False) -> Deleted:
        """The same in all queues, also in those that do not have the key yet."""
        engine = self._engine
        last, found, stale = None, 0, False
        with engine.batch():
            for deleted in self._jobs.delete_everywhere(
                key, engine.clock.now(), timestamp, purge=purge
            ):
                if deleted.command is not None:
                    engine.commit(deleted.command)
                    last = deleted.command
                found += deleted.found
                stale = stale or deleted.stale
        return Deleted(last, found, stale and not found)

    def redrive(self, job_id: bytes) -> None:
        """Let a dead job wait again."""
        engine = self._engine
        engine.commit(self._jobs.redrive(job_id, engine.clock.now()))

    def redrive_queue(self, queue: bytes) -> int:
        """Let all dead jobs of a queue wait again; returns how many do."""
        engine = self._engine
        count = 0
        for command in self._jobs.redrive_all(queue, engine.clock.now()):
            engine.commit(command)
            count += 1
        return count

    def configure(self, queue: bytes, changes: Mapping[str, Any]) -> QueueSettings:
        """Change settings of a queue (lengths in ns) and return all of them."""
        command = self._jobs.set_queue(queue, changes)
        if command is not None:
            self._engine.commit(command)
        lane = self._state.queues.get(queue)
        return DEFAULT_SETTINGS if lane is None else lane.settings
