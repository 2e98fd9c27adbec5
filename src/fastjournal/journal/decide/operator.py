"""Decisions of operators: delete jobs by id or by key, redrive dead ones, change settings.

Rules:

1. The newest timestamp wins, as it does between puts: a job that was written after the deletion
   stays. A deletion without a timestamp is the newest there is (D-09).
2. A tombstone stays behind for `gc_grace`, also where nothing was to be deleted: an older put may
   be on its way, in a spool or in a message that is sent again (D-20, transition 22). A tombstone
   of a key keeps older puts of that key away, one of an id alone the put of that id.
3. Of each (queue, key) there is one tombstone at most. None is left for a job that is finished or
   dead: its key has been free since; nor for jobs of Workq, which knows no tombstones.
4. A deletion of a key in all queues holds for queues that do not have it yet, too: its tombstone is
   that of an id made from the key (`everywhere_id`).
5. A purge leaves nothing.
6. A redriven row waits again, its counters at 0, unless a newer row of its key waits.
7. An edited row is stated anew: it keeps its id, its place of arrival and its counters. A payload
   of the operator is a write as of now; a change of priority or due time is none, so that a put
   that was written before it and comes later still merges. `max_wait` holds for operators too.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, final

from mypy_extensions import i64

from fastjournal.errors import AlreadyExists, BadRequest, ClockSkew, NotFound, OutOfRange
from fastjournal.journal.decide.ground import (
    Ground,
    everywhere_id,
    gone,
    has_expired,
    instant_after,
)
from fastjournal.journal.decide.merge import bounded_due
from fastjournal.journal.language.commands import (
    KEEP_VERSIONS,
    Command,
    Group,
    Purge,
    Put,
    Queue,
    Redrive,
    Retry,
    Tomb,
    as_one,
)
from fastjournal.journal.state.row import (
    DELETED_ROW,
    FAILED_ROW,
    PROCESSING_ROW,
    WAITING_ROW,
    Row,
    image,
)

__all__ = ["Deleted", "Operator"]


class Deleted(NamedTuple):
    """What a deletion comes to; true if it found something to delete."""

    command: Command | None = None
    found: int = 0
    """Jobs that were there and go."""
    stale: bool = False
    """Nothing goes: what is there was written later."""

    def __bool__(self) -> bool:
        return self.found > 0


@final
class Operator:
    """What operators ask for."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._state = ground.state

    def delete(self, row_id: bytes, now: i64, timestamp: i64 = 0, purge: bool = False) -> Deleted:
        """Remove the job of an id; a worker holding it gets `NotFound` later."""
        now = self._ground.time(now)
        row = self._state.rows.get(row_id)
        if row is None:
            when = self._when(timestamp, now, [])
            return Deleted() if purge else Deleted(Tomb(row_id, b"", b"", when))
        if row.stage == DELETED_ROW:
            return Deleted()
        when = self._when(timestamp, now, [row])
        if when <= row.modified:
            return Deleted(stale=True)
        found = _count([row], now)
        if purge or row.workq or row.stage > PROCESSING_ROW:
            return Deleted(gone(row), found)
        parts: list[Command] = []
        if row.key:
            twins = self._state.keys.twins(row)
            parts.extend([_purge(other) for other in twins if other.stage == DELETED_ROW])
        parts.append(Tomb(row.id, row.queue.name, row.key, when))
        return Deleted(as_one(parts), found)

    def delete_key(
        self, queue: bytes, key: bytes, now: i64, timestamp: i64 = 0, purge: bool = False
    ) -> Deleted:
        """Remove the waiting job of a key and the one being worked on."""
        if not key:
            return Deleted()
        now = self._ground.time(now)
        rows = self._state.keys.rows_of(queue, key)
        return self._delete_rows(queue, key, rows, self._when(timestamp, now, rows), now, purge)

    def delete_everywhere(
        self, key: bytes, now: i64, timestamp: i64 = 0, purge: bool = False
    ) -> Iterator[Deleted]:
        """Remove the jobs of a key in all queues, step by step; apply each before the next."""
        if not key:
            return
        now = self._ground.time(now)
        queues: dict[bytes, list[Row]] = {}
        known: list[Row] = []
        for row in self._state.keys.everywhere(key):
            if row.queue.name:  # else it is an entry
                queues.setdefault(row.queue.name, []).append(row)
                known.append(row)
        tomb = self._ground.tomb_everywhere(key)
        if tomb is not None:
            known.append(tomb)
        when = self._when(timestamp, now, known)
        for queue in sorted(queues):
            yield self._delete_rows(queue, key, queues[queue], when, now, purge)
        if tomb is not None and when <= tomb.modified:
            yield Deleted(stale=True)
            return
        parts: list[Command] = []
        if tomb is not None:
            parts.append(_purge(tomb))  # so its records do not pile up
        if not purge:
            parts.append(Tomb(everywhere_id(key), b"", b"", when))
        yield Deleted(as_one(parts))

    def _delete_rows(
        self, queue: bytes, key: bytes, rows: list[Row], when: i64, now: i64, purge: bool
    ) -> Deleted:
        """Remove the rows of a key in a queue that are older than this."""
        older = [row for row in rows if row.modified < when]
        going = [row for row in older if row.stage != DELETED_ROW]
        found = _count(going, now)
        if len(older) < len(rows):  # what stays keeps older puts away by itself
            return Deleted(as_one([gone(row) for row in going]), found, not going)
        if purge:
            return Deleted(as_one([gone(row) for row in older]), found)
        bearer: Row | None = None
        for row in older:
            if bearer is None or row.stage < bearer.stage:
                bearer = row
        row_id = self._ground.new_id() if bearer is None else bearer.id
        parts: list[Command] = [_purge(row) for row in older if row is not bearer]
        parts.append(Tomb(row_id, queue, key, when))
        return Deleted(as_one(parts), found)

    def _when(self, timestamp: i64, now: i64, rows: list[Row]) -> i64:
        """The time of a deletion; without one of its own it is newer than all that is there."""
        if timestamp - self._ground.limits.max_skew > now:
            raise ClockSkew
        if timestamp:
            return timestamp
        when = now
        for row in rows:
            when = max(when, instant_after(row.modified, 1))
        return when

    def redrive(self, row_id: bytes, now: i64, delay: i64 = 0) -> Command:
        """Let a dead row wait again, its counters at 0."""
        ground = self._ground
        now = ground.time(now)
        row = ground.find(row_id, now)
        if row.stage != FAILED_ROW:
            raise BadRequest("the job is not dead")
        if row.key and not row.policy.flags & KEEP_VERSIONS:
            for other in self._state.keys.rows_of(row.queue.name, row.key):
                if other.stage == WAITING_ROW and not has_expired(other, now):
                    raise AlreadyExists("a newer job of this key is waiting")
        limit = row.policy.max_attempts
        if not row.workq:
            limit = limit or row.queue.settings.max_attempts
        if 0 < limit <= row.attempts:  # as many attempts again
            limit += row.attempts
        else:
            limit = row.policy.max_attempts
        return ground.alone(row, Redrive(row.id, instant_after(now, delay), limit), now)

    def redrive_all(self, queue: bytes, now: i64) -> Iterator[Command]:
        """Redrive the dead rows of a queue, except where a newer row of the key waits.

        Log and apply each command before asking for the next.
        """
        found = self._state.queues.get(queue)
        if found is None:
            return
        for row_id in list(found.dead):
            try:
                command = self.redrive(row_id, now)
            except (AlreadyExists, NotFound):
                continue
            yield command

    def edit(
        self, row_id: bytes, now: i64, value: bytes | None, priority: int | None, due: int | None
    ) -> Command:
        """State a waiting row anew with some of it replaced; its value must be in memory."""
        ground = self._ground
        now = ground.time(now)
        row = ground.find(row_id, now)
        if not row.queue.name:
            raise NotFound(f"no job {row_id.hex()}")
        if row.stage != WAITING_ROW:
            raise BadRequest("only a job that waits can be changed")
        parts = image(row)
        put = parts[0]
        assert isinstance(put, Put)
        if value is not None:
            ground.limits.check_value(len(value), "a payload")
            put.value = value
            put.modified = max(now, instant_after(row.modified, 1))
        if priority is not None:
            least, most = (-(2**31), 2**31 - 1) if row.workq else (0, 255)
            if not least <= priority <= most:
                raise OutOfRange(f"a priority is a number from {least} to {most}")
            put.rank = -priority if row.workq or row.queue.larger_first else priority
        if due is not None:
            put.due = bounded_due(due, row.inserted, row.queue.max_wait)
            for part in parts:
                if isinstance(part, Retry):
                    part.due = put.due
        return Group(tuple(parts))

    def set_queue(self, queue: bytes, changes: Mapping[str, Any]) -> Command | None:
        """Change settings of a queue; None if they are so already."""
        if not 1 <= len(queue) <= 255:
            raise BadRequest("a queue name has 1 to 255 bytes")
        old = self._ground.rules(queue).settings
        new = old.changed(changes)
        return None if new == old else Queue(queue, new)


def _count(rows: list[Row], now: i64) -> int:
    """How many of them are there to people."""
    count = 0
    for row in rows:
        if not has_expired(row, now):
            count += 1
    return count


def _purge(row: Row) -> Command:
    return Purge(row.id, row.queue.name, row.key, row.modified)
