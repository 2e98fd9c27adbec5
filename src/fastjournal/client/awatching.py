"""Changes of entries as a daemon tells them, for asyncio. Rules: those of `watching`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from fastjournal.client import calls, entry_calls, operating
from fastjournal.client.pipe import Pipe
from fastjournal.client.retrying import is_passing
from fastjournal.entry import EntryChange, Watched
from fastjournal.errors import JournalError, Unavailable
from fastjournal.wire.fj.replies import Reply

if TYPE_CHECKING:
    from fastjournal.client.alink import AsyncLink

__all__ = ["AsyncWatching"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class AsyncWatching:
    """Changes as they come; iterate over it with `async for`, or await `next`."""

    def __init__(self, link: AsyncLink, watched: Watched) -> None:
        self._link = link
        self._listen = entry_calls.listen(watched.lower, watched.upper)
        self._watched = watched
        self._closed = False
        self._pipe: Pipe | None = None

    async def open(self) -> Self:
        """Begin to listen."""
        self._pipe = await self._link.listen(self._listen)
        if self._closed:  # meanwhile
            self._pipe.close()
        return self

    async def next(self, wait: float | None = None) -> EntryChange | None:
        """The next change; None after `wait` seconds without one, or when closed."""
        try:
            async with asyncio.timeout(wait):
                return await self._next()
        except TimeoutError:
            return None

    def here(self) -> list[EntryChange]:
        """The changes that were told already, without waiting; a broken connection is a loss."""
        found = []
        pipe = self._pipe
        while pipe is not None and pipe.pushed:
            found += self._wanted(pipe.pushed.popleft())
        if pipe is None or not pipe.open:
            found.append(EntryChange(b"", at=time.time_ns()))
        return found

    @property
    def closed(self) -> bool:
        """There will be no more changes."""
        return self._closed

    @property
    def listens(self) -> bool:
        """The connection is there."""
        return self._pipe is not None and self._pipe.open

    async def check(self, seconds: float) -> None:
        """Ask whether the daemon is still there; `Unavailable` if it does not say so in time."""
        call = operating.ping()
        pipe = self._pipe
        if pipe is None:
            raise Unavailable("not connected")
        calls.read_answer(call, await pipe.ask(call, seconds))

    async def _next(self) -> EntryChange | None:
        pause = _FIRST_PAUSE
        while not self._closed:
            try:
                if not self.listens:
                    await self.open()
                    pause = _FIRST_PAUSE
                    return EntryChange(b"", at=time.time_ns())
                assert self._pipe is not None
                for change in self._wanted(await self._pipe.push()):
                    return change
            except JournalError as error:
                if self.closed:
                    return None
                if not is_passing(error):
                    raise
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, _LONGEST_PAUSE)
        return None

    def _wanted(self, push: Reply) -> list[EntryChange]:
        change = entry_calls.told(push)
        return [change] if change.lost or self._watched.holds(change.key) else []

    async def __aiter__(self) -> AsyncIterator[EntryChange]:
        while (change := await self.next()) is not None:
            yield change

    async def close(self) -> None:
        """No more changes."""
        self._closed = True
        if self._pipe is not None:
            self._pipe.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
