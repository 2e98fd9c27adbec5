"""Servers that lie and lines that break, for the tests of the clients."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from fastjournal.wire.fj.functions import Type
from fastjournal.wire.fj.replies import Pair, encode_reply


class Impostor:
    """A server that does what a test tells it."""

    def __init__(self, *scripts: Callable[[socket.socket], None]) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.seen: list[bytes] = []
        self.thread = threading.Thread(target=self._run, args=(scripts,), daemon=True)
        self.thread.start()

    def _run(self, scripts: tuple[Callable[[socket.socket], None], ...]) -> None:
        for script in scripts:
            with contextlib.suppress(OSError):  # closed by the test, or by the client
                connection, _ = self.sock.accept()
                with connection:
                    script(connection)

    def url(self, **options: object) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        return f"fj://127.0.0.1:{self.port}?{query}"

    def close(self) -> None:
        self.sock.close()


class Relay:
    """Passes bytes on to a daemon, and can cut everything or swallow answers."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.swallow = False
        self.open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.sock.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.target))
            self.open += [near, far]
            threading.Thread(target=self._copy, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, True), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, back: bool) -> None:
        try:
            while data := source.recv(65_536):
                if back and self.swallow:
                    self.swallow = False
                    self.cut()
                    return
                sink.sendall(data)
        except OSError:
            pass

    def cut(self) -> None:
        for sock in self.open:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self.open = []

    def close(self) -> None:
        self.cut()
        self.sock.close()


def say_hello(sock: socket.socket) -> None:
    """Answer HELLO."""
    sock.recv(1000)
    sock.sendall(encode_reply(1, 0, pairs=(Pair(b"", Type.STRING, b'{"journal":"x"}'),)))
