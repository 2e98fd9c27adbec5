"""The keys of entries in order, for ranges, patterns and cursors.

Rules:

1. It may hold keys whose entries are gone, never the other way round: whoever looks asks `alive`.
   So taking a key out costs nothing; keys found dead on the way are dropped, and all are sifted
   when there are twice as many as the last time.
2. A new key only joins a heap of new ones; they are sorted in when somebody looks. A write costs
   the same whether there are ten keys or ten million.
3. Keys stand in sorted chunks: sorting one in moves at most a chunk.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator

__all__ = ["OrderedKeys"]

_CHUNK = 512
_SLACK = 256


class OrderedKeys:
    """A sorted set of byte strings that is mostly written and now and then read."""

    __slots__ = ("_alive", "_chunks", "_count", "_firsts", "_limit", "_new")

    def __init__(self, alive: Callable[[bytes], bool]) -> None:
        self._alive = alive
        self._new: set[bytes] = set()
        self._chunks: list[list[bytes]] = []
        self._firsts: list[bytes] = []
        self._count = 0
        self._limit = _SLACK

    def add(self, key: bytes) -> None:
        """An entry has this key."""
        new = self._new
        new.add(key)
        if len(new) + self._count > self._limit:
            self._sift()

    def walk(self, start: bytes, *, after: bool = False) -> Iterator[bytes]:
        """The keys of living entries from `start` on, or strictly after it, in order.

        Add none while walking.
        """
        if self._new:
            self._sort_in()
        chunks, firsts, alive = self._chunks, self._firsts, self._alive
        number = max(0, bisect_right(firsts, start) - 1)
        while number < len(chunks):
            chunk = chunks[number]
            at = bisect_right(chunk, start) if after else bisect_left(chunk, start)
            dead = False
            try:
                for key in chunk[at:]:
                    if alive(key):
                        yield key
                    else:
                        dead = True
            finally:
                if dead and self._drop_dead(number):
                    number -= 1
            number += 1

    def __len__(self) -> int:
        """How many keys are held, those of the gone included."""
        return self._count + len(self._new)

    def _drop_dead(self, number: int) -> bool:
        """Sift a chunk; True if nothing of it is left."""
        chunk = self._chunks[number]
        kept = [key for key in chunk if self._alive(key)]
        self._count -= len(chunk) - len(kept)
        if kept:
            self._chunks[number] = kept
            self._firsts[number] = kept[0]
            return False
        del self._chunks[number], self._firsts[number]
        return True

    def _sort_in(self) -> None:
        new = self._new
        self._new = set()
        if len(new) * 8 > self._count:
            self._cut(sorted(new.union(*self._chunks)))
            return
        for key in new:
            self._insert(key)

    def _insert(self, key: bytes) -> None:
        firsts = self._firsts
        number = max(0, bisect_right(firsts, key) - 1)
        chunk = self._chunks[number]
        at = bisect_left(chunk, key)
        if at < len(chunk) and chunk[at] == key:
            return
        chunk.insert(at, key)
        self._count += 1
        if not at:
            firsts[number] = key
        if len(chunk) > 2 * _CHUNK:
            right = chunk[_CHUNK:]
            del chunk[_CHUNK:]
            self._chunks.insert(number + 1, right)
            firsts.insert(number + 1, right[0])

    def _sift(self) -> None:
        """Drop the keys of entries that are gone."""
        alive = self._alive
        self._new = set(filter(alive, self._new))
        kept = [key for chunk in self._chunks for key in chunk if alive(key)]
        self._cut(kept)
        self._limit = 2 * (len(kept) + len(self._new)) + _SLACK

    def _cut(self, keys: list[bytes]) -> None:
        self._count = len(keys)
        self._chunks = [keys[at : at + _CHUNK] for at in range(0, len(keys), _CHUNK)]
        self._firsts = [chunk[0] for chunk in self._chunks]
