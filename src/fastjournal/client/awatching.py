"""Changes of entries as a daemon tells them, for asyncio. Rules: those of `watching`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from fastjournal.client import entry_calls, operating, protocol
from fastjournal.client.link import is_passing
from fastjournal.client.pipe import Pipe, open_pipe
from fastjournal.client.watching import SILENCE
from fastjournal.entry import EntryChange, Watched
from fastjournal.errors import JournalError, Unavailable
from fastjournal.wire.fj import Reply

if TYPE_CHECKING:
    from fastjournal.client.alink import AsyncLink

__all__ = ["AsyncWatching"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class AsyncWatching:
    """Changes as they come; iterate over it with `async for`, or await `next`."""

    def __init__(self, link: AsyncLink, watched: Watched) -> None:
        self._target = link.target
        self._listen = entry_calls.listen(watched.lower, watched.upper)
        self._watched = watched
        self._closed = False
        self._pipe: Pipe | None = None

    async def open(self) -> Self:
        """Begin to listen."""
        pipe = (await open_pipe(self._target))[0]
        try:
            protocol.read(self._listen, await pipe.send(self._listen, listen=True))
        except BaseException:
            pipe.close()
            raise
        self._pipe = pipe
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
        while pipe is not None and not pipe.pushed.empty():
            found += self._wanted(pipe.pushed.get_nowait())
        if pipe is None or not pipe.open:
            found.append(EntryChange(b"", at=time.time_ns()))
        return found

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
        try:
            async with asyncio.timeout(seconds):
                protocol.read(call, await pipe.send(call))
        except TimeoutError:
            pipe.close()
            raise Unavailable(f"{self._target.address}: no answer in time") from None

    async def _next(self) -> EntryChange | None:
        pause = _FIRST_PAUSE
        while not self._closed:
            try:
                if not self.listens:
                    await self.open()
                    pause = _FIRST_PAUSE
                    return EntryChange(b"", at=time.time_ns())
                assert self._pipe is not None
                for change in self._wanted(await self._push(self._pipe)):
                    return change
            except JournalError as error:
                if not is_passing(error):
                    raise
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, _LONGEST_PAUSE)
        return None

    async def _push(self, pipe: Pipe) -> Reply:
        """The next push; wakes up when the connection ends."""
        while True:
            getting = asyncio.ensure_future(pipe.pushed.get())
            ending = asyncio.ensure_future(pipe.ended.wait())
            try:
                done, _ = await asyncio.wait(
                    (getting, ending), timeout=SILENCE, return_when=asyncio.FIRST_COMPLETED
                )
                if getting in done:
                    return getting.result()
                if ending in done:
                    raise Unavailable(f"{self._target.address}: the connection was lost")
            finally:
                getting.cancel()
                ending.cancel()
            await self.check(SILENCE)

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
