"""Processes of `fastjournal worker` that need not import everything anew: for tests that kill many.

One process imports what a worker uses and then only forks: it has no threads, so that is safe.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

__all__ = ["ForkedWorkers"]


class ForkedWorkers:
    """Starts and kills workers."""

    def __init__(self, environment: dict[str, str], log: Path = Path(os.devnull)) -> None:
        """`log`: what they say."""
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            stderr=log.open("a"), env=os.environ | environment,
        )  # fmt: skip
        self.running: list[int] = []

    def start(self, *words: str) -> None:
        """Start one with these arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        self.running.append(int(self._process.stdout.readline()))

    def kill(self, victim: int) -> None:
        """Kill one, as a crash does it."""
        pid = self.running.pop(victim)
        os.kill(pid, 0)  # a worker that has ended by itself is a failure of the test
        os.kill(pid, signal.SIGKILL)

    def drop_ended(self) -> int:
        """Forget those that have ended by themselves; how many."""
        before = len(self.running)
        self.running = [pid for pid in self.running if Path(f"/proc/{pid}").exists()]
        return before - len(self.running)

    def close(self) -> None:
        """Kill all."""
        while self.running:
            self.kill(0)
        self._process.communicate(timeout=30)


def _serve() -> None:
    import asyncio  # noqa: F401
    import multiprocessing  # noqa: F401

    import fastjournal.cli.app as cli
    import fastjournal.client._sync.client
    import fastjournal.tasks.worker  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how they ended
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sys.stdin = Path(os.devnull).open()  # noqa: SIM115
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.argv = ["fastjournal", "worker", *line.rstrip("\n").split("\t")]
            try:
                cli.main()
            finally:
                os._exit(1)
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
