"""One queue's rows, in the order in which they are handed out.

Rules:

1. The order is (rank, due, inserted, id). `inserted` is strictly increasing along puts, so it is
   the arrival number.
2. Entries are never searched for: an entry whose row has moved on is stale and is dropped when it
   comes to the head. When stale entries outnumber the others the heap is rebuilt, so its size
   stays within a constant factor of the rows in it.
3. `wake` holds the instants at which this queue may have work again: rows falling due, leases
   ending. Its entries are those of the journal-wide timelines, not copies.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from fastjournal.journal.rows import FUTURE, IDLE, LEASED, PLACES, READY, Row
from fastjournal.model import DEFAULT_SETTINGS

if TYPE_CHECKING:
    from fastjournal.journal.selection import Group

__all__ = ["Entry", "Lane", "Moment"]

Entry: TypeAlias = tuple[int, int, int, bytes]
"""rank, due, inserted, id"""
Moment: TypeAlias = tuple[int, int, bytes]
"""instant, inserted, id"""

_SLACK = 64


class Lane:
    """The rows of one queue."""

    __slots__ = (
        "counts",
        "dead",
        "groups",
        "listed",
        "name",
        "ready",
        "rows",
        "served",
        "settings",
        "settings_at",
        "total",
        "wake",
    )

    def __init__(self, name: bytes, rows: dict[bytes, Row]) -> None:
        self.name = name
        self.settings = DEFAULT_SETTINGS
        self.settings_at = 0
        """TIME of the newest QUEUE record; 0: none."""
        self.rows = rows
        self.total = 0
        self.counts = [0] * PLACES
        self.ready: list[Entry] = []
        self.wake: list[Moment] = []
        self.dead: dict[bytes, Row] = {}
        self.groups: tuple[Group, ...] = ()
        self.listed = 0
        """0 not offered, 1 offered, 2 offered, but only slow rows are ready."""
        self.served = 0
        """Number of the last lease from here: the smallest is served next."""

    @property
    def unused(self) -> bool:
        """Nothing in it and nothing known about it."""
        return not self.total and not self.settings_at

    @property
    def open(self) -> bool:
        """Something is ready and may be handed out."""
        counts = self.counts
        settings = self.settings
        return (
            counts[READY] > 0
            and not settings.paused
            and not 0 < settings.concurrency <= counts[LEASED]
        )

    def push(self, row: Row) -> None:
        """Make a row ready; its place is already READY."""
        ready = self.ready
        heappush(ready, (row.rank, row.due, row.inserted, row.id))
        if len(ready) > 2 * self.counts[READY] + _SLACK:
            self._rebuild()

    def head(self, now: int) -> Row | None:
        """The first ready row. One that has expired is set aside until its record is written."""
        ready, rows = self.ready, self.rows
        while ready:
            rank, due, inserted, row_id = ready[0]
            row = rows.get(row_id)
            if (
                row is not None
                and row.place == READY
                and row.due == due
                and row.rank == rank
                and row.inserted == inserted
                and row.lane is self
            ):
                if not row.expires or now <= row.expires:
                    return row
                row.place = IDLE
                self.counts[READY] -= 1
                self.counts[IDLE] += 1
            heappop(ready)
        return None

    def is_slow(self, row: Row) -> bool:
        """Such a row waits for a pass without other work (D-11)."""
        return row.rank >= self.settings.slow_from and not row.workq

    def add_wake(self, moment: Moment) -> None:
        """Note when there may be work again."""
        wake = self.wake
        heappush(wake, moment)
        if len(wake) > 2 * (self.counts[FUTURE] + self.counts[LEASED]) + _SLACK:
            wake[:] = set(filter(self._is_awaited, wake))
            heapify(wake)

    def next_wake(self) -> int:
        """When there may be work again; 0: nothing in sight."""
        wake = self.wake
        while wake:
            if self._is_awaited(wake[0]):
                return wake[0][0]
            heappop(wake)
        return 0

    def _is_awaited(self, moment: Moment) -> bool:
        row = self.rows.get(moment[2])
        if row is None or row.lane is not self:
            return False
        if row.place == FUTURE:
            return row.due == moment[0]
        return row.place == LEASED and row.lease_until == moment[0]

    def _rebuild(self) -> None:
        rows = self.rows
        kept = set()
        for entry in self.ready:
            row = rows.get(entry[3])
            if row is not None and row.place == READY and row.lane is self:
                kept.add((row.rank, row.due, row.inserted, row.id))
        self.ready = list(kept)
        heapify(self.ready)
