"""Changes of entries as a daemon tells them.

Rules:

1. A watch has a connection of its own. When it breaks it is opened again and listens again; then
   one change with an empty key says that everything may have changed.
2. The same is told when more has changed than we took: a slow watcher is collapsed, never cut.
3. A connection that has been silent for long is asked whether it is still there.
4. A closed watch, and one whose client is closed, has no next change.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from typing import Self

from fastjournal.client import entry_calls, operator_calls
from fastjournal.client._async.caller import AsyncCaller
from fastjournal.client.asyncio_transport import AsyncConnection, Lock, sleep
from fastjournal.client.retry import LONGEST_SILENCE, Backoff, is_passing
from fastjournal.entry_model import EntryChange, Watched
from fastjournal.errors import Closed, JournalError, Unavailable

__all__ = ["AsyncWatching"]

_ROUNDS = 64  # reads of what has arrived at once
_FIRST_PAUSE = 0.05


class AsyncWatching:
    """Changes as they come: iterate over it, or ask `next`. Close it, or use `async with`."""

    def __init__(self, caller: AsyncCaller, watched: Watched) -> None:
        self._caller = caller
        self._watched = watched
        self._listen = entry_calls.listen(watched.lower, watched.upper)
        self._changes: deque[EntryChange] = deque()
        self._lock = Lock()
        self._closed = False
        self._heard = 0.0
        self._connection: AsyncConnection | None = None

    @classmethod
    async def open(cls, caller: AsyncCaller, watched: Watched) -> Self:
        """Begin to listen."""
        watch = cls(caller, watched)
        await watch._connect()
        return watch

    @property
    def closed(self) -> bool:
        """There will be no more changes."""
        return self._closed

    async def next(self, wait: float | None = None) -> EntryChange | None:
        """The next change; None after `wait` seconds without one, or when closed."""
        give_up = None if wait is None else time.monotonic() + wait
        backoff = Backoff(_FIRST_PAUSE)
        async with self._lock:
            while not self._closed:
                if self._changes:
                    return self._changes.popleft()
                left = LONGEST_SILENCE if give_up is None else max(0.0, give_up - time.monotonic())
                try:
                    await self._read(min(left, LONGEST_SILENCE))
                    backoff.reset()
                except JournalError as error:
                    if self.closed or isinstance(error, Closed):
                        return None
                    if not is_passing(error):
                        raise
                    await sleep(min(backoff.next(), left))
                if not self._changes and give_up is not None and time.monotonic() >= give_up:
                    return None
            return None

    async def here(self, max_silence: float) -> list[EntryChange]:
        """The changes that have arrived, without waiting; `Unavailable` if the connection broke.

        One that was silent for `max_silence` seconds is asked first whether it is still there.
        """
        async with self._lock:
            if self._connection is None:
                raise Unavailable("the connection was lost")
            found: list[EntryChange] = []
            for _ in range(_ROUNDS):
                await self._read(0.0, max_silence)
                if not self._changes:
                    break
                found += self._changes
                self._changes.clear()
            return found

    async def _read(self, seconds: float, max_silence: float = LONGEST_SILENCE) -> None:
        """Take what comes within so many seconds; opens the connection again if it broke."""
        connection = self._connection
        if connection is None:
            await self._connect()
            self._changes.append(EntryChange(b"", at=self._caller.server_now()))
            return
        try:
            pushes = await connection.pushes(seconds)
            if pushes:
                self._heard = time.monotonic()
            elif time.monotonic() - self._heard >= max_silence:
                await connection.ask(operator_calls.ping())
                pushes = await connection.pushes(0.0)
                self._heard = time.monotonic()
        except JournalError:
            self._connection = None
            connection.close()
            raise
        for push in pushes:
            change = entry_calls.read_change(push)
            if change.lost or self._watched.holds(change.key):
                self._changes.append(change)

    async def _connect(self) -> None:
        if self._closed:
            raise Closed("the watch is closed")
        connection = await self._caller.pool.open()
        try:
            await connection.ask(self._listen, listen=True)
        except BaseException:
            connection.close()
            raise
        self._heard = time.monotonic()
        self._connection = connection
        if self.closed:  # meanwhile
            connection.close()

    async def __aiter__(self) -> AsyncIterator[EntryChange]:
        while (change := await self.next()) is not None:
            yield change

    async def close(self) -> None:
        """No more changes."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
