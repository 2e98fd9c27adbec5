"""A lock on a key while it is held.

Rules:

1. What is changed through it carries its fencing number: once the lock is lost, `LeaseLost`.
2. Leaving the context frees it; one that was lost meanwhile is none of its business any more.
"""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from fastjournal.edges import Length, as_datetime, length
from fastjournal.entry import EntryValue
from fastjournal.errors import Locked

if TYPE_CHECKING:
    from fastjournal.journal.mapping import EntryMap

__all__ = ["HeldLock"]


class HeldLock:
    """A locked key; free it, or use it as a context manager."""

    def __init__(self, entries: EntryMap, key: bytes, owner: bytes) -> None:
        self._entries = entries
        self.key = key
        self.owner = owner
        self.fence = 0
        """A number larger than that of every earlier lock."""
        self.until = 0
        """When it ends by itself, ns since 1970."""

    @property
    def until_at(self) -> datetime | None:
        """When it ends by itself."""
        return as_datetime(self.until)

    def take(self, lasts: Length = 10, wait: Length = 0) -> None:
        """Take the lock, or keep it for so long from now on."""
        self.fence, self.until = self._entries._lock(
            self.key, self.owner, length(lasts, "length"), length(wait, "wait")
        )

    def free(self) -> bool:
        """Free the lock; False if it was lost already."""
        try:
            return self._entries._unlock(self.key, self.fence)
        except Locked:
            return False

    def set(self, value: EntryValue, **how: Any) -> bool:
        """Store a value under the locked key; `how` as in `EntryMap.set`."""
        return self._entries.set(self.key, value, fence=self.fence, **how)

    def get(self, default: EntryValue = None) -> EntryValue:
        """The value of the locked key."""
        return self._entries.get(self.key, default)

    def add(self, number: float = 1, **how: Any) -> EntryValue:
        """Add to the number under the locked key."""
        return self._entries.add(self.key, number, fence=self.fence, **how)

    def delete(self, **how: Any) -> bool:
        """Delete the locked entry."""
        return self._entries.delete(self.key, fence=self.fence, **how)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.free()
