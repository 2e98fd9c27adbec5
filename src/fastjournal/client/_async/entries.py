"""`client.entries`: the key/value entries of a daemon's journal.

Rules: those of the embedded mapping, and

1. Names, arguments and errors are those of `journal.entries`. Touch lengths are whole seconds,
   rounded up; times on the wire are whole microseconds.
2. `setdefault` and `pop` are one step for everybody else: the first stores only where nothing is,
   the second holds the key's lock meanwhile.
3. `add` and `flip` are made once, however often a broken connection makes us send them.
4. Scans go page by page by a cursor, so they survive a broken connection and a restarted daemon.
5. What is refused for its arguments is refused by the call, not by what is done with its result.
6. Reading may be served by a node that does not lead, where the URL asks for that; what a change
   depends on is read from the primary (`current`).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from fastjournal.arguments import Instant, Length, Text, key_bytes, worker_bytes
from fastjournal.client import entry_calls
from fastjournal.client._async.caller import AsyncCaller
from fastjournal.client._async.handles import AsyncHeldLock
from fastjournal.client._async.watch import AsyncWatching
from fastjournal.client.asyncio_transport import at_once, sleep
from fastjournal.client.calls import Call
from fastjournal.client.change_numbers import ChangeNumbers
from fastjournal.client.mappings import AsyncMapping
from fastjournal.client.retry import Backoff
from fastjournal.clock import SECOND
from fastjournal.entry_model import Entry, EntryPage, watched
from fastjournal.entry_value import EntryValue, from_value, to_value
from fastjournal.errors import AlreadyExists, JournalError, Locked, NotFound

__all__ = ["AsyncEntries"]

_PAGE = _TOGETHER = 1000
_MISSING: Any = object()
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 0.25
_POP_LASTS = 10


class AsyncEntries(AsyncMapping):
    """The entries of a daemon's journal."""

    def __init__(self, caller: AsyncCaller, *, current: bool = False) -> None:
        """`current`: whatever the URL says, read from the primary."""
        self._caller = caller
        self._call = caller.call
        self._look = caller.look if caller.follows and not current else caller.call
        self._numbers = ChangeNumbers()
        self.current = self if current or not caller.follows else AsyncEntries(caller, current=True)
        """The same, read from the primary."""

    def __repr__(self) -> str:
        return f"<entries of {self._caller.target.address}>"

    async def has(self, key: Text) -> bool:
        """Whether there is an entry of this key."""
        try:
            await self.entry(key, data=False)
        except NotFound:
            return False
        return True

    async def count(self) -> int:
        """How many entries there are, each counted once whatever its keys."""
        count: int = await self._look(entry_calls.count())
        return count

    async def get(self, key: Text, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        try:
            return from_value(*await self._look(entry_calls.get(key)))
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
        now = None if ttl is None and touch is None else self._caller.base()
        call = entry_calls.set_entry(
            now, key, value, ttl, expires, touch, overwrite, persist, timestamp, fence,
            self._caller.lasting(),
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
        now = self._caller.base()
        detail = self._caller.entry_detail()
        call = entry_calls.entry(now, key, data, lease, worker, skip_worked_on, expires, detail)
        changes = lease is not None or expires is not None
        found: Entry = await (self._call(call) if changes else self._look(call))
        return found

    async def setdefault(self, key: Text, default: EntryValue = None) -> Any:
        """The value of a key, stored first if there was none; in one step."""
        to_value(default)
        while True:
            value: EntryValue = await self.current.get(key, _MISSING)
            if value is not _MISSING:
                return value
            try:
                await self.set(key, default, overwrite=False)
                return default
            except AlreadyExists:
                continue

    async def pop(self, key: Text, default: Any = _MISSING) -> Any:
        """Delete an entry and return its value; in one step."""
        async with self.lock(key, _POP_LASTS, wait=self._caller.target.timeout) as lock:
            value = await self.current.get(key, _MISSING)
            if value is not _MISSING:
                await lock.delete()
                return value
        if default is _MISSING:
            raise KeyError(key)
        return default

    async def update(self, other: Any = (), /, **named: EntryValue) -> None:
        """Store many, sent together."""
        pairs = other.items() if isinstance(other, Mapping) else other
        lasting = self._caller.lasting()
        calls = [
            entry_calls.set_entry(None, key, value, lasting=lasting)
            for key, value in [*pairs, *named.items()]
        ]
        for stored in await self._caller.call_many(calls, together=_TOGETHER):
            if isinstance(stored, JournalError):
                raise stored

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
        name, at = self._numbers.of(self._caller.number_now(), sender, timestamp)
        lasting = self._caller.lasting()
        call = entry_calls.add(key, number, name, at, persist, fence, lasting)
        total: EntryValue = await self._call(call)
        return total

    async def flip(self, key: Text, *, fence: int = 0) -> bool:
        """Turn a boolean into the other one and return it."""
        name, at = self._numbers.next(self._caller.number_now())
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

    def range(
        self, lower: Text = b"", upper: Text = b"", *, data: bool = True
    ) -> AsyncIterator[Entry]:
        """The entries from `lower` to `upper`, both included, in order; empty: no bound."""
        return self._scan(entry_calls.page(lower, upper, limit=_PAGE, data=data), data)

    def match(self, pattern: Text, *, data: bool = True) -> AsyncIterator[Entry]:
        """The entries whose keys hold this regular expression (RE2), in order."""
        if not pattern:  # which is found in every key
            return self.range(data=data)
        return self._scan(entry_calls.page(match=pattern, data=data), data)

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
        detail = self._caller.entry_detail()
        call = entry_calls.page(lower, upper, match, cursor, limit, data, detail)
        found: EntryPage = await self._look(call)
        return found

    def lock(
        self,
        key: Text,
        length: Length = 10,
        *,
        wait: Length = 0,
        owner: Text = b"",
    ) -> AsyncHeldLock:
        """Lock a key, entry or not, against changes by others; use it as an async context manager.

        It ends after `length` by itself. Waits up to `wait` for another to free it, then `Locked`.
        """
        who = worker_bytes(owner) if owner else self._numbers.owner()
        lock = AsyncHeldLock(self.current, key_bytes(key), who, length, wait)
        at_once(lock.take)
        return lock

    async def watch(
        self, key: Text | None = None, *, prefix: Text = b"", lower: Text = b"", upper: Text = b""
    ) -> AsyncWatching:
        """Changes as they come: of a key, of all keys that begin so, of a range, or of all keys."""
        return await AsyncWatching.open(self._caller, watched(key, prefix, lower, upper))

    async def _scan(self, call: Call, data: bool) -> AsyncIterator[Entry]:
        while True:
            page: EntryPage = await self._look(call)
            for entry in page.entries:
                yield entry
            if not page.cursor:
                return
            call = entry_calls.page(cursor=page.cursor, data=data)

    async def _lock(self, key: bytes, owner: bytes, lasts: int, wait: int) -> tuple[int, int]:
        """Fencing number and deadline of a lock, taken or kept."""
        give_up = time.monotonic_ns() + wait
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                call = entry_calls.lock(self._caller.base(), key, owner, lasts)
                taken: tuple[int, int] = await self._call(call)
                return taken
            except Locked:
                if time.monotonic_ns() >= give_up:
                    raise
            left = (give_up - time.monotonic_ns()) / SECOND
            await sleep(max(0.0, min(backoff.next(), left)))

    async def _unlock(self, key: bytes, fence: int) -> bool:
        try:
            await self._call(entry_calls.unlock(key, fence))
        except NotFound:
            return False
        return True
