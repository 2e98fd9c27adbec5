"""What a cache remembers of entries; no connection.

Rules:

1. A value during whose fetching a push of its key was seen is not remembered.
2. Of fetches of a key at the same time that got different values nobody knows which is the newer:
   neither is remembered.
3. An entry is not served beyond its expiry. One with a touch length is never remembered: reading
   must touch it. Nor is one of more than a quarter of `max_bytes`.
4. Threads may use it side by side.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from fastjournal.entry_model import Entry, EntryChange

__all__ = ["MISSING", "CacheCounts", "CachedValues"]

_OVERHEAD = 200  # bytes, roughly, of a remembered key besides its key and value
MISSING: Any = object()


class CacheCounts(NamedTuple):
    """What a cache has done."""

    hits: int
    misses: int
    forgotten: int
    """Values dropped because of a push."""
    cleared: int
    """Times that everything was dropped: pushes or the connection were lost."""


class CachedValues:
    """Remembered values, the one used last at the end."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._values: OrderedDict[bytes, Entry | None] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._fetching: dict[bytes, int] = {}
        self._pushes = 0
        self._pushed: dict[bytes, int] = {}
        """Of keys that are being fetched: which push was the last of each."""
        self._fetched: dict[bytes, Any] = {}
        """Of keys that are being fetched: what others got meanwhile; `MISSING`: this and that."""
        self.hits = self.misses = self.forgotten = self.cleared = 0

    def find(self, key: bytes, now: int) -> Any:
        """A remembered entry; `MISSING` if nothing is known, None if there is known to be none."""
        with self._lock:
            entry = self._values.get(key, MISSING)
            if entry is MISSING or (entry is not None and 0 < entry.expires <= now):
                self.misses += 1
                return MISSING
            self._values.move_to_end(key)
            self.hits += 1
            return entry

    def begin(self, key: bytes) -> int:
        """The value of a key is being fetched; returns what `end` wants to know."""
        with self._lock:
            self._fetching[key] = self._fetching.get(key, 0) + 1
            return self._pushes

    def end(self, key: bytes, began: int, entry: Entry | None, *, keep: bool) -> bool:
        """It was; remember it, unless a push was seen in between: then False."""
        with self._lock:
            clean = self._pushed.get(key, 0) <= began
            differs = self._fetched.get(key, entry) != entry
            left = self._fetching[key] - 1
            if left:
                self._fetching[key] = left
                self._fetched[key] = MISSING if differs else entry
            else:
                del self._fetching[key]
                self._fetched.pop(key, None)
                self._pushed.pop(key, None)
            if differs:
                self._drop(key)
            size = _size(key, entry)
            touched = entry is not None and entry.ttl
            if not keep or not clean or differs or touched or size > self._max_bytes // 4:
                return clean
            self._drop(key)
            self._values[key] = entry
            self._bytes += size
            while len(self._values) > self._max_entries or self._bytes > self._max_bytes:
                oldest = next(iter(self._values))
                self._drop(oldest)
            return True

    def _drop(self, key: bytes) -> bool:
        """Forget a key."""
        entry = self._values.pop(key, MISSING)
        if entry is MISSING:
            return False
        self._bytes -= _size(key, entry)
        return True

    def changed(self, change: EntryChange) -> None:
        """A push."""
        if change.lost:
            self.clear()
        else:
            self.forget(change.key)

    def forget(self, key: bytes) -> None:
        """A key was written."""
        with self._lock:
            self._pushes += 1
            if key in self._fetching:
                self._pushed[key] = self._pushes
            self.forgotten += self._drop(key)

    def clear(self) -> None:
        """Everything may have changed."""
        with self._lock:
            self._values.clear()
            self._bytes = 0
            self._pushes += 1
            self._pushed.update(dict.fromkeys(self._fetching, self._pushes))
            self.cleared += 1

    def counts(self) -> CacheCounts:
        """What was done so far."""
        return CacheCounts(self.hits, self.misses, self.forgotten, self.cleared)

    def __len__(self) -> int:
        return len(self._values)


def _size(key: bytes, entry: Entry | None) -> int:
    return _OVERHEAD + 2 * len(key) + (0 if entry is None else len(entry.data))
