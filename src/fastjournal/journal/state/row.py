"""The one stored thing: a row. A job is a row in a queue, a key/value entry a row without one.

Rules (V1 and V2 are held by the decisions, the others by `apply`):

V1. Ids are unique.
V2. At most one row waits and one is worked on for each (queue, key).
V3. A row is worked on exactly while `lease_until` is set.
V4. `due >= inserted`, except for Workq jobs scheduled into the past.
V5. A row stands in one `place`; only READY rows are handed out.
V6. Completed, failed and deleted rows never return, except by a redrive or a newer write.
V7. A result is written once.
V8. `image(row)` applied to an empty state gives the row again: that is what snapshots hold and
    digests hash. `place`, `at`, slots and `chain` are not part of it.

A million rows must fit in memory: a row holds what every row needs, what few rows need is in
`More`, what most rows share is one `Policy`, and a value may lie in the log alone (`values`). Rows
hold no cycles, so the collector of cycles need not know them: a row knows the rules of its queue,
not the queue's rows.
"""

from typing import Any, Final, final

from mypy_extensions import i32, i64, mypyc_attr, u8

from fastjournal.buffers import BytesWriter, read_i64_be, write_i64_be
from fastjournal.clock import MILLISECOND
from fastjournal.journal.language.commands import (
    BY_SCHEDULE,
    DEFAULT_POLICY,
    FAILED,
    FROM_WORKQ,
    SCHEMA_SHIFT,
    Command,
    Complete,
    Dead,
    Fail,
    Lease,
    Policy,
    Put,
    Retry,
    Tomb,
    Touch,
    Value,
)
from fastjournal.journal.state.numbered import Answer, Numbered
from fastjournal.model import DEFAULT_SETTINGS, Job, QueueSettings, State
from fastjournal.model import Lease as LeaseView

__all__ = [
    "COMPLETED_ROW",
    "DEAD",
    "DELETED_ROW",
    "DONE",
    "FAILED_ROW",
    "FUTURE",
    "HELD",
    "IDLE",
    "LEASED",
    "PLACES",
    "PROCESSING_ROW",
    "READY",
    "TOMB",
    "WAITING_ROW",
    "Granted",
    "More",
    "QueueRules",
    "Row",
    "ValueNeeded",
    "image",
    "job_of",
    "lease_of",
    "numbered_values",
    "put_of",
    "value_of",
]

READY: Final[u8] = 0
FUTURE: Final[u8] = 1
HELD: Final[u8] = 2
LEASED: Final[u8] = 3
DONE: Final[u8] = 4
DEAD: Final[u8] = 5
TOMB: Final[u8] = 6
IDLE: Final[u8] = 7
PLACES: Final = 8
"""Where a row stands: to be handed out; not yet due; behind its twin; handed out; finished;
given up; deleted; waiting without a queue. The first six are those of `model.PLACES`."""

WAITING_ROW: Final[u8] = 0
PROCESSING_ROW: Final[u8] = 1
COMPLETED_ROW: Final[u8] = 2
FAILED_ROW: Final[u8] = 3
DELETED_ROW: Final[u8] = 4
"""`model.State` as the row keeps it."""

_STATES: Final = list(State)
_new: Final[Any] = tuple.__new__


