"""One blocking connection to a daemon: sends a request, waits for its answer.

Rules:

1. One request at a time; a pipeline sends many and then reads as many answers.
2. Every wait has an end. A connection that broke, timed out or said nonsense is closed and never
   used again: an answer that comes late must not be taken for the next one.
3. Plain sockets let the kernel keep the time (SO_RCVTIMEO): one system call less per answer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastjournal.client import operating, protocol
from fastjournal.client.protocol import Call
from fastjournal.client.urls import Target, tls_context
from fastjournal.errors import JournalError, Loading, ProtocolError, Unavailable
from fastjournal.wire.errortext import error_from
from fastjournal.wire.fj import Reply
from fastjournal.wire.replies import ReplyParser

__all__ = ["Link"]

_READ = 256 << 10
_FIRST = 64 << 10
"""Most answers are small, and a larger buffer costs a fresh mapping of memory each time."""
_TIMEVAL = struct.Struct("@ll")


class Link:
    """A connection that has said HELLO."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.about: dict[str, Any] = {}
        """What the server says of itself."""
        self.ahead = 0
        """The server's clock minus ours, ns; right to about half of what HELLO took."""
        self._parser = ReplyParser()
        self._awaited = 0
        self._early: list[Reply] = []
        self._timeout = -1.0
        self._plain = not target.tls
        self._sock = self._connect(target)
        try:
            sent = time.time_ns()
            hello = operating.hello(target.name, target.token, target.journal, sent)
            self.about, then = self.call(hello)
            self.ahead = then - (sent + time.time_ns()) // 2
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """It cannot be used any more."""
        return self._sock.fileno() < 0

    def call(self, call: Call, *, repeated: bool = False) -> Any:
        """Send a request and wait for its answer; `Unavailable` if nobody knows the outcome."""
        data, _, wait, _, quick = call
        wait += self.target.timeout
        if repeated:
            data = protocol.sent_again(call)
        try:
            if wait != self._timeout:
                self._set_timeout(wait)
            self._awaited = 1
            self._sock.sendall(data)
            read = self._sock.recv(_FIRST)
            if quick is not None:
                value = quick(read)
                if value is not None:
                    self._awaited = 0
                    return value
            reply = self._receive(1, read)[0]
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        except BaseException:
            self._give_up()
            raise
        return protocol.read(call, reply)

    def exchange(self, calls: Sequence[Call]) -> list[Any]:
        """Send requests that do not wait, together; gives their values in the same order.

        An error stands in the place of its value. All go out under one identifier: the daemon
        answers such requests in order.
        """
        wait = self.target.timeout + sum([call.wait for call in calls])
        try:
            self._set_timeout(wait)
            self._awaited = len(calls)
            self._sock.sendall(b"".join([call.data for call in calls]))
            return self._values(calls)
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        except BaseException:
            self._give_up()
            raise

    def _values(self, calls: Sequence[Call]) -> list[Any]:
        values: list[Any] = []
        parser = self._parser
        while len(values) < len(calls):
            data = self._sock.recv(_READ)
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
            if not parser.pending:
                data = data[_take_quick(calls, values, data) :]
            for reply in parser.feed(data) if data else ():
                if reply.is_push:
                    self._early.append(reply)
                    continue
                if reply.identifier != 1 or len(values) == len(calls):
                    raise (
                        error_from(reply.error)
                        if reply.error
                        else ProtocolError(
                            f"reply to request {reply.identifier}, which was not sent"
                        )
                    )
                try:
                    values.append(protocol.read(calls[len(values)], reply))
                except JournalError as error:
                    values.append(error)
            if parser.fault is not None:
                raise parser.fault
        self._awaited = 0
        return values

    def stream(self, calls: Iterable[Call], window: int = 4) -> Iterator[Any]:
        """Send calls as they are made, some of them ahead; gives the value of each in turn.

        While the daemon works on one, the next is made and sent. After `Unavailable` those that
        gave no value may have happened.
        """
        sent: deque[Call] = deque()
        self._set_timeout(self.target.timeout)
        try:
            for call in calls:
                if len(sent) == window:
                    yield protocol.read(sent.popleft(), self._next())
                self._sock.sendall(call.data)
                sent.append(call)
                self._awaited += 1
            while sent:
                yield protocol.read(sent.popleft(), self._next())
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        except BaseException:
            self._give_up()
            raise

    def _next(self) -> Reply:
        """The next answer; all of a stream carry the same identifier, and come in order."""
        while not self._early:
            data = self._sock.recv(_FIRST)
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
            self._early = self._parser.feed(data)
            if self._parser.fault is not None:
                raise self._parser.fault
        self._awaited -= 1
        return self._early.pop(0)

    def pushes(self, seconds: float) -> list[Reply]:
        """Wait for pushes; none if nothing came in time. With 0, those that are here already."""
        if self._early:  # they came along with an answer
            early, self._early = self._early, []
            return early
        try:
            data = self._arrived() if not seconds else self._wait_for(seconds)
        except (BlockingIOError, TimeoutError):
            return []
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        if not data:
            self.close()
            raise Unavailable(f"{self.target.address}: the daemon closed the connection")
        replies = self._parser.feed(data)
        if self._parser.fault is not None:
            self.close()
            raise Unavailable(f"{self.target.address}: {self._parser.fault}")
        return [reply for reply in replies if reply.is_push]

    def _wait_for(self, seconds: float) -> bytes:
        self._set_timeout(seconds)
        return self._sock.recv(_READ)

    def _arrived(self) -> bytes:
        if self._plain:
            return self._sock.recv(_READ, socket.MSG_DONTWAIT)
        self._timeout = 0.0
        self._sock.settimeout(0)
        try:
            return self._sock.recv(_READ)
        except OSError as error:
            if type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
                raise BlockingIOError from None
            raise

    def close(self) -> None:
        """Give the connection up; whoever waits for something on it wakes up."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _receive(self, count: int, data: bytes) -> list[Reply]:
        """Read until `count` answers are there; they are matched by their identifiers."""
        replies: list[Reply | None] = [None] * count
        parser = self._parser
        while True:
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
            for reply in parser.feed(data):
                identifier = reply.identifier
                if reply.is_push:
                    self._early.append(reply)
                    continue
                if not identifier and reply.error:
                    raise error_from(reply.error)
                if not 1 <= identifier <= count or replies[identifier - 1] is not None:
                    raise ProtocolError(f"reply to request {identifier}, which was not sent")
                replies[identifier - 1] = reply
                self._awaited -= 1
            if not self._awaited:
                return replies  # type: ignore[return-value]
            if parser.fault is not None:
                raise parser.fault
            data = self._sock.recv(_READ)

    def _give_up(self) -> None:
        """An answer is still to come: nobody else may get it."""
        if self._awaited:
            self.close()

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


def _take_quick(calls: Sequence[Call], values: list[Any], data: bytes) -> int:
    """Read common answers from the front of `data`; returns how many bytes they took."""
    at = 0
    for call in calls[len(values) :]:
        quick = call.quick
        if quick is None:
            break
        stop = at + protocol.QUICK_SIZES.get(quick, len(data))
        value = quick(data[at:stop]) if stop <= len(data) else None
        if value is None:
            break
        values.append(None if call.read is protocol.nothing else value)
        at = stop
    return at


def is_passing(error: JournalError) -> bool:
    """Whether trying again later may help."""
    return isinstance(error, (Unavailable, Loading))


def _why(error: OSError) -> str:
    if isinstance(error, (BlockingIOError, TimeoutError)):
        return "no answer in time"
    return error.strerror or str(error)
