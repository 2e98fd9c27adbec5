"""Locks on keys: others may read what is locked, not change it.

Rules:

1. A lock ends at its deadline, whatever becomes of its owner: 10 seconds unless told, an hour at
   most (D-22). It lives in memory only: a restart frees all.
2. Every lock has a fencing number, larger than all before it. A change that names one is made only
   while that very lock is held: the late write of an owner that lost its lock is refused.
3. An owner that locks again keeps its number and moves the deadline.
4. All keys of an entry are one: a lock on any of them locks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fastjournal.clock import SECOND
from fastjournal.errors import LeaseLost, Locked, OutOfRange, QueueFull

__all__ = ["NOBODY", "Lock", "Locks", "Writer"]

DEFAULT_LENGTH = 10 * SECOND
MAX_LENGTH = 3600 * SECOND
_MOST = 100_000


class Writer(NamedTuple):
    """Who wants to change something: a name, or the fencing number of a lock."""

    owner: bytes = b""
    fence: int = 0


NOBODY = Writer()


class Lock(NamedTuple):
    """A lock on a key."""

    owner: bytes
    until: int
    fence: int


class Locks:
    """All locks of a journal."""

    def __init__(self) -> None:
        self._locks: dict[bytes, Lock] = {}
        self._fence = 0

    def holder(self, keys: Iterable[bytes], now: int) -> tuple[bytes, Lock] | None:
        """The lock that is held on one of these keys, and on which."""
        if self._locks:
            for key in keys:
                lock = self._locks.get(key)
                if lock is not None:
                    if lock.until > now:
                        return key, lock
                    del self._locks[key]
        return None

    def check(self, keys: Iterable[bytes], by: Writer, now: int) -> None:
        """Refuse a change of somebody who must not make it."""
        if not self._locks and not by.fence:
            return
        held = self.holder(keys, now)
        if by.fence:
            if held is None or held[1].fence != by.fence:
                raise LeaseLost("the lock is no longer yours")
        elif held is not None and (not by.owner or held[1].owner != by.owner):
            raise Locked(f"{held[0]!r} is locked")

    def lock(self, keys: tuple[bytes, ...], owner: bytes, now: int, until: int = 0) -> Lock:
        """Lock the first of an entry's keys until an instant."""
        until = until or now + DEFAULT_LENGTH
        if not now < until <= now + MAX_LENGTH:
            raise OutOfRange("a lock lasts up to an hour from now on")
        held = self.holder(keys, now)
        if held is None:
            if len(self._locks) >= _MOST:
                self._forget(now)
            self._fence = fence = max(now, self._fence + 1)
            key = keys[0]
        else:
            key, (holder, _, fence) = held
            if holder != owner:
                raise Locked(f"{key!r} is locked")
        lock = self._locks[key] = Lock(owner, until, fence)
        return lock

    def unlock(self, keys: Iterable[bytes], by: Writer, now: int) -> bool:
        """Free a lock; False if there is none."""
        held = self.holder(keys, now)
        if held is None:
            return False
        key, lock = held
        if (by.fence and by.fence != lock.fence) or (not by.fence and by.owner != lock.owner):
            raise Locked(f"{key!r} is locked by somebody else")
        del self._locks[key]
        return True

    def free_all(self, owner: bytes) -> None:
        """Free everything an owner holds: it has gone."""
        for key in [key for key, lock in self._locks.items() if lock.owner == owner]:
            del self._locks[key]

    def move(self, old: bytes, new: bytes) -> None:
        """A key was renamed: its lock goes with it."""
        lock = self._locks.pop(old, None)
        if lock is not None:
            self._locks[new] = lock

    def move_ends(self, step: int) -> None:
        """The clock steps forward by so much: every lock keeps its length."""
        self._locks = {
            key: lock._replace(until=lock.until + step) for key, lock in self._locks.items()
        }

    def _forget(self, now: int) -> None:
        self._locks = {key: lock for key, lock in self._locks.items() if lock.until > now}
        if len(self._locks) >= _MOST:
            raise QueueFull("too many locks are held")
