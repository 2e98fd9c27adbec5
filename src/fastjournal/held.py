"""A lock on a key while it is held, the same for an embedded journal and for a daemon's client.

Rules:

1. What is changed through it carries its fencing number: once the lock is lost, `LeaseLost`.
2. Leaving the context frees it; one that was lost meanwhile is none of its business any more.
3. `keep` prolongs the very lock that was taken: if it had passed on, `LeaseLost`.
"""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

from fastjournal.arguments import Length, as_datetime, length
from fastjournal.entry import EntryValue
from fastjournal.errors import LeaseLost, Locked

__all__ = ["HeldLock", "LockedKey", "Locking"]


class Locking(Protocol):
    """Entries that can be locked."""

    def _lock(self, key: bytes, owner: bytes, lasts: int, wait: int) -> tuple[int, int]: ...

    def _unlock(self, key: bytes, fence: int) -> bool: ...

    def set(self, *given: Any, **how: Any) -> bool: ...

    def get(self, *given: Any, **how: Any) -> Any: ...

    def add(self, *given: Any, **how: Any) -> EntryValue: ...

    def delete(self, *given: Any, **how: Any) -> bool: ...


class LockedKey:
    """What a lock is."""

    def __init__(self, key: bytes, owner: bytes) -> None:
        self.key = key
        self.owner = owner
        self.fence = 0
        """A number larger than that of every earlier lock."""
        self.until = 0
        """When it ends by itself, ns since 1970, by the clock of whoever keeps the journal."""

    @property
    def until_at(self) -> datetime | None:
        """When it ends by itself."""
        return as_datetime(self.until)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} number {self.fence}>"


class HeldLock(LockedKey):
    """A locked key; free it, or use it as a context manager."""

    def __init__(self, entries: Locking, key: bytes, owner: bytes) -> None:
        super().__init__(key, owner)
        self._entries = entries

    def take(self, lasts: Length = 10, wait: Length = 0) -> None:
        """Take the lock, or keep it for so long from now on."""
        self.fence, self.until = self._entries._lock(
            self.key, self.owner, length(lasts, "length"), length(wait, "wait")
        )

    def keep(self, lasts: Length = 10) -> None:
        """Keep the lock for so long from now on; `LeaseLost` if it is no longer ours."""
        fence = self.fence
        try:
            self.take(lasts)
        except Locked:
            raise LeaseLost("the lock is no longer yours") from None
        if self.fence != fence:
            self.free()
            raise LeaseLost("the lock was lost in between")

    def free(self) -> bool:
        """Free the lock; False if it was not held any more: lost, or freed by an earlier try."""
        try:
            return self._entries._unlock(self.key, self.fence)
        except Locked:
            return False

    def set(self, value: EntryValue, **how: Any) -> bool:
        """Store a value under the locked key; `how` as in `entries.set`."""
        return self._entries.set(self.key, value, fence=self.fence, **how)

    def get(self, default: EntryValue = None) -> EntryValue:
        """The value of the locked key."""
        value: EntryValue = self._entries.get(self.key, default)
        return value

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
