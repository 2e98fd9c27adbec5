"""The keys of entries in order, for ranges, patterns and cursors.

Rules:

1. It may hold keys whose entries are gone, never the other way round: whoever looks asks the index.
   So taking a key out costs nothing; keys found dead on the way are dropped, and all are sifted
   when there are twice as many as the last time.
2. A new key only joins a heap of new ones; they are sorted in when somebody looks. A write costs
   the same whether there are ten keys or ten million.
3. Keys stand in sorted chunks: sorting one in moves at most a chunk.
"""

from bisect import bisect_left, bisect_right
from typing import Final, final

from mypy_extensions import i64

from fastjournal.journal.state.keys import KeyIndex
from fastjournal.journal.state.row import PROCESSING_ROW, Row

__all__ = ["KeyWalk", "OrderedKeys"]

_CHUNK: Final = 512
_SLACK: Final = 256


@final
class OrderedKeys:
    """A sorted set of byte strings that is mostly written and now and then read."""

    def __init__(self, index: KeyIndex) -> None:
        self._index = index
        self._new: set[bytes] = set()
        self._chunks: list[list[bytes]] = []
        self._firsts: list[bytes] = []
        self._count: i64 = 0
        self._limit: i64 = _SLACK

    def add(self, key: bytes) -> None:
        """An entry has this key."""
        self._new.add(key)
        if len(self._new) + self._count > self._limit:
            self._sift()

    def walk(self, start: bytes, *, after: bool = False) -> "KeyWalk":
        """Along the living entries from `start` on, or strictly after it, in order of their keys.

        Add none while walking.
        """
        if self._new:
            self._sort_in()
        return KeyWalk(self, start, after)

    def living(self, key: bytes) -> Row | None:
        """The entry of a key, unless it is gone."""
        row = self._index.entry(key)
        return row if row is not None and row.stage <= PROCESSING_ROW else None

    def chunk(self, number: i64) -> list[bytes] | None:
        """The chunk of this number; None: there are not so many."""
        return self._chunks[number] if number < len(self._chunks) else None

    def chunk_of(self, key: bytes) -> i64:
        """The number of the chunk in which a key stands, or would."""
        number: i64 = bisect_right(self._firsts, key)
        return number - 1 if number else 0

    def drop_dead(self, number: i64) -> bool:
        """Sift a chunk; True if nothing of it is left."""
        chunk = self._chunks[number]
        kept = [key for key in chunk if self.living(key) is not None]
        self._count -= len(chunk) - len(kept)
        if kept:
            self._chunks[number] = kept
            self._firsts[number] = kept[0]
            return False
        del self._chunks[number]
        del self._firsts[number]
        return True

    def __len__(self) -> int:
        """How many keys are held, those of the gone included."""
        return self._count + len(self._new)

    def _sort_in(self) -> None:
        new = self._new
        self._new = set()
        if len(new) * 8 > self._count:
            for chunk in self._chunks:
                new.update(chunk)
            self._cut(sorted(new))
            return
        for key in new:
            self._insert(key)

    def _insert(self, key: bytes) -> None:
        number = self.chunk_of(key)
        chunk = self._chunks[number]
        at: i64 = bisect_left(chunk, key)
        if at < len(chunk) and chunk[at] == key:
            return
        chunk.insert(at, key)
        self._count += 1
        if not at:
            self._firsts[number] = key
        if len(chunk) > 2 * _CHUNK:
            right = chunk[_CHUNK:]
            del chunk[_CHUNK:]
            self._chunks.insert(number + 1, right)
            self._firsts.insert(number + 1, right[0])

    def _sift(self) -> None:
        """Drop the keys of entries that are gone."""
        self._new = {key for key in self._new if self.living(key) is not None}
        kept: list[bytes] = []
        for chunk in self._chunks:
            kept.extend([key for key in chunk if self.living(key) is not None])
        self._cut(kept)
        self._limit = 2 * (len(kept) + len(self._new)) + _SLACK

    def _cut(self, keys: list[bytes]) -> None:
        self._count = len(keys)
        self._chunks = [keys[at : at + _CHUNK] for at in range(0, len(keys), _CHUNK)]
        self._firsts = [chunk[0] for chunk in self._chunks]


@final
class KeyWalk:
    """Goes from one living entry to the next; as an iterator it tells their keys."""

    def __init__(self, keys: OrderedKeys, start: bytes, after: bool) -> None:
        self.key = b""
        """That of the entry just found."""
        self._keys = keys
        self._number: i64 = keys.chunk_of(start)
        self._chunk: list[bytes] | None = keys.chunk(self._number)
        self._at: i64 = 0
        self._dead = False
        """A key of this chunk was found dead."""
        if self._chunk is not None:
            self._at = (
                bisect_right(self._chunk, start) if after else bisect_left(self._chunk, start)
            )

    def step(self) -> Row | None:
        """The next entry, found by `key`; None: that was the last."""
        keys = self._keys
        while True:
            chunk = self._chunk
            if chunk is None:
                return None
            at = self._at
            while at < len(chunk):
                key = chunk[at]
                at += 1
                row = keys.living(key)
                if row is not None:
                    self.key = key
                    self._at = at
                    return row
                self._dead = True
            self.end()
            self._number += 1
            self._chunk = keys.chunk(self._number)
            self._at = 0

    def end(self) -> None:
        """Drop what was found dead; call it when you stop early."""
        if self._dead and self._keys.drop_dead(self._number):
            self._number -= 1
        self._dead = False

    def __iter__(self) -> "KeyWalk":
        return self

    def __next__(self) -> bytes:
        if self.step() is None:
            raise StopIteration
        return self.key
