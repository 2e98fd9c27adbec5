"""All rows, found by id and kept in the order in which they came.

Rules:

1. A row holds its id itself, and here a row costs two references: a dictionary would hold each id
   once more, as an object of its own, and take three times as much for each row.
2. A row never moves inside the table, and a larger table takes the place of another in one step:
   who looks without a lock (upkeep) finds every row that is there all the while.
3. Ids may be chosen by strangers: where a row goes in the table depends on numbers that differ from
   process to process, as they do for Python's own dictionaries. Nothing else depends on them.
4. The dictionary's words are spoken: `get`, `[]`, `in`, `len`, `values`, `items`, and going through
   it gives ids.
5. Of each place a byte tells whether a row can be there. Nearly all that is not there is seen by
   these bytes alone: most of them are in the processor's caches, and most rows are not.
"""

from collections.abc import Iterator
from typing import Final, final

from mypy_extensions import i32, i64, u8

from fastjournal.buffers import read_i64_be, vec
from fastjournal.journal.state.row import QueueRules, Row

__all__ = ["Rows"]

_SMALLEST: Final = 8
"""Places of an empty table; always a power of two."""
_TRIM: Final[i64] = 64
_RENUMBER: Final[i64] = 1 << 30
_HALF: Final[i64] = 0xFFFF_FFFF


def _number(name: bytes) -> i64:
    """29 odd bits of which Python's own secret decides."""
    return hash(name) & 0x1FFF_FFFF | 1


_TIMES_1: Final[i64] = _number(b"rows 1")
_TIMES_2: Final[i64] = _number(b"rows 2")
_TIMES_3: Final[i64] = _number(b"rows 3")
_TIMES_4: Final[i64] = _number(b"rows 4")
_TIMES_5: Final[i64] = _number(b"rows 5")
_GONE: Final = Row(bytes(16), QueueRules(b""), b"", b"")
"""Stands in the table where a row was."""


@final
class _Table:
    """The places where rows are found."""

    def __init__(self, size: i64) -> None:
        self.rows: list[Row | None] = [None] * size
        self.tags: vec[u8] = vec[u8]([0] * size)
        """Of each place the tag of what came there, which stays; 0: nothing did."""

    def put(self, row: Row, hash_: i64, at: i64) -> None:
        """A row comes to an empty place."""
        self.rows[at] = row
        self.tags[at] = _tag(hash_)  # only now: whoever sees it finds the row


