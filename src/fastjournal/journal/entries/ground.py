"""What all decisions about key/value entries share.

Rules:

1. An entry is a row without a queue. Of each key there is at most one such row: alive, or a
   tombstone that keeps older writes away.
2. An expired row counts as absent even before it is collected.
3. The newest timestamp wins; an equal one counts as old, so a repeated request changes nothing. A
   request without a timestamp is the newest there is (D-09).
4. What is not to persist is applied without being logged. A row never leaves the log for memory:
   its logged life ends, and another row begins.
"""

from __future__ import annotations

from typing import NamedTuple

from fastjournal.clock import MILLISECOND
from fastjournal.entry import Entry
from fastjournal.errors import BadRequest, ClockSkew, NotFound
from fastjournal.journal.decide.ground import Ground, Limits
from fastjournal.journal.entries.locks import NOBODY, Locks, Writer
from fastjournal.journal.language.commands import (
    PERSIST,
    Command,
    Group,
    Keys,
    Purge,
    Put,
    Tomb,
    policy_of,
)
from fastjournal.journal.state.row import Row, value_of
from fastjournal.model import MAX_INSTANT, State

__all__ = ["NOTHING", "Decided", "EntryGround", "Plan", "is_kept", "keys_of"]

_COST_OF_NUMBER = 64  # bytes, roughly, of a remembered number in an image


class Decided(NamedTuple):
    """What is to be done: log and apply one command, then apply the other without a record."""

    logged: Command | None = None
    remembered: Command | None = None
    stale: bool = False
    """An equal or newer write is there already."""
    found: int = 0
    """Entries that were there to be changed."""
    kind: int = 0
    data: bytes = b""
    """The value as it is now."""


NOTHING = Decided()


class Plan:
    """Commands in the order of their effects, sorted by whether they are to be logged."""

    def __init__(self) -> None:
        self._logged: list[Command] = []
        self._remembered: list[Command] = []

    def add(self, command: Command, persist: bool) -> None:
        members = command.members if isinstance(command, Group) else (command,)
        (self._logged if persist else self._remembered).extend(members)

    def decided(self, found: int = 0, kind: int = 0, data: bytes = b"") -> Decided:
        return Decided(_one(self._logged), _one(self._remembered), False, found, kind, data)


def _one(commands: list[Command]) -> Command | None:
    if len(commands) < 2:
        return commands[0] if commands else None
    return Group(tuple(commands))


def keys_of(row: Row) -> tuple[bytes, ...]:
    """All keys of a row."""
    return (row.key, *row.rare.aliases)


def is_kept(row: Row) -> bool:
    """The row is in the log."""
    return row.policy.flags & PERSIST != 0


class EntryGround:
    """Finds entries, makes rows."""

    def __init__(self, ground: Ground) -> None:
        self.state = ground.state
        self.limits: Limits = ground.limits
        self._clock = ground.time
        self._draw_stamp = ground.draw_stamp
        self._ids = ground.new_id
        self._restated = ground.restated
        self.locks = Locks()

    def slot(self, key: bytes) -> Row | None:
        """The row of a key, whatever became of it."""
        return next(self.state.keys.find(b"", key), None)

    def live(self, key: bytes, now: int) -> Row | None:
        """The row of a key that is there."""
        row = self.slot(key)
        return row if row is not None and self.is_live(row, now) else None

    def is_live(self, row: Row, now: int) -> bool:
        return row.state is not State.DELETED and not 0 < row.expires < now

    def needed(self, key: bytes, now: int) -> Row:
        """The row of a key, or `NotFound`."""
        row = self.live(key, now)
        if row is None:
            raise NotFound(_shown(key))
        return row

    def entry(self, row: Row, key: bytes, now: int, data: bool = True) -> Entry:
        """A picture of a row, asked for by one of its keys."""
        busy = row.state is State.PROCESSING and row.lease_until > now
        keys = keys_of(row)
        return Entry(
            key,
            row.kind,
            value_of(row) if data else b"",
            row.inserted,
            row.modified,
            row.expires,
            row.policy.ttl * MILLISECOND,
            is_kept(row),
            row.lease_until if busy else 0,
            row.rare.worker if busy else b"",
            row.attempts,
            self.locks.holder(keys, now) is not None,
            keys,
        )

    def may_change(self, row: Row | None, key: bytes, now: int, by: Writer = NOBODY) -> None:
        """Refuse what a lock forbids."""
        self.locks.check((key,) if row is None else keys_of(row), by, now)

    def when(self, timestamp: int, now: int, stamp: int, *rows: Row | None) -> int:
        """The time of a write; without one of its own it is newer than all that is there."""
        if timestamp:
            if timestamp > now + self.limits.max_skew:
                raise ClockSkew
            return timestamp
        newest = max((row.modified for row in rows if row is not None), default=0)
        return max(stamp, newest + 1)

    def check_key(self, key: bytes) -> None:
        if type(key) is not bytes:
            raise BadRequest("a key is bytes")
        if not key:
            raise BadRequest("a key must not be empty")
        self.limits.check_key(len(key))

    def check_value(self, kind: int, data: bytes) -> None:
        if type(data) is not bytes or type(kind) is not int or not 0 <= kind <= 255:
            raise BadRequest("a value is bytes, its type a number up to 255")
        self.limits.check_value(len(data))

    def check_instant(self, instant: int, what: str) -> None:
        if type(instant) is not int or not 0 <= instant <= MAX_INSTANT:
            raise BadRequest(f"{what} is no instant between 1970 and 2262")

    def new_put(
        self, row_id: bytes, key: bytes, kind: int, data: bytes, inserted: int, modified: int,
        expires: int = 0, ttl: int = 0, persist: bool = True,
    ) -> Put:  # fmt: skip
        """An entry as a whole."""
        flags = PERSIST if persist else 0
        policy = policy_of(flags, ttl // MILLISECOND, 0, 0, 0, 0)
        return Put(
            row_id, b"", key, 0, inserted, inserted, modified, expires, kind, data, policy
        )  # fmt: skip

    def new_tomb(self, plan: Plan, key: bytes, modified: int, now: int, persist: bool) -> None:
        """Keep older writes of a key away that has no row."""
        row_id = self._ids()
        if not persist:
            put = self.new_put(row_id, key, 0, b"", now, modified, persist=False)
            plan.add(put, persist=False)
        plan.add(Tomb(row_id, b"", key, modified), persist)

    def vacate(self, plan: Plan, row: Row, key: bytes) -> None:
        """Take a key away from a tombstone; one without keys goes."""
        left = tuple(other for other in keys_of(row) if other != key)
        if left:
            plan.add(Keys(row.id, left[0], left[1:], row.modified), is_kept(row))
        else:
            plan.add(Purge(row.id, b"", row.key, row.modified), is_kept(row))

    def restated(self, row: Row, command: Command, now: int) -> Command:
        """As `_restated`; the numbers an image must hold count too."""
        more = row.rare
        if not is_kept(row):
            return command
        if more.operations and more.chain < 2 * len(more.operations):
            return command
        return self._restated(row, command, now)


def _shown(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
