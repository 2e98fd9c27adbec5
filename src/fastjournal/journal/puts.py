"""Decisions that bring rows in: `put` for our own jobs, `add` for those of Workq.

Rules:

1. merge: a waiting row of the key takes the repeat in (`merge`). A row being worked on is left
   alone and gets one waiting twin, held back until it ends (D-13).
2. unique: a key that waits or is worked on is refused.
3. plain: no key, always a new row.
4. The newest timestamp wins, against a row being worked on and against a tombstone too (D-09).
5. A draining queue takes nothing in.
6. A producer may choose the id: a put whose id is there already is the same put sent again, and
   changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastjournal.clock import MILLISECOND
from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    ClockSkew,
    OutOfRange,
    QueuePaused,
    TooLarge,
)
from fastjournal.journal.deciding import Deciding
from fastjournal.journal.kinds import (
    DEFAULT_POLICY,
    KEEP_VERSIONS,
    Add,
    Command,
    Expire,
    Group,
    Policy,
    Put,
    Schedule,
    policy_of,
)
from fastjournal.journal.merge import bounded_due, merge, policy_for
from fastjournal.journal.rows import Row
from fastjournal.model import DEFAULT_SETTINGS, MAX_INSTANT, Mode, NewJob, Outcome, Priority, State

__all__ = ["Placed", "Puts"]

_new = tuple.__new__
_REST = NewJob(b"")[8:14]
_NEW = Outcome.NEW
_PLAIN = (DEFAULT_POLICY, 0, 0, 0, ())
_WORKQ_NAME = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")


class Placed(NamedTuple):
    """What a put comes to: the command to log (None: nothing), and what it means."""

    command: Command | None
    outcome: Outcome
    id: bytes


class Puts(Deciding):
    """`put` and `add`."""

    def put(
        self, job: NewJob, now: int, *, checked: bool = False, promised: bool = False
    ) -> Placed:
        """Take a job in; `checked`: its fields are known to be in range.

        `promised`: its producer was told already that it is safe, so no drain keeps it out.
        """
        if not checked:
            self._check(job)
        state = self.state
        if now < state.now:
            now = state.now
        queue, value, key, _, priority, due, expires = job[:7]
        given = job[14]
        if given and given in state.rows:
            return Placed(None, Outcome.STALE, given)
        lane = state.lanes.get(queue)
        settings = DEFAULT_SETTINGS if lane is None else lane.settings
        if (
            settings is DEFAULT_SETTINGS
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
            fields = (row_id, queue, key, rank, due, stamp, modified, expires, 1, value, *_PLAIN)
            return _new(Placed, (_new(Put, fields), _NEW, row_id))
        if settings.draining and not promised:
            raise QueuePaused(f"queue {queue!r} is draining")
        if job.timestamp > now + self.limits.max_skew:
            raise ClockSkew
        if 0 < expires < now:
            raise OutOfRange("the job has expired already")
        rank = int(priority)
        if settings.priority_order != "smaller":
            rank = -rank
        stamp = self._draw_stamp(now)
        if key and not settings.keep_versions and key in state.keys:
            return self._put_again(job, rank, stamp, now)
        return self._put_new(job, rank, stamp, given or self._ids(), Outcome.NEW)

    def put_plain(
        self, row_id: bytes, queue: bytes, value: bytes, rank: int, due: int, now: int
    ) -> Put | None:
        """What `put` decides for a job without a key or anything else special; None: ask `put`.

        The fields are known to be in range, and the id is new. For many jobs at a time: `put` takes
        twice as long.
        """
        state = self.state
        lane = state.lanes.get(queue)
        if lane is not None and lane.settings is not DEFAULT_SETTINGS:
            return None
        if now < state.now:
            now = state.now
        stamp = self._stamp
        self._stamp = stamp = now if now > stamp else stamp + 1
        return _new(
            Put,
            (row_id, queue, b"", rank, max(due, stamp), stamp, stamp, 0, 1, value,
             DEFAULT_POLICY, 0, 0, 0, ()),
        )  # fmt: skip

    def check_all(self, jobs: Sequence[NewJob], now: int, *, checked: bool = False) -> None:
        """Raise what `put` would raise for any of these jobs, put one after the other.

        A unique key that stood in an earlier one of them is refused too. `checked`: their fields
        are known to be in range.
        """
        first = self._clock(now)
        now = first + len(jobs)  # their records are a nanosecond apart
        seen: set[tuple[bytes, bytes]] = set()
        some_unique = any(job[3] is not Mode.MERGE and job[2] for job in jobs)
        for job in jobs:
            if not checked:
                self._check(job)
            settings = self._settings(job[0])
            if settings is DEFAULT_SETTINGS and not (job[6] or job[7] or some_unique):
                continue  # nothing about it can be refused
            if settings.draining:
                raise QueuePaused(f"queue {job.queue!r} is draining")
            if job.timestamp > now + self.limits.max_skew:
                raise ClockSkew
            if 0 < job.expires < now:
                raise OutOfRange("the job has expired already")
            if not job.key or settings.keep_versions:
                continue
            name = (job.queue, job.key)
            if job.mode == Mode.UNIQUE:
                holder: Row | None = None
                for row in self.state.keys.find(*name):
                    waiting = row.state is State.WAITING
                    if row.state is State.DELETED or (waiting and 0 < row.expires < first):
                        continue
                    if holder is None or holder.state > row.state:
                        holder = row
                    elif holder.state is row.state:
                        holder = _newest(row, holder)
                if holder is not None or name in seen:
                    self._refuse(holder if name not in seen else None, job)
            seen.add(name)

    def _put_new(
        self, job: NewJob, rank: int, stamp: int, row_id: bytes, outcome: Outcome
    ) -> Placed:
        settings = self._settings(job.queue)
        due = max(stamp, job.due)
        if settings.max_wait:
            due = bounded_due(due, stamp, settings.max_wait)
        policy = DEFAULT_POLICY if job[8:14] == _REST else policy_for(job)
        if settings.keep_versions:
            policy = _with_flag(policy, KEEP_VERSIONS)
        put = _new(
            Put,
            (
                row_id,
                job.queue,
                job.key,
                rank,
                due,
                stamp,
                job.timestamp or stamp,
                job.expires,
                job.kind,
                job.value,
                policy,
                0,
                0,
                0,
                (),
            ),
        )
        return _new(Placed, (put, outcome, row_id))

    def _put_again(self, job: NewJob, rank: int, stamp: int, now: int) -> Placed:
        waiting = processing = tomb = None
        expired: list[Command] = []
        # Rows left from a time when the queue kept versions may be many: the newest counts.
        for row in self.state.keys.find(job.queue, job.key):
            if row.state is State.PROCESSING:
                processing = _newest(row, processing)
            elif row.state is State.DELETED:
                tomb = row
            elif 0 < row.expires < now:
                expired.append(Expire(row.id))
            else:
                waiting = _newest(row, waiting)
        timestamp = job.timestamp or stamp
        if job.mode == Mode.UNIQUE and (waiting or processing):
            return self._refuse(waiting or processing, job)
        if waiting is not None:
            max_wait = waiting.lane.settings.max_wait
            merged = merge(waiting, job, rank, timestamp, now, max_wait)
            outcome = Outcome.STALE if merged is None else Outcome.MERGED
            return Placed(merged, outcome, waiting.id)
        if processing is not None and timestamp <= processing.modified:
            return Placed(None, Outcome.STALE, processing.id)
        if tomb is not None:
            return self._put_over(tomb, job, rank, stamp, timestamp)
        outcome = Outcome.NEW if processing is None else Outcome.TWIN
        placed = self._put_new(job, rank, stamp, job.id or self._ids(), outcome)
        if expired and placed.command is not None:
            return placed._replace(command=Group((*expired, placed.command)))
        return placed

    def _refuse(self, row: Row | None, job: NewJob) -> Placed:
        """A unique key is taken, unless this is the same message sent again."""
        if row is not None and job.timestamp and row.modified == job.timestamp:
            return Placed(None, Outcome.STALE, row.id)
        raise AlreadyExists(f"key {job.key!r} is taken in queue {job.queue!r}")

    def _put_over(self, tomb: Row, job: NewJob, rank: int, stamp: int, timestamp: int) -> Placed:
        """A newer write takes the slot of a deleted row; tokens go on counting."""
        if timestamp <= tomb.modified:
            return Placed(None, Outcome.STALE, tomb.id)
        placed = self._put_new(job, rank, stamp, tomb.id, Outcome.NEW)
        put = placed.command
        assert isinstance(put, Put)
        put = put._replace(attempts=tomb.attempts)
        if tomb.attempts and put.policy.max_attempts:
            limit = put.policy.max_attempts + tomb.attempts
            put = put._replace(policy=policy_of(*put.policy._replace(max_attempts=limit)))
        return placed._replace(command=put)

    def add(self, job: Add | Schedule, now: int) -> Command:
        """Take a Workq job in; its id is its key, `created` is drawn here."""
        _check_workq(job, self.limits.max_value)
        now = self._clock(now)
        if self._settings(job.name).draining:
            raise QueuePaused(f"queue {job.name!r} is draining")
        job = job._replace(created=self._draw_stamp(now))
        if (job.time or job.created) + job.ttl * MILLISECOND < now:
            raise BadRequest("the job has expired already")
        row = self.state.rows.get(job.id)
        if row is None:
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
    if type(job) is Schedule and not 0 < job.time <= MAX_INSTANT:
        raise BadRequest("Invalid Time")


def _with_flag(policy: Policy, flag: int) -> Policy:
    return policy_of(*policy._replace(flags=policy.flags | flag))


def _newest(row: Row, other: Row | None) -> Row:
    return row if other is None or row.inserted > other.inserted else other
