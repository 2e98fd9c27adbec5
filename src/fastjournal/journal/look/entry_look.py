"""Entries looked at from outside: read, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fastjournal.arguments import Text, key_bytes
from fastjournal.clock import SteadyClock
from fastjournal.entry_value import EntryValue, from_value
from fastjournal.journal.look.listing import Readable
from fastjournal.journal.state.row import Row

__all__ = ["EntryLook", "SeenEntry"]


class SeenEntry(NamedTuple):
    """An entry as it was seen."""

    key: bytes
    value: EntryValue


class EntryLook:
    """The entries of a journal that belongs to somebody else: `get` and `range` of `entries`."""

    def __init__(self, source: Readable, clock: SteadyClock) -> None:
        self._source = source
        self._clock = clock

    def get(self, key: Text, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        with self._source.lock:
            row = self._source.state.entry_keys.living(key_bytes(key))
            return default if row is None or self._is_over(row) else self._value(row)

    def range(self, lower: Text = b"", upper: Text = b"") -> Iterator[SeenEntry]:
        """The entries from `lower` to `upper`, both included, in order; empty: no bound."""
        first = key_bytes(lower) if lower else b""
        last = key_bytes(upper) if upper else b""
        found: list[SeenEntry] = []
        with self._source.lock:
            walk = self._source.state.entry_keys.walk(first)
            while (row := walk.step()) is not None and (not last or walk.key <= last):
                if not self._is_over(row):
                    found.append(SeenEntry(walk.key, self._value(row)))
            walk.end()
        return iter(found)

    def _is_over(self, row: Row) -> bool:
        return 0 < row.expires < self._clock.now()

    def _value(self, row: Row) -> EntryValue:
        return from_value(row.kind, self._source.value(row))
