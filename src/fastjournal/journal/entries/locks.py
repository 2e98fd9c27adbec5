"""Locks on keys: others may read what is locked, not change it.

Rules:

1. A lock ends at its deadline, whatever becomes of its owner: 10 seconds unless told, an hour at
   most (D-22). It lives in memory only: a restart frees all.
2. Every lock has a fencing number, larger than all before it, whatever becomes of clocks and
   machines: the TIME of a record, which is as safe as any other before the lock is told. A change
   that names one is made only while that very lock is held: the late write of an owner that lost
   its lock is refused.
3. An owner that locks again keeps its number and moves the deadline.
4. All keys of an entry are one: a lock on any of them locks it.
"""

from collections.abc import Callable
from typing import Final, final

from mypy_extensions import mypyc_attr

from fastjournal.clock import SECOND
from fastjournal.errors import LeaseLost, Locked, OutOfRange, QueueFull, quoted

__all__ = ["NOBODY", "Lock", "Locks", "Writer"]

DEFAULT_LENGTH: Final = 10 * SECOND
MAX_LENGTH: Final = 3600 * SECOND
_MOST: Final = 100_000


@final
@mypyc_attr(acyclic=True)
class Writer:
    """Who wants to change something: a name, or the fencing number of a lock."""

    def __init__(self, owner: bytes = b"", fence: int = 0) -> None:
        self.owner = owner
        self.fence = fence


NOBODY: Final = Writer()


@final
@mypyc_attr(acyclic=True)
class Lock:
    """A lock on a key."""

    def __init__(self, owner: bytes, until: int, fence: int, key: bytes = b"") -> None:
        self.owner = owner
        self.until = until
        self.fence = fence
        self.key = key


@final
class Locks:
    """All locks of a journal."""

    def __init__(self) -> None:
        self._locks: dict[bytes, Lock] = {}

    def __len__(self) -> int:
        """How many are held, or have just ended."""
        return len(self._locks)

    def holder(self, keys: tuple[bytes, ...], now: int) -> Lock | None:
        """The lock that is held on one of these keys."""
        if self._locks:
            for key in keys:
                lock = self._locks.get(key)
                if lock is not None:
                    if lock.until > now:
                        return lock
                    del self._locks[key]
        return None

    def check(self, keys: tuple[bytes, ...], by: Writer, now: int) -> None:
        """Refuse a change of somebody who must not make it."""
        held = self.holder(keys, now)
        if by.fence:
            if held is None or held.fence != by.fence:
                raise LeaseLost("the lock is no longer yours")
        elif held is not None and (not by.owner or held.owner != by.owner):
            raise Locked(f"{quoted(held.key)} is locked")

    def lock(
        self,
        keys: tuple[bytes, ...],
        owner: bytes,
        now: int,
        until: int,
        new_fence: Callable[[], int],
    ) -> Lock:
        """Lock the first of an entry's keys until an instant; 0: for the usual length."""
        until = until or now + DEFAULT_LENGTH
        if not now < until <= now + MAX_LENGTH:
            raise OutOfRange("a lock lasts up to an hour from now on")
        held = self.holder(keys, now)
        if held is None:
            if len(self._locks) >= _MOST:
                self._forget(now)
            lock = Lock(owner, until, new_fence(), keys[0])
        elif held.owner != owner:
            raise Locked(f"{quoted(held.key)} is locked")
        else:
            lock = Lock(owner, until, held.fence, held.key)
        self._locks[lock.key] = lock
        return lock

    def unlock(self, keys: tuple[bytes, ...], by: Writer, now: int) -> bool:
        """Free a lock; False if there is none."""
        held = self.holder(keys, now)
        if held is None:
            return False
        if (by.fence and by.fence != held.fence) or (not by.fence and by.owner != held.owner):
            raise Locked(f"{quoted(held.key)} is locked by somebody else")
        del self._locks[held.key]
        return True

    def move(self, old: bytes, new: bytes) -> None:
        """A key was renamed: its lock goes with it."""
        lock = self._locks.pop(old, None)
        if lock is not None:
            self._locks[new] = Lock(lock.owner, lock.until, lock.fence, new)

    def move_ends(self, step: int) -> None:
        """The clock steps forward by so much: every lock keeps its length."""
        self._locks = {
            key: Lock(lock.owner, lock.until + step, lock.fence, key)
            for key, lock in self._locks.items()
        }

    def _forget(self, now: int) -> None:
        self._locks = {key: lock for key, lock in self._locks.items() if lock.until > now}
        if len(self._locks) >= _MOST:
            raise QueueFull("too many locks are held")
