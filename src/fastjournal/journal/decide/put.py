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
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    ClockSkew,
    OutOfRange,
    QueuePaused,
    TooLarge,
)
from fastjournal.journal.decide.base import Deciding, gone
from fastjournal.journal.decide.merge import bounded_due, merge, policy_for
from fastjournal.journal.language.commands import (
    DEFAULT_POLICY,
    KEEP_VERSIONS,
    Add,
    Command,
    Expire,
    Group,
    Policy,
    Put,
    Schedule,
)
from fastjournal.journal.state.row import Row
from fastjournal.model import (
    DEFAULT_SETTINGS,
    MAX_INSTANT,
    Mode,
    NewJob,
    Outcome,
    Priority,
    QueueSettings,
    State,
)

__all__ = ["Placed", "Puts"]

_new = tuple.__new__
_REST = NewJob(b"")[8:14]
_NEW = Outcome.NEW
_END_OF_TIME = MAX_INSTANT // SECOND * SECOND
"""The times of Workq do not reach the last second that fits 64 bits."""
_WORKQ_NAME = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")


class Placed(NamedTuple):
    """What a put comes to: the command to log (None: nothing), and what it means."""

    command: Command | None
    outcome: Outcome
    id: bytes


class _Found(NamedTuple):
    """The rows of a key."""

    waiting: Row | None
    processing: Row | None
    tomb: Row | None
    expired: list[Row]
    newest: int
    """The newest time of a write."""


