"""What all decisions share: the state they look at, ids and chance, the limits of a row.

Rules:

1. A decision looks at the state and at `now`, and returns commands that state their result; it
   changes no row. Refused requests raise and leave no trace.
2. Whatever is drawn (ids, jitter) is drawn here and written into the command.
3. Apply a command before asking for the next decision.
4. `inserted` is strictly increasing along puts: it is the arrival number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import NamedTuple, Protocol

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
from fastjournal.journal.state.row import Row, image
from fastjournal.model import DEFAULT_SETTINGS, MAX_INSTANT, QueueSettings, State

__all__ = [
    "Chance",
    "Deciding",
    "Limits",
    "backoff",
    "everywhere_id",
    "gone",
    "instant_after",
    "random_ids",
]

_PLAIN_RECORD = 64  # bytes, roughly, of a record that is not an image
_CHAIN_SLACK = 4096
_PROCESSING, _DELETED = State.PROCESSING, State.DELETED
_IDS_AT_A_TIME = 256
_new = tuple.__new__


class Chance(Protocol):
    """Where jitter comes from: `random.Random` or a stand-in."""

    def random(self) -> float: ...


class Limits(NamedTuple):
    """Sizes a request may not pass, and the journal-wide lengths of time."""

    max_value: int = 1024 * 1024
    max_key: int = 65_535
    max_skew: int = 5 * SECOND
    """How far ahead a sender's clock may be."""
    gc_grace: int = 3600 * SECOND
    """How long a tombstone keeps older writes away."""

    def check_value(self, size: int, what: str = "a value") -> None:
        """Refuse a value of more bytes than may be."""
        if size > self.max_value:
            raise TooLarge(f"{what} of {size} bytes exceeds the limit of {self.max_value}")

    def check_key(self, size: int) -> None:
        """Refuse a key of more bytes than may be."""
        if size > self.max_key:
            raise TooLarge(f"a key of {size} bytes exceeds the limit of {self.max_key}")


def random_ids(source: Random) -> Callable[[], bytes]:
    """Ids that look like version 4 UUIDs, as Workq wants them; drawn many at a time."""
    version = bytes(byte & 0x0F | 0x40 for byte in range(256))
    variant = bytes(byte & 0x3F | 0x80 for byte in range(256))
    ids: list[bytes] = []

    def draw() -> bytes:
        if not ids:
            drawn = bytearray(source.randbytes(16 * _IDS_AT_A_TIME))
            drawn[6::16] = drawn[6::16].translate(version)
            drawn[8::16] = drawn[8::16].translate(variant)
            many = bytes(drawn)
            ids.extend(many[at : at + 16] for at in range(0, len(many), 16))
        return ids.pop()

    return draw


def backoff(settings: QueueSettings, before: int, chance: Chance) -> int:
    """How long to wait after a failure that had `before` others before it."""
    wait = min(
        settings.backoff_base * settings.backoff_factor ** min(before, 64),
        float(settings.backoff_cap),
    )
    return int(wait * (1 + settings.backoff_jitter * (2 * chance.random() - 1)))


class Deciding:
    """The ground decisions stand on."""

    def __init__(
        self,
        state: JournalState,
        *,
        ids: Callable[[], bytes] | None = None,
        chance: Random | None = None,
        limits: Limits | None = None,
    ) -> None:
        chance = chance or Random()
        self.state = state
        self.limits = limits or Limits()
        self._ids = ids or random_ids(chance)
        self._chance: Chance = chance
        self._busy: OrderedDict[bytes, None] = OrderedDict()
        """Consumers who got an ordinary row since they were last told "nothing"."""
        self._stamp = max(state.now, state.last_inserted)

    def _clock(self, now: int) -> int:
        """`now`, unless the clock has stepped back."""
        known = self.state.now
        return max(known, now)

    def _draw_stamp(self, now: int) -> int:
        """The arrival number of a put at `now`."""
        stamp = self._stamp
        self._stamp = stamp = now if now > stamp else stamp + 1
        return stamp

    def new_id(self) -> bytes:
        """An id for a row."""
        return self._ids()

    def next_stamp(self, now: int) -> int:
        """The arrival number that the next put would get."""
        return max(self._clock(now), self._stamp + 1)

    def drew(self, stamp: int) -> None:
        """Arrival numbers up to this one were given."""
        self._stamp = stamp

    def _settings(self, queue: bytes) -> QueueSettings:
        lane = self.state.queues.get(queue)
        return DEFAULT_SETTINGS if lane is None else lane.settings

    def _find(self, row_id: bytes, now: int) -> Row:
        row = self.state.rows.get(row_id)
        if row is None or row.state is _DELETED or 0 < row.expires < now:
            raise NotFound(f"no job {row_id.hex()}")
        return row

    def _held(self, row_id: bytes, token: int | None, now: int) -> Row:
        """The row, if the caller may end or prolong its work.

        Workq cannot carry a token: without one a row may be ended while it has no result (D-29).
        """
        row = self.state.rows.get(row_id)
        if row is None or row.expires or row.state is not _PROCESSING:
            row = self._find(row_id, now)
        if token is None:
            if row.state > _PROCESSING:
                raise AlreadyExists("the job has a result already")
        elif row.state is not _PROCESSING or row.attempts != token:
            raise LeaseLost
        return row

    def _tomb_everywhere(self, key: bytes) -> Row | None:
        """The tombstone of a key that was deleted in all queues."""
        if not self.state.tombs.next():
            return None
        row = self.state.rows.get(everywhere_id(key))
        return row if row is not None and row.state is _DELETED else None

    def _waiting_twin(self, row: Row, now: int) -> Row | None:
        """The row that waits behind this one."""
        if not row.key or row.policy.flags & KEEP_VERSIONS:
            return None
        for twin in self.state.keys.twin(row):
            if twin.state is State.WAITING and not 0 < twin.expires < now:
                return twin
        return None

    def _alone(self, row: Row, command: Command, now: int) -> Command:
        """Before the row waits again, an expired twin that still waits is written off."""
        if not row.key or row.policy.flags & KEEP_VERSIONS:
            return command
        twins = (
            self.state.keys.twin(row)
            if row.state <= State.PROCESSING
            else (self.state.keys.find(row.queue.name, row.key))
        )
        gone: list[Command] = [
            Expire(twin.id)
            for twin in twins
            if twin.state is State.WAITING and 0 < twin.expires < now
        ]
        if not gone:
            return command
        members = command.members if isinstance(command, Group) else (command,)
        return Group((*gone, *members))

    def _back(self, row: Row, command: Command, now: int) -> Command:
        """A command by which a row waits again."""
        return self._alone(row, self._restated(row, command, now), now)

    def _restated(self, row: Row, command: Command, now: int) -> Command:
        """The command, or the whole row as it leaves it when its records have grown too many.

        A row renewed or given back for ever would fill the disk: each image makes the records
        before it worthless, and costs at most as much as they did. Where the value is not in memory
        the state is told that the row would be worth it (`unstated`).
        """
        if row.rare.chain * _PLAIN_RECORD < int(row.size) + len(row.key) + _CHAIN_SLACK:
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
        told = (command,) if command.__class__ is Retry else ()  # how a lease ended is in no image
        return Group((*told, *image(after)))


def instant_after(now: int, length: int) -> int:
    """An instant that still can be stored."""
    return min(now + length, MAX_INSTANT)


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
