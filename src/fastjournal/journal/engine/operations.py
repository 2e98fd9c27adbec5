"""Requests of producers, consumers and operators, carried out at once: values in, values out.

Rules:

1. Whoever calls holds the engine's lock; nothing here waits, neither for a job nor for the disk.
2. What was written is safe only once `engine.settle(engine.last_time)` has returned, or
   `when_synced` has called back: the caller answers nobody before.
3. Inside `engine.batch()` all of it is logged with one write.
4. `now`: the clock, if the caller has just read it; 0: it is read here, once.

The embedded `Journal` and the daemon are two ways to wait around these.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, final

from mypy_extensions import i64

from fastjournal.errors import (
    AlreadyExists,
    JournalFault,
    LeaseLost,
    NotFound,
    OutOfRange,
    SegmentError,
)
from fastjournal.journal.decide.ground import NO_TOKEN
from fastjournal.journal.decide.lease import BY_THE_QUEUE
from fastjournal.journal.decide.operator import Deleted
from fastjournal.journal.decide.put import MERGED
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.engine.forwarding import Forwarding
from fastjournal.journal.engine.job_keys import JobKeys
from fastjournal.journal.entries.locks import NOBODY, Writer
from fastjournal.journal.language.commands import PERSIST, Command, WorkqJob
from fastjournal.journal.state.row import FAILED_ROW, PROCESSING_ROW, Row
from fastjournal.model import MAX_INSTANT, Outcome, QueueSettings, Receipt, State, Where
from fastjournal.put_request import PutRequest

__all__ = ["OUTCOMES", "Operations", "Receipt"]

OUTCOMES: Final = list(Outcome)
"""By their numbers."""
_MOST_TRIES: Final = 2**31 - 1
_new: Final[Any] = tuple.__new__


@final
class Operations:
    """All requests that change a journal."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._puts = engine.puts
        self._leases = engine.leases
        self._operator = engine.operator
        self._state = engine.state
        self.by_key = JobKeys(engine)
        """Requests about one job, and locks on its key."""
        self.forwarding = Forwarding(engine)
        """Requests of forwarders."""
        self.placed_id: bytes = b""
        """The row that the newest `put` came to."""
        self.next_due: i64 = 0
        """When to ask again if the newest `lease` gave nothing, ns since 1970; 0: nothing is in
        sight."""

    def put(self, job: PutRequest, now: i64 = 0, by: Writer = NOBODY) -> i64:
        """Take a job in; returns the `Outcome`, as a number."""
        engine = self._engine
        engine.check_room_to_grow()
        if not now:
            now = engine.clock.now()
        if len(engine.locks) or by.fence:
            self.by_key.check_lock(job.key, now, by)
        puts = self._puts
        return self._place(puts.put(job, now), now)

    def is_kept(self) -> bool:
        """Whether the row that the newest `put` came to is in the log."""
        row = self._state.rows.get(self.placed_id) if self._engine.volatile else None
        return row is None or row.policy.flags & PERSIST != 0

    def put_many(self, jobs: list[PutRequest], now: i64 = 0) -> list[Receipt]:
        """Take many jobs in with few writes; if one is refused, none is taken in.

        Only a disk that fills up meanwhile leaves those before in.
        """
        engine = self._engine
        engine.check_room_to_grow()
        if not now:
            now = engine.clock.now()
        puts = self._puts
        if len(engine.locks):
            for job in jobs:
                self.by_key.check_lock(job.key, now)
        puts.check_many(jobs, now)
        receipts: list[Receipt] = []
        with engine.batch():
            for job in jobs:
                engine.check_room_to_grow()
                outcome = self._place(puts.let_in(job, now), now)
                receipts.append(_new(Receipt, (self.placed_id, OUTCOMES[outcome])))
        return receipts

    def _place(self, command: Command | None, now: i64) -> i64:
        """Carry out what was decided about a put."""
        engine = self._engine
        puts = self._puts
        outcome = puts.outcome
        self.placed_id = puts.placed_id
        counts = engine.counts
        if command is None:
            counts.stale += 1
        else:
            if puts.volatile:
                engine.volatile = True
            engine.commit(command, now)
            if outcome == MERGED:
                counts.merges += 1
        counts.puts += 1
        return outcome

    def add(self, job: WorkqJob, now: i64 = 0) -> None:
        """Take a Workq job in."""
        engine = self._engine
        engine.check_room_to_grow()
        if not now:
            now = engine.clock.now()
        engine.commit(self._puts.add(job, now), now)
        engine.counts.puts += 1

    def lease(
        self,
        where: Where,
        count: i64 = 1,
        consumer: bytes = b"",
        length: int = 0,
        fair: bool = True,
        take: bool = False,
        now: i64 = 0,
    ) -> list[Row]:
        """Up to `count` jobs for a consumer; `take`: they go at once instead of being leased.

        Their rows have their values; look at them before anything else happens. With none of them
        `next_due` says when to ask again.
        """
        engine, leases = self._engine, self._leases
        lasts = _length(length, "a lease cannot last that long")
        if not now:
            now = engine.clock.now()
        if now >= engine.timer_at and engine.timers.overdue(now):
            engine.tick()
        rows: list[Row] = []
        self.next_due = 0
        while len(rows) < count:
            command = leases.lease(where, now, consumer, lasts, fair, take)
            row = leases.row
            if command is None or row is None:
                if not rows:
                    if engine.log.failure is not None:
                        raise engine.log.failure
                    self.next_due = leases.next_due
                break
            try:
                engine.load(row)
            except SegmentError:  # its value is damaged
                if rows:
                    break
                # Else it would stand in the way of all others.
                engine.commit(leases.grant(row, now, lasts, consumer), now)
                raise
            try:
                engine.commit(command, now)
            except JournalFault:
                if not rows:
                    raise
                break  # what was granted is the consumer's
            engine.asked(row.queue.name)
            engine.counts.handed_out(row, now)
            rows.append(row)
        if engine.wakeups.called:
            engine.pass_on()
        return rows

    def touch(self, job_id: bytes, token: int | None, length: int = 0, now: i64 = 0) -> int:
        """Keep a lease for another `length` (0: as usual); returns when it ends."""
        engine = self._engine
        lasts = _length(length, "a lease cannot last that long")
        if not now:
            now = engine.clock.now()
        try:
            command = self._leases.touch(job_id, _token(token), now, lasts)
        except LeaseLost:
            engine.counts.lease_lost += 1
            raise
        engine.commit(command, now)
        engine.counts.touches += 1
        return self._state.rows[job_id].lease_until

    def complete(
        self, job_id: bytes, token: int | None, result: bytes | None = None, now: i64 = 0
    ) -> None:
        """The work is done; a result is kept until the job expires."""
        engine = self._engine
        if not now:
            now = engine.clock.now()
        try:
            command = self._leases.complete(job_id, _token(token), now, result)
        except LeaseLost:
            engine.counts.lease_lost += 1
            raise
        watched = self._watched(job_id)
        start: i64 = now
        if watched is not None:
            start = watched.rare.start
        engine.commit(command, now)
        engine.counts.completions += 1
        if watched is not None:
            engine.counts.ended(watched.queue.name, now - start, True)

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
        self,
        job_id: bytes,
        token: int | None,
        reason: bytes = b"",
        delay: int | None = None,
        now: i64 = 0,
    ) -> State:
        """The work failed; returns WAITING if it will be tried again, else FAILED or DELETED."""
        engine = self._engine
        wait = BY_THE_QUEUE
        if delay is not None:
            wait = _length(delay, "the delay is out of range")
        if not now:
            now = engine.clock.now()
        try:
            command = self._leases.fail(job_id, _token(token), now, reason, wait)
        except LeaseLost:
            engine.counts.lease_lost += 1
            raise
        watched = self._watched(job_id)
        start: i64 = now
        if watched is not None:
            start = watched.rare.start
        engine.commit(command, now)
        engine.counts.failures += 1
        if watched is not None:
            engine.counts.ended(watched.queue.name, now - start, False)
        row = self._state.rows.get(job_id)
        if row is None:
            return State.DELETED
        if row.stage == FAILED_ROW:
            engine.counts.dead += 1
        return row.state

    def _watched(self, job_id: bytes) -> Row | None:
        """A job that is being worked on, if somebody wants to know how long that takes."""
        if self._engine.counts.queues is None:
            return None
        row = self._state.rows.get(job_id)
        return row if row is not None and row.stage == PROCESSING_ROW else None

    def release(self, job_id: bytes, token: int | None, delay: int = 0, now: i64 = 0) -> None:
        """Give a job back unworked."""
        engine = self._engine
        wait = _length(delay, "the delay is out of range")
        if not now:
            now = engine.clock.now()
        try:
            command = self._leases.release(job_id, _token(token), now, wait)
        except LeaseLost:
            engine.counts.lease_lost += 1
            raise
        engine.commit(command, now)
        engine.counts.releases += 1

    def delete(
        self, job_id: bytes, timestamp: int = 0, *, purge: bool = False, by: Writer = NOBODY
    ) -> Deleted:
        """Remove a job, and keep its put away should it come later; `purge`: leave nothing."""
        now: i64 = self._engine.clock.now()
        row = self._state.rows.get(job_id)
        if row is not None:
            self.by_key.check_lock(row.key, now, by)
        return self._delete(self._operator.delete(job_id, now, timestamp, purge), now)

    def delete_key(
        self,
        queue: bytes,
        key: bytes,
        timestamp: int = 0,
        *,
        purge: bool = False,
        by: Writer = NOBODY,
    ) -> Deleted:
        """Remove the jobs of a key, and keep older puts of it away; `purge`: leave nothing."""
        now: i64 = self._engine.clock.now()
        self.by_key.check_lock(key, now, by)
        return self._delete(self._operator.delete_key(queue, key, now, timestamp, purge), now)

    def delete_everywhere(
        self, key: bytes, timestamp: int = 0, *, purge: bool = False, by: Writer = NOBODY
    ) -> Deleted:
        """The same in all queues, also in those that do not have the key yet."""
        engine = self._engine
        now: i64 = engine.clock.now()
        self.by_key.check_lock(key, now, by)
        last: Command | None = None
        found, stale = 0, False
        with engine.batch():
            for deleted in self._operator.delete_everywhere(key, now, timestamp, purge):
                self._delete(deleted, now)
                last = last if deleted.command is None else deleted.command
                found += deleted.found
                stale = stale or deleted.stale
        return Deleted(last, found, stale and not found)

    def _delete(self, deleted: Deleted, now: i64) -> Deleted:
        if deleted.command is not None:
            self._engine.commit(deleted.command, now)
        return deleted

    def redrive(self, job_id: bytes) -> None:
        """Let a dead job wait again."""
        engine = self._engine
        now: i64 = engine.clock.now()
        engine.commit(self._operator.redrive(job_id, now), now)

    def redrive_queue(self, queue: bytes) -> int:
        """Let all dead jobs of a queue wait again; returns how many do."""
        engine = self._engine
        now: i64 = engine.clock.now()
        count = 0
        for command in self._operator.redrive_all(queue, now):
            engine.commit(command, now)
            count += 1
        return count

    def edit(
        self,
        job_id: bytes,
        *,
        value: bytes | None = None,
        priority: int | None = None,
        due: int | None = None,
    ) -> None:
        """Change a waiting job: its payload, its priority, when it is due; None: as it is."""
        engine = self._engine
        now: i64 = engine.clock.now()
        row = self._state.rows.get(job_id)
        if row is not None:
            engine.load(row)
        engine.commit(self._operator.edit(job_id, now, value, priority, due), now)

    def configure(self, queue: bytes, changes: Mapping[str, Any]) -> QueueSettings:
        """Change settings of a queue (lengths in ns) and return all of them."""
        engine = self._engine
        command = self._operator.set_queue(queue, changes)
        if command is not None:
            engine.commit(command)
        return engine.ground.rules(queue).settings


def _token(token: int | None) -> i64:
    """A token as decisions want it: one that cannot be right becomes 0, which never is."""
    if token is None:
        return NO_TOKEN
    return token if 0 < token <= _MOST_TRIES else 0


def _length(length: int, refusal: str) -> i64:
    if not 0 <= length <= MAX_INSTANT:
        raise OutOfRange(refusal)
    return length
