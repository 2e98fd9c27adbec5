"""`client.entries` of an asyncio client: the methods of the blocking one, to be awaited.

    await entries.set("k", 5)           entries["k"] = 5
    await entries.get("k")              entries.get("k")
    await entries.has("k")              "k" in entries
    await entries.count()               len(entries)
    async for entry in entries.range()  for entry in entries.range()
    async with entries.lock("k") as h   with entries.lock("k") as h

Rules: those of `entries`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fastjournal.arguments import Instant, Length, Text, instant, key_bytes, length, worker_bytes
from fastjournal.client import entry_calls
from fastjournal.client.awatching import AsyncWatching
from fastjournal.client.numbers import Numbers
from fastjournal.clock import SECOND
from fastjournal.entry import Entry, EntryPage, EntryValue, from_value, to_value, watched
from fastjournal.errors import AlreadyExists, LeaseLost, Locked, NotFound
from fastjournal.held import LockedKey

if TYPE_CHECKING:
    from fastjournal.client.alink import AsyncLink

__all__ = ["AsyncEntries", "AsyncHeldLock"]

_PAGE = 1000
_MISSING: Any = object()
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
_TOGETHER = 1000


class AsyncHeldLock(LockedKey):
    """A locked key: `async with entries.lock(key) as held`, or `await entries.lock(key).take()`."""

    def __init__(
        self, entries: AsyncEntries, key: bytes, owner: bytes, lasts: Length, wait: Length
    ) -> None:
        super().__init__(key, owner)
        self._entries = entries
        self._lasts, self._wait = lasts, wait

    async def take(self, lasts: Length | None = None, wait: Length | None = None) -> Self:
        """Take the lock, or keep it for so long from now on."""
        self.fence, self.until = await self._entries._lock(
            self.key,
            self.owner,
            length(self._lasts if lasts is None else lasts, "length"),
            length(self._wait if wait is None else wait, "wait"),
        )
        return self

    async def keep(self, lasts: Length | None = None) -> None:
        """Keep the lock for so long from now on; `LeaseLost` if it is no longer ours."""
        fence = self.fence
        try:
            await self.take(lasts, 0)
        except Locked:
            raise LeaseLost("the lock is no longer yours") from None
        if self.fence != fence:
            await self.free()
            raise LeaseLost("the lock was lost in between")

    async def free(self) -> bool:
        """Free the lock; False if it was not held any more: lost, or freed by an earlier try."""
        try:
            return await self._entries._unlock(self.key, self.fence)
        except Locked:
            return False

    async def set(self, value: EntryValue, **how: Any) -> bool:
        """Store a value under the locked key; `how` as in `entries.set`."""
        return await self._entries.set(self.key, value, fence=self.fence, **how)

    async def get(self, default: EntryValue = None) -> EntryValue:
        """The value of the locked key."""
        value: EntryValue = await self._entries.get(self.key, default)
        return value

    async def add(self, number: float = 1, **how: Any) -> EntryValue:
        """Add to the number under the locked key."""
        return await self._entries.add(self.key, number, fence=self.fence, **how)

    async def delete(self, **how: Any) -> bool:
        """Delete the locked entry."""
        return await self._entries.delete(self.key, fence=self.fence, **how)

    async def __aenter__(self) -> Self:
        return await self.take()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.free()


class AsyncEntries:
    """The entries of a daemon's journal."""

    def __init__(self, link: AsyncLink) -> None:
        self._links = link
        self._call = link._call
        self._numbers = Numbers()

    def __repr__(self) -> str:
        return f"<entries of {self._links.target.address}>"

    async def has(self, key: Text) -> bool:
        """Whether there is an entry of this key."""
        try:
            await self.entry(key, data=False)
        except NotFound:
            return False
        return True

    async def count(self) -> int:
        """How many entries there are, each counted once whatever its keys."""
        count: int = await self._call(entry_calls.count())
        return count

    async def get(self, key: Text, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        try:
            return from_value(*await self._call(entry_calls.get(key)))
        except NotFound:
            return default

    async def set(
        self,
        key: Text,
        value: EntryValue,
        *,
        ttl: Length | None = None,
        expires: Instant | None = None,
        touch: Length | None = None,
        overwrite: bool = True,
        persist: bool = True,
        timestamp: Instant | None = None,
        fence: int = 0,
    ) -> bool:
        """Store a value; False if an equal or newer `timestamp` is there already.

        Gone `ttl` from now or at `expires`. `touch`: every reading keeps it at least about so long.
        Without `overwrite` an entry that is there is `AlreadyExists`. `persist=False`: in memory
        only. `fence`: the number of a lock that must still be held.
        """
        call = entry_calls.set_entry(
            self._links.base(), key, value, ttl, expires, touch, overwrite, persist,
            timestamp, fence,
        )  # fmt: skip
        stored: bool = await self._call(call)
        return stored

    async def entry(
        self,
        key: Text,
        *,
        data: bool = True,
        lease: Length | None = None,
        worker: Text = b"",
        skip_worked_on: bool = False,
        expires: Instant | None = None,
    ) -> Entry:
        """An entry with all that is known of it; `NotFound` if it is not there.

        `data=False` leaves the value out. `lease` marks it as worked on by `worker` for so long.
        `expires` keeps it at least until then.
        """
        now = self._links.base()
        call = entry_calls.entry(now, key, data, lease, worker, skip_worked_on, expires)
        found: Entry = await self._call(call)
        return found

    async def setdefault(self, key: Text, default: EntryValue = None) -> EntryValue:
        """The value of a key, stored first if there was none; in one step."""
        to_value(default)
        while True:
            try:
                return from_value(*await self._call(entry_calls.get(key)))
            except NotFound:
                pass
            try:
                await self.set(key, default, overwrite=False)
                return default
            except AlreadyExists:
                continue

    async def pop(self, key: Text, default: Any = _MISSING) -> Any:
        """Delete an entry and return its value; in one step."""
        async with self.lock(key, wait=self._links.target.timeout) as held:
            value = await self.get(key, _MISSING)
            if value is not _MISSING:
                await held.delete()
                return value
        if default is _MISSING:
            raise KeyError(key)
        return default

    async def update(self, other: Any = (), /, **named: EntryValue) -> None:
        """Store many, sent together."""
        pairs = other.items() if isinstance(other, Mapping) else other
        calls = [entry_calls.set_entry(None, key, value) for key, value in [*pairs, *named.items()]]
        for start in range(0, len(calls), _TOGETHER):
            await asyncio.gather(*map(self._call, calls[start : start + _TOGETHER]))

    async def delete(
        self,
        key: Text,
        *,
        purge: bool = False,
        timestamp: Instant | None = None,
        fence: int = 0,
    ) -> bool:
        """Delete an entry under all its keys; False if there was none, or a newer one.

        A tombstone keeps older writes away for a while; `purge` leaves nothing.
        """
        found: bool = await self._call(entry_calls.delete(key, purge, timestamp, fence))
        return found

    async def add(
        self,
        key: Text,
        number: float = 1,
        *,
        sender: Text = b"",
        timestamp: Instant | None = None,
        persist: bool = True,
        fence: int = 0,
    ) -> EntryValue:
        """Add to a number and return the sum; a key that is not there counts as 0.

        Made once, though a broken connection may make us ask twice. To ask again yourself, give a
        `sender` and its `timestamp`: within ten minutes they are counted once.
        """
        name, at = self._number(sender, timestamp)
        total: EntryValue = await self._call(entry_calls.add(key, number, name, at, persist, fence))
        return total

    async def flip(self, key: Text, *, fence: int = 0) -> bool:
        """Turn a boolean into the other one and return it."""
        name, at = self._number()
        flipped: bool = await self._call(entry_calls.flip(key, name, at, fence))
        return flipped

    async def truncate(self, key: Text, size: int, *, fence: int = 0) -> None:
        """Cut bytes or text to `size` bytes, or fill it up with zero bytes."""
        await self._call(entry_calls.truncate(key, size, fence))

    async def rename(
        self,
        key: Text,
        new: Text,
        *,
        overwrite: bool = False,
        timestamp: Instant | None = None,
        fence: int = 0,
    ) -> bool:
        """Give an entry another key in one step; False if a newer write forbids it."""
        renamed: bool = await self._call(entry_calls.rename(key, new, overwrite, timestamp, fence))
        return renamed

    async def alias(self, key: Text, further: Text, *, fence: int = 0) -> None:
        """Let an entry be found under a further key too."""
        await self._call(entry_calls.alias(key, further, fence))

    async def range(
        self, lower: Text = b"", upper: Text = b"", *, data: bool = True
    ) -> AsyncIterator[Entry]:
        """The entries from `lower` to `upper`, both included, in order; empty: no bound."""
        page = await self.page(lower, upper, limit=_PAGE, data=data)
        async for entry in self._scan(page, data):
            yield entry

    async def match(self, pattern: Text, *, data: bool = True) -> AsyncIterator[Entry]:
        """The entries whose keys hold this regular expression (RE2), in order."""
        # The empty pattern is found in every key.
        page = await self.page(match=pattern, limit=_PAGE, data=data)
        async for entry in self._scan(page, data):
            yield entry

    async def page(
        self,
        lower: Text = b"",
        upper: Text = b"",
        *,
        match: Text = b"",
        cursor: bytes = b"",
        limit: int = 0,
        data: bool = True,
    ) -> EntryPage:
        """Some entries of a range, at most `limit` (0: as many as fit), or of a pattern.

        Give its cursor back for the next page, from any process and after any restart.
        """
        found: EntryPage = await self._call(
            entry_calls.page(lower, upper, match, cursor, limit, data)
        )
        return found

    def lock(
        self,
        key: Text,
        length: Length = 10,
        *,
        wait: Length = 0,
        owner: Text = b"",
    ) -> AsyncHeldLock:
        """Lock a key, entry or not, against changes by others: `async with`, or await its `take`.

        It ends after `length` by itself. Waits up to `wait` for another to free it, then `Locked`.
        """
        who = worker_bytes(owner) if owner else self._numbers.owner()
        return AsyncHeldLock(self, key_bytes(key), who, length, wait)

    async def watch(
        self, key: Text | None = None, *, prefix: Text = b"", lower: Text = b"", upper: Text = b""
    ) -> AsyncWatching:
        """Changes as they come: of a key, of all keys that begin so, of a range, or of all keys."""
        return await AsyncWatching(self._links, watched(key, prefix, lower, upper)).open()

    def _number(self, sender: Text = b"", timestamp: Instant | None = None) -> tuple[bytes, int]:
        own, at = self._numbers.next(self._links.number_now())
        if timestamp is not None:
            at = instant(timestamp, "timestamp")
        return worker_bytes(sender) if sender else own, at

    async def _scan(self, page: EntryPage, data: bool) -> AsyncIterator[Entry]:
        while True:
            for entry in page.entries:
                yield entry
            if not page.cursor:
                return
            page = await self.page(cursor=page.cursor, data=data)

    async def _lock(self, key: bytes, owner: bytes, lasts: int, wait: int) -> tuple[int, int]:
        """Fencing number and deadline of a lock, taken or kept."""
        give_up = time.monotonic_ns() + wait
        pause = _FIRST_PAUSE
        while True:
            try:
                call = entry_calls.lock(self._links.base(), key, owner, lasts)
                taken: tuple[int, int] = await self._call(call)
                return taken
            except Locked:
                if time.monotonic_ns() >= give_up:
                    raise
            left = (give_up - time.monotonic_ns()) / SECOND
            await asyncio.sleep(max(0.0, min(pause * random.uniform(0.5, 1.5), left)))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _unlock(self, key: bytes, fence: int) -> bool:
        try:
            await self._call(entry_calls.unlock(key, fence))
        except NotFound:
            return False
        return True