class Puts(Deciding):
    """`put` and `add`."""

    def put(
        self,
        job: NewJob,
        now: int,
        *,
        checked: bool = False,
        promised: bool = False,
        admitted: bool = False,
    ) -> Placed:
        """Take a job in; `checked`: its fields are known to be in range.

        `promised`: its producer was told already that it is safe, so no drain keeps it out.
        `admitted`: `check_all` has let it in, with others; it is not refused any more.
        """
        if not checked:
            self._check(job)
        state = self.state
        if now < state.now:
            now = state.now
        queue, value, key, _, priority, due, expires = job[:7]
        given = job[14]
        if given:
            if given in state.rows:
                return Placed(None, Outcome.STALE, given)
            if not promised:
                self._check_chosen(given)
        lane = state.queues.get(queue)
        settings = DEFAULT_SETTINGS if lane is None else lane.settings
        wide = self._tomb_everywhere(key) if key else None
        if (
            settings is DEFAULT_SETTINGS
            and wide is None
            and not (key and key in state.keys)
            and (not expires or now <= expires)
            and job[8:14] == _REST
            and job[7] <= now
        ):
            # The common case, spelled out: a new row with nothing special about it.
            row_id = given or self._ids()
            stamp = self._stamp
            self._stamp = stamp = now if now > stamp else stamp + 1
            if due < stamp:
                due = stamp
            rank = priority if type(priority) is int else int(priority)
            modified = job[7] or stamp
            put = Put(row_id, queue, key, rank, due, stamp, modified, expires, 1, value)
            return _new(Placed, (put, _NEW, row_id))
        if not admitted:
            self._may_enter(job, settings, now, promised)
        rank = int(priority)
        if settings.priority_order != "smaller":
            rank = -rank
        if wide is not None and 0 < job.timestamp <= wide.modified:
            return Placed(None, Outcome.STALE, wide.id)
        stamp = self._draw_stamp(now)
        if key and (wide is not None or key in state.keys):
            if not settings.keep_versions:
                newest = 0 if wide is None else wide.modified
                return self._put_again(job, rank, stamp, now, admitted, newest)
            for row in state.keys.find(queue, key):
                if row.state is State.DELETED and 0 < job.timestamp <= row.modified:
                    return Placed(None, Outcome.STALE, row.id)
        return self._put_new(job, rank, stamp, given or self._ids(), Outcome.NEW)

    def _telling_nothing(self, put: Put) -> Command:
        """A row stated anew; its id may look like that of a sender who has not sent it.

        Where a PUT is a record by itself such an id would tell how far the sender has come.
        """
        if put.id[6] & 0xF0 == 0x80 and put.id[:12] in self.state.senders:
            return Group((put,))
        return put

    def _check_chosen(self, job_id: bytes) -> None:
        """Refuse an id that would tell how far a sender has come."""
        if job_id[6] & 0xF0 == 0x80 and job_id[:12] in self.state.senders:
            raise BadRequest("an id that begins with a sender's name is for its forwarder alone")

    def check_all(self, jobs: Sequence[NewJob], now: int, *, checked: bool = False) -> None:
        """Raise what `put` would raise for any of these jobs, put one after the other at `now`.

        Then all of them are `admitted`. `checked`: their fields are known to be in range.
        """
        now = self._clock(now)
        rows = self.state.rows
        ids: set[bytes] = set()
        stamps: dict[tuple[bytes, bytes], int] = {}  # of the keys put so far; -1: the newest
        some_unique = any(job[3] is not Mode.MERGE and job[2] for job in jobs)
        for job in jobs:
            if not checked:
                self._check(job)
            given = job[14]
            if given:
                if given in rows or given in ids:
                    continue  # the same put sent again
                self._check_chosen(given)
                ids.add(given)
            settings = self._settings(job[0])
            if settings is DEFAULT_SETTINGS and not (job[6] or job[7] or some_unique):
                continue  # nothing about it can be refused
            self._may_enter(job, settings, now)
            if not some_unique or not job.key or settings.keep_versions:
                continue
            wide = self._tomb_everywhere(job.key)
            if wide is not None and 0 < job.timestamp <= wide.modified:
                continue  # stale
            name = (job.queue, job.key)
            found = self._rows_of(*name, now)
            holder = found.waiting or found.processing
            at = stamps.get(name, 0 if holder is None else holder.modified)
            if job.mode == Mode.UNIQUE and at:
                self._refuse_taken(job, at)
            elif not at and found.tomb and 0 < job.timestamp <= found.tomb.modified:
                continue  # stale: the key stays free
            stamps[name] = max(at, job.timestamp) if job.timestamp and at >= 0 else -1

    def _may_enter(
        self, job: NewJob, settings: QueueSettings, now: int, promised: bool = False
    ) -> None:
        """Refuse what may not come in, whatever its key."""
        if settings.draining and not promised:
            raise QueuePaused(f"queue {job.queue!r} is draining")
        if job.timestamp > now + self.limits.max_skew:
            raise ClockSkew
        if 0 < job.expires < now:
            raise OutOfRange("the job has expired already")

    def _rows_of(self, queue: bytes, key: bytes, now: int) -> _Found:
        """The rows of a key, by what they are.

        Rows left from a time when the queue kept versions may be many: the newest counts.
        """
        waiting = processing = tomb = None
        newest = 0
        expired: list[Row] = []
        for row in self.state.keys.find(queue, key):
            newest = max(newest, row.modified)
            if row.state is State.PROCESSING:
                processing = _newest(row, processing)
            elif row.state is State.DELETED:
                tomb = row
            elif 0 < row.expires < now:
                expired.append(row)
            else:
                waiting = _newest(row, waiting)
        return _Found(waiting, processing, tomb, expired, newest)

    def _put_new(
        self,
        job: NewJob,
        rank: int,
        stamp: int,
        row_id: bytes,
        outcome: Outcome,
        timestamp: int = 0,
    ) -> Placed:
        settings = self._settings(job.queue)
        due = max(stamp, job.due)
        if settings.max_wait:
            due = bounded_due(due, stamp, settings.max_wait)
        policy = DEFAULT_POLICY if job[8:14] == _REST else policy_for(job)
        if settings.keep_versions:
            policy = _with_flag(policy, KEEP_VERSIONS)
        put = Put(
            row_id,
            job.queue,
            job.key,
            rank,
            due,
            stamp,
            timestamp or job.timestamp or stamp,
            job.expires,
            job.kind,
            job.value,
            policy,
        )
        return _new(Placed, (put, outcome, row_id))

    def _put_again(
        self, job: NewJob, rank: int, stamp: int, now: int, admitted: bool, newest: int
    ) -> Placed:
        """`newest`: when the key was deleted in all queues."""
        waiting, processing, tomb, old, written = self._rows_of(job.queue, job.key, now)
        newest = max(newest, written)
        expired: list[Command] = [Expire(row.id) for row in old]
        timestamp = job.timestamp or max(stamp, newest + 1)
        holder = waiting or processing
        if job.mode == Mode.UNIQUE and holder is not None:
            if not admitted:
                self._refuse_taken(job, holder.modified)
            return Placed(None, Outcome.STALE, holder.id)
        if waiting is not None:
            max_wait = waiting.queue.settings.max_wait
            merged = merge(waiting, job, rank, timestamp, now, max_wait)
            outcome = Outcome.STALE if merged is None else Outcome.MERGED
            return Placed(merged and self._telling_nothing(merged), outcome, waiting.id)
        if processing is not None and timestamp <= processing.modified:
            return Placed(None, Outcome.STALE, processing.id)
        if tomb is not None and timestamp <= tomb.modified:
            return Placed(None, Outcome.STALE, tomb.id)
        outcome = Outcome.NEW if processing is None else Outcome.TWIN
        if tomb is not None and not job.id:
            placed = self._put_over(tomb, job, rank, stamp, outcome, timestamp)
        else:
            placed = self._put_new(job, rank, stamp, job.id or self._ids(), outcome, timestamp)
            if tomb is not None:
                expired.append(gone(tomb))
        if expired and placed.command is not None:
            members: tuple[Command, ...] = (placed.command,)
            if isinstance(placed.command, Group):
                members = placed.command.members
            return placed._replace(command=Group((*expired, *members)))
        return placed

    def _refuse_taken(self, job: NewJob, modified: int) -> None:
        """A unique key is taken, unless this is the same message sent again."""
        if not job.timestamp or modified != job.timestamp:
            raise AlreadyExists(f"key {job.key!r} is taken in queue {job.queue!r}")

    def _put_over(
        self, tomb: Row, job: NewJob, rank: int, stamp: int, outcome: Outcome, timestamp: int
    ) -> Placed:
        """A newer write takes the slot of a deleted row; tokens go on counting.

        One that brings an id has a slot of its own: it is known by that id should it come again.
        """
        placed = self._put_new(job, rank, stamp, tomb.id, outcome, timestamp)
        put = placed.command
        assert isinstance(put, Put)
        put.attempts = tomb.attempts
        if tomb.attempts and put.policy.max_attempts:
            limit = put.policy.max_attempts + tomb.attempts
            put.policy = put.policy.changed(max_attempts=limit)
        return placed._replace(command=self._telling_nothing(put))

    def add(self, job: Add | Schedule, now: int) -> Command:
        """Take a Workq job in; its id is its key, `created` is drawn here."""
        _check_workq(job, self.limits.max_value)
        now = self._clock(now)
        if self._settings(job.name).draining:
            raise QueuePaused(f"queue {job.name!r} is draining")
        job.created = self._draw_stamp(now)
        if (job.time or job.created) + job.ttl * MILLISECOND < now:
            raise BadRequest("the job has expired already")
        row = self.state.rows.get(job.id)
        if row is None or row.state is State.DELETED:
            return job
        if 0 < row.expires < now:
            return Group((Expire(row.id), job))
        raise AlreadyExists("Duplicate job")

    def _check(self, job: NewJob) -> None:
        queue, value, key, mode, priority, due, expires = job[:7]
        if type(queue) is not bytes or type(value) is not bytes or type(key) is not bytes:
            raise BadRequest("queue, key and value are bytes")
        if not 1 <= len(queue) <= 255:
            raise TooLarge("a queue name has 1 to 255 bytes")
        self.limits.check_key(len(key))
        self.limits.check_value(len(value), "a payload")
        if type(priority) is not int and type(priority) is not Priority:
            raise BadRequest("a priority is a whole number")
        if not 0 <= priority <= 255:
            raise OutOfRange(f"priority {priority} is not in 0..255")
        if type(due) is not int or type(expires) is not int:
            raise BadRequest("instants are whole nanoseconds")
        if not (0 <= due <= MAX_INSTANT and 0 <= expires <= MAX_INSTANT):
            raise OutOfRange("an instant is before 1970 or past 2262")
        if mode is not Mode.MERGE:
            _check_mode(job)
        if job[7] or job[8:14] != _REST:
            _check_rest(job)
        job_id = job[14]
        if job_id and (type(job_id) is not bytes or len(job_id) != 16):
            raise BadRequest("an id has 16 bytes")


