"""Processes that run tasks, one call at a time each, for a worker that does all the rest.

Rules:

1. A process is started anew (spawn), finds the app by its name, and gets calls through a pipe: no
   object is pickled, no connection is shared. Leases are kept and ended by the worker alone.
2. A call that takes longer than its time limit is ended by killing its process.
3. A process is replaced after so many calls, or once it holds so much memory, between two calls.
4. A process that died fails the call it was running, which is tried again like after any failure.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from fastjournal.errors import SettingError
from fastjournal.tasks.execution import About, Ended, execute

__all__ = ["Child", "load_named"]

_START_LIMIT = 120.0  # seconds until a new process has loaded the app


class Order(msgspec.Struct, array_like=True):
    """A call to be run."""

    payload: bytes
    about: About


class Answer(msgspec.Struct, array_like=True):
    """How it ended, and how much memory the process holds."""

    ended: Ended
    memory: int


_orders = msgspec.msgpack.Decoder(Order)
_answers = msgspec.msgpack.Decoder(Answer)


class Child:
    """A process that runs calls; used by one thread."""

    def __init__(
        self, target: str, recycle_jobs: int, recycle_memory: int, place: str = ""
    ) -> None:
        """`target`: module:app; the limits are 0 for none. `place`: where the worker found its
        journal, which is that of the calls its tasks make; empty: as the app itself says."""
        self._target = target
        self._place = place
        self._recycle_jobs = recycle_jobs
        self._recycle_memory = recycle_memory
        self._process: Any = None
        self._pipe: Any = None
        self._busy = False
        self._jobs = 0
        self._memory = 0

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        return None if self._process is None else self._process.pid

    def run(self, payload: bytes, about: About, limit: float | None) -> Ended:
        """Run a call."""
        if self._is_worn():
            self.close()
        if self._process is None:
            self._start()
        self._busy = True
        try:
            self._pipe.send_bytes(msgspec.msgpack.encode(Order(payload, about)))
            if not self._pipe.poll(limit):
                self._kill()
                return Ended("failed", f"time limit of {limit:g} s".encode())
            answer = _answers.decode(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return Ended("failed", self._death().encode())
        finally:
            self._busy = False
        self._jobs += 1
        self._memory = answer.memory
        return answer.ended

    def close(self) -> None:
        """Let the process end; one whose call goes on is killed."""
        if self._process is None:
            return
        busy = self._busy
        self._pipe.close()
        if not busy:
            self._process.join(10)
        self._kill()

    def _is_worn(self) -> bool:
        return (0 < self._recycle_jobs <= self._jobs) or (0 < self._recycle_memory < self._memory)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve,
            args=(self._target, self._place, theirs),
            name="fastjournal-tasks",
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self._pipe = ours
        self._jobs = self._memory = 0
        try:
            if not ours.poll(_START_LIMIT):
                self._kill()
                raise SettingError(f"{self._target} was not loaded in time", name="app")
            trouble = ours.recv_bytes()
        except (EOFError, OSError):
            raise SettingError(f"{self._target}: {self._death()}", name="app") from None
        if trouble:
            self._kill()
            raise SettingError(trouble.decode(), name="app")

    def _death(self) -> str:
        self._process.join(10)
        code = self._process.exitcode
        self._kill()
        how = "ended by itself" if code is None or code >= 0 else f"was killed by signal {-code}"
        return f"the process that ran the task {how} (exit code {code})"

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join()
        self._pipe.close()


def load_named(target: str, what: str = "app") -> Any:
    """The object `module:name`, also of a module in the current directory."""
    module, colon, attribute = target.partition(":")
    if not colon or not module or not attribute:
        raise SettingError(f"{target!r} is not module:{what}", name=what)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"cannot load {target}: {error}", name=what) from error
    return found


def _serve(target: str, place: str, pipe: Connection) -> None:
    """The life of a process: calls in, outcomes out, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the worker, who lets us end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        app = load_named(target)
        if place:
            app.connect(place)
    except SettingError as error:
        pipe.send_bytes(str(error).encode())
        return
    pipe.send_bytes(b"")
    while True:
        try:
            order = _orders.decode(pipe.recv_bytes())
        except EOFError:
            return
        ended = execute(app, order.payload, order.about)
        pipe.send_bytes(msgspec.msgpack.encode(Answer(ended, _memory())))


def _memory() -> int:
    """Bytes that this process holds; 0 where that cannot be told."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
