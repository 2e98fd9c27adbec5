"""What waits in a commit log: queued writes, rotation events, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastjournal.errors import JournalError

__all__ = ["Done", "Queued", "Rotation", "Waiter"]

Done = Callable[[int, JournalError | None], None]
"""Called once: with the TIME of the last record, or with the error."""


@dataclass(slots=True)
class Queued:
    """Payloads on their way to the disk, and whom to tell."""

    payloads: Sequence[bytes]
    done: Done | None


@dataclass(slots=True)
class Rotation:
    """A request to go on in the standby segment, and what came of it."""

    finished: threading.Event = field(default_factory=threading.Event)
    path: Path | None = None
    error: JournalError | None = None


class Waiter:
    """A thread that waits for one outcome; a bare lock wakes it fastest."""

    __slots__ = ("_error", "_gate", "_time")

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()
        self._time = 0
        self._error: JournalError | None = None

    def done(self, time: int, error: JournalError | None) -> None:
        """Tell the outcome."""
        self._time, self._error = time, error
        self._gate.release()

    def wait(self) -> int:
        """Wait for the outcome: the TIME, or the error raised."""
        self._gate.acquire()
        if self._error is not None:
            raise self._error
        return self._time
