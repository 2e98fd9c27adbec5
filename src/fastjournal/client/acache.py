"""The cache of `cache` for asyncio. Rules: those of `cache`."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

from fastjournal.arguments import Text, key_bytes
from fastjournal.client.aentries import AsyncEntries
from fastjournal.client.alink import AsyncLink
from fastjournal.client.awatching import AsyncWatching
from fastjournal.client.cache import MISSING, TRIES, CacheCounts, Kept
from fastjournal.entry import Entry, EntryValue, watched
from fastjournal.errors import JournalError, NotFound

__all__ = ["AsyncCachedEntries"]


class AsyncCachedEntries:
    """Entries of an asyncio client, read through a cache; close it, or use `async with`."""

    def __init__(
        self,
        client: AsyncLink,
        *,
        prefix: Text = b"",
        max_entries: int = 10_000,
        max_bytes: int = 64 << 20,
        max_silence: float = 5.0,
    ) -> None:
        """Keys that do not begin with `prefix` are read from the daemon each time."""
        self._link = client
        self._entries = AsyncEntries(client)
        self._watched = watched(prefix=prefix)
        self._kept = Kept(max_entries, max_bytes)
        self._max_silence = max_silence
        self._watch: AsyncWatching | None = None
        self._opening = asyncio.Lock()
        self._heard = 0.0

    @property
    def counts(self) -> CacheCounts:
        """What the cache has done."""
        return self._kept.counts()

    async def entry(self, key: Text) -> Entry:
        """An entry with all that is known of it; `NotFound` if it is not there."""
        name = key_bytes(key)
        if not self._watched.holds(name):
            return await self._entries.entry(name)
        listens = await self._take_pushes()
        found = self._kept.find(name, self._link.server_now()) if listens else MISSING
        if found is MISSING:
            found = await self._fetch(name, listens)
        if found is None:
            raise NotFound(f"no entry {name!r}")
        entry: Entry = found
        return entry

    async def _fetch(self, name: bytes, keep: bool) -> Entry | None:
        for _ in range(TRIES):
            entry: Entry | None = None
            known = clean = False
            began = self._kept.begin(name)
            try:
                entry = await self._entries.entry(name)
                known = True
            except NotFound:
                known = True
            finally:
                clean = self._kept.end(name, began, entry, keep=keep and known)
            if clean:
                break
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
            self._kept.forget(key_bytes(key))

    async def delete(self, key: Text, **how: Any) -> bool:
        """Delete an entry; `how` as in `entries.delete`."""
        try:
            return await self._entries.delete(key, **how)
        finally:
            self._kept.forget(key_bytes(key))

    async def add(self, key: Text, number: float = 1, **how: Any) -> EntryValue:
        """Add to a number and return the sum; `how` as in `entries.add`."""
        try:
            return await self._entries.add(key, number, **how)
        finally:
            self._kept.forget(key_bytes(key))

    def clear(self) -> None:
        """Forget what is remembered here; the daemon keeps its entries."""
        self._kept.clear()

    async def close(self) -> None:
        """Stop listening; the client stays open."""
        self._kept.clear()
        watch, self._watch = self._watch, None
        if watch is not None:
            await watch.close()

    def __len__(self) -> int:
        return len(self._kept)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _take_pushes(self) -> bool:
        """Take in what has arrived; False if nobody listens: then nothing here may be trusted."""
        try:
            if self._watch is None or not self._watch.listens:
                await self._listen()
            elif time.monotonic() - self._heard >= self._max_silence:
                await self._watch.check(self._max_silence)
                self._heard = time.monotonic()
        except JournalError:
            self._kept.clear()
            self._watch = None
            return False
        self._take_here()
        return self._watch is not None

    async def _listen(self) -> None:
        async with self._opening:
            if self._watch is not None and self._watch.listens:
                return  # another task was quicker
            self._watch = None
            self._watch = await AsyncWatching(self._link, self._watched).open()
            self._kept.clear()
            self._heard = time.monotonic()

    def _take_here(self) -> None:
        if self._watch is None:
            return
        for change in self._watch.here():
            self._kept.changed(change)
            self._heard = time.monotonic()
        if not self._watch.listens:
            self._watch = None
