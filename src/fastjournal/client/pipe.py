"""One asyncio connection to a daemon: requests out, answers matched by number, pushes queued.

Rules:

1. When the connection ends, everybody who waits for an answer is told `Unavailable`: nobody knows
   what became of the request.
2. An answer that nobody waits for any more is dropped; the jobs in it are given back.
3. Every wait has an end. A connection on which nothing came while an answer was due, or which could
   not be written to for so long, is ended: its peer is gone without a word.
4. Pushes stay until they are taken: whoever gives up waiting for one loses none.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from fastjournal.client import calls, leases, operating
from fastjournal.client.calls import Call
from fastjournal.client.retrying import SILENCE
from fastjournal.client.urls import Target, tls_context
from fastjournal.errors import Closed, JournalError, Unavailable
from fastjournal.wire.fj.client import Conversation
from fastjournal.wire.fj.replies import Reply

__all__ = ["Pipe", "open_pipe"]

_MOST_PUSHES = 10_000


class Pipe(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.open = False
        self.fault: JournalError | None = None
        self.writable = asyncio.Event()
        self.pushed: deque[Reply] = deque()
        self._told = asyncio.Event()
        """A push has come, or the connection has ended."""
        self._heard = 0.0
        """Loop time of the last bytes of the daemon."""
        self.ahead = 0
        """The server's clock minus ours, ns."""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The daemon is there."""
        self._transport = transport  # type: ignore[assignment]
        self.open = True
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The daemon is gone."""
        self._end(Unavailable(f"connection lost: {exc or 'closed by the daemon'}"))

    def pause_writing(self) -> None:
        """The daemon does not read."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        """Answers and pushes."""
        self._heard = asyncio.get_running_loop().time()
        try:
            answers = self.conversation.receive(data)
        except JournalError as error:
            self._end(error)
            return
        for (call, future), reply in answers:
            if reply.is_push:
                self._take_push(reply)
            elif not future.done():
                future.set_result(reply)
            else:
                self._undo(call, reply)
        if self.conversation.fault is not None:
            self._end(Unavailable(str(self.conversation.fault)))

    def _take_push(self, push: Reply) -> None:
        """Whoever does not take its pushes loses them, and is told so."""
        if len(self.pushed) >= _MOST_PUSHES:
            self.pushed.clear()
            push = Reply(push.identifier, push.flags, push.timestamp)
        self.pushed.append(push)
        self._told.set()

    async def push(self) -> Reply:
        """The next push; raises why when the connection has ended."""
        while not self.pushed:
            if not self.open:
                raise self.fault or Unavailable("not connected")
            self._told.clear()
            try:
                async with asyncio.timeout(SILENCE):
                    await self._told.wait()
            except TimeoutError:
                await self.ask(operating.ping(), SILENCE)
        return self.pushed.popleft()

    async def can_write(self, seconds: float) -> None:
        """Wait while the daemon does not read."""
        if self.writable.is_set():
            return
        try:
            async with asyncio.timeout(seconds):
                await self.writable.wait()
        except TimeoutError:
            self._end(Unavailable("the daemon does not read"))
            raise Unavailable("the daemon does not read") from None

    async def ask(self, call: Call, seconds: float, *, listen: bool = False) -> Reply:
        """Send a request and wait so many seconds for its reply."""
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds):
                future = self.send(call, listen=listen)
                try:
                    return await future
                except asyncio.CancelledError:
                    if not future.cancelled() and future.exception() is None:
                        self._undo(call, future.result())  # it came just before
                    raise
        except TimeoutError:
            if self._heard < began:
                self._end(Unavailable("no answer in time"))
            raise Unavailable("no answer in time") from None

    def _undo(self, call: Call, reply: Reply) -> None:
        """Nobody wants this answer any more."""
        undo = leases.give_back(call, reply)
        if undo is not None and self.open:
            self.send(undo).add_done_callback(lambda f: f.cancelled() or f.exception())

    def send(self, call: Call, *, listen: bool = False) -> asyncio.Future[Reply]:
        """Send a request; the future is its reply."""
        if not self.open or self._transport is None:
            raise self.fault or Unavailable("not connected")
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        data = self.conversation.adopt((call, future), call.data, listen=listen)
        self._transport.write(data)
        return future

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()
        self._end(Closed("the client is closed"))

    def _end(self, error: JournalError) -> None:
        self.open = False
        self.fault = self.fault or error
        self._told.set()
        self.writable.set()
        for _, future in self.conversation.abandon():
            if not future.done():
                future.set_exception(Unavailable(str(error)))
        if self._transport is not None:
            self._transport.abort()


async def open_pipe(target: Target) -> tuple[Pipe, dict[str, Any]]:
    """A connection that has said HELLO, and what the daemon said."""
    loop = asyncio.get_running_loop()
    pipe: Pipe | None = None
    try:
        async with asyncio.timeout(target.connect_timeout):
            if target.path:
                _, pipe = await loop.create_unix_connection(Pipe, target.path)
            else:
                tls = tls_context(target)
                name = target.host if tls else None
                _, pipe = await loop.create_connection(
                    Pipe, target.host, target.port, ssl=tls, server_hostname=name
                )
            sent = time.time_ns()
            call = operating.hello(target.name, target.token, target.journal, sent)
            about, then = calls.read_answer(call, await pipe.send(call))
            pipe.ahead = then - (sent + time.time_ns()) // 2
            return pipe, about
    except BaseException as error:
        if pipe is not None:
            pipe.close()
        if not isinstance(error, (OSError, TimeoutError)):
            raise
        raise Unavailable(f"{target.address}: {str(error) or 'no answer in time'}") from error
