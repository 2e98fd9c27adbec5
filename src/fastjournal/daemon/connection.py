"""One connection as bytes: back-pressure, time limits, its end. What is said on it: `fj`, `workq`.

Rules:

1. A peer that does not read is not read from: when more than `high_water` bytes wait to be sent,
   reading pauses until they are fewer. Above `max_output`, or after `write_timeout` without
   progress, the connection is cut.
2. A message that stays incomplete for `message_timeout`, a stranger that has not said who it is
   within `hello_timeout`, and a peer that has said nothing for `idle_timeout` and waits for nothing
   are cut.
3. A peer that has vanished without a word is found within about two minutes: by TCP keep-alive if
   nothing is under way to it, else by what it does not acknowledge (TCP_USER_TIMEOUT).
4. Ending is in order: what was answered is sent first.
"""

from __future__ import annotations

import abc
import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastjournal.daemon.hosting import Hosted
from fastjournal.daemon.waiters import Waiter
from fastjournal.errors import JournalError

if TYPE_CHECKING:
    from fastjournal.daemon.server import Server

__all__ = ["Connection"]

# Seconds, but for the last one: milliseconds.
_KEEP_ALIVE = (
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
    ("TCP_USER_TIMEOUT", 120_000),
)


class Connection(asyncio.Protocol, abc.ABC):
    """What all protocols share."""

    protocol = "?"

    def __init__(self, server: Server) -> None:
        self.server = server
        self.host: Hosted = server.default
        self.peer = "?"
        self.asked = 0
        self.behind = 0
        self.wants_sync = False
        self.gone = True
        self.waiters: set[Waiter] = set()
        self.leaving = False
        """Nothing more is read; the connection ends once all is sent."""
        self.met = 0.0
        """Loop time of its beginning."""
        self.last_read = 0.0
        """Loop time of the last bytes from the peer."""
        self.stuck_since = 0.0
        """Loop time since which the peer does not read; 0: it does."""
        self.partial_since = 0.0
        """Loop time since which a message is incomplete; 0: none is."""
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._write: Any = None
        self._time = server.loop.time

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The peer is here."""
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        self._write = self._transport.write
        limits = self.server.settings.limits
        self._transport.set_write_buffer_limits(high=limits.high_water)
        self.gone = False
        self.met = self.last_read = self._time()
        self.peer = _peer(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if not self.server.admit(self):
            self.leaving = True
            self.turn_away()

    def turn_away(self) -> None:
        """The server is leaving."""
        self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self.gone = True
        for waiter in list(self.waiters):
            self.abandon(waiter)
        self.waiters.clear()
        self.server.dismiss(self, exc)

    def abandon(self, waiter: Waiter) -> None:
        """The peer left while this request of it waited."""
        waiter.end()

    def eof_received(self) -> bool:
        """The peer sends no more: answer what it sent, give up what waits, then close.

        It has most likely left: a job leased for it now would be lost until its lease ends.
        """
        for waiter in list(self.waiters):
            self.abandon(waiter)
        self.waiters.clear()
        self.end()
        return True

    def pause_writing(self) -> None:
        """The peer does not read."""
        self.stuck_since = self._time()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.stuck_since = 0.0
        if not self.leaving and not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Send, unless the peer is gone."""
        if self.gone:
            return
        self._write(data)
        if self.leaving or self.stuck_since:
            self.watch_output()

    def watch_output(self) -> None:
        """Something was sent to a peer that is to leave, or that does not read."""
        if self.leaving:
            self.finish()
        else:
            limit = self.server.settings.limits.max_output
            if self._transport.get_write_buffer_size() > limit:
                self.cut("slow", "too much output waits")

    def end(self) -> None:
        """Read no more; close when everything has been answered and sent."""
        if self.gone or self._transport.is_closing():
            return
        self.leaving = True
        self._transport.pause_reading()
        self.finish()

    def finish(self) -> None:
        """Close, if the peer is to leave and nothing is left to be said."""
        if self.leaving and not self.waiters and not self.behind and not self.is_busy():
            self._transport.close()

    def is_busy(self) -> bool:
        """Requests are under way that no waiter stands for."""
        return self.asked > 0

    def cut(self, reason: str, text: str) -> None:
        """End at once."""
        if not self.gone:
            self.server.note_cut(self, reason, text)
            self._transport.abort()

    def check(self, now: float) -> None:
        """Cut the peer if a limit of time has passed; called every second or so."""
        limits = self.server.settings.limits
        if self.stuck_since and now - self.stuck_since > limits.write_timeout:
            self.cut("slow", "does not read")
        elif self.partial_since and now - self.partial_since > limits.message_timeout:
            self.cut("partial", "a message stays incomplete")
        elif (
            limits.idle_timeout
            and not self.waiters
            and not self.keeps_open()
            and now - self.last_read > limits.idle_timeout
        ):
            self.cut("idle", "says nothing")

    def check_grant(self) -> None:
        """Tokens were read anew: cut the peer if its own is not among them as it was."""

    def keeps_open(self) -> bool:
        """The peer waits for something of its own accord."""
        return False

    def is_single(self, items: Sequence[Any]) -> bool:
        """Whether they are one request that makes one command at most."""
        return False

    @abc.abstractmethod
    def serve(self, items: Sequence[Any], now: int) -> bytes:
        """Carry out requests under the lock; returns the replies."""

    @abc.abstractmethod
    def refuse(self, items: Sequence[Any], error: JournalError, now: int) -> bytes:
        """The replies to requests that came to nothing."""


def _peer(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unix"
    if isinstance(transport.get_extra_info("ssl_object"), ssl.SSLObject):
        peer += " (TLS)"
    return peer
