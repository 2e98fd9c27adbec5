"""The one stored thing: a row. A job is a row in a queue, a key/value entry a row without one.

Rules (V1 and V2 are held by the decisions, the others by `state`):

V1. Ids are unique.
V2. At most one row waits and one is worked on for each (queue, key).
V3. A row is worked on exactly while `lease_until` is set.
V4. `due >= inserted`, except for Workq jobs scheduled into the past.
V5. A row stands in one `place`; only READY rows are handed out.
V6. Completed, failed and deleted rows never return, except by a redrive or a newer write.
V7. A result is written once.
V8. `image(row)` applied to an empty state gives the row again: that is what snapshots hold and
    digests hash. `place`, `at` and `chain` are not part of it.

A million rows must fit in memory, so a row holds what every row needs; what few rows need is in
`More`, and what most rows share is one `Policy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.clock import MILLISECOND
from fastjournal.journal.kinds import (
    BY_SCHEDULE,
    FAILED,
    FROM_WORKQ,
    Command,
    Complete,
    Dead,
    Fail,
    Lease,
    Policy,
    Put,
    Retry,
    Tomb,
    Value,
)
from fastjournal.journal.numbered import Operations
from fastjournal.journal.stored import Stored, ValueNeeded, value_of
from fastjournal.model import Job, State
from fastjournal.model import Lease as LeaseView

if TYPE_CHECKING:
    from fastjournal.journal.lanes import Lane

__all__ = [
    "DEAD",
    "DONE",
    "FUTURE",
    "HELD",
    "IDLE",
    "LEASED",
    "PLACES",
    "READY",
    "TOMB",
    "More",
    "Row",
    "image",
    "job_of",
    "lease_of",
    "numbered_values",
]

_new = tuple.__new__

READY, FUTURE, HELD, LEASED, DONE, DEAD, TOMB, IDLE = range(8)
PLACES = 8
"""Where a row stands: to be handed out; not yet due; behind its twin; handed out; finished;
given up; deleted; waiting without a queue."""


class More:
    """What only few rows have. Never shared."""

    __slots__ = (
        "aliases",
        "chain",
        "fails",
        "note",
        "operations",
        "reason",
        "result",
        "timeouts",
        "when",
    )

    def __init__(self) -> None:
        self.timeouts = 0
        self.fails = 0
        self.result = b""
        self.reason = 0
        """Why the row was given back (of RETRY) or died (of DEAD)."""
        self.when = 0
        """When it died."""
        self.note = b""
        self.aliases: tuple[bytes, ...] = ()
        self.operations: Operations | None = None
        """Numbered changes of the value not to be made again, and their answers."""
        self.chain = 0
        """Commands since the newest image."""


_NOTHING = More()
_NOBODY = (0, b"")


class Row:
    """A stored row. Only `state` changes it."""

    __slots__ = (
        "at",
        "attempts",
        "due",
        "expires",
        "holder",
        "id",
        "inserted",
        "key",
        "kind",
        "lane",
        "lease_until",
        "modified",
        "more",
        "place",
        "policy",
        "rank",
        "state",
        "value",
    )

    id: bytes
    lane: Lane
    key: bytes
    value: bytes | Stored
    """Its bytes, or where they lie; `value_of` tells them apart."""
    kind: int
    rank: int
    due: int
    inserted: int
    modified: int
    expires: int
    policy: Policy
    state: State
    place: int
    attempts: int
    """How often it was handed out; the token of the running lease. Never goes back."""
    lease_until: int
    at: int
    """TIME of the newest record that states the whole row: older records of it are spent."""
    more: More | None
    holder: tuple[int, bytes] | None
    """Since when it is handed out, and to whom."""

    @property
    def queue(self) -> bytes:
        """The name of its queue."""
        return self.lane.name

    @property
    def rare(self) -> More:
        """To read the rare fields; to write them use `own`."""
        return self.more or _NOTHING

    def own(self) -> More:
        """To write the rare fields."""
        more = self.more
        if more is None:
            more = self.more = More()
        return more

    @property
    def workq(self) -> bool:
        """Came through the Workq commands, so its records are of types 1..8."""
        return bool(self.policy.flags & FROM_WORKQ)

    def __repr__(self) -> str:
        return f"<Row {self.id.hex()} {self.state.letter} {self.queue!r} {self.key!r}>"


def put_of(row: Row, value: bytes | None = None) -> Put:
    """The row as a waiting image with its counters."""
    more = row.rare
    return Put(
        row.id,
        row.lane.name,
        row.key,
        row.rank,
        row.due,
        row.inserted,
        row.modified,
        row.expires,
        row.kind,
        value_of(row) if value is None else value,
        row.policy,
        row.attempts,
        more.timeouts,
        more.fails,
        more.aliases,
    )


def image(row: Row, value: bytes | None = None) -> list[Command]:
    """The commands that give this very row when applied to an empty state.

    `value`: its value, where the row itself does not hold it.
    """
    if value is None:
        value = value_of(row)
    put = put_of(row, value)
    more = row.rare
    if row.state is State.FAILED:
        if more.reason != FAILED:
            return [put, Dead(row.id, more.reason, more.when)]
        put = put._replace(fails=more.fails - 1)
        return [put, Fail(row.id, more.result), Dead(row.id, FAILED, more.when)]
    if row.state is State.DELETED:
        tomb = Tomb(row.id, row.lane.name, row.key, row.modified)
        # Of an id alone: there was no job, and its image must not look like one of its sender.
        return [put, tomb] if row.key or row.lane.name else [tomb]
    commands: list[Command] = [put]
    if more.operations:
        commands += numbered_values(more.operations, put)
    if more.reason:
        commands.append(Retry(row.id, more.reason, row.due, more.timeouts, more.fails, more.note))
    if row.state is State.COMPLETED:
        commands.append(Complete(row.id, more.result))
    elif row.state is State.PROCESSING:
        start, worker = row.holder or _NOBODY
        commands.append(Lease(row.id, start, row.lease_until, row.attempts, worker))
    return commands


def numbered_values(operations: Operations, put: Put) -> list[Command]:
    """The commands that give a row just put its numbered changes, and leave its value as it is."""
    commands: list[Command] = [
        Value(put.id, kind, data, modified, operation)
        for operation, (modified, kind, data) in operations.items()
    ]
    last = next(reversed(operations.values()))
    if last != (put.modified, put.kind, put.value):
        commands.append(Value(put.id, put.kind, put.value, put.modified))
    return commands


def job_of(row: Row, *, values: bool = True) -> Job:
    """A picture of the row for callers; without its value and result if not `values`."""
    value = row.value if values else b""
    if type(value) is Stored:
        raise ValueNeeded(row)
    more = row.more or _NOTHING
    policy, lane = row.policy, row.lane
    flags = policy.flags
    start, worker = row.holder or _NOBODY
    backwards = flags & FROM_WORKQ or lane.settings.priority_order == "larger"
    return _new(
        Job,
        (
            row.id,
            lane.name,
            row.key,
            value,
            row.state,
            row.rank,
            row.due,
            row.inserted,
            row.modified,
            row.expires,
            row.kind,
            row.attempts,
            more.timeouts,
            more.fails,
            policy.max_attempts,
            policy.max_timeouts,
            policy.max_fails,
            policy.lease * MILLISECOND,
            start,
            row.lease_until,
            worker,
            more.result if values else b"",
            more.note,
            row.place == HELD,
            flags & FROM_WORKQ != 0,
            flags & BY_SCHEDULE != 0,
            policy.ttl * MILLISECOND,
            more.aliases,
            -row.rank if backwards else row.rank,
        ),
    )


def lease_of(row: Row) -> LeaseView:
    """The lease just granted on this row."""
    return _new(LeaseView, (job_of(row), row.attempts, row.lease_until))
