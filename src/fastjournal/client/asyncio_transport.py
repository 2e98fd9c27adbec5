"""Connections to a daemon for asyncio: calls overlap on one, and it is opened again when it broke.

`blocking_transport` has the same names, without `await`.

Rules:

1. Calls may overlap: each is sent at once and its answer is matched by number, so one that waits
   for a job holds nobody up. At most `max_outstanding` are on their way.
2. When the connection ends, everybody who waits for an answer is told `Unavailable`: nobody knows
   what became of the request.
3. Every wait has an end. A connection on which nothing came while an answer was due, or which could
   not be written to for so long, is ended: its peer is gone without a word. One timer serves all
   calls: it rings when the first of them is late, or before.
4. An answer that nobody waits for any more is dropped; the jobs in it are given back.
5. Pushes stay until they are taken: whoever gives up waiting for one loses none. Whoever takes none
   loses them in the end, and is told so.
6. A closed pool stays closed, whatever was under way.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from asyncio import Lock, sleep
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias

from fastjournal.client import leases, operator_calls
from fastjournal.client.calls import Call, read_answer
from fastjournal.client.retry import Search, error_of_end
from fastjournal.client.urls import Target, tls_context
from fastjournal.errors import Closed, JournalError, Unavailable, because
from fastjournal.wire.fj.client import Conversation
from fastjournal.wire.fj.replies import Reply

__all__ = ["AsyncConnection", "AsyncPool", "AsyncSent", "Lock", "at_once", "sleep"]

_MOST_PUSHES = 10_000
_NEVER: Final = math.inf

AsyncSent: TypeAlias = list[tuple[Call, asyncio.Future[Reply]]]
"""Calls on their way."""


def at_once(work: Callable[[], Awaitable[Any]]) -> None:
    """What a blocking constructor does before it returns; here whoever needs it awaits it."""


class AsyncConnection:
    """A connection; made by `open`, it has said HELLO. Has the methods of `asyncio.Protocol`."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.about: dict[str, Any] = {}
        """What the server says of itself."""
        self.ahead = 0
        """The server's clock minus ours, ns; right to about half of what HELLO took."""
        self.fault: JournalError | None = None
        """Why it ended."""
        self._conversation = Conversation()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_open = False
        self._writable = asyncio.Event()
        self._pushed: deque[Reply] = deque()
        self._news = asyncio.Event()
        """A push has come, or the connection has ended."""
        self._heard = 0.0
        """Loop time of the last bytes of the daemon."""
        self._alarm: asyncio.TimerHandle | None = None
        self._rings_at = _NEVER
        """Loop time at which the first of the answers under way is late, or earlier."""

    @classmethod
    async def open(cls, target: Target) -> AsyncConnection:
        """Connect and say HELLO; of several nodes to the one that serves."""
        search = Search(target)
        while True:
            node = search.next()
            try:
                return await cls._open_at(node)
            except Unavailable as error:
                search.failed(node, error)

    @classmethod
    async def _open_at(cls, target: Target) -> AsyncConnection:
        """Connect to this node and say HELLO."""
        loop = asyncio.get_running_loop()
        connection = cls(target)
        protocol: Any = connection  # by its methods
        try:
            async with asyncio.timeout(target.connect_timeout):
                if target.path:
                    await loop.create_unix_connection(lambda: protocol, target.path)
                else:
                    tls = tls_context(target)
                    name = target.host if tls else None
                    await loop.create_connection(
                        lambda: protocol, target.host, target.port, ssl=tls, server_hostname=name
                    )
                await connection._say_hello()
                return connection
        except BaseException as error:
            connection.close()
            if not isinstance(error, (OSError, TimeoutError)):
                raise
            unavailable = Unavailable(f"{target.address}: {str(error) or 'no answer in time'}")
            raise because(unavailable, error) from error

    async def _say_hello(self) -> None:
        target = self.target
        sent = time.time_ns()
        call = operator_calls.hello(target, sent)
        self.about, then = read_answer(call, await self._begin(call))
        self.ahead = then - (sent + time.time_ns()) // 2

    @property
    def closed(self) -> bool:
        """It cannot be used any more."""
        return not self._is_open

    @property
    def is_writable(self) -> bool:
        """It is open, and the daemon reads."""
        return self._is_open and self._writable.is_set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The daemon is there."""
        self._transport = transport  # type: ignore[assignment]
        self._is_open = True
        self._writable.set()
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """The daemon is gone."""
        self._end(Unavailable(f"connection lost: {exc or 'closed by the daemon'}"))

    def eof_received(self) -> bool:
        """The daemon says no more: the connection ends."""
        return False

    def pause_writing(self) -> None:
        """The daemon does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It reads again."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Answers and pushes."""
        self._heard = self._loop.time()
        conversation = self._conversation
        try:
            answers = conversation.receive(data)
        except JournalError as error:
            self._end(error)
            return
        for (call, future, _), reply in answers:
            if reply.is_push:
                self._take_push(reply)
            elif not future.done():
                future.set_result(reply)
            else:
                self._undo(call, reply)
        fault = conversation.fault
        if isinstance(fault, JournalError):
            self._end(fault)

    async def ask(self, call: Call, *, listen: bool = False) -> Any:
        """Send a call and wait for its answer; `Unavailable` if nobody knows the outcome."""
        if not self._writable.is_set():
            await self.can_write()
        until = self._loop.time() + self.target.timeout + call.wait
        future = self._begin(call, until, listen=listen)
        if until < self._rings_at:
            self._ring_at(until)
        try:
            reply = await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                self._undo(call, future.result())  # it came just before
            raise
        return read_answer(call, reply)

    async def send(self, calls: Sequence[Call]) -> AsyncSent:
        """Send calls that do not wait, together; `receive` gives what came of them."""
        await self.can_write()
        return [(call, self._begin(call)) for call in calls]

    async def receive(self, sent: AsyncSent) -> list[Any]:
        """The values of calls that were sent, in order; an error stands in the place of its value.

        Only those of the daemon: one of the connection is raised.
        """
        limit = self.target.timeout + sum([call.wait for call, _ in sent])
        futures = [future for _, future in sent]
        late = self._loop.call_later(limit, self._late, futures, self._loop.time())
        values: list[Any] = []
        try:
            for call, future in sent:
                reply = await future
                try:
                    values.append(read_answer(call, reply))
                except JournalError as error:
                    values.append(error)
        finally:
            late.cancel()
            for future in futures:
                future.cancel()
        return values

    async def pushes(self, seconds: float) -> list[Reply]:
        """Wait for pushes; none if nothing came in time. With 0, those that are here already."""
        if not self._pushed and seconds > 0 and self._is_open:
            self._news.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._news.wait()
            except TimeoutError:
                return []
        if not self._pushed and not self._is_open:
            raise self._ended()
        taken = list(self._pushed)
        self._pushed.clear()
        return taken

    async def can_write(self) -> None:
        """Wait while the daemon does not read, as long as an answer may take."""
        if self._writable.is_set():
            return
        try:
            async with asyncio.timeout(self.target.timeout):
                await self._writable.wait()
        except TimeoutError:
            self._end(Unavailable("the daemon does not read"))
            raise self._ended() from None

    def close(self) -> None:
        """Give the connection up; whoever waits for something on it wakes up."""
        if self._transport is not None:
            self._transport.close()
        self._end(Closed("the client is closed"))

    def _begin(
        self, call: Call, until: float = _NEVER, *, listen: bool = False
    ) -> asyncio.Future[Reply]:
        """Send a request; the future is its reply, which must be there `until` this loop time."""
        if not self._is_open or self._transport is None:
            raise self._ended()
        future: asyncio.Future[Reply] = self._loop.create_future()
        note = (call, future, until)
        self._transport.write(self._conversation.adopt(note, call.data, listen=listen))
        return future

    def _take_push(self, push: Reply) -> None:
        if len(self._pushed) >= _MOST_PUSHES:
            self._pushed.clear()
            push = Reply(push.identifier, push.flags, push.timestamp)  # anything may have happened
        self._pushed.append(push)
        self._news.set()

    def _ring_at(self, when: float) -> None:
        """See then whether an answer is late."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(when, self._ring)
        self._rings_at = when

    def _ring(self) -> None:
        now, self._rings_at = self._rings_at, _NEVER
        self._alarm = None
        next_one = _NEVER
        for call, future, until in self._conversation.waiting():
            if future.done():  # nobody waits for it any more
                continue
            if until <= now:
                self._late((future,), until - self.target.timeout - call.wait)
            elif until < next_one:
                next_one = until
        if self._is_open and next_one != _NEVER:
            self._ring_at(next_one)

    def _late(self, futures: Sequence[asyncio.Future[Reply]], began: float) -> None:
        """The answers are not there in time."""
        if self._heard < began:
            self._end(Unavailable("no answer in time"))
        for future in futures:
            _fail(future, Unavailable(f"{self.target.address}: no answer in time"))

    def _undo(self, call: Call, reply: Reply) -> None:
        """Nobody wants this answer any more."""
        undo = leases.give_back(call, reply)
        if undo is not None and self._is_open:
            self._begin(undo)

    def _end(self, error: JournalError) -> None:
        self._is_open = False
        self.fault = self.fault or error
        self._news.set()
        self._writable.set()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for _, future, _ in self._conversation.abandon():
            _fail(future, self._ended())
        if self._transport is not None:
            self._transport.abort()

    def _ended(self) -> JournalError:
        """What is told to whoever wanted something of a connection that has ended."""
        fault = self.fault or Unavailable("not connected")
        return error_of_end(fault, self.target.address, greeted=bool(self.about))


def _fail(future: asyncio.Future[Reply], error: JournalError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # if nobody waits for it, nobody is to be told


class AsyncPool:
    """The one connection of a client, shared by all its calls."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.about: dict[str, Any] = {}
        """What the daemon said of itself: version, journal, sync policy, roles, limits."""
        self.ahead = 0
        """The server's clock minus ours, ns."""
        self._closed = False
        self._shared: AsyncConnection | None = None
        self._opening = asyncio.Lock()

    @property
    def closed(self) -> bool:
        """It gives no connection any more."""
        return self._closed

    def used_last(self) -> AsyncConnection | None:
        """The connection, if it is there and can be written to; give it back."""
        shared = self._shared
        return shared if shared is not None and shared.is_writable else None

    async def take(self) -> AsyncConnection:
        """The connection, which can be written to; give it back."""
        shared = self._shared
        if shared is None or shared.closed:
            async with self._opening:
                if self._shared is None or self._shared.closed:
                    self._shared = await self.open()
                shared = self._shared
        await shared.can_write()
        return shared

    def give_back(self, connection: AsyncConnection) -> None:
        """It is no longer needed here."""

    async def open(self) -> AsyncConnection:
        """A connection of its own; close it."""
        if self._closed:
            raise Closed("the client is closed")
        made = await AsyncConnection.open(self.target)
        if self.closed:  # meanwhile
            made.close()
            raise Closed("the client is closed")
        self.about, self.ahead = made.about, made.ahead
        return made

    async def close(self) -> None:
        """Close the connection."""
        self._closed = True
        if self._shared is not None:
            self._shared.close()
