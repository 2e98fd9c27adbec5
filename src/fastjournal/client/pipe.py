"""One asyncio connection to a daemon: requests out, answers matched by number, pushes queued.

Rules:

1. When the connection ends, everybody who waits for an answer is told `Unavailable`: nobody knows
   what became of the request.
2. An answer that nobody waits for any more is dropped.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastjournal.client import operating, protocol
from fastjournal.client.protocol import Call
from fastjournal.client.urls import Target, tls_context
from fastjournal.errors import Closed, JournalError, Unavailable
from fastjournal.wire.conversation import Conversation
from fastjournal.wire.fj import Reply

__all__ = ["Pipe", "open_pipe"]

_MOST_PUSHES = 10_000


class Pipe(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.open = False
        self.fault: JournalError | None = None
        self.writable = asyncio.Event()
        self.ended = asyncio.Event()
        self.pushed: asyncio.Queue[Reply] = asyncio.Queue()
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
        try:
            answers = self.conversation.receive(data)
        except JournalError as error:
            self._end(error)
            return
        for note, reply in answers:
            if reply.is_push:
                self._take_push(reply)
            elif not note.done():
                note.set_result(reply)
        if self.conversation.fault is not None:
            self._end(Unavailable(str(self.conversation.fault)))

    def _take_push(self, push: Reply) -> None:
        """Whoever does not take its pushes loses them, and is told so."""
        if self.pushed.qsize() >= _MOST_PUSHES:
            while not self.pushed.empty():
                self.pushed.get_nowait()
            push = push._replace(pairs=())
        self.pushed.put_nowait(push)

    def send(self, call: Call, *, listen: bool = False) -> asyncio.Future[Reply]:
        """Send a request; the future is its reply."""
        if not self.open or self._transport is None:
            raise self.fault or Unavailable("not connected")
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        data = self.conversation.adopt(future, call.data, listen=listen)
        self._transport.write(data)
        return future

    def close(self) -> None:
        """End the connection."""
        if self._transport is not None:
            self._transport.close()
        self._end(Closed("the client is closed"))

    def _end(self, error: JournalError) -> None:
        self.open = False
        self.ended.set()
        self.fault = self.fault or error
        self.writable.set()
        for future in self.conversation.abandon():
            if not future.done():
                future.set_exception(Unavailable(str(error)))
        if self._transport is not None:
            self._transport.abort()


async def open_pipe(target: Target) -> tuple[Pipe, dict[str, Any]]:
    """A connection that has said HELLO, and what the daemon said."""
    loop = asyncio.get_running_loop()
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
            about, then = protocol.read(call, await pipe.send(call))
            pipe.ahead = then - (sent + time.time_ns()) // 2
            return pipe, about
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{target.address}: {str(error) or 'no answer in time'}") from error
