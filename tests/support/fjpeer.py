"""Raw peers for the daemon's tests: bytes over a socket, without the client."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from fastjournal.model import Mode
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj.functions import Function, Type
from fastjournal.wire.fj.hello import Hello, encode_hello
from fastjournal.wire.fj.job_codec import encode_job
from fastjournal.wire.fj.replies import Reply, ReplyParser
from fastjournal.wire.fj.requests import encode_request


def connections() -> Iterator[socket.socket]:
    """The TCP connections of this process, a daemon's in a test too; each is closed after use."""
    for descriptor in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # it is something else
            found = socket.fromfd(int(descriptor.name), socket.AF_INET, socket.SOCK_STREAM)
            with found:
                if isinstance(found.getpeername(), tuple):
                    yield found


def break_connections(port: int) -> None:
    """Every connection of this process to a port ends, without a word."""
    for connection in connections():
        if connection.getpeername()[1] == port:
            connection.shutdown(socket.SHUT_RDWR)


def other_end(sock: socket.socket) -> socket.socket:
    """The end that a daemon of this process has of a connection, by a descriptor of its own."""
    here = sock.getsockname()
    return next(end.dup() for end in connections() if end.getpeername() == here)


class FjPeer:
    """Speaks FJ by hand."""

    def __init__(self, port: int, timeout: float = 10) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.parser = ReplyParser()
        self._ready: list[Reply] = []

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read(self) -> Reply | None:
        """The next reply; None at the end of the stream."""
        while not self._ready:
            data = self.sock.recv(65_536)
            if not data:
                return None
            self._ready = self.parser.feed(data)
        return self._ready.pop(0)

    def ask(self, function: int, identifier: int = 1, **fields: Any) -> Reply:
        self.send(encode_request(function, identifier, **fields))
        reply = self.read()
        assert reply is not None
        return reply

    def hello(self, token: str = "", journal: str = "") -> Reply:
        value = encode_hello(Hello(token, journal))
        return self.ask(Function.HELLO, key=b"test", value_type=Type.BUFFER, value=value)

    def is_closed(self) -> bool:
        """Wait for the end of the stream."""
        try:
            while self.sock.recv(65_536):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def put_bytes(identifier: int = 1, payload: bytes = b"x", queue: bytes = b"q") -> bytes:
    """A SET of a job."""
    value = encode_job(PutRequest(queue, payload, mode=Mode.PLAIN))
    return encode_request(Function.SET, identifier, value_type=Type.JOB, value=value)
