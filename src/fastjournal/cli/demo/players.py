"""The processes of the third act, each a real one: daemon, forwarder, workers, producers.

Rules:

1. `Troupe` starts them and, at the end of its `with` block, ends whatever still runs.
2. What a producer was told and what a worker did, they tell through files that they only append
   to, one system call a line: the judge believes neither the spool nor the daemon about itself.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from fastjournal.handles import LeasedJob

__all__ = ["KEYS", "Troupe", "free_port", "handle", "produce", "write_note"]

KEYS = 20
DELAY = 0.5  # seconds that a page waits for more requests
PACE = 0.005  # seconds between two requests of a producer
_NOTES = "FASTJOURNAL_DEMO_NOTES"
_CLI = "from fastjournal.cli.app import main; main()"
_PRODUCER = "from fastjournal.cli.demo.players import produce; import sys; produce(*sys.argv[1:])"


def produce(spool: str, notes: str, number: str, enough: str) -> None:
    """A web application: each request sends a letter and asks for a page to be made again.

    Tells each letter and page after `put` has returned, and how long the slowest two took. It
    goes on until the file `enough` is there.
    """
    from fastjournal.spool.writer import Spool

    noted = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    slowest = 0.0
    with Spool(spool) as out:
        for request in itertools.count():
            if Path(enough).exists():
                break
            letter = f"{number}-{request}"
            page = f"https://shop.example/{request % KEYS}"
            start = time.perf_counter()
            out.put(letter.encode(), queue="mail")
            out.put(letter.encode(), key=page, queue="pages", delay=DELAY)
            slowest = max(slowest, time.perf_counter() - start)
            os.write(noted, f"mail {letter}\npages {page} {letter}\n".encode())
            time.sleep(PACE)
    os.write(noted, f"slowest {slowest * 1e6:.0f}\n".encode())


def handle(job: LeasedJob) -> None:
    """What the workers do: note the job. A letter that is poison fails, a trap never ends."""
    if job.queue == "traps" and job.attempt == 1:
        write_note(f"trapped {job.id.hex()}")
        threading.Event().wait()
    if job.payload == b"poison":
        raise ValueError("this letter cannot be delivered")
    write_note(f"{job.queue} {job.key} {job.payload.decode()}")


def write_note(line: str) -> None:
    """One line more in the file of this player."""
    out = os.open(os.environ[_NOTES], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(out, line.encode() + b"\n")
    finally:
        os.close(out)


class Troupe:
    """Starts, kills and ends the players; their files live in `home`."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True)
        self.home = home
        self.spool = home / "spool"
        self.data = home / "data"
        self.port = free_port()
        self.url = f"fj://127.0.0.1:{self.port}"
        self._running: list[subprocess.Popen[bytes]] = []
        self._log = (home / "processes.log").open("wb")

    def daemon(self) -> subprocess.Popen[bytes]:
        """The daemon; waits until it answers."""
        child = self._command(
            "serve", str(self.data), "--listen", f"127.0.0.1:{self.port}", "--sync", "always",
            "--log-level", "warning",
        )  # fmt: skip
        self._await_port(child)
        return child

    def forwarder(self) -> subprocess.Popen[bytes]:
        """Carries the spool to the daemon."""
        return self._command("forward", "--spool", str(self.spool), "--to", self.url)

    def worker(self, name: str, lease: float, *queues: str) -> subprocess.Popen[bytes]:
        """Works off queues and notes what it did in the file of its name.

        `lease`: seconds; whatever a kill takes on its way to a worker comes back after them.
        """
        options = [word for queue in queues for word in ("--queue", queue)]
        return self._command(
            "worker", "fastjournal.cli.demo.players:handle", *options, "--concurrency", "4",
            "--url", self.url, "--name", name, "--lease", f"{lease:g}",
            notes=self.home / f"{name}.notes",
        )  # fmt: skip

    def task_worker(self, name: str, app: str) -> subprocess.Popen[bytes]:
        """Runs the tasks of an app and fires its schedules."""
        return self._command(
            "worker", app, "--url", self.url, "--name", name, notes=self.home / f"{name}.notes"
        )

    def node(self, data: Path, settings: dict[str, str]) -> subprocess.Popen[bytes]:
        """A daemon that keeps a journal with others, as the settings say; waits for nothing."""
        words = ["serve", str(data), "--log-level", "warning"]
        return self._start([sys.executable, "-c", _CLI, *words], settings=settings)

    def other(self, *words: str) -> subprocess.Popen[bytes]:
        """A program that is not ours."""
        return self._start(list(words))

    def producer(self, number: int) -> subprocess.Popen[bytes]:
        """Puts letters and requests for pages into the spool, until it is enough."""
        notes = self.home / f"producer{number}.told"
        given = [str(self.spool), str(notes), str(number), str(self.home / "enough")]
        return self._start([sys.executable, "-c", _PRODUCER, *given])

    def enough(self) -> None:
        """The producers may stop."""
        (self.home / "enough").touch()

    def lines(self, pattern: str) -> list[list[str]]:
        """The lines of the files that match, as words."""
        return [
            line.split(" ")
            for path in sorted(self.home.glob(pattern))
            for line in path.read_text().splitlines()
        ]

    def kill(self, child: subprocess.Popen[bytes]) -> None:
        """As `kill -9` does."""
        child.send_signal(signal.SIGKILL)
        child.wait()

    def end(self, *children: subprocess.Popen[bytes]) -> list[int]:
        """Ask them to stop, as a service manager does; returns their exit codes."""
        for child in children:
            child.terminate()
        return [child.wait(timeout=30) for child in children]

    def complaints(self) -> str:
        """What the processes wrote to their standard error."""
        self._log.flush()
        return (self.home / "processes.log").read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running:
            if child.poll() is None:
                self.kill(child)
        self._log.close()

    def _command(self, *words: str, notes: Path | None = None) -> subprocess.Popen[bytes]:
        return self._start([sys.executable, "-c", _CLI, *words], notes)

    def _start(
        self, words: list[str], notes: Path | None = None, settings: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        environment = dict(os.environ) | ({_NOTES: str(notes)} if notes else {}) | (settings or {})
        child = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=environment
        )
        self._running.append(child)
        return child

    def _await_port(self, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and child.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise RuntimeError(f"the daemon did not start:\n{self.complaints()}")


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
