"""A daemon as the target of a forwarder: FORWARD requests, many under way on one connection.

Rules:

1. Every request asks for stable storage (bit 9) unless told otherwise; an answer that does not say
   so then counts as a fault.
2. An error of the daemon ends the connection: the forwarder begins again behind what is marked.
3. The time limit of the URL holds for each answer.
"""

from __future__ import annotations

import socket
from typing import Any

from fastjournal.client.urls import Target as Address
from fastjournal.client.urls import parse_url, tls_context
from fastjournal.clock import SECOND, SYSTEM_CLOCK
from fastjournal.errors import JournalError, ProtocolError, SettingError, Unavailable
from fastjournal.spool.watch import readable
from fastjournal.wire.fj.client import Conversation
from fastjournal.wire.fj.error_text import error_from
from fastjournal.wire.fj.forward import Forwarded, decode_forwarded
from fastjournal.wire.fj.functions import PERSIST, Function, Type
from fastjournal.wire.fj.hello import Hello, encode_hello
from fastjournal.wire.fj.replies import Reply

__all__ = ["DaemonTarget"]

_READ = 256 << 10


class DaemonTarget:
    """One connection to a daemon, which has said HELLO."""

    def __init__(self, url: str | Address, *, durable: bool = True) -> None:
        address = parse_url(url) if isinstance(url, str) else url
        if not isinstance(address, Address):
            raise SettingError("a spool is forwarded to a daemon: fj://, fjs://, unix:", name="to")
        self.address = address
        self._flags = PERSIST if durable else 0
        self._conversation = Conversation()
        self._deadline = 0.0
        self._sock = self._connect()
        try:
            self._request(
                Function.HELLO,
                key=(address.name or "forwarder").encode(),
                value_type=Type.BUFFER,
                value=encode_hello(Hello(address.token, address.journal, time=SYSTEM_CLOCK.now())),
            )
            while not self._replies(address.timeout):
                pass
        except BaseException:
            self.close()
            raise

    def send(self, sender: bytes, value: bytes) -> None:
        """Send the value of a FORWARD."""
        self._request(
            Function.FORWARD, flags=self._flags, key=sender, value_type=Type.BUFFER, value=value
        )

    def receive(self, seconds: float) -> list[Forwarded]:
        """Wait for answers; none if nothing came in time."""
        answers = []
        for reply in self._replies(seconds):
            if self._flags and not reply.stable:
                self.close()
                raise ProtocolError("the daemon does not say that the jobs are safe")
            answers.append(decode_forwarded(reply.value or b""))
        return answers

    def fileno(self) -> int:
        """Readable when an answer is there."""
        return self._sock.fileno()

    def close(self) -> None:
        """Give the connection up."""
        self._sock.close()

    def _connect(self) -> socket.socket:
        address = self.address
        try:
            if address.path:
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(address.connect_timeout)
                sock.connect(address.path)
            else:
                sock = socket.create_connection(
                    (address.host, address.port), address.connect_timeout
                )
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            context = tls_context(address)
            if context is not None:
                sock = context.wrap_socket(sock, server_hostname=address.host)
            sock.settimeout(address.timeout)
        except OSError as error:
            raise Unavailable(f"{address.address}: {error}") from error
        return sock

    def _request(self, function: int, **fields: Any) -> None:
        data = self._conversation.request(None, function, **fields)
        if self._conversation.outstanding == 1:
            self._deadline = self._now() + self.address.timeout
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def _replies(self, seconds: float) -> list[Reply]:
        conversation = self._conversation
        try:
            if not self._pending() and not readable([self._sock], seconds):
                if conversation.outstanding and self._now() > self._deadline:
                    raise TimeoutError("no answer in time")
                return []
            data = self._sock.recv(_READ)
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
        except (OSError, ValueError) as error:
            raise self._lost(error) from error
        self._deadline = self._now() + self.address.timeout
        try:
            replies = [answer.reply for answer in conversation.receive(data)]
            for reply in replies:
                if reply.error:
                    raise error_from(reply.error)
            if conversation.fault is not None:
                raise ProtocolError(str(conversation.fault))
        except JournalError:
            self.close()
            raise
        return replies

    @staticmethod
    def _now() -> float:
        return SYSTEM_CLOCK.monotonic() / SECOND

    def _pending(self) -> bool:
        """TLS has bytes that `select` does not know of."""
        pending = getattr(self._sock, "pending", None)
        return pending is not None and pending() > 0

    def _lost(self, error: Exception) -> Unavailable:
        self.close()
        return Unavailable(f"{self.address.address}: {error}")
