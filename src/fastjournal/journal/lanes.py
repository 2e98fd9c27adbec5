"""One queue's rows, in the order in which they are handed out.

Rules:

1. The order is (rank, due, inserted, id). `inserted` is strictly increasing along puts, so it is
   the arrival number.
2. Entries are never searched for: an entry whose row has moved on is stale and is dropped when it
   comes to the head. When stale entries outnumber the others the heap is rebuilt, so its size
   stays within a constant factor of the rows in it.
3. `future` and `leases` hold the instants at which this queue may have work again: rows falling
   due, leases ending. The journal finds the first of all in the heads of its queues.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Any, TypeAlias

from fastjournal.journal.rows import FUTURE, IDLE, LEASED, PLACES, READY, TOMB, Row
from fastjournal.journal.runs import Run
from fastjournal.model import DEFAULT_SETTINGS

if TYPE_CHECKING:
    from fastjournal.journal.selection import Group

__all__ = ["SLACK", "Entry", "Heads", "Lane", "LaneTimeline", "Moment"]

Entry: TypeAlias = tuple[int, int, int, bytes]
"""rank, due, inserted, id"""
Moment: TypeAlias = tuple[int, int, bytes]
"""instant, inserted, id"""

SLACK = 64
"""Heaps smaller than this are not rebuilt."""


class Lane:
    """The rows of one queue."""

    __slots__ = (
        "counts",
        "dead",
        "future",
        "groups",
        "leases",
        "listed",
        "name",
        "ready",
        "rows",
        "served",
        "settings",
        "settings_at",
        "total",
    )

    def __init__(self, name: bytes, rows: dict[bytes, Row]) -> None:
        self.name = name
        self.settings = DEFAULT_SETTINGS
        self.settings_at = 0
        """TIME of the newest QUEUE record; 0: none."""
        self.rows = rows
        self.total = 0
        self.counts = [0] * PLACES
        self.ready: Run[Entry] = Run()
        self.future: Run[Moment] = Run()
        self.leases: Run[Moment] = Run()
        self.dead: dict[bytes, Row] = {}
        self.groups: tuple[Group, ...] = ()
        self.listed = 0
        """0 not offered, 1 offered, 2 offered, but only slow rows are ready."""
        self.served = 0
        """Number of the last lease from here: the smallest is served next."""

    def reset(self) -> None:
        """Forget where rows stand."""
        self.counts = [0] * PLACES
        self.ready = Run()
        self.future = Run()
        self.leases = Run()
        self.dead = {}
        self.groups = ()
        self.listed = 0

    @property
    def jobs(self) -> int:
        """Rows that are no tombstones."""
        return self.total - self.counts[TOMB]

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

    def head(self, now: int) -> Row | None:
        """The first ready row. One that has expired is set aside until its record is written."""
        ready, rows = self.ready, self.rows
        while (entry := ready.first()) is not None:
            rank, due, inserted, row_id = entry
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
            ready.pop()
        return None

    def is_slow(self, row: Row) -> bool:
        """Such a row waits for a pass without other work (D-11)."""
        return row.rank >= self.settings.slow_from and not row.workq

    def next_wake(self) -> int:
        """When there may be work again; 0: nothing in sight."""
        due, end = self.next_moment(FUTURE), self.next_moment(LEASED)
        if due is None or end is None:
            first = due or end
            return 0 if first is None else first[0]
        return min(due[0], end[0])

    def next_moment(self, place: int) -> Moment | None:
        """When the first row at this place, FUTURE or LEASED, leaves it."""
        run, rows = self.future if place == FUTURE else self.leases, self.rows
        while (moment := run.first()) is not None:
            row = rows.get(moment[2])
            if row is not None and row.place == place and row.lane is self:
                instant = row.due if place == FUTURE else row.lease_until
                if instant == moment[0]:
                    return moment
            run.pop()
        return None

    def add_moment(self, row: Row, instant: int, place: int) -> bool:
        """Note when the row leaves its place; true if it is the first to do so."""
        run = self.future if place == FUTURE else self.leases
        moment = (instant, row.inserted, row.id)
        run.push(moment)
        if len(run) > 2 * self.counts[place] + SLACK:
            self._rebuild_moments(place)
            return True
        return run.first() is moment

    def _rebuild_moments(self, place: int) -> None:
        kept = set()
        for moment in self.future if place == FUTURE else self.leases:
            row = self.rows.get(moment[2])
            if row is not None and row.place == place and row.lane is self:
                kept.add((row.due if place == FUTURE else row.lease_until, row.inserted, row.id))
        if place == FUTURE:
            self.future = Run(kept)
        else:
            self.leases = Run(kept)

    def rebuild(self) -> None:
        """Drop the stale entries."""
        rows = self.rows
        kept = set()
        for entry in self.ready:
            row = rows.get(entry[3])
            if row is not None and row.place == READY and row.lane is self:
                kept.add((row.rank, row.due, row.inserted, row.id))
        self.ready = Run(kept)


class Heads:
    """The smallest key over many lanes, each with a key that changes or vanishes.

    `offer` when a lane's key may have become smaller; keys that became larger are noticed when
    they come to the head.
    """

    __slots__ = ("_at", "_heap", "_key", "_lanes")

    def __init__(self, lanes: dict[bytes, Lane], key: Callable[[Lane], Any]) -> None:
        self._lanes = lanes
        self._key = key
        self._heap: list[tuple[Any, bytes]] = []
        self._at: dict[bytes, Any] = {}

    def offer(self, lane: Lane) -> None:
        """The lane's key may have become smaller."""
        key = self._key(lane)
        if key is None:
            return
        old = self._at.get(lane.name)
        if old is None or key < old:
            self._at[lane.name] = key
            heappush(self._heap, (key, lane.name))
            if len(self._heap) > 2 * len(self._lanes) + SLACK:
                self._rebuild()

    def __len__(self) -> int:
        return len(self._heap)

    def _rebuild(self) -> None:
        """Drop what is left of queues that are gone, and of keys that became smaller."""
        self._at = {name: key for name, key in self._at.items() if name in self._lanes}
        self._heap = [(key, name) for name, key in self._at.items()]
        heapify(self._heap)

    def first(self) -> Lane | None:
        """The lane with the smallest key."""
        heap, at, lanes = self._heap, self._at, self._lanes
        while heap:
            key, name = heap[0]
            if at.get(name) != key:
                heappop(heap)
                continue
            lane = lanes.get(name)
            current = None if lane is None else self._key(lane)
            if current is None:
                heappop(heap)
                del at[name]
            elif current == key:
                return lane
            else:
                at[name] = current
                heapreplace(heap, (current, name))
        return None


class LaneTimeline:
    """The moments of all queues at which rows leave one place: FUTURE or LEASED."""

    __slots__ = ("_heads", "_lanes", "_place", "_told")

    def __init__(self, lanes: dict[bytes, Lane], place: int, told: Callable[[Lane], None]) -> None:
        self._lanes = lanes
        self._place = place
        self._told = told
        self._heads = Heads(lanes, lambda lane: lane.next_moment(place))

    def add(self, row: Row, instant: int) -> None:
        """The row leaves its place at this instant."""
        lane = row.lane
        if lane.add_moment(row, instant, self._place):
            self._heads.offer(lane)
            self._told(lane)

    def head(self) -> Row | None:
        """The row that leaves first."""
        lane = self._heads.first()
        if lane is None:
            return None
        moment = lane.next_moment(self._place)
        return None if moment is None else lane.rows[moment[2]]

    def next(self) -> int:
        """The first instant; 0: none."""
        lane = self._heads.first()
        moment = None if lane is None else lane.next_moment(self._place)
        return 0 if moment is None else moment[0]

    def __len__(self) -> int:
        return len(self._heads)
