"""What all decisions share: the state they look at, ids and chance, the limits of a row.

Rules:

1. A decision looks at the state and at `now`, and gives commands that state their result; it
   changes no row. Refused requests raise and leave no trace.
2. Whatever is drawn (ids, jitter) is drawn here and written into the command.
3. Apply a command before asking for the next decision.
4. `inserted` is strictly increasing along puts: it is the arrival number.
"""

from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Any, Final, final

from mypy_extensions import i64

from fastjournal.clock import SECOND
from fastjournal.errors import AlreadyExists, LeaseLost, NotFound, TooLarge
from fastjournal.journal.language.commands import (
    FROM_WORKQ,
    KEEP_VERSIONS,
    Command,
    Delete,
    Expire,
    Group,
    Purge,
    Retry,
)
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import (
    DELETED_ROW,
    PROCESSING_ROW,
    WAITING_ROW,
    QueueRules,
    Row,
    image,
)
from fastjournal.model import QueueSettings

__all__ = [
    "NO_TOKEN",
    "Ground",
    "Limits",
    "backoff",
    "everywhere_id",
    "gone",
    "has_expired",
    "instant_after",
]

NO_TOKEN: Final[i64] = -1
"""In the place of a token: the caller has none, as Workq's commands."""

_LAST_INSTANT: Final[i64] = 9_223_372_036_854_775_807
_PLAIN_RECORD: Final[i64] = 64
"""Bytes, roughly, of a record that is not an image."""
_CHAIN_SLACK: Final[i64] = 4096
_IDS_AT_A_TIME: Final = 256
_VERSION: Final = bytes([byte & 0x0F | 0x40 for byte in range(256)])
_VARIANT: Final = bytes([byte & 0x3F | 0x80 for byte in range(256)])
_USUAL: Final = QueueRules(b"")
"""The rules of a queue that nobody has used yet."""


@final
class Limits:
    """Sizes a request may not pass, and the journal-wide lengths of time."""

    def __init__(
        self,
        max_value: i64 = 1024 * 1024,
        max_key: i64 = 65_535,
        max_skew: i64 = 5 * SECOND,
        gc_grace: i64 = 3600 * SECOND,
    ) -> None:
        self.max_value: i64 = max_value
        self.max_key: i64 = max_key
        self.max_skew: i64 = max_skew
        """How far ahead a sender's clock may be."""
        self.gc_grace: i64 = gc_grace
        """How long a tombstone keeps older writes away."""

    def check_value(self, size: i64, what: str = "a value") -> None:
        """Refuse a value of more bytes than may be."""
        if size > self.max_value:
            raise TooLarge(f"{what} of {size} bytes exceeds the limit of {self.max_value}")

    def check_key(self, size: i64) -> None:
        """Refuse a key of more bytes than may be."""
        if size > self.max_key:
            raise TooLarge(f"a key of {size} bytes exceeds the limit of {self.max_key}")

    def check_job(self, key: bytes, payload: bytes) -> None:
        """Refuse a job that is larger than may be."""
        self.check_key(len(key))
        self.check_value(len(payload), "a payload")


