"""One blocking connection to a daemon: sends a request, waits for its answer.

Rules:

1. One request at a time; a pipeline sends many and then reads as many answers.
2. Every wait has an end. A connection that broke, timed out or said nonsense is closed and never
   used again: an answer that comes late must not be taken for the next one.
3. Plain sockets let the kernel keep the time (SO_RCVTIMEO): one system call less per answer.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

from fastjournal.client import operating, protocol
from fastjournal.client.protocol import Call
from fastjournal.client.urls import Target, tls_context
from fastjournal.errors import JournalError, Loading, ProtocolError, Unavailable
from fastjournal.wire.conversation import Conversation
from fastjournal.wire.fj import Reply

__all__ = ["Link"]

_READ = 256 << 10
_TIMEVAL = struct.Struct("@ll")


class Link:
    """A connection that has said HELLO."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.about: dict[str, Any] = {}
        """What the server says of itself."""
        self._conversation = Conversation()
        self._timeout = -1.0
        self._plain = not target.tls
        self._sock = self._connect(target)
        try:
            self.about = self.call(operating.hello(target.name, target.token, target.journal))
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """It cannot be used any more."""
        return self._sock.fileno() < 0

    def call(self, call: Call, *, repeated: bool = False) -> Any:
        """Send a request and wait for its answer; `Unavailable` if nobody knows the outcome."""
        reply = self.exchange((call,))[0]
        return protocol.read(call, reply, repeated=repeated)

    def exchange(self, calls: Sequence[Call]) -> list[Reply]:
        """Send requests together; returns their replies in the same order."""
        conversation = self._conversation
        wait = self.target.timeout
        try:
            if len(calls) == 1:
                function, _, fields, more, _, _ = calls[0]
                wait += more
                data = conversation.request(0, function, **fields)
            else:
                parts = []
                for number, call in enumerate(calls):
                    parts.append(conversation.request(number, call.function, **call.fields))
                    wait += call.wait
                data = b"".join(parts)
            if wait != self._timeout:
                self._set_timeout(wait)
            self._sock.sendall(data)
            return self._receive(len(calls))
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        except JournalError:
            if conversation.outstanding:  # an answer is still to come: nobody else may get it
                self.close()
            raise
        except BaseException:  # interrupted: the answer may still come
            self.close()
            raise

    def listen(self, call: Call) -> None:
        """Subscribe; pushes then come from `pushes`."""
        data = self._conversation.request("listen", call.function, listen=True, **call.fields)
        self._set_timeout(self.target.timeout)
        try:
            self._sock.sendall(data)
            replies = self._receive(1)
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        protocol.read(call, replies[0])

    def pushes(self, seconds: float) -> list[Reply]:
        """Wait for pushes; none if nothing came in time."""
        self._set_timeout(seconds)
        try:
            data = self._sock.recv(_READ)
        except (BlockingIOError, TimeoutError):
            return []
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        if not data:
            self.close()
            raise Unavailable(f"{self.target.address}: the daemon closed the connection")
        return [answer.reply for answer in self._conversation.receive(data)]

    def close(self) -> None:
        """Give the connection up."""
        self._sock.close()

    def _receive(self, count: int) -> list[Reply]:
        replies: list[Reply | None] = [None] * count
        left = count
        recv, receive = self._sock.recv, self._conversation.receive
        while True:
            data = recv(_READ)
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
            for note, reply in receive(data):
                if reply.is_push:
                    continue
                replies[note if type(note) is int else 0] = reply
                left -= 1
            if not left:
                return replies  # type: ignore[return-value]
            if self._conversation.fault is not None:
                raise ProtocolError(str(self._conversation.fault))

    def _connect(self, target: Target) -> socket.socket:
        try:
            if target.path:
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(target.connect_timeout)
                sock.connect(target.path)
            else:
                sock = socket.create_connection((target.host, target.port), target.connect_timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            context = tls_context(target)
            if context is not None:
                sock = context.wrap_socket(sock, server_hostname=target.host)
            else:
                sock.settimeout(None)
        except OSError as error:
            raise Unavailable(f"{target.address}: {_why(error)}") from error
        return sock

    def _set_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        if not self._plain:
            self._sock.settimeout(seconds)
            return
        whole = max(0, int(seconds))
        value = _TIMEVAL.pack(whole, max(1000, int((seconds - whole) * 1_000_000)))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def is_passing(error: JournalError) -> bool:
    """Whether trying again later may help."""
    return isinstance(error, (Unavailable, Loading))


def _why(error: OSError) -> str:
    if isinstance(error, (BlockingIOError, TimeoutError)):
        return "no answer in time"
    return error.strerror or str(error)