@final
@mypyc_attr(acyclic=True)
class QueueRules:
    """A queue as its rows know it."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.settings: QueueSettings = DEFAULT_SETTINGS
        self.settings_at: i64 = 0
        """TIME of the newest QUEUE record; 0: none."""
        self.plain = True
        """The settings are the defaults."""
        self.concurrency: i64 = 0
        self.slow_from: i64 = DEFAULT_SETTINGS.slow_from
        self.lease: i64 = DEFAULT_SETTINGS.lease
        self.max_wait: i64 = 0
        self.draining = False
        self.keep_versions = False
        self.larger_first = False
        self.persist = True
        self.schema: i64 = 0

    def change(self, settings: QueueSettings, time: i64) -> None:
        """These settings hold from the record of this TIME on."""
        self.settings = settings
        self.plain = settings == DEFAULT_SETTINGS
        self.settings_at = 0 if self.plain else time
        self.concurrency = settings.concurrency
        self.slow_from = settings.slow_from
        self.lease = settings.lease
        self.max_wait = settings.max_wait
        self.draining = settings.draining
        self.keep_versions = settings.keep_versions
        self.larger_first = settings.priority_order == "larger"
        self.persist = settings.persist
        self.schema = settings.schema


@final
@mypyc_attr(acyclic=True)
class More:
    """What only few rows have. Never shared."""

    def __init__(self) -> None:
        self.timeouts: i64 = 0
        self.fails: i64 = 0
        self.result: bytes = b""
        self.reason: i64 = 0
        """Why the row was given back (of RETRY) or died (of DEAD)."""
        self.when: i64 = 0
        """When it died."""
        self.note: bytes = b""
        self.aliases: tuple[bytes, ...] = ()
        self.operations: Numbered | None = None
        """Numbered changes of the value not to be made again, and their answers; see `numbered`."""
        self.chain: i64 = 0
        """Commands since the newest image."""
        self.attempts: i64 = 0
        """How often it was handed out."""
        self.until: i64 = 0
        """When its lease ends; or, if it is dead, when it is forgotten; 0: never."""
        self.value_at: i64 = 0
        """TIME of the record that holds its value, if that is not the one that states the row."""
        self.start: i64 = 0
        """Since when it is handed out."""
        self.worker: bytes = b""
        """To whom."""


_NOTHING: Final = More()


@final
@mypyc_attr(acyclic=True)
class Row:
    """A stored row. Only `apply` changes it; only orders set its slots."""

    def __init__(self, row_id: bytes, queue: QueueRules, key: bytes, value: bytes) -> None:
        self.high: i64 = read_i64_be(row_id, 0)
        """Its id, which is 16 bytes."""
        self.low: i64 = read_i64_be(row_id, 8)
        self.queue = queue
        self.key = key
        self.value: bytes | None = value
        """None: it lies in the log; see `value_of`. Only `values` lets it go."""
        self.policy: Policy = DEFAULT_POLICY
        self.more: More | None = None
        self.rank: i64 = 0
        self.due: i64 = 0
        self.inserted: i64 = 0
        self.modified: i64 = 0
        self.expires: i64 = 0
        self.at: i64 = 0
        """TIME of the newest record that states the whole row: older records of it are spent."""
        self.slot: i32 = 0
        """Where it stands in the order of its place."""
        self.expiry_slot: i32 = 0
        """Where it stands in the order of expiry."""
        self.size: i32 = i32(len(value))
        """Bytes of its value."""
        self.segment: i32 = 0
        """The segment in which its value lies; -n: the snapshot of number n; 0: none as yet."""
        self.offset: i32 = 0
        """Where the record of its value was seen last in that file; 0: not known."""
        self.hash: i32 = 0
        """Of its id, and its number in the line of all rows: for `rows`."""
        self.number: i32 = 0
        self.kind: u8 = 1
        self.stage: u8 = WAITING_ROW
        self.place: u8 = IDLE
        self.cached: u8 = 0
        """What `values` knows of it."""

    @property
    def id(self) -> bytes:
        """Its name, 16 bytes."""
        out = BytesWriter()
        write_i64_be(out, self.high)
        write_i64_be(out, self.low)
        return out.getvalue()

    def id_before(self, other: "Row") -> bool:
        """Whether its id is the smaller one of two, as bytes."""
        if self.high != other.high:
            return self.high < other.high if self.high ^ other.high >= 0 else other.high < 0
        return self.low < other.low if self.low ^ other.low >= 0 else other.low < 0

    @property
    def state(self) -> State:
        """In which state of its life it is."""
        return _STATES[self.stage]

    @property
    def attempts(self) -> i64:
        """How often it was handed out; the token of the running lease. Never goes back."""
        more = self.more
        if more is None:
            return 0  # not by an expression: that would go by way of an `int`
        return more.attempts

    @property
    def when(self) -> i64:
        """When it leaves its place: due, the end of its lease, or forgotten (DEAD, TOMB)."""
        place = self.place
        if place == FUTURE:
            return self.due
        if place == TOMB:
            return self.modified
        more = self.more
        if more is None:
            return 0
        return more.until

    @property
    def value_at(self) -> i64:
        """TIME of the record that holds its value."""
        more = self.more
        return self.at if more is None or not more.value_at else more.value_at

    @property
    def lease_until(self) -> int:
        """When its lease ends; 0: it is not handed out."""
        more = self.more
        return more.until if self.stage == PROCESSING_ROW and more is not None else 0

    @property
    def rare(self) -> More:
        """To read the rare fields; to write them use `own`."""
        more = self.more
        return _NOTHING if more is None else more

    def own(self) -> More:
        """To write the rare fields."""
        more = self.more
        if more is None:
            more = self.more = More()
        return more

    def shed(self) -> None:
        """Drop the rare fields, but for those that outlast a change of its state."""
        old = self.more
        self.more = None
        if old is not None and (old.aliases or old.attempts or old.value_at):
            more = self.own()
            more.aliases = old.aliases
            more.attempts = old.attempts
            more.value_at = old.value_at

    @property
    def workq(self) -> bool:
        """Came through the Workq commands, so its records are of types 1..8."""
        return self.policy.flags & FROM_WORKQ != 0

    def __repr__(self) -> str:
        return f"<Row {self.id.hex()} {self.state.letter} {self.queue.name!r} {self.key!r}>"


class ValueNeeded(Exception):
    """The bytes of this row's value are needed: load them and ask again.

    Nothing in the state or in a decision reads a file. A decision changes nothing, so asking twice
    is harmless.
    """

    def __init__(self, row: Row) -> None:
        super().__init__(row.id.hex())
        self.row = row


def value_of(row: Row) -> bytes:
    """The value of a row that is in memory; `ValueNeeded` if it is not."""
    value = row.value
    if value is None:
        raise ValueNeeded(row)
    return value


def put_of(row: Row, value: bytes) -> Put:
    """The row as a waiting image with its counters."""
    more = row.rare
    return Put(
        row.id,
        row.queue.name,
        row.key,
        row.rank,
        row.due,
        row.inserted,
        row.modified,
        row.expires,
        i64(row.kind),
        value,
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
    if row.stage == FAILED_ROW:
        if more.reason != FAILED or not more.fails:  # the latter: by a DEAD alone
            return [put, Dead(row.id, more.reason, more.when)]
        put.fails -= 1  # which FAIL counts again
        return [put, Fail(row.id, more.result), Dead(row.id, FAILED, more.when)]
    if row.stage == DELETED_ROW:
        tomb = Tomb(row.id, row.queue.name, row.key, row.modified)
        if row.expires:  # by a TOUCH since
            return [put, tomb, Touch(row.id, row.expires)]
        if row.key or row.queue.name:
            return [put, tomb]
        # Of an id alone: there was no job, and its image must not look like one of its sender.
        return [tomb]
    commands: list[Command] = [put]
    if more.operations is not None:
        commands.extend(numbered_values(more.operations, put))
    if more.reason:
        commands.append(Retry(row.id, more.reason, row.due, more.timeouts, more.fails, more.note))
    if row.stage == COMPLETED_ROW:
        commands.append(Complete(row.id, more.result))
    elif row.stage == PROCESSING_ROW:
        commands.append(Lease(row.id, more.start, more.until, more.attempts, more.worker))
    return commands


def numbered_values(operations: Numbered, put: Put) -> list[Command]:
    """The commands that give a row just put its numbered changes, and leave its value as it is."""
    commands: list[Command] = []
    last = Answer(0, 0, b"")
    for operation, last in operations.answers.items():
        commands.append(Value(put.id, last.kind, last.value, last.when, operation))
    if last.when != put.modified or last.kind != put.kind or last.value != put.value:
        commands.append(Value(put.id, put.kind, put.value, put.modified))
    return commands


def job_of(row: Row, *, values: bool = True) -> Job:
    """A picture of the row for callers; without its value and result if not `values`."""
    more = row.rare
    policy = row.policy
    flags = policy.flags
    workq = flags & FROM_WORKQ != 0
    leased = row.stage == PROCESSING_ROW
    rank = row.rank
    backwards = workq or row.queue.larger_first
    picture: Job = _new(
        Job,
        (
            row.id,
            row.queue.name,
            row.key,
            value_of(row) if values else b"",
            _STATES[row.stage],
            rank,
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
            more.start if leased else 0,
            more.until if leased else 0,
            more.worker if leased else b"",
            more.result if values else b"",
            more.note,
            row.place == HELD,
            workq,
            flags & BY_SCHEDULE != 0,
            policy.ttl * MILLISECOND,
            more.aliases,
            -rank if backwards else rank,
            flags >> SCHEMA_SHIFT & 15,
        ),
    )
    return picture


@final
@mypyc_attr(acyclic=True)
class Granted:
    """A row as it was when it was handed out; called, it tells the lease."""

    def __init__(self, row: Row, value: bytes) -> None:
        """`value`: the row's."""
        copy = Row(row.id, row.queue, row.key, value)
        copy.policy = row.policy
        copy.rank = row.rank
        copy.due = row.due
        copy.inserted = row.inserted
        copy.modified = row.modified
        copy.expires = row.expires
        copy.kind = row.kind
        copy.stage = row.stage
        copy.place = row.place
        old = row.more
        if old is not None:
            more = copy.more = More()
            more.timeouts = old.timeouts
            more.fails = old.fails
            more.result = old.result
            more.note = old.note
            more.aliases = old.aliases
            more.attempts = old.attempts
            more.until = old.until
            more.start = old.start
            more.worker = old.worker
        self._row = copy

    def __call__(self) -> LeaseView:
        return lease_of(self._row)


def lease_of(row: Row) -> LeaseView:
    """The lease just granted on this row."""
    granted: LeaseView = _new(LeaseView, (job_of(row), row.attempts, row.lease_until))
    return granted
