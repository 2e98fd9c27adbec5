"""Orders of rows in which a row knows its slot.

Rules:

1. Rows mostly come in the order in which they leave again, so those that do stand in a run, where
   taking the first is moving an index; the others stand in a heap. A slot from 0 on is a place in
   the run, a negative one a place in the heap: leaving needs no search and leaves no stale entry.
2. A row that comes before the last of the run goes to the heap; but if only that last one stands in
   its way, that one goes there instead: one row of low priority does not end the run for all.
3. What a row is ordered by must not change while it stands in the order.
"""

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i32, i64

from fastjournal.journal.state.row import Row

__all__ = ["Expiry", "Order", "Timeline"]

_TRIM: Final[i64] = 64
_RENUMBER: Final[i64] = 1 << 30


class Order:
    """Rows by (rank, due, inserted, id): the order in which a queue hands them out."""

    def __init__(self) -> None:
        self._run: list[Row | None] = []
        self._base: i64 = 0
        """The slot of the run's first place."""
        self._head: i64 = 0
        """Places before it are empty."""
        self._last: Row | None = None
        """The last row of the run."""
        self._heap: list[Row] = []
        self.count: i64 = 0

    def before(self, a: Row, b: Row) -> bool:
        """Whether `a` comes before `b`."""
        if a.rank != b.rank:
            return a.rank < b.rank
        if a.due != b.due:
            return a.due < b.due
        if a.inserted != b.inserted:
            return a.inserted < b.inserted
        return a.id_before(b)

    def slot_of(self, row: Row) -> i64:
        """Where the row stands."""
        return i64(row.slot)

    def set_slot(self, row: Row, slot: i64) -> None:
        """The row stands there."""
        row.slot = i32(slot)

    def push(self, row: Row) -> None:
        """A row comes in."""
        self.count += 1
        last = self._last
        run = self._run
        if last is None or self.before(last, row):
            self.set_slot(row, self._base + len(run))
            run.append(row)
            self._last = row
            return
        size: i64 = len(run)
        before = run[size - 2] if size - self._head > 1 else None
        if size - self._head == 1 or (before is not None and self.before(before, row)):
            self.set_slot(row, self._base + size - 1)
            run[size - 1] = row
            self._last = row
            row = last
        self._heap.append(row)
        self._rise(row, len(self._heap) - 1)

    def first(self) -> Row | None:
        """The first row, left where it is."""
        run = self._run
        head = self._head
        row: Row | None = None
        if self._last is not None:
            row = run[head]
            while row is None:
                head += 1
                row = run[head]
            self._head = head
        if self._heap:
            top = self._heap[0]
            if row is None or self.before(top, row):
                return top
        return row

    def remove(self, row: Row) -> None:
        """A row goes."""
        self.count -= 1
        slot = self.slot_of(row)
        if slot < 0:
            self._take_from_heap(-1 - slot)
            return
        run = self._run
        at = slot - self._base
        run[at] = None
        if self._last is row:
            self._find_last()
        elif at == self._head:
            self._head = at + 1
            if self._head > _TRIM and self._head * 2 > len(run):
                self._trim()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Row]:
        """The rows in no order."""
        found: list[Row] = [row for row in self._run if row is not None]
        found.extend(self._heap)
        return iter(found)

    def _find_last(self) -> None:
        run = self._run
        while len(run) > self._head:
            row = run[-1]
            if row is not None:
                self._last = row
                return
            run.pop()
        run.clear()
        self._base = 0
        self._head = 0
        self._last = None

    def _trim(self) -> None:
        run = self._run
        del run[: self._head]
        self._base += self._head
        self._head = 0
        if self._base > _RENUMBER:
            self._base = 0
            for at, row in enumerate(run):
                if row is not None:
                    self.set_slot(row, at)

    def _rise(self, row: Row, at: i64) -> None:
        heap = self._heap
        while at > 0:
            above = (at - 1) >> 1
            parent = heap[above]
            if not self.before(row, parent):
                break
            heap[at] = parent
            self.set_slot(parent, -1 - at)
            at = above
        heap[at] = row
        self.set_slot(row, -1 - at)

    def _sink(self, row: Row, at: i64) -> None:
        heap = self._heap
        size: i64 = len(heap)
        while True:
            below = 2 * at + 1
            if below >= size:
                break
            child = heap[below]
            if below + 1 < size:
                other = heap[below + 1]
                if self.before(other, child):
                    below += 1
                    child = other
            if not self.before(child, row):
                break
            heap[at] = child
            self.set_slot(child, -1 - at)
            at = below
        heap[at] = row
        self.set_slot(row, -1 - at)

    def _take_from_heap(self, at: i64) -> None:
        heap = self._heap
        last = heap.pop()
        if at == len(heap):
            return
        self._sink(last, at)
        if self.slot_of(last) == -1 - at:
            self._rise(last, at)


class Timeline(Order):
    """Rows by `when`: the instant at which they leave their place."""

    def before(self, a: Row, b: Row) -> bool:
        mine: i64 = a.when
        its: i64 = b.when
        if mine != its:
            return mine < its
        if a.inserted != b.inserted:
            return a.inserted < b.inserted
        return a.id_before(b)

    def next(self) -> int:
        """The first instant; 0: none."""
        row = self.first()
        return 0 if row is None else row.when


class Expiry(Order):
    """Rows by `expires`, wherever else they stand."""

    def before(self, a: Row, b: Row) -> bool:
        if a.expires != b.expires:
            return a.expires < b.expires
        if a.inserted != b.inserted:
            return a.inserted < b.inserted
        return a.id_before(b)

    def slot_of(self, row: Row) -> i64:
        return i64(row.expiry_slot)

    def set_slot(self, row: Row, slot: i64) -> None:
        row.expiry_slot = i32(slot)

    def next(self) -> int:
        """The first instant; 0: none."""
        row = self.first()
        return 0 if row is None else row.expires