@final
class Ground:
    """The ground decisions stand on."""

    def __init__(
        self,
        state: JournalState,
        ids: Callable[[], bytes] | None = None,
        chance: Any = None,
        limits: Limits | None = None,
    ) -> None:
        """`chance`: a `random.Random` or a stand-in; `ids`: where ids come from instead of it."""
        self.state = state
        self.rows = state.rows
        self.limits = Limits() if limits is None else limits
        self.chance: Any = Random() if chance is None else chance
        self.stamp: i64 = max(state.now, state.last_inserted)
        """The newest arrival number that was given."""
        self._draw = ids
        self._ids: list[bytes] = []

    def time(self, now: i64) -> i64:
        """`now`, unless the clock has stepped back."""
        known = self.state.places.now
        return max(now, known)

    def draw_stamp(self, now: i64) -> i64:
        """The arrival number of a put at `now`."""
        stamp = self.stamp
        stamp = now if now > stamp else stamp + 1
        self.stamp = stamp
        return stamp

    def new_id(self) -> bytes:
        """An id for a row: it looks like a version 4 UUID, as Workq wants it."""
        if self._draw is not None:
            return self._draw()
        ids = self._ids
        if not ids:
            drawn = bytearray(self.chance.randbytes(16 * _IDS_AT_A_TIME))
            drawn[6::16] = drawn[6::16].translate(_VERSION)
            drawn[8::16] = drawn[8::16].translate(_VARIANT)
            many = bytes(drawn)
            for at in range(0, 16 * _IDS_AT_A_TIME, 16):
                ids.append(many[at : at + 16])
        return ids.pop()

    def rules(self, queue: bytes) -> QueueRules:
        """The rules of a queue, which need not be there."""
        found = self.state.queues.get(queue)
        return _USUAL if found is None else found.rules

    def find(self, row_id: bytes, now: i64) -> Row:
        """The row of an id that is there."""
        row = self.rows.get(row_id)
        if row is None or row.stage == DELETED_ROW or has_expired(row, now):
            raise NotFound(f"no job {row_id.hex()}")
        return row

    def leased_row(self, row_id: bytes, token: i64, now: i64) -> Row:
        """The row, if the caller may end or prolong its work.

        Workq cannot carry a token: without one a row may be ended while it has no result (D-29).
        """
        row = self.find(row_id, now)
        if token == NO_TOKEN:
            if row.stage > PROCESSING_ROW:
                raise AlreadyExists("the job has a result already")
        elif row.stage != PROCESSING_ROW or row.attempts != token:
            raise LeaseLost
        return row

    def tomb_everywhere(self, key: bytes) -> Row | None:
        """The tombstone of a key that was deleted in all queues."""
        if not key or not self.state.tombs.count:
            return None
        row = self.rows.get(everywhere_id(key))
        return row if row is not None and row.stage == DELETED_ROW else None

    def waiting_twin(self, row: Row, now: i64) -> Row | None:
        """The row that waits behind this one."""
        if not row.key or row.policy.flags & KEEP_VERSIONS:
            return None
        for twin in self.state.keys.twins(row):
            if twin.stage == WAITING_ROW and not has_expired(twin, now):
                return twin
        return None

    def alone(self, row: Row, command: Command, now: i64) -> Command:
        """Before the row waits again, an expired twin that still waits is written off."""
        if not row.key or row.policy.flags & KEEP_VERSIONS:
            return command
        keys = self.state.keys
        if row.stage <= PROCESSING_ROW:
            twins = keys.twins(row)
        else:
            twins = keys.rows_of(row.queue.name, row.key)
        ends: list[Command] = [
            Expire(twin.id)
            for twin in twins
            if twin.stage == WAITING_ROW and has_expired(twin, now)
        ]
        if not ends:
            return command
        if isinstance(command, Group):
            ends.extend(command.members)
        else:
            ends.append(command)
        return Group(tuple(ends))

    def back(self, row: Row, command: Command, now: i64) -> Command:
        """A command by which a row waits again."""
        return self.alone(row, self.restated(row, command, now), now)

    def restated(self, row: Row, command: Command, now: i64) -> Command:
        """The command, or the whole row as it leaves it when its records have grown too many.

        A row renewed or given back for ever would fill the disk: each image makes the records
        before it worthless, and costs at most as much as they did. Where the value is not in memory
        the state is told that the row would be worth it (`unstated`).
        """
        spent = row.rare.chain * _PLAIN_RECORD
        if spent < i64(row.size) + len(row.key) + _CHAIN_SLACK:
            return command
        if row.value is None:
            self.state.unstated = row
            return command
        scratch = JournalState()
        for part in image(row):
            scratch.apply(part, row.at)
        scratch.apply(command, now)
        after = scratch.rows.get(row.id)
        if after is None:
            return command
        parts: list[Command] = []
        if isinstance(command, Retry):
            parts.append(command)  # how a lease ended is in no image
        parts.extend(image(after))
        return Group(tuple(parts))


def backoff(settings: QueueSettings, before: i64, chance: Any) -> int:
    """How long to wait after a failure that had `before` others before it."""
    factor = settings.backoff_factor ** int(min(before, 64))
    wait = min(settings.backoff_base * factor, float(settings.backoff_cap))
    return int(wait * (1 + settings.backoff_jitter * (2 * chance.random() - 1)))


def has_expired(row: Row, now: i64) -> bool:
    """Its time is over, whether that is written down or not."""
    return 0 < row.expires < now


def instant_after(now: i64, length: i64) -> i64:
    """An instant that still can be stored."""
    return now + length if length < _LAST_INSTANT - now else _LAST_INSTANT


def everywhere_id(key: bytes) -> bytes:
    """The id whose tombstone says that a key was deleted in all queues; it looks like any other."""
    digest = bytearray(blake2b(key, digest_size=16, person=b"deleted key").digest())
    digest[6] = digest[6] & 0x0F | 0x40
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


def gone(row: Row) -> Command:
    """The row goes, in the words of those who brought it in."""
    if row.policy.flags & FROM_WORKQ:
        return Delete(row.id)
    return Purge(row.id, row.queue.name, row.key, row.modified)
