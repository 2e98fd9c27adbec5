"""A queue of sorted entries for traffic that mostly comes in order.

Jobs mostly arrive in the order in which they go out again, and leases end in the order in which
they were granted. So entries that come in order stand in a list, and taking the first is moving an
index; only the others go through a heap, where taking the first costs a walk to the leaves.

Rules:

1. `first` is the smallest of all entries.
2. An entry smaller than the last of the run goes to the heap; but if only the last one stands in
   its way, that one goes there instead: one job of low priority does not end the run for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, TypeVar

__all__ = ["Run"]

E = TypeVar("E", bound=tuple[object, ...])

_TRIM = 64


class Run(Generic[E]):
    """Entries, smallest first."""

    __slots__ = ("_at", "_heap", "_run")

    def __init__(self, entries: Iterable[E] = ()) -> None:
        self._run: list[E] = sorted(entries)
        self._at = 0
        self._heap: list[E] | None = None

    def __len__(self) -> int:
        return len(self._run) - self._at + (len(self._heap) if self._heap else 0)

    def __iter__(self) -> Iterator[E]:
        yield from islice(self._run, self._at, None)
        yield from self._heap or ()

    def push(self, entry: E) -> None:
        """Add an entry."""
        run = self._run
        if not run or entry > run[-1]:
            run.append(entry)
            return
        stray = entry
        if len(run) - self._at == 1 or run[-2] < entry:
            stray = run[-1]
            run[-1] = entry
        if self._heap is None:
            self._heap = [stray]
        else:
            heappush(self._heap, stray)

    def first(self) -> E | None:
        """The smallest entry."""
        run, heap = self._run, self._heap
        if not run:
            return heap[0] if heap else None
        entry = run[self._at]
        return heap[0] if heap and heap[0] < entry else entry

    def pop(self) -> None:
        """Take the smallest entry away."""
        run, heap, at = self._run, self._heap, self._at
        if heap and (not run or heap[0] < run[at]):
            heappop(heap)
            return
        at += 1
        if at == len(run):
            run.clear()
            at = 0
        elif at > _TRIM and at * 2 > len(run):
            del run[:at]
            at = 0
        self._at = at
