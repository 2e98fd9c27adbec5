"""Values of a daemon's entries kept in this process, and kept right by the daemon's pushes.

    cache = AsyncCachedEntries(client, prefix="settings:")
    await cache.get("settings:colour")      # asks the daemon the first time, and after a change

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

from typing import Any, Self

from fastjournal.arguments import Text, key_bytes
from fastjournal.client._async.client import AsyncClient
from fastjournal.client._async.watch import AsyncWatching
from fastjournal.client.asyncio_transport import Lock
from fastjournal.client.cached_values import MISSING, CacheCounts, CachedValues
from fastjournal.client.mappings import AsyncLookup
from fastjournal.entry_model import Entry, watched
from fastjournal.entry_value import EntryValue
from fastjournal.errors import JournalError, NotFound, quoted

__all__ = ["AsyncCachedEntries"]

_TRIES = 5
"""How often a value is fetched that changes meanwhile."""


class AsyncCachedEntries(AsyncLookup):
    """Entries of a client, read through a cache; close it, or use `async with`."""

    def __init__(
        self,
        client: AsyncClient,
        *,
        prefix: Text = b"",
        max_entries: int = 10_000,
        max_bytes: int = 64 << 20,
        max_silence: float = 5.0,
    ) -> None:
        """Keys that do not begin with `prefix` are read from the daemon each time."""
        self._caller = client.caller
        self._entries = client.entries.current
        self._watched = watched(prefix=prefix)
        self._values = CachedValues(max_entries, max_bytes)
        self._max_silence = max_silence
        self._lock = Lock()
        self._watch: AsyncWatching | None = None

    @property
    def counts(self) -> CacheCounts:
        """What the cache has done."""
        return self._values.counts()

    async def entry(self, key: Text) -> Entry:
        """An entry with all that is known of it; `NotFound` if it is not there."""
        name = key_bytes(key)
        if not self._watched.holds(name):
            return await self._entries.entry(name)
        async with self._lock:  # nothing may come between the pushes and what they leave
            listens = await self._take_pushes()
            found = self._values.find(name, self._caller.server_now()) if listens else MISSING
        if found is MISSING:
            found = await self._fetch(name, listens)
        if found is None:
            raise NotFound(f"no entry {quoted(name)}")
        entry: Entry = found
        return entry

    async def get(self, key: Text, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        try:
            return (await self.entry(key)).value
        except NotFound:
            return default

    async def has(self, key: Text) -> bool:
        """Whether there is an entry of this key."""
        return await self.get(key, MISSING) is not MISSING

    async def set(self, key: Text, value: EntryValue, **how: Any) -> bool:
        """Store a value; `how` as in `entries.set`."""
        try:
            return await self._entries.set(key, value, **how)
        finally:
            self._values.forget(key_bytes(key))

    async def delete(self, key: Text, **how: Any) -> bool:
        """Delete an entry; `how` as in `entries.delete`."""
        try:
            return await self._entries.delete(key, **how)
        finally:
            self._values.forget(key_bytes(key))

    async def add(self, key: Text, number: float = 1, **how: Any) -> EntryValue:
        """Add to a number and return the sum; `how` as in `entries.add`."""
        try:
            return await self._entries.add(key, number, **how)
        finally:
            self._values.forget(key_bytes(key))

    def clear(self) -> None:
        """Forget what is remembered here; the daemon keeps its entries."""
        self._values.clear()

    async def close(self) -> None:
        """Stop listening; the client stays open."""
        async with self._lock:
            await self._forget_all()

    def __len__(self) -> int:
        return len(self._values)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _fetch(self, name: bytes, keep: bool) -> Entry | None:
        for _ in range(_TRIES):
            entry: Entry | None = None
            known = clean = False
            began = self._values.begin(name)
            try:
                entry = await self._entries.entry(name)
                known = True
            except NotFound:
                known = True
            finally:
                clean = self._values.end(name, began, entry, keep=keep and known)
            if clean:
                break
        return entry

    async def _take_pushes(self) -> bool:
        """Take in what has arrived; False if nobody listens: then nothing here may be trusted."""
        try:
            if self._watch is None:
                self._watch = await AsyncWatching.open(self._caller, self._watched)
                self._values.clear()
            changes = await self._watch.here(self._max_silence)
        except JournalError:
            await self._forget_all()
            return False
        for change in changes:
            self._values.changed(change)
        return True

    async def _forget_all(self) -> None:
        self._values.clear()
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.close()
