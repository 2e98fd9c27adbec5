"""What all decisions about key/value entries share.

Rules:

1. An entry is a row without a queue. Of each key there is at most one such row: alive, or a
   tombstone that keeps older writes away.
2. An expired row counts as absent even before it is collected.
3. The newest timestamp wins; an equal one counts as old, so a repeated request changes nothing. A
   request without a timestamp is the newest there is (D-09).
4. What is not to persist is applied without being logged. A row never leaves the log for memory:
   its logged life ends, and another row begins.
5. Numbers of a request are checked here before they are used: 64-bit fields wrap when compiled.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from fastjournal.clock import MILLISECOND
from fastjournal.entry_value import check_form
from fastjournal.errors import BadRequest, ClockSkew, NotFound
from fastjournal.journal.decide.ground import Ground, has_expired, instant_after
from fastjournal.journal.entries.locks import Locks, Writer
from fastjournal.journal.language.commands import (
    PERSIST,
    Command,
    Group,
    Keys,
    Purge,
    Put,
    Tomb,
    as_one,
    policy_of,
)
from fastjournal.journal.state.keys import KeyIndex
from fastjournal.journal.state.row import DELETED_ROW, PROCESSING_ROW, Row

__all__ = [
    "Accessed",
    "Decided",
    "EntryGround",
    "Plan",
    "is_busy",
    "is_kept",
    "is_live",
    "keys_of",
    "touch_length",
]

_LAST_INSTANT: Final = 9_223_372_036_854_775_807
_REMEMBERED: Final = 65_536  # entries of which is known when they were read last


def keys_of(row: Row) -> tuple[bytes, ...]:
    """All keys of a row."""
    more = row.more
    if more is None or not more.aliases:
        return (row.key,)
    return (row.key, *more.aliases)


def is_kept(row: Row) -> bool:
    """The row is in the log."""
    return row.policy.flags & PERSIST != 0


def is_live(row: Row, now: i64) -> bool:
    """The row is there."""
    return row.stage != DELETED_ROW and not has_expired(row, now)


def is_busy(row: Row, now: i64) -> bool:
    """Somebody works on it."""
    return row.stage == PROCESSING_ROW and row.when > now


def touch_length(row: Row) -> i64:
    """How long reading the row keeps it, ns."""
    return min(row.policy.ttl, _LAST_INSTANT // MILLISECOND) * MILLISECOND


@final
class Accessed:
    """When entries were read last, by the ids of their rows: in memory only, of those read lately.

    A restart forgets all. 0 means: not since then, or forgotten.
    """

    def __init__(self) -> None:
        self._at: dict[bytes, int] = {}

    def note(self, row_id: bytes, now: int) -> None:
        """The row was read."""
        at = self._at
        at.pop(row_id, None)  # so that the first of them is the one read longest ago
        at[row_id] = now
        if len(at) > _REMEMBERED:
            del at[next(iter(at))]

    def of(self, row_id: bytes) -> int:
        """When it was read last."""
        return self._at.get(row_id, 0)


@final
@mypyc_attr(acyclic=True)
class Decided:
    """What is to be done: log and apply one command, then apply the other without a record.

    What is logged goes first: a refused write leaves no half of it.
    """

    def __init__(
        self,
        logged: Command | None = None,
        remembered: Command | None = None,
        stale: bool = False,
        found: int = 0,
        kind: int = 0,
        data: bytes = b"",
    ) -> None:
        self.logged = logged
        self.remembered = remembered
        self.stale = stale
        """An equal or newer write is there already."""
        self.found = found
        """Entries that were there to be changed."""
        self.kind = kind
        self.data = data
        """The value as it is now."""


@final
@mypyc_attr(acyclic=True)
class Plan:
    """Commands in the order of their effects, sorted by whether they are to be logged."""

    def __init__(self) -> None:
        self._logged: list[Command] = []
        self._remembered: list[Command] = []

    def add(self, command: Command, persist: bool) -> None:
        """This next; a group is taken apart."""
        commands = self._logged if persist else self._remembered
        if isinstance(command, Group):
            commands.extend(command.members)
        else:
            commands.append(command)

    def decided(self, found: int = 0, kind: int = 0, data: bytes = b"") -> Decided:
        """The plan is made."""
        return Decided(as_one(self._logged), as_one(self._remembered), False, found, kind, data)


@final
class EntryGround:
    """Finds entries, makes rows."""

    def __init__(self, base: Ground, locks: Locks | None = None) -> None:
        """`base`: that of the decisions about jobs, for ids and arrival numbers are theirs too.

        `locks`: those of jobs, which are the same.
        """
        self.base = base
        self.state = base.state
        self.limits = base.limits
        self.locks = Locks() if locks is None else locks
        self.accessed = Accessed()
        self._keys: KeyIndex = base.state.keys

    def slot(self, key: bytes) -> Row | None:
        """The row of a key, whatever became of it."""
        return self._keys.entry(key)

    def live(self, key: bytes, now: i64) -> Row | None:
        """The row of a key that is there."""
        row = self._keys.entry(key)
        return row if row is not None and is_live(row, now) else None

    def needed(self, key: bytes, now: i64) -> Row:
        """The row of a key, or `NotFound`."""
        row = self.live(key, now)
        if row is None:
            raise NotFound(key.decode("utf-8", "backslashreplace"))
        return row

    def names(self, key: bytes, now: i64) -> tuple[bytes, ...]:
        """All keys of the entry of a key; there need not be one."""
        row = self.live(key, now)
        return (key,) if row is None else keys_of(row)

    def may_change(self, row: Row | None, key: bytes, now: i64, by: Writer) -> None:
        """Refuse what a lock forbids."""
        if by.fence or len(self.locks):
            self.locks.check((key,) if row is None else keys_of(row), by, now)

    def when(self, timestamp: int, now: i64, stamp: i64, newest: i64) -> i64:
        """The time of a write; without one of its own it is newer than the `newest` there is."""
        if timestamp:
            self.check_skew(timestamp, now)
            return timestamp
        if newest < stamp:
            return stamp
        return newest + 1 if newest < _LAST_INSTANT else newest

    def check_skew(self, timestamp: int, now: i64) -> None:
        """Refuse a time that is too far ahead of ours."""
        latest: int = instant_after(now, self.limits.max_skew)
        if timestamp > latest:
            raise ClockSkew

    def check_key(self, key: bytes) -> None:
        """Refuse a key that is empty or too long."""
        if not key:
            raise BadRequest("a key must not be empty")
        self.limits.check_key(len(key))

    def check_value(self, kind: int, data: bytes) -> None:
        """Refuse a value that is too long, or of a type that cannot be."""
        if not 0 <= kind <= 255:
            raise BadRequest("the type of a value is a number up to 255")
        self.limits.check_value(len(data))
        check_form(kind, data)

    def check_instant(self, instant: int, what: str) -> None:
        """Refuse an instant that no record can hold."""
        if not 0 <= instant <= _LAST_INSTANT:
            raise BadRequest(f"{what} is no instant between 1970 and 2262")

    def new_put(
        self, row_id: bytes, key: bytes, kind: i64, data: bytes, inserted: i64, modified: i64,
        expires: i64 = 0, ttl: i64 = 0, persist: bool = True,
    ) -> Put:  # fmt: skip
        """An entry as a whole."""
        flags: i64 = PERSIST if persist else 0
        policy = policy_of(flags, ttl // MILLISECOND, 0, 0, 0, 0)
        return Put(
            row_id, b"", key, 0, inserted, inserted, modified, expires, kind, data, policy
        )  # fmt: skip

    def new_tomb(self, plan: Plan, key: bytes, modified: i64, now: i64, persist: bool) -> None:
        """Keep older writes of a key away that has no row."""
        row_id = self.base.new_id()
        if not persist:
            put = self.new_put(row_id, key, 0, b"", now, modified, persist=False)
            plan.add(put, persist=False)
        plan.add(Tomb(row_id, b"", key, modified), persist)

    def vacate(self, plan: Plan, row: Row, key: bytes) -> None:
        """Take a key away from a tombstone; one without keys goes."""
        left = tuple([other for other in keys_of(row) if other != key])
        if left:
            plan.add(Keys(row.id, left[0], left[1:], row.modified), is_kept(row))
        else:
            plan.add(Purge(row.id, b"", row.key, row.modified), is_kept(row))

    def restated(self, row: Row, command: Command, now: i64) -> Command:
        """The command, or the whole row if its records have grown too many.

        The numbers of changes that an image must hold count too.
        """
        more = row.more
        if more is None or not is_kept(row):
            return command
        if more.operations is not None and more.chain < 2 * len(more.operations.answers):
            return command
        return self.base.restated(row, command, now)
