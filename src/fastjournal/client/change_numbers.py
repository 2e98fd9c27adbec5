"""Numbers for changes that must be made once though they may be sent twice.

Rules:

1. A number is a sender's name and a timestamp. The name is drawn by chance for every client or
   pipeline and process, so no two ever share it; the timestamps of one name only grow, by whole
   microseconds.
2. A forked child draws a name of its own.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from fastjournal.arguments import Instant, Text, instant, worker_bytes

__all__ = ["ChangeNumbers"]

_TICK: Final = 1000  # ns: what the wire can tell apart


class ChangeNumbers:
    """The numbers of one client, or of one pipeline."""

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

    def of(self, now: int, sender: Text, timestamp: Instant | None) -> tuple[bytes, int]:
        """Those of a caller who numbers changes himself, `next` where he does not."""
        own, at = self.next(now)
        if timestamp is not None:
            at = instant(timestamp, "timestamp")
        return worker_bytes(sender) if sender else own, at

    def owner(self) -> bytes:
        """A name for one who locks a key."""
        with self._lock:
            self._owners += 1
            return self._name() + self._owners.to_bytes(8, "big")

    def _name(self) -> bytes:
        if self._process != os.getpid():
            self._process, self._sender = os.getpid(), os.urandom(8)
        return self._sender