def _check_mode(job: NewJob) -> None:
    if job.mode not in (Mode.UNIQUE, Mode.PLAIN, Mode.MERGE):
        raise BadRequest(f"unknown mode {job.mode!r}")
    if job.mode == Mode.UNIQUE and not job.key:
        raise BadRequest("a unique job needs a key")
    if job.mode == Mode.PLAIN and job.key:
        raise BadRequest("a plain job has no key")


def _check_rest(job: NewJob) -> None:
    for name in ("timestamp", "lease", "ttl", "max_attempts", "max_timeouts", "max_fails", "kind"):
        value = getattr(job, name)
        high = MAX_INSTANT
        if name.startswith("max_"):
            high = 2**31 - 1
        elif name == "kind":
            high = 255
        if type(value) is not int:
            raise BadRequest(f"{name} is a whole number")
        if not 0 <= value <= high:
            raise OutOfRange(f"{name} {value} is not in 0..{high}")


def _check_workq(job: Add | Schedule, max_value: int) -> None:
    """The ranges of Workq; the ttl may be longer than its 30 days."""
    row_id = job.id
    if len(row_id) != 16 or row_id[6] >> 4 != 4 or row_id[8] >> 6 != 2:
        raise BadRequest("Invalid ID")
    if not 1 <= len(job.name) <= 255 or not _WORKQ_NAME.issuperset(job.name):
        raise BadRequest("Invalid Name")
    if not 1 <= job.ttr <= 86_400_000:
        raise BadRequest("Invalid TTR")
    if not 1 <= job.ttl <= MAX_INSTANT // MILLISECOND:
        raise BadRequest("Invalid TTL")
    if not -(2**31) <= job.priority < 2**31:
        raise BadRequest("Invalid Priority")
    if not 0 <= job.max_attempts <= 255:
        raise BadRequest("Invalid Max Attempts")
    if not 0 <= job.max_fails <= 255:
        raise BadRequest("Invalid Max Fails")
    if len(job.payload) > max_value:
        raise BadRequest("Invalid Payload")
    if type(job) is Schedule and not 0 < job.time < _END_OF_TIME:
        raise BadRequest("Invalid Time")


def _with_flag(policy: Policy, flag: int) -> Policy:
    return policy.changed(flags=policy.flags | flag)


def _newest(row: Row, other: Row | None) -> Row:
    return row if other is None or row.inserted > other.inserted else other
