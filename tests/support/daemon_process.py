"""A daemon as a process of its own, for tests that kill it."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from fastjournal.testing import wait_until

_given: set[int] = set()


def free_port() -> int:
    """A port that is free now, and that nobody else in this process was told of."""
    while True:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = int(sock.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


class DaemonProcess:
    """`fastjournal serve`, started and stopped like an operator would."""

    def __init__(
        self,
        data: Path,
        *options: str,
        port: int = 0,
        env: dict[str, str] | None = None,
        files: tuple[int, int] | None = None,
        program: tuple[str, ...] = ("-m", "fastjournal.cli.app", "serve"),
    ) -> None:
        """`files`: soft and hard limit of open files. `program`: what Python runs."""
        self.data = data
        self.port = port or free_port()
        self.options = options
        self.env = env or {}
        self.files = files
        self.program = program
        self.process: subprocess.Popen[str] | None = None
        self.log = data.parent / f"{data.name}.stderr"

    @property
    def url(self) -> str:
        return f"fj://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> float:
        """Start it; returns the seconds until its port answered."""
        began = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, *self.program, str(self.data),
             "--listen", f"127.0.0.1:{self.port}", *self.options],
            stderr=self.log.open("a"), stdout=subprocess.DEVNULL, text=True,
            env=os.environ | self.env, preexec_fn=self._limit if self.files else None,
        )  # fmt: skip
        if wait:
            self.wait_ready()
        return time.monotonic() - began

    def _limit(self) -> None:
        assert self.files is not None
        resource.setrlimit(resource.RLIMIT_NOFILE, self.files)

    def wait_ready(self) -> None:
        wait_until(self._answers, seconds=300, what="the daemon answers")

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()
            return False
        return True

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a crash does it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """In order; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)
