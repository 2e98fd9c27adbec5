"""A bounded memory for values: which of them are held, and which may be let go.

Rules:

1. Values of at least `large` bytes may be let go, the one touched longest ago first; the row then
   has a `Stored` instead. Smaller ones stay with their rows and are not counted.
2. A value whose record is not written yet is never let go, nor is the one that came last: a single
   value may be larger than the limit.
3. What lives in memory only cannot be let go. Where a limit was set it is counted, with its key and
   what a row costs, and refused when there is no room for it (FJ-KV-2).
4. Pure: nothing here reads a file. `here` says where the record being applied stands.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from fastjournal.errors import MemoryFull
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.commands import PERSIST, Command
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row
from fastjournal.journal.state.stored import Stored
from fastjournal.log.record import record_size
from fastjournal.model import State

__all__ = ["CACHE", "LARGE", "Values", "bounded_state"]

CACHE = 64 * 1024 * 1024
"""Bytes of values held in memory where nobody says how many."""
LARGE = 1024
"""Bytes from which on a value may be let go: below, its place costs nearly as much."""
_ROW = 400  # bytes, roughly, of a row without its key and value


class Values:
    """The large values of a state, by last access."""

    def __init__(
        self, rows: dict[bytes, Row], limit: int | None = None, large: int = LARGE
    ) -> None:
        """`limit`: bytes to hold; None: as is usual, and what lives in memory only counts not."""
        self._rows = rows
        self.limit = CACHE if limit is None else limit
        self.counts_unlogged = limit is not None
        self.large = large
        self.places: OrderedDict[bytes, Stored] = OrderedDict()
        """Of the values that are held: where they could be read again. Touched last comes last."""
        self.bytes = 0
        """Of the values that are held."""
        self.unlogged = 0
        """Bytes of what lives in memory only."""
        self.here: tuple[int, int, int] | None = None
        """TIME, segment and offset of the record being applied; None: it is not written yet."""
        self.fresh: list[Stored] = []
        """Of the values whose records are not written yet."""
        self.loads = 0
        """How many values were read back."""
        self.evictions = 0
        """How many were let go."""

    def come(self, row: Row, time: int) -> None:
        """A row has got its value by the record of this TIME."""
        if not row.policy.flags & PERSIST:
            self.unlogged += _cost(row)
            self.shrink()
            return
        size = len(row.value)
        if size < self.large:
            return
        if self.here is None:
            place = Stored(time, 0, 0, size)
            self.fresh.append(place)
        else:
            place = Stored(*self.here, size)
        self.places[row.id] = place
        self.bytes += size
        if self.here is not None:
            self.shrink()

    def go(self, row: Row) -> None:
        """A row is about to lose its value."""
        if not row.policy.flags & PERSIST:
            self.unlogged -= _cost(row)
            return
        place = self.places.pop(row.id, None)
        if place is not None:
            self.bytes -= place.size

    def cost(self, row: Row) -> int:
        """Bytes of a row in memory only; 0 for all others."""
        return 0 if row.policy.flags & PERSIST else _cost(row)

    def renamed(self, row: Row, before: int) -> None:
        """A row has other keys; `before`: what it cost."""
        cost = self.cost(row)
        if cost != before:
            self.unlogged += cost - before
            self.shrink()

    def touch(self, row: Row) -> None:
        """A row's value, which is in memory, is being used."""
        if row.id in self.places:
            self.places.move_to_end(row.id)

    def hold(self, row: Row, value: bytes) -> None:
        """A row's value was read back."""
        place = row.value
        assert type(place) is Stored
        row.value = value
        self.places[row.id] = place
        self.bytes += place.size
        self.loads += 1
        self.shrink()

    def place_of(self, row: Row) -> Stored | None:
        """Where a row's large value lies, in memory or not."""
        value = row.value
        return value if type(value) is Stored else self.places.get(row.id)

    def written(self, first: int, segment: int, offset: int, payloads: Sequence[bytes]) -> None:
        """Records from TIME `first` on were written there; offset 0: somewhere from there on."""
        starts = []
        for payload in payloads:
            starts.append(offset)
            if offset:
                offset += record_size(len(payload))
        left = []
        for place in self.fresh:
            if 0 <= place.time - first < len(starts):
                place.segment, place.offset = segment, starts[place.time - first]
            else:
                left.append(place)
        self.fresh = left
        self.shrink()

    def shrink(self) -> None:
        """Let values go until the limit is kept."""
        places, rows = self.places, self._rows
        room = self.limit - self.unlogged if self.counts_unlogged else self.limit
        while self.bytes > room and len(places) > 1:
            row_id = next(iter(places))
            place = places[row_id]
            if not place.segment:
                return
            del places[row_id]
            self.bytes -= place.size
            rows[row_id].value = place
            self.evictions += 1

    def check(self, command: Command) -> None:
        """Refuse a command about rows in memory only that would pass the limit."""
        if not self.counts_unlogged:
            return
        after: dict[bytes, int] = {}
        before = 0
        for member in command.members if isinstance(command, k.Group) else (command,):
            if not isinstance(member, (k.Put, k.Value)) or member.id in after:
                continue
            row = self._rows.get(member.id)
            cost = 0 if row is None or row.policy.flags & PERSIST else _cost(row)
            before += cost
            if isinstance(member, k.Put):
                cost = _ROW + len(member.key) + sum(map(len, member.aliases)) + len(member.value)
            elif row is not None:
                cost += len(member.value) - len(row.value)
            after[member.id] = cost
        growth = sum(after.values()) - before
        if growth > 0 and self.unlogged + growth > self.limit:
            raise MemoryFull(
                f"entries in memory only take {self.unlogged} bytes of {self.limit},"
                f" {growth} more do not fit"
            )


def bounded_state(limit: int | None = None, large: int = LARGE) -> JournalState:
    """A state that holds no more values in memory than it may."""
    state = JournalState()
    state.values = Values(state.rows, limit, large)
    return state


def _cost(row: Row) -> int:
    """Bytes of a row in memory only; tombstones go by themselves and are not counted."""
    if row.state is State.DELETED:
        return 0
    keys = len(row.key) + sum(map(len, row.rare.aliases))
    return _ROW + keys + len(row.value)
