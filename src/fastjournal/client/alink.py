"""The connection of an asyncio client: calls overlap on it, and it is opened again when it broke.

Rules:

1. Calls may overlap: each is sent at once and its answer is matched by number, so one that waits
   for a job holds nobody up. At most `max_outstanding` are on their way.
2. A broken connection is opened again by whoever needs it next. A call whose answer was lost is
   sent again with a growing, jittered pause until its time limit is over, if it may be.
3. A call that is cancelled leaves the connection as it is; its answer is dropped when it comes.
4. Writing waits while the server does not read.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

from fastjournal.client import protocol
from fastjournal.client.link import is_passing
from fastjournal.client.pipe import Pipe, open_pipe
from fastjournal.client.protocol import Call
from fastjournal.client.urls import Target
from fastjournal.errors import Closed, JournalError, Unavailable

__all__ = ["AsyncLink"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0


class AsyncLink:
    """A connection to one journal of a daemon."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.about: dict[str, Any] = {}
        self._pipe: Pipe | None = None
        self._opening = asyncio.Lock()
        self._closed = False

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
        give_up = loop.time() + limit
        pause = _FIRST_PAUSE
        sent = False
        while True:
            try:
                pipe = await self._connected()
                if len(call.data) > protocol.SMALL:
                    protocol.check_size(call, self.about)
                if not pipe.writable.is_set():
                    await pipe.writable.wait()
                repeated, sent = sent, True
                async with asyncio.timeout(self.target.timeout + call.wait):
                    if repeated:
                        call = call._replace(data=protocol.sent_again(call))
                    reply = await pipe.send(call)
                return protocol.read(call, reply, repeated=repeated)
            except TimeoutError:
                raise Unavailable(f"{self.target.address}: no answer in time") from None
            except JournalError as error:
                wait = pause * random.uniform(0.5, 1.5)
                late = loop.time() + wait > give_up
                if late or not is_passing(error) or (sent and not call.again):
                    raise
            await asyncio.sleep(wait)
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def _connected(self) -> Pipe:
        pipe = self._pipe
        if pipe is not None and pipe.open:
            return pipe
        if self._closed:
            raise Closed("the client is closed")
        async with self._opening:
            if self._pipe is None or not self._pipe.open:
                self._pipe, self.about = await open_pipe(self.target)
            return self._pipe

    def server_now(self) -> int:
        """The daemon's time as far as we know it, ns since 1970."""
        return time.time_ns() + (self._pipe.ahead if self._pipe is not None else 0)
