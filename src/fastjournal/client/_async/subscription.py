"""Events of queues as a daemon tells them.

Rules:

1. A subscription has a connection of its own. When it breaks, whoever asks for the next event is
   told `Unavailable`: what happened since is not known.
2. A connection that has been silent for long is asked whether it is still there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Self

from fastjournal.arguments import Text
from fastjournal.client import operator_calls
from fastjournal.client.asyncio_transport import AsyncConnection, AsyncPool, Lock
from fastjournal.client.retry import LONGEST_SILENCE
from fastjournal.model import Event

__all__ = ["AsyncListening"]


class AsyncListening:
    """Events of queues as they come: iterate over it, or ask `next`. Close it, or use `async with`.

    Several may ask; each event is told to one of them.
    """

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self._events: deque[Event] = deque()
        self._lock = Lock()

    @classmethod
    async def open(cls, pool: AsyncPool, queue: Text | None) -> Self:
        """Listen to a queue, or to all."""
        call = operator_calls.listen(queue)
        connection = await pool.open()
        try:
            await connection.ask(call, listen=True)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    async def next(self, wait: float | None = None) -> Event | None:
        """The next event; None after `wait` seconds without one.

        `Unavailable` when the connection is lost: what happened since is not known.
        """
        heard = time.monotonic()
        give_up = None if wait is None else heard + wait
        async with self._lock:
            while not self._events:
                left = LONGEST_SILENCE if give_up is None else max(0.0, give_up - time.monotonic())
                for push in await self._connection.pushes(min(left, LONGEST_SILENCE)):
                    self._events.append(operator_calls.event(push))
                if self._events:
                    break
                if give_up is not None and time.monotonic() >= give_up:
                    return None
                if time.monotonic() - heard >= LONGEST_SILENCE:
                    await self._connection.ask(operator_calls.ping())
                    heard = time.monotonic()
            return self._events.popleft()

    async def __aiter__(self) -> AsyncIterator[Event]:
        while (event := await self.next()) is not None:
            yield event

    async def close(self) -> None:
        """No more events."""
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
