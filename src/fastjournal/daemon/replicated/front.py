"""The ports for clients: whoever comes in is handed to who speaks for its journal on this node.

Rules:

1. The ports of `listen` are open on every node, whatever it leads. The first message says which
   journal a client wants; whoever says nothing of it wants the default one.
2. A journal that is led here is served by its server. One that is followed here says who leads,
   and lets those look who take what is a little old (`standby`).
3. Of a journal that is kept elsewhere its primary is asked for the address of clients.
4. Nothing is told to a client without a good token, where tokens are demanded.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from fastjournal.config import DEFAULT_PORT
from fastjournal.daemon.auth import server_context
from fastjournal.daemon.context import Context
from fastjournal.daemon.listener import Listener, left_for_peers, open_limit, open_sockets
from fastjournal.daemon.server import reload_context
from fastjournal.errors import JournalError, NotPrimary, Unauthorized
from fastjournal.wire.fj.functions import Function
from fastjournal.wire.fj.hello import decode_hello
from fastjournal.wire.fj.replies import encode_error, error_text
from fastjournal.wire.fj.requests import BEFORE_HELLO, FRAME, MORE, FrameReader, request_of

__all__ = ["Front", "Kept"]

_VISITORS = 64  # connections that leave room for others: /metrics, the dashboard


class Kept(Protocol):
    """A journal that is kept here, as clients see it."""

    def meet(self) -> Any:
        """Who speaks FJ with one more client of it."""

    def cut_lookers(self) -> None:
        """Let those go who look at what is followed."""

    @property
    def connections(self) -> int:
        """How many clients it has."""


class Front:
    """All ports for clients of one daemon."""

    def __init__(
        self,
        context: Context,
        journals: Mapping[str, Kept],
        find_primary: Callable[[str], Awaitable[str]],
    ) -> None:
        """`find_primary`: where clients find who leads a journal that is not kept here; it raises
        `NotFound` if there is none of that name."""
        self.context = context
        self.arrivals: set[Arrival] = set()
        """Clients that have not said yet what they want."""
        self._journals = journals
        self._find_primary = find_primary
        self._tls = server_context(context.settings.tls)
        self._doors: list[Listener] = []

    async def open(self, given: list[socket.socket]) -> None:
        """Let clients in: at these sockets, or else where the settings say."""
        settings = self.context.settings
        for sock in given:
            self._add(sock)
        for address in () if given else settings.listen:
            mode = int(settings.socket_mode, 8)
            for sock in await open_sockets(address, mode, DEFAULT_PORT):
                self._add(sock, made=True)
        for door in self._doors:
            door.open()

    def close(self) -> None:
        """Let nobody in any more."""
        for door in self._doors:
            door.close()
        for arrival in list(self.arrivals):
            arrival.cut()

    def reload(self, settings: Any) -> None:
        """Take over what can change while running; who looks here comes in again by it."""
        if reload_context(self.context, settings, self._tls):
            if self.context.tokens is not None:  # theirs may be gone: they say HELLO again
                for kept in self._journals.values():
                    kept.cut_lookers()
            self.context.log.info("reloaded", node=settings.replica.name)

    def _add(self, sock: socket.socket, *, made: bool = False) -> None:
        context = self.context
        is_local = sock.family == socket.AF_UNIX
        door = Listener(
            context.loop,
            sock,
            lambda: Arrival(self),
            has_room=self._has_room,
            refusal=self._refuse,
            log=context.log,
            tls=None if is_local else self._tls,
            patience=lambda: context.settings.limits.hello_timeout,
            made=made,
            arriving=context.arriving,
        )
        self._doors.append(door)

    def _has_room(self) -> bool:
        here = len(self.arrivals) + len(self.context.arriving)
        here += sum(kept.connections for kept in self._journals.values())
        asked = self.context.settings.limits.max_connections
        return here < min(asked, left_for_peers(open_limit(), len(self._journals), _VISITORS))

    def _refuse(self) -> bytes:
        self.context.turned_away += 1
        return encode_error(0, "FULL too many connections", self.context.clock.now())

    def find(self, journal: str) -> Kept | None:
        """Who speaks for a journal here; None: it is kept elsewhere, or nowhere."""
        return self._journals.get(journal)

    async def refuse_elsewhere(self, journal: str, token: str | None, peer: str) -> JournalError:
        """Why a client is not served that wants a journal which is not kept here (rule 3)."""
        try:
            if token is None and self.context.tokens is not None:
                raise Unauthorized("say HELLO with a token first")
            self.context.grant(token or "", journal, peer)
            return NotPrimary(await self._find_primary(journal))
        except JournalError as error:
            return error


class Arrival(asyncio.Protocol):
    """A client that has not said yet which journal it wants (rule 1)."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._read = bytearray()
        self._frames = FrameReader(BEFORE_HELLO)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is here."""
        self._transport = transport  # type: ignore[assignment]
        self._front.arrivals.add(self)
        context = self._front.context
        self._timer = context.loop.call_later(context.settings.limits.hello_timeout, self.cut)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._leave()
        if self._task is not None:
            self._task.cancel()

    def cut(self) -> None:
        """End at once."""
        self._transport.abort()

    def _leave(self) -> None:
        self._front.arrivals.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Wait for the first message, whole or refused; whoever gets it reads it again."""
        self._read += data
        self._frames.feed(data)
        found = self._frames.next()
        if found == MORE or self._task is not None:
            return
        name, token = "", None
        if found == FRAME and self._frames.function == Function.HELLO:
            # Whoever speaks for the default journal says what is wrong with a bad one.
            with contextlib.suppress(JournalError):
                said = decode_hello(request_of(self._frames).value)
                name, token = said.journal, said.token
        context = self._front.context
        name = name or context.settings.default_journal
        kept = self._front.find(name)
        if kept is None:
            self._transport.pause_reading()
            self._task = context.loop.create_task(self._refuse(name, token))
            return
        self._leave()
        protocol = kept.meet()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(bytes(self._read))

    async def _refuse(self, name: str, token: str | None) -> None:
        context = self._front.context
        peer = f"{self._transport.get_extra_info('peername')}"
        error = await self._front.refuse_elsewhere(name, token, peer)
        text = error_text(error)
        context.count_error(text.partition(" ")[0])
        identifier = int(self._frames.identifier)
        self._transport.write(encode_error(identifier, text, context.clock.now()))
        self._transport.close()
