"""Values of a daemon's entries kept in this process, and kept right by the daemon's pushes.

    cache = CachedEntries(client, prefix="settings:")
    cache["settings:colour"]      # asks the daemon the first time, and after a change

Rules:

1. A value is served from here only while a connection listens to its key. Before each serving all
   pushes that have arrived are taken in: a value older than the last push seen is never served.
2. A value during whose fetching a push of its key was seen is fetched again; if the key changes
   faster than it can be read, it is told as it was during the call, and not remembered.
3. When pushes were lost, or the connection was, everything is forgotten; after that it listens
   again before anything is remembered.
4. A connection that was silent for `max_silence` seconds is asked whether it is still there before
   anything is served: a value is older than that only if the daemon answers.
5. An entry is not served beyond its expiry. One with a touch length is never remembered: reading
   must touch it. Nor is one of more than a quarter of `max_bytes`. What a remembered entry tells of
   locks and leases may be old.
6. Writes go to the daemon, and the key is forgotten at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple, Self

from fastjournal.arguments import Text, key_bytes
from fastjournal.client.entries import ClientEntries
from fastjournal.client.pool import Links
from fastjournal.client.watching import Watching
from fastjournal.entry import Entry, EntryChange, EntryValue, watched
from fastjournal.errors import JournalError, NotFound

__all__ = ["MISSING", "TRIES", "CacheCounts", "CachedEntries", "Kept"]

TRIES = 5
"""How often a value is fetched that changes meanwhile."""
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


class Kept:
    """Remembered values, the one used last at the end; no connection, no lock."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._max_entries, self._max_bytes = max_entries, max_bytes
        self._values: OrderedDict[bytes, Entry | None] = OrderedDict()
        self._bytes = 0
        self._fetching: dict[bytes, int] = {}
        self._pushes = 0
        self._pushed: dict[bytes, int] = {}
        """Of keys that are being fetched: which push was the last of each."""
        self.hits = self.misses = self.forgotten = self.cleared = 0

    def find(self, key: bytes, now: int) -> Any:
        """A remembered entry; `MISSING` if nothing is known, None if there is known to be none."""
        entry = self._values.get(key, MISSING)
        if entry is MISSING or (entry is not None and 0 < entry.expires <= now):
            self.misses += 1
            return MISSING
        self._values.move_to_end(key)
        self.hits += 1
        return entry

    def begin(self, key: bytes) -> int:
        """The value of a key is being fetched; returns what `end` wants to know."""
        self._fetching[key] = self._fetching.get(key, 0) + 1
        return self._pushes

    def end(self, key: bytes, began: int, entry: Entry | None, *, keep: bool) -> bool:
        """It was; remember it, unless a push was seen in between: then False."""
        clean = self._pushed.get(key, 0) <= began
        left = self._fetching[key] - 1
        if left:
            self._fetching[key] = left
        else:
            del self._fetching[key]
            self._pushed.pop(key, None)
        size = _size(key, entry)
        touched = entry is not None and entry.ttl
        if not keep or not clean or touched or size > self._max_bytes // 4:
            return clean
        self.drop(key)
        self._values[key] = entry
        self._bytes += size
        while len(self._values) > self._max_entries or self._bytes > self._max_bytes:
            oldest = next(iter(self._values))
            self.drop(oldest)
        return True

    def drop(self, key: bytes) -> bool:
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
        self._pushes += 1
        if key in self._fetching:
            self._pushed[key] = self._pushes
        self.forgotten += self.drop(key)

    def clear(self) -> None:
        """Everything may have changed."""
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


class CachedEntries:
    """Entries of a client, read through a cache; close it, or use `with`."""

    def __init__(
        self,
        client: Links,
        *,
        prefix: Text = b"",
        max_entries: int = 10_000,
        max_bytes: int = 64 << 20,
        max_silence: float = 5.0,
    ) -> None:
        """Keys that do not begin with `prefix` are read from the daemon each time."""
        self._links = client
        self._entries = ClientEntries(client)
        self._watched = watched(prefix=prefix)
        self._kept = Kept(max_entries, max_bytes)
        self._max_silence = max_silence
        self._lock = threading.Lock()
        self._watch: Watching | None = None

    @property
    def counts(self) -> CacheCounts:
        """What the cache has done."""
        return self._kept.counts()

    def entry(self, key: Text) -> Entry:
        """An entry with all that is known of it; `NotFound` if it is not there."""
        name = key_bytes(key)
        if not self._watched.holds(name):
            return self._entries.entry(name)
        with self._lock:
            listens = self._take_pushes()
            found = self._kept.find(name, self._links.server_now()) if listens else MISSING
        if found is MISSING:
            found = self._fetch(name, listens)
        if found is None:
            raise NotFound(f"no entry {name!r}")
        entry: Entry = found
        return entry

    def _fetch(self, name: bytes, keep: bool) -> Entry | None:
        for _ in range(TRIES):
            entry: Entry | None = None
            known = clean = False
            with self._lock:
                began = self._kept.begin(name)
            try:
                entry = self._entries.entry(name)
                known = True
            except NotFound:
                known = True
            finally:
                with self._lock:
                    clean = self._kept.end(name, began, entry, keep=keep and known)
            if clean:
                break
        return entry

    def get(self, key: Text, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        try:
            return self.entry(key).value
        except NotFound:
            return default

    def __getitem__(self, key: Text) -> EntryValue:
        try:
            return self.entry(key).value
        except NotFound:
            raise KeyError(key) from None

    def __contains__(self, key: Text) -> bool:
        return self.get(key, MISSING) is not MISSING

    def __setitem__(self, key: Text, value: EntryValue) -> None:
        self.set(key, value)

    def set(self, key: Text, value: EntryValue, **how: Any) -> bool:
        """Store a value; `how` as in `entries.set`."""
        try:
            return self._entries.set(key, value, **how)
        finally:
            self._forget(key)

    def delete(self, key: Text, **how: Any) -> bool:
        """Delete an entry; `how` as in `entries.delete`."""
        try:
            return self._entries.delete(key, **how)
        finally:
            self._forget(key)

    def add(self, key: Text, number: float = 1, **how: Any) -> EntryValue:
        """Add to a number and return the sum; `how` as in `entries.add`."""
        try:
            return self._entries.add(key, number, **how)
        finally:
            self._forget(key)

    def clear(self) -> None:
        """Forget what is remembered here; the daemon keeps its entries."""
        with self._lock:
            self._kept.clear()

    def close(self) -> None:
        """Stop listening; the client stays open."""
        with self._lock:
            self._kept.clear()
            if self._watch is not None:
                self._watch.close()
                self._watch = None

    def __len__(self) -> int:
        return len(self._kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget(self, key: Text) -> None:
        with self._lock:
            self._kept.forget(key_bytes(key))

    def _take_pushes(self) -> bool:
        """Take in what has arrived; False if nobody listens: then nothing here may be trusted."""
        try:
            if self._watch is None:
                self._watch = Watching(self._links, self._watched)
                self._kept.clear()
            changes = self._watch.here(self._max_silence)
        except JournalError:
            self._kept.clear()
            if self._watch is not None:
                self._watch.close()
                self._watch = None
            return False
        for change in changes:
            self._kept.changed(change)
        return True
