"""Events of a daemon as they come, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from fastjournal.client import operating
from fastjournal.client.pipe import Pipe
from fastjournal.model import Event

__all__ = ["AsyncListening"]


class AsyncListening:
    """Events of queues as they come; iterate over it with `async for`, or await `next`."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe

    async def next(self, wait: float | None = None) -> Event | None:
        """The next event; None after `wait` seconds without one.

        `Unavailable` when the connection is lost: what happened since is not known.
        """
        try:
            async with asyncio.timeout(wait):
                return operating.event(await self._pipe.push())
        except TimeoutError:
            return None

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event

    async def close(self) -> None:
        """No more events."""
        self._pipe.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
