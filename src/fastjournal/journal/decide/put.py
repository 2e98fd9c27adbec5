"""Decisions that bring rows in: `put` for our own jobs, `add` for those of Workq.

Rules:

1. merge: a waiting row of the key takes the repeat in (`merge`). A row being worked on is left
   alone and gets one waiting twin, held back until it ends (D-13).
2. unique: a key that waits or is worked on is refused.
3. plain: no key, always a new row.
4. The newest timestamp wins, against a row that waits or is worked on and against a tombstone too;
   a put without one is the newest there is (D-09).
5. A draining queue takes nothing in.
6. A producer may choose the id: a put whose id is there already is the same put sent again, and
   changes nothing.
7. What is refused is decided by `_check` alone, for one job and for many; what was let in is not
   refused any more.
"""

from typing import Final, final

from mypy_extensions import i64

from fastjournal.clock import MILLISECOND
from fastjournal.errors import AlreadyExists, BadRequest, ClockSkew, OutOfRange, QueuePaused, quoted
from fastjournal.journal.decide.ground import Ground, gone, has_expired
from fastjournal.journal.decide.merge import bounded_due, merge, policy_for
from fastjournal.journal.language.commands import (
    KEEP_VERSIONS,
    PERSIST,
    SCHEMA_SHIFT,
    Command,
    Expire,
    Group,
    Put,
    WorkqJob,
    fault_of,
)
from fastjournal.journal.state.row import DELETED_ROW, PROCESSING_ROW, QueueRules, Row
from fastjournal.put_request import UNIQUE, PutRequest

__all__ = ["MERGED", "NEW", "STALE", "TWIN", "Puts"]

NEW: Final[i64] = 0
MERGED: Final[i64] = 1
TWIN: Final[i64] = 2
STALE: Final[i64] = 3
"""`model.Outcome`, as numbers."""


@final
class _KeyRows:
    """The rows of a key in a queue, by what they are.

    Rows left from a time when the queue kept versions may be many: the newest counts.
    """

    def __init__(self, rows: list[Row], now: i64) -> None:
        self.waiting: Row | None = None
        self.processing: Row | None = None
        self.tomb: Row | None = None
        self.expired: list[Command] = []
        """What writes those off that wait and have expired."""
        self.newest: i64 = 0
        """The newest time of a write."""
        for row in rows:
            if row.modified > self.newest:
                self.newest = row.modified
            if row.stage == PROCESSING_ROW:
                self.processing = _newest(row, self.processing)
            elif row.stage == DELETED_ROW:
                self.tomb = row
            elif has_expired(row, now):
                self.expired.append(Expire(row.id))
            else:
                self.waiting = _newest(row, self.waiting)

    def holder(self) -> Row | None:
        """The row that has the key."""
        return self.processing if self.waiting is None else self.waiting


