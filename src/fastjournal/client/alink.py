"""The connection of an asyncio client: calls overlap on it, and it is opened again when it broke.

Rules:

1. Calls may overlap: each is sent at once and its answer is matched by number, so one that waits
   for a job holds nobody up. At most `max_outstanding` are on their way.
2. A broken connection is opened again by whoever needs it next. A call whose answer was lost is
   tried again as `retrying` says.
3. A call that is cancelled leaves the connection as it is; its answer is dropped when it comes, and
   jobs in it are given back.
4. Writing waits while the server does not read, as long as an answer may take.
5. A closed client stays closed, whatever was under way.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastjournal.client import calls
from fastjournal.client.calls import Call
from fastjournal.client.pipe import Pipe, open_pipe
from fastjournal.client.retrying import Attempts
from fastjournal.client.urls import Target
from fastjournal.errors import Closed, JournalError, Unavailable

__all__ = ["AsyncLink"]


class AsyncLink:
    """A connection to one journal of a daemon."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.about: dict[str, Any] = {}
        self._pipe: Pipe | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    @property
    def closed(self) -> bool:
        """It cannot be used any more."""
        return self._closed

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None

    async def _call(self, call: Call) -> Any:
        return await self._retrying(call, self.target.timeout)

    async def _retrying(self, call: Call, limit: float) -> Any:
        loop = asyncio.get_running_loop()
        attempts = Attempts(call.again, limit, loop.time())
        timeout = self.target.timeout
        while True:
            try:
                pipe = await self._connected()
                if len(call.data) > calls.SMALL:
                    calls.check_size(call, self.about)
                await pipe.can_write(timeout)
                attempts.out = True
                if attempts.repeated:
                    call = calls.sent_again(call)
                return calls.read_answer(call, await pipe.ask(call, timeout + call.wait))
            except Unavailable as error:
                told = Unavailable(f"{self.target.address}: {error}")
                pause = attempts.failed(told, loop.time())
            except JournalError as error:
                pause = attempts.failed(error, loop.time())
            await asyncio.sleep(pause)

    async def _connected(self) -> Pipe:
        pipe = self._pipe
        if pipe is not None and pipe.open:
            return pipe
        async with self._opening:
            if self._pipe is None or not self._pipe.open:
                self._pipe = await self.open_pipe()
            return self._pipe

    async def open_pipe(self) -> Pipe:
        """A connection of its own; close it."""
        if self._closed:
            raise Closed("the client is closed")
        pipe, self.about = await open_pipe(self.target)
        if self.closed:  # meanwhile
            pipe.close()
            raise Closed("the client is closed")
        return pipe

    async def listen(self, call: Call) -> Pipe:
        """A connection of its own that was told to listen; close it."""
        pipe = await self.open_pipe()
        try:
            calls.read_answer(call, await pipe.ask(call, self.target.timeout, listen=True))
        except BaseException:
            pipe.close()
            raise
        return pipe

    def server_now(self) -> int:
        """The daemon's time as far as we know it, ns since 1970."""
        return time.time_ns() + (self._pipe.ahead if self._pipe is not None else 0)

    def base(self) -> int | None:
        """What the lengths of a call count from: None, the daemon's now when the call arrives.

        A daemon that takes no lengths is sent instants of its clock, as far as we know it.
        """
        return None if "lengths" in self.about.get("serves", ()) else self.server_now()

    def number_now(self) -> int:
        """The time for numbers of changes: ours, if the daemon judges it so, else the daemon's."""
        own = "client-time" in self.about.get("serves", ())
        return time.time_ns() if own else self.server_now()
