"""Which values are in memory. The others lie in the log, and their rows know where.

Rules:

1. A value may be let go once its record is written: from then on its row knows the file and where
   the record begins. TIME identifies the record (`Row.value_at`); the place is where it was seen
   last, and cleaning may have moved it since. In a snapshot the id does: a row is there once.
2. What a replay reads stays in the log. The newest values that come are held, up to `limit` bytes,
   and some for each. The one used longest ago goes first, nearly so: one that was used since it was
   last looked at gets a second chance. The one that came or was read back last always stays: a
   single value may be larger than the limit.
3. A value that lives in memory only cannot be let go. Where a limit was set it is counted, and
   refused when there is no room for it (FJ-KV-2).
4. A state without a log holds all values; nothing is counted.
5. Pure: nothing here reads a file.
"""

from typing import Final, final

from mypy_extensions import i32, i64, u8

from fastjournal.errors import MemoryFull
from fastjournal.journal.language.commands import PERSIST, Command, Group, Put, Value
from fastjournal.journal.state.row import DELETED_ROW, Row
from fastjournal.journal.state.rows import Rows

__all__ = ["CACHE", "UNREADABLE", "Values"]

CACHE: Final = 8 * 1024 * 1024
"""Bytes of values held in memory where nobody says how many."""

UNREADABLE: Final[i32] = -2_147_483_648
"""For `Values.segment`: a file whose number no row can hold; its values stay in memory."""
_LAST_OFFSET: Final[i64] = 2_147_483_647
_EACH: Final[i64] = 48
"""Bytes, roughly, that a value in memory takes besides its own."""
_TRIM: Final[i64] = 64

_LISTED: Final[u8] = 1
"""`Row.cached`: it stands in the list of values."""
_SPENT: Final[u8] = 2
"""Its value has gone, the place in the list has not."""
_USED: Final[u8] = 4
"""Its value was used since it was last looked at."""


@final
class Values:
    """The values of a state, by last use."""

    def __init__(
        self, limit: int = CACHE, *, logged: bool = False, counts_unlogged: bool = False
    ) -> None:
        """`logged`: there is a log to read values from; `counts_unlogged`: rule 3."""
        self.limit: i64 = limit
        self.logged = logged
        self.counts_unlogged = counts_unlogged
        self.bytes: i64 = 0
        """Of the values held that may be let go, or may be once they are written."""
        self.unlogged: i64 = 0
        """Bytes of values that live in memory only, and some for each."""
        self.segment: i32 = 0
        """The file of the record being applied, as `Row.segment` has it; 0: not written yet."""
        self.record: i64 = 0
        """Where that record begins: in the file, or in what is to be written."""
        self.fresh: list[Row] = []
        """Rows whose values are not written yet."""
        self.loads: i64 = 0
        """How many values were read back."""
        self.evictions: i64 = 0
        """How many were let go."""
        self._list: list[Row | None] = []
        self._head: i64 = 0
        """Places of the list before it are empty."""
        self._spent: i64 = 0
        """How many places of the list belong to values that have gone."""

    @property
    def count(self) -> i64:
        """How many values are held that may be let go."""
        return i64(len(self._list)) - self._head - self._spent

    def come(self, row: Row) -> None:
        """A row has got its value by the record being applied."""
        value = row.value
        assert value is not None
        size: i64 = len(value)
        row.size = i32(size)
        if not self.logged:
            return
        if not row.policy.flags & PERSIST:
            self.unlogged += _cost(row)
            self._shrink(row)
            return
        if not size or self.segment == UNREADABLE:
            return
        row.segment = self.segment
        if self.record <= _LAST_OFFSET:
            row.offset = i32(self.record)
        if self.segment:
            row.value = None
        else:
            self._enlist(row)
            self.fresh.append(row)

    def go(self, row: Row) -> None:
        """A row is about to lose its value."""
        if self.logged:
            if not row.policy.flags & PERSIST:
                self.unlogged -= _cost(row)
            elif row.cached & (_LISTED | _SPENT) == _LISTED:
                self.bytes -= i64(row.size)
                row.cached = _LISTED | _SPENT
                self._spent += 1
                if self._spent > _TRIM and self._spent * 2 > len(self._list):
                    self._sift()
        row.size = 0
        row.segment = 0
        row.offset = 0

    def use(self, row: Row) -> None:
        """A row's value, which is in memory, is being used."""
        if row.cached:
            row.cached |= _USED

    def hold(self, row: Row, value: bytes) -> None:
        """A row's value was read back."""
        row.value = value
        self.loads += 1
        self._enlist(row)
        self._shrink(row)

    def written(self, segment: i64, start: i64) -> None:
        """What was to be written stands in this segment from there on; 0: somewhere in it."""
        last: Row | None = None
        fresh = self.fresh
        for row in fresh:
            if not row.segment and row.policy.flags & PERSIST:
                row.segment = i32(segment)
                if start:
                    row.offset = i32(i64(row.offset) + start)
                else:
                    row.offset = 0
            last = row
        fresh.clear()
        self._shrink(last)

    def check(self, rows: Rows, command: Command) -> None:
        """Refuse a command about values in memory only that would pass the limit."""
        if not self.counts_unlogged:
            return
        members: tuple[Command, ...] = (command,)
        if isinstance(command, Group):
            members = command.members
        seen: set[bytes] = set()
        growth: i64 = 0
        for member in members:
            if member.id in seen or not isinstance(member, (Put, Value)):
                continue
            seen.add(member.id)
            row = rows.get(member.id)
            if isinstance(member, Put):
                growth += len(member.value) + _EACH
                if row is not None and not row.policy.flags & PERSIST:
                    growth -= _cost(row)
            elif row is not None:
                growth += len(member.value) - i64(row.size)
        if growth > 0 and self.unlogged + growth > self.limit:
            raise MemoryFull(
                f"entries in memory only take {self.unlogged} bytes of {self.limit},"
                f" {growth} more do not fit"
            )

    def _enlist(self, row: Row) -> None:
        self.bytes += i64(row.size)
        if row.cached:  # it stands there still
            row.cached = _LISTED | _USED
            self._spent -= 1
        else:
            row.cached = _LISTED
            self._list.append(row)

    def _shrink(self, keep: Row | None) -> None:
        """Let values go, but not this one, until the limit is kept."""
        room = self.limit - self.unlogged if self.counts_unlogged else self.limit
        listed = self._list
        while self.bytes + _EACH * self.count > room:
            if self._head >= len(listed):
                return
            row = listed[self._head]
            if row is None:
                self._head += 1
                continue
            if row.cached & _SPENT:
                row.cached = 0
                self._spent -= 1
            elif self.count <= 1 or not row.segment:  # the last one, or not written yet
                return
            elif row is keep or row.cached & _USED:
                row.cached = _LISTED
                listed.append(row)
            else:
                row.cached = 0
                row.value = None
                self.bytes -= i64(row.size)
                self.evictions += 1
            listed[self._head] = None
            self._head += 1
            if self._head > _TRIM and self._head * 2 > len(listed):
                del listed[: self._head]
                self._head = 0

    def _sift(self) -> None:
        """Give up the places of values that have gone."""
        left: list[Row | None] = []
        for row in self._list:
            if row is None:
                continue
            if row.cached & _SPENT:
                row.cached = 0
            else:
                left.append(row)
        self._list = left
        self._head = 0
        self._spent = 0


def _cost(row: Row) -> i64:
    """What a value in memory only counts; tombstones have none."""
    return 0 if row.stage == DELETED_ROW else i64(row.size) + _EACH