@final
class Puts:
    """`put`, `put_many` and `add`."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._state = ground.state
        self.outcome: i64 = NEW
        """What the newest put came to."""
        self.placed_id: bytes = b""
        """The row it came to."""
        self.volatile = False
        """Some job was ever taken in that lives in memory only."""

    def put(self, job: PutRequest, now: i64, promised: bool = False) -> Command | None:
        """Take a job in; None: it changes nothing.

        `promised`: its producer was told already that it is safe, so no drain keeps it out.
        """
        ground = self._ground
        now = ground.time(now)
        rules = ground.rules(job.queue)
        if job.id and job.id in ground.rows:
            ground.limits.check_job(job.key, job.value)
            self.outcome = STALE
            self.placed_id = job.id
            return None
        self._check(job, rules, now, promised)
        if job.mode == UNIQUE:
            self._check_unique([job], now)
        return self._place(job, rules, now)

    def let_in(self, job: PutRequest, now: i64) -> Command | None:
        """Take in one of those that `check_many` has passed; None: it changes nothing."""
        ground = self._ground
        if job.id and job.id in ground.rows:
            self.outcome = STALE
            self.placed_id = job.id
            return None
        return self._place(job, ground.rules(job.queue), ground.time(now))

    def check_many(self, jobs: list[PutRequest], now: i64) -> None:
        """Raise what `put` would raise for any of these jobs, put one after the other at `now`."""
        ground = self._ground
        now = ground.time(now)
        ids: set[bytes] = set()
        unique = False
        for job in jobs:
            if job.id:
                if job.id in ground.rows or job.id in ids:
                    ground.limits.check_job(job.key, job.value)
                    continue  # the same put sent again
                ids.add(job.id)
            self._check(job, ground.rules(job.queue), now, False)
            unique = unique or job.mode == UNIQUE
        if unique:
            self._check_unique(jobs, now)

    def _check_unique(self, jobs: list[PutRequest], now: i64) -> None:
        """Refuse keys that are taken, or are by the time it is their turn."""
        ground = self._ground
        taken: dict[tuple[bytes, bytes], int] = {}
        """When the keys put so far were written; -1: by our own clock, 0: not at all."""
        ids: set[bytes] = set()
        for job in jobs:
            if not job.key or job.id in ground.rows or job.id in ids:
                continue
            if ground.rules(job.queue).keep_versions:
                continue
            if job.id:
                ids.add(job.id)
            wide = ground.tomb_everywhere(job.key)
            if wide is not None and 0 < job.timestamp <= wide.modified:
                continue  # stale
            name = (job.queue, job.key)
            found = _KeyRows(self._state.keys.rows_of(job.queue, job.key), now)
            holder, tomb = found.holder(), found.tomb
            at: i64 = taken.get(name, 0 if holder is None else holder.modified)
            if job.mode == UNIQUE and at:
                _refuse_taken(job, at)
            elif not at and tomb is not None and 0 < job.timestamp <= tomb.modified:
                continue  # stale: the key stays free
            taken[name] = max(at, job.timestamp) if job.timestamp and at >= 0 else -1

    def _check(self, job: PutRequest, rules: QueueRules, now: i64, promised: bool) -> None:
        """Refuse what may not come in, whatever its key."""
        limits = self._ground.limits
        limits.check_job(job.key, job.value)
        if not promised:
            if job.id:
                self._check_chosen(job.id)
            if rules.draining:
                raise QueuePaused(f"queue {quoted(job.queue)} is draining")
        if job.timestamp - limits.max_skew > now:
            raise ClockSkew
        if 0 < job.expires < now:
            raise OutOfRange("the job has expired already")

    def _check_chosen(self, job_id: bytes) -> None:
        """Refuse an id that would tell how far a sender has come."""
        if self._shows_mark(job_id):
            raise BadRequest("an id that begins with a sender's name is for its forwarder alone")

    def _place(self, job: PutRequest, rules: QueueRules, now: i64) -> Command | None:
        ground = self._ground
        keys = self._state.keys
        rank = -job.priority if rules.larger_first else job.priority
        wide = ground.tomb_everywhere(job.key)
        if wide is not None and 0 < job.timestamp <= wide.modified:
            return self._stale(wide)
        stamp = ground.draw_stamp(now)
        if job.key and (wide is not None or job.key in keys):
            rows = keys.rows_of(job.queue, job.key)
            if not rules.keep_versions:
                found = _KeyRows(rows, now)
                if wide is not None and wide.modified > found.newest:
                    found.newest = wide.modified
                return self._put_again(job, rules, found, rank, stamp, now)
            for row in rows:
                if row.stage == DELETED_ROW and 0 < job.timestamp <= row.modified:
                    return self._stale(row)
        row_id = job.id or ground.new_id()
        self.outcome = NEW
        return self._new_row(job, rules, row_id, rank, stamp, job.timestamp or stamp, 0)

    def _put_again(
        self, job: PutRequest, rules: QueueRules, found: _KeyRows, rank: i64, stamp: i64, now: i64
    ) -> Command | None:
        waiting, processing, tomb = found.waiting, found.processing, found.tomb
        timestamp = job.timestamp or max(stamp, found.newest + 1)
        holder = found.holder()
        if job.mode == UNIQUE and holder is not None:
            return self._stale(holder)
        if waiting is not None:
            merged = merge(waiting, job, rank, timestamp, now)
            if merged is None:
                return self._stale(waiting)
            self.outcome = MERGED
            self.placed_id = waiting.id
            return self._without_mark(merged)
        if processing is not None and timestamp <= processing.modified:
            return self._stale(processing)
        if tomb is not None and timestamp <= tomb.modified:
            return self._stale(tomb)
        self.outcome = NEW if processing is None else TWIN
        parts = found.expired
        lasts = rules.persist or job.persist
        if tomb is not None and not job.id and lasts == (tomb.policy.flags & PERSIST != 0):
            # A newer write takes the slot of a deleted row; tokens go on counting. One that brings
            # an id has a slot of its own: it is known by that id should it come again.
            put = self._new_row(job, rules, tomb.id, rank, stamp, timestamp, tomb.attempts)
            if not parts:
                return self._without_mark(put)
        else:
            row_id = job.id or self._ground.new_id()
            put = self._new_row(job, rules, row_id, rank, stamp, timestamp, 0)
            if tomb is not None and lasts:
                parts.append(gone(tomb))
        if not parts:
            return put
        parts.append(put)
        return Group(tuple(parts))

    def _without_mark(self, put: Put) -> Command:
        """A row stated anew; its id may look like that of a sender who has not sent it.

        Where a PUT is a record by itself such an id would tell how far the sender has come.
        """
        return Group((put,)) if self._shows_mark(put.id) else put

    def _shows_mark(self, row_id: bytes) -> bool:
        return row_id[6] & 0xF0 == 0x80 and row_id[:12] in self._state.senders

    def _stale(self, row: Row) -> Command | None:
        self.outcome = STALE
        self.placed_id = row.id
        return None

    def _new_row(
        self,
        job: PutRequest,
        rules: QueueRules,
        row_id: bytes,
        rank: i64,
        stamp: i64,
        timestamp: i64,
        attempts: i64,
    ) -> Put:
        self.placed_id = row_id
        policy = policy_for(job)
        if rules.keep_versions:
            policy = policy.changed(flags=policy.flags | KEEP_VERSIONS)
        if rules.schema:
            policy = policy.changed(flags=policy.flags | rules.schema << SCHEMA_SHIFT)
        if not rules.persist and not job.persist:
            policy = policy.changed(flags=policy.flags & ~PERSIST)
            self.volatile = True
        if attempts and policy.max_attempts:
            policy = policy.changed(max_attempts=policy.max_attempts + attempts)
        inserted = job.inserted if 0 < job.inserted < stamp else stamp
        due = bounded_due(job.due, inserted, rules.max_wait)
        return Put(
            row_id, job.queue, job.key, rank, due, inserted, timestamp, job.expires, job.kind,
            job.value, policy, attempts,
        )  # fmt: skip

    def add(self, job: WorkqJob, now: i64) -> Command:
        """Take a Workq job in; its id is its key, `created` is drawn here."""
        ground = self._ground
        _check_workq(job, ground.limits.max_value)
        now = ground.time(now)
        if ground.rules(job.name).draining:
            raise QueuePaused(f"queue {quoted(job.name)} is draining")
        job.created = ground.draw_stamp(now)
        start = job.time or job.created
        if start < now and job.ttl * MILLISECOND < now - start:
            raise BadRequest("the job has expired already")
        row = ground.rows.get(job.id)
        if row is None or row.stage == DELETED_ROW:
            return job
        if has_expired(row, now):
            return Group((Expire(row.id), job))
        raise AlreadyExists("Duplicate job")


def _refuse_taken(job: PutRequest, modified: i64) -> None:
    """A unique key is taken, unless this is the same message sent again."""
    if not job.timestamp or modified != job.timestamp:
        raise AlreadyExists(f"key {quoted(job.key)} is taken in queue {quoted(job.queue)}")


def _check_workq(job: WorkqJob, max_value: i64) -> None:
    """Refuse a job whose fields are out of range."""
    fault = fault_of(job)
    if fault:
        raise BadRequest(fault)
    if len(job.payload) > max_value:
        raise BadRequest("Invalid Payload")


def _newest(row: Row, other: Row | None) -> Row:
    return row if other is None or row.inserted > other.inserted else other
