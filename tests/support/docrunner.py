"""Runs blocks of Python, each in a process of its own that need not import everything anew.

One process imports what most blocks use and then only forks: it has no threads, so that is safe.
A child runs one block as `__main__` in the directory it is told, and ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import IO, Any

__all__ = ["Runner"]

LIMIT = 100
"""Seconds that a block may take."""


class Runner:
    """The process that forks; close it at the end."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, code: str, directory: str) -> tuple[int, str]:
        """Run a block; its exit code, and what it said."""
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        requests.write(json.dumps([code, directory]) + "\n")
        requests.flush()
        done: list[Any] = json.loads(answers.readline())
        return done[0], done[1]

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=10)


def _serve(requests: IO[str], answers: IO[str]) -> None:
    import os
    import tempfile

    import fastjournal.client._sync.client
    import fastjournal.journal.journal
    import fastjournal.testing.daemon  # noqa: F401

    for line in requests:
        code, directory = json.loads(line)
        with tempfile.TemporaryFile() as said:
            child = os.fork()
            if child == 0:
                _run_one(code, directory, said.fileno())
            _, status = os.waitpid(child, 0)
            said.seek(0)
            text = said.read().decode(errors="replace")
        answers.write(json.dumps([os.waitstatus_to_exitcode(status), text]) + "\n")
        answers.flush()


def _run_one(code: str, directory: str, said: int) -> None:
    """In the child: never returns."""
    import os
    import signal
    import threading
    import traceback

    result = 1
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(directory)
        sys.path.insert(0, "")
        signal.alarm(LIMIT)
        exec(compile(code, "block", "exec"), {"__name__": "__main__"})
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        result = 0
    except SystemExit as end:
        result = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(result)


if __name__ == "__main__":
    _serve(sys.stdin, sys.stdout)
