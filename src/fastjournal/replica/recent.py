"""The newest bytes of a log that somebody else writes, kept in memory to be shipped.

Who keeps up is fed from here, without a look at a file; who is behind that, from the segments.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import NamedTuple

__all__ = ["Chunk", "RecentBytes"]

_KEPT = 4 << 20  # bytes


class Chunk(NamedTuple):
    """Raw records of one segment."""

    data: bytes
    begins: bool
    """They are its first."""
    last: int
    """TIME of the last one."""


class _Write(NamedTuple):
    after: int
    """TIME of the record before."""
    chunk: Chunk


class RecentBytes:
    """Bounded; told of every write on whatever thread makes it, in their order."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._left = kept
        self._guard = threading.Lock()
        self._writes: deque[_Write] = deque()

    def add(self, after: int, data: bytes, last: int, begins: bool) -> None:
        """Records were written behind the TIME `after`; `begins`: they are the first of a file."""
        with self._guard:
            self._writes.append(_Write(after, Chunk(data, begins, last)))
            self._left -= len(data)
            while self._left < 0:
                self._left += len(self._writes.popleft().chunk.data)

    def read_after(self, after: int, limit: int) -> Chunk | None:
        """What was written behind a TIME, as much as fits; None: it is not here."""
        with self._guard:
            writes = self._writes
            at = len(writes)
            while at and writes[at - 1].after >= after:
                at -= 1
            if at == len(writes) or writes[at].after != after:
                return None
            first = writes[at].chunk
            if at + 1 == len(writes):
                return first
            parts, size, last = [first.data], len(first.data), first.last
            for number in range(at + 1, len(writes)):
                one = writes[number].chunk
                size += len(one.data)
                if one.begins or size > limit:
                    break
                parts.append(one.data)
                last = one.last
        return Chunk(b"".join(parts), first.begins, last)
