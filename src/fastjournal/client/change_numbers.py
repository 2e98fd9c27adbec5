"""Numbers for changes that must be made once though they may be sent twice.

Rules:

1. A number is a sender's name and a timestamp. The name is drawn by chance for every client and
   process, so no two ever share it; the timestamps of one name only grow, by whole microseconds.
2. A forked child draws a name of its own.
"""

from __future__ import annotations

import os
import threading

__all__ = ["ChangeNumbers"]

_TICK = 1000  # ns: what the wire can tell apart


class ChangeNumbers:
    """The numbers of one client."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = 0
        self._sender = b""
        self._last = 0
        self._owners = 0

    def next(self, now: int) -> tuple[bytes, int]:
        """A sender and a timestamp that were never given before; `now`: see `Caller`."""
        with self._lock:
            self._last = max(now // _TICK * _TICK, self._last + _TICK)
            return self._name(), self._last

    def owner(self) -> bytes:
        """A name for one who locks a key."""
        with self._lock:
            self._owners += 1
            return self._name() + self._owners.to_bytes(8, "big")

    def _name(self) -> bytes:
        if self._process != os.getpid():
            self._process, self._sender = os.getpid(), os.urandom(8)
        return self._sender
