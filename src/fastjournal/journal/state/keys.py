"""Rows by key, then by queue: those waiting, being worked on, or deleted.

Nearly every key has one row, which then stands in the index itself; only a key with more gets a
table of its own.
"""

from collections.abc import Iterator

from fastjournal.journal.state.row import PROCESSING_ROW, Row

__all__ = ["KeyIndex"]


class KeyIndex:
    """Finds rows by key. It knows rows, never commands; only `apply` tells it about changes."""

    def __init__(self) -> None:
        self._map: dict[bytes, Row | dict[bytes, dict[bytes, Row]]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._map

    def alone(self, row: Row) -> bool:
        """No other row has its key."""
        return self._map.get(row.key) is row

    def add(self, row: Row) -> None:
        """Find the row under its key and aliases from now on."""
        if row.key:
            self._add(row.key, row)
        if row.more is not None:
            for alias in row.more.aliases:
                self._add(alias, row)

    def remove(self, row: Row) -> None:
        """Find it no longer."""
        if row.key:
            self._remove(row.key, row)
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
        return iter([row for rows in found.values() for row in rows.values()])

    def find(self, queue: bytes, key: bytes) -> Iterator[Row]:
        """The rows of a key in one queue: seldom more than two."""
        return iter(self.rows_of(queue, key))

    def rows_of(self, queue: bytes, key: bytes) -> list[Row]:
        """The same as a list."""
        found = self._map.get(key)
        if found is None:
            return []
        if isinstance(found, Row):
            return [found] if found.queue.name == queue else []
        rows = found.get(queue)
        return [] if rows is None else list(rows.values())

    def entry(self, key: bytes) -> Row | None:
        """The row of a key without a queue, whatever became of it; of several one that lives."""
        found = self._map.get(key)
        if found is None:
            return None
        if isinstance(found, Row):
            return None if found.queue.name else found
        rows = found.get(b"")
        if rows is None:
            return None
        first: Row | None = None
        for row in rows.values():
            if row.stage <= PROCESSING_ROW:
                return row
            if first is None:
                first = row
        return first

    def twin(self, row: Row) -> Iterator[Row]:
        """The other rows of the same key in the same queue."""
        return iter(self.twins(row))

    def twins(self, row: Row) -> list[Row]:
        """The same as a list."""
        found = self._map.get(row.key)
        if found is None or isinstance(found, Row):
            return []
        rows = found.get(row.queue.name)
        return [] if rows is None else [other for other in rows.values() if other is not row]

    def queues(self, key: bytes) -> list[bytes]:
        """The queues that have rows of a key, sorted."""
        found = self._map.get(key)
        if found is None:
            return []
        return [found.queue.name] if isinstance(found, Row) else sorted(found)

    def __len__(self) -> int:
        return len(self._map)

    def _add(self, key: bytes, row: Row) -> None:
        found = self._map.get(key)
        if found is None or found is row:
            self._map[key] = row
            return
        if isinstance(found, Row):
            table: dict[bytes, dict[bytes, Row]] = {found.queue.name: {found.id: found}}
            self._map[key] = table
        else:
            table = found
        rows = table.get(row.queue.name)
        if rows is None:
            table[row.queue.name] = {row.id: row}
        else:
            rows[row.id] = row

    def _remove(self, key: bytes, row: Row) -> None:
        found = self._map.get(key)
        if found is None:
            return
        if isinstance(found, Row):
            if found is row:
                del self._map[key]
            return
        rows = found.get(row.queue.name)
        if rows is not None:
            rows.pop(row.id, None)
            if not rows:
                del found[row.queue.name]
        if len(found) == 1:
            for left in found.values():
                if len(left) == 1:
                    for only in left.values():
                        self._map[key] = only
                        return