@final
class Rows:
    """Rows by id. Only `apply` adds and removes."""

    def __init__(self) -> None:
        self._table = _Table(_SMALLEST)
        self._taken: i64 = 0
        """Places of the table that are not empty."""
        self._line: list[Row | None] = []
        """As they came."""
        self._base: i64 = 0
        """The number of the first place in the line."""
        self._head: i64 = 0
        """Places of the line before it are empty."""
        self._count: i64 = 0
        self._slot: i64 = -1
        """Where the id goes that `seek` did not find; -1: not known."""
        self._hash: i64 = 0

    def get(self, row_id: bytes) -> Row | None:
        """The row of this id; None: there is none."""
        if len(row_id) != 16:
            return None
        high = read_i64_be(row_id, 0)
        low = read_i64_be(row_id, 8)
        table = self._table
        tags = table.tags
        hash_ = _hash(high, low)
        tag = _tag(hash_)
        mask: i64 = len(tags) - 1
        at = hash_ & mask
        while True:
            there = tags[at]
            if there == 0:
                return None
            if there == tag:
                row = table.rows[at]
                assert row is not None
                if row.low == low and row.high == high and row is not _GONE:
                    return row
            at = at + 1 & mask

    def seek(self, row_id: bytes) -> Row | None:
        """The same for `apply`, which adds a row of this id at once if there is none."""
        row = self.get(row_id)
        if row is None:
            self._hash = _hash(read_i64_be(row_id, 0), read_i64_be(row_id, 8))
            self._slot = _empty_place(self._table.tags, self._hash)
        return row

    def add(self, row: Row) -> None:
        """A row comes whose id is not here, and was sought last of all."""
        assert self._slot >= 0
        row.hash = i32(self._hash)
        row.number = i32(self._base + len(self._line))
        self._line.append(row)
        self._count += 1
        self._taken += 1
        if self._taken * 2 > len(self._table.tags):
            self._rebuild()
        else:
            self._table.put(row, self._hash, self._slot)
        self._slot = -1

    def remove(self, row: Row) -> None:
        """A row goes that is here."""
        rows, tags = self._table.rows, self._table.tags
        tag = _tag(i64(row.hash))
        mask: i64 = len(tags) - 1
        at = i64(row.hash) & mask
        while tags[at] != tag or rows[at] is not row:
            if tags[at] == 0:
                raise KeyError(row.id)
            at = at + 1 & mask
        rows[at] = _GONE
        line = self._line
        index = i64(row.number) - self._base
        line[index] = None
        self._count -= 1
        if index == self._head:
            self._head = index + 1
        if self._count * 2 + _TRIM < len(line):
            self._close_ranks()

    def newest(self) -> Iterator[Row]:
        """The rows, the one that came last first."""
        for row in reversed(self._line):
            if row is not None:
                yield row

    def values(self) -> list[Row]:
        """The rows as they came."""
        return [row for row in self._line if row is not None]

    def items(self) -> list[tuple[bytes, Row]]:
        """Ids and rows as they came."""
        return [(row.id, row) for row in self._line if row is not None]

    def keys(self) -> list[bytes]:
        """The ids as they came."""
        return [row.id for row in self._line if row is not None]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.keys())

    def __contains__(self, row_id: bytes) -> bool:
        return self.get(row_id) is not None

    def __getitem__(self, row_id: bytes) -> Row:
        row = self.get(row_id)
        if row is None:
            raise KeyError(row_id)
        return row

    def __len__(self) -> int:
        return self._count

    def _rebuild(self) -> None:
        """A table with room for as many again, and without the places of those that went."""
        size: i64 = _SMALLEST
        while self._count * 3 > size:
            size *= 2
        table = _Table(size)
        for row in self._line:
            if row is not None:
                hash_ = i64(row.hash)
                table.put(row, hash_, _empty_place(table.tags, hash_))
        self._table = table
        self._taken = self._count

    def _close_ranks(self) -> None:
        """Give up empty places of the line: those before the first row, or all of them."""
        line = self._line
        if self._head * 2 > len(line) and self._base < _RENUMBER:
            del line[: self._head]
            self._base += self._head
        else:
            left: list[Row | None] = []
            for row in line:
                if row is not None:
                    row.number = i32(len(left))
                    left.append(row)
            self._base = 0
            self._line = left
        self._head = 0


def _empty_place(tags: vec[u8], hash_: i64) -> i64:
    """Where a row goes that is not in the table."""
    mask: i64 = len(tags) - 1
    at = hash_ & mask
    while tags[at] != 0:
        at = at + 1 & mask
    return at


def _tag(hash_: i64) -> u8:
    """The highest bits, which choose no place until there are millions of rows; never 0."""
    return u8(hash_ >> 24 | 128)


def _hash(high: i64, low: i64) -> i64:
    """31 bits, of which every bit of the id moves the low ones: those choose the place.

    A sum of products, of 32 bits each with a number that nobody knows; then folded and multiplied
    once more, for ids that count up differ in few bits, wherever those stand. No step takes more
    than 63 bits, so that both builds give the same.
    """
    sum_ = (
        (high >> 32 & _HALF) * _TIMES_1
        + (high & _HALF) * _TIMES_2
        + (low >> 32 & _HALF) * _TIMES_3
        + (low & _HALF) * _TIMES_4
    )
    product = ((sum_ ^ sum_ >> 31) & 0x7FFF_FFFF) * _TIMES_5
    return (product ^ product >> 25) & 0x7FFF_FFFF
