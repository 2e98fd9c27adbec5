"""The ways to find rows: by key, by instant.

Rules:

1. An index knows rows, never commands; only `state` tells it about changes.
2. Nothing here is searched: keys are hashed, instants stand in heaps whose stale entries are
   dropped when they come to the head.
3. A heap is rebuilt when it has doubled since the last time, so stale entries never outnumber the
   others for long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from fastjournal.journal.lanes import Moment
from fastjournal.journal.rows import Row

__all__ = ["KeyIndex", "Timeline"]

_SLACK = 64


class Timeline:
    """Rows by an instant of theirs: due, end of lease, expiry..."""

    __slots__ = ("_heap", "_instant", "_limit", "_rows")

    def __init__(self, rows: dict[bytes, Row], instant: Callable[[Row], int]) -> None:
        self._rows = rows
        self._instant = instant
        self._heap: list[Moment] = []
        self._limit = _SLACK

    def add(self, row: Row, instant: int) -> Moment:
        """Note that something happens to the row at this instant."""
        moment = (instant, row.inserted, row.id)
        heap = self._heap
        heappush(heap, moment)
        if len(heap) > self._limit:
            self._rebuild()
        return moment

    def head(self) -> Row | None:
        """The row whose instant comes first."""
        heap, rows, instant = self._heap, self._rows, self._instant
        while heap:
            row = rows.get(heap[0][2])
            if row is not None and instant(row) == heap[0][0]:
                return row
            heappop(heap)
        return None

    def next(self) -> int:
        """The first instant; 0: none."""
        return self._heap[0][0] if self.head() is not None else 0

    def __len__(self) -> int:
        return len(self._heap)

    def _rebuild(self) -> None:
        rows, instant = self._rows, self._instant
        kept = set()
        for moment in self._heap:
            row = rows.get(moment[2])
            if row is not None and instant(row) == moment[0]:
                kept.add(moment)
        self._heap = list(kept)
        heapify(self._heap)
        self._limit = 2 * len(kept) + _SLACK


class KeyIndex:
    """Rows by key, then by queue: those waiting, being worked on, or deleted.

    Nearly every key has one row, which then stands in the index itself; only a key with more gets
    a table of its own.
    """

    __slots__ = ("_map",)

    def __init__(self) -> None:
        self._map: dict[bytes, Row | dict[bytes, dict[bytes, Row]]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._map

    def alone(self, row: Row) -> bool:
        """No other row has its key."""
        return self._map.get(row.key) is row

    def add(self, row: Row) -> None:
        """Find the row under its key and aliases from now on."""
        key = row.key
        if key:
            if key in self._map:
                self._add(key, row)
            else:
                self._map[key] = row
        if row.more is not None:
            for alias in row.more.aliases:
                self._add(alias, row)

    def remove(self, row: Row) -> None:
        """Do not find the row any more."""
        key = row.key
        if key:
            if self._map.get(key) is row:
                del self._map[key]
            else:
                self._remove(key, row)
        if row.more is not None:
            for alias in row.more.aliases:
                self._remove(alias, row)

    def everywhere(self, key: bytes) -> Iterator[Row]:
        """The rows of a key in all queues."""
        found = self._map.get(key)
        if found is None:
            return iter(())
        if isinstance(found, Row):
            return iter((found,))
        return (row for rows in list(found.values()) for row in list(rows.values()))

    def find(self, queue: bytes, key: bytes) -> Iterator[Row]:
        """The rows of a key in one queue: seldom more than two."""
        found = self._map.get(key)
        if found is None:
            return iter(())
        if isinstance(found, Row):
            return iter((found,) if found.lane.name == queue else ())
        return iter(list(found.get(queue, {}).values()))

    def twin(self, row: Row) -> Iterator[Row]:
        """The other rows of the same key in the same queue."""
        found = self._map.get(row.key)
        if found is None or isinstance(found, Row):
            return iter(())
        others = found.get(row.lane.name, {})
        return iter([other for other in others.values() if other is not row])

    def queues(self, key: bytes) -> list[bytes]:
        """The queues that have rows of a key, sorted."""
        found = self._map.get(key)
        if found is None:
            return []
        return [found.lane.name] if isinstance(found, Row) else sorted(found)

    def __len__(self) -> int:
        return len(self._map)

    def _add(self, key: bytes, row: Row) -> None:
        found = self._map.get(key)
        if found is None or found is row:
            self._map[key] = row
            return
        if isinstance(found, Row):
            found = self._map[key] = {found.lane.name: {found.id: found}}
        found.setdefault(row.lane.name, {})[row.id] = row

    def _remove(self, key: bytes, row: Row) -> None:
        found = self._map.get(key)
        if found is row:
            del self._map[key]
        elif isinstance(found, dict):
            rows = found.get(row.lane.name, {})
            rows.pop(row.id, None)
            if not rows:
                found.pop(row.lane.name, None)
            if len(found) == 1:
                (rows,) = found.values()
                if len(rows) == 1:
                    (self._map[key],) = rows.values()
