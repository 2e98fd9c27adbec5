"""A daemon as the target of a forwarder: FORWARD requests, many under way on one connection.

Rules:

1. Every request asks for stable storage (bit 9) unless told otherwise; an answer that does not say
   so then counts as a fault.
2. An error of the daemon ends the connection: the forwarder begins again behind what is marked.
3. The time limit of the URL holds for each answer.
"""

from __future__ import annotations

import select
from time import monotonic

from fastjournal.client.link import Link
from fastjournal.client.urls import Target as Address
from fastjournal.client.urls import parse_url
from fastjournal.errors import ProtocolError, SettingError, Unavailable
from fastjournal.wire.errortext import error_from
from fastjournal.wire.forward import Forwarded, decode_forwarded
from fastjournal.wire.functions import PERSIST, Function, Type

__all__ = ["DaemonTarget"]

_READ = 256 << 10


class DaemonTarget(Link):
    """One connection to a daemon."""

    def __init__(self, url: str | Address, *, durable: bool = True) -> None:
        address = parse_url(url) if isinstance(url, str) else url
        if not isinstance(address, Address):
            raise SettingError("a spool is forwarded to a daemon: fj://, fjs://, unix:", name="to")
        super().__init__(address)
        self._flags = PERSIST if durable else 0
        self._deadline = 0.0

    def send(self, sender: bytes, value: bytes) -> None:
        """Send the value of a FORWARD."""
        data = self._conversation.request(
            None, Function.FORWARD, flags=self._flags, key=sender, value_type=Type.BUFFER,
            value=value,
        )  # fmt: skip
        if self._conversation.outstanding == 1:
            self._deadline = monotonic() + self.target.timeout
        try:
            self._set_timeout(self.target.timeout)
            self._sock.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self, seconds: float) -> list[Forwarded]:
        """Wait for answers; none if nothing came in time."""
        try:
            if not self._pending() and not select.select([self._sock], [], [], seconds)[0]:
                if self._conversation.outstanding and monotonic() > self._deadline:
                    raise TimeoutError("no answer in time")
                return []
            data = self._sock.recv(_READ)
        except (OSError, ValueError) as error:
            raise self._lost(error) from error
        if not data:
            raise self._lost(ConnectionResetError("the daemon closed the connection"))
        self._deadline = monotonic() + self.target.timeout
        answers = []
        for _, reply in self._conversation.receive(data):
            if reply.error:
                self.close()
                raise error_from(reply.error)
            if self._flags and not reply.stable:
                self.close()
                raise ProtocolError("the daemon does not say that the jobs are safe")
            answers.append(decode_forwarded(reply.value or b""))
        if self._conversation.fault is not None:
            self.close()
            raise ProtocolError(str(self._conversation.fault))
        return answers

    def fileno(self) -> int:
        """Readable when an answer is there."""
        return self._sock.fileno()

    def _pending(self) -> bool:
        """TLS has bytes that `select` does not know of."""
        return not self._plain and self._sock.pending() > 0  # type: ignore[attr-defined]

    def _lost(self, error: Exception) -> Unavailable:
        self.close()
        return Unavailable(f"{self.target.address}: {error}")
