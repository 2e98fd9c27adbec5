"""Where rows stand, and which queue may give what: the indexes kept in step with the rows.

Rules:

1. A waiting row is FUTURE until it is due, then HELD while a row of its key is worked on in the
   same queue, else READY. Rows without a queue are IDLE: nobody is handed one.
2. A row leaves its place before it changes and gets a place afterwards.
3. The state's own time, `now`, never goes back, even when the wall clock does.
"""

from __future__ import annotations

from typing import Any

from fastjournal.journal import kinds as k
from fastjournal.journal.indexes import KeyIndex, Timeline
from fastjournal.journal.lanes import SLACK, Entry, Lane, LaneTimeline
from fastjournal.journal.ordered import OrderedKeys
from fastjournal.journal.rows import DEAD, DONE, FUTURE, HELD, IDLE, LEASED, READY, TOMB, Row
from fastjournal.journal.runs import Run
from fastjournal.journal.selection import Selection
from fastjournal.model import State

__all__ = ["Places", "dead_until"]

WAITING, PROCESSING = State.WAITING, State.PROCESSING
_PLACE_OF = {
    PROCESSING: LEASED,
    State.COMPLETED: DONE,
    State.FAILED: DEAD,
    State.DELETED: TOMB,
}
_SPARE_LANES = 1000
"""Up to so many queues are kept when they become empty: making one anew costs more."""


def dead_until(row: Row) -> int:
    """When a dead row that never expires is to be forgotten; 0: never."""
    keep = row.lane.settings.dead_keep
    if row.place != DEAD or row.expires or not keep:
        return 0
    return row.rare.when + keep


class _Nowhere:
    """Stands for any index while there are none."""

    def ignore(self, *_: object) -> None:
        return None

    def alone(self, row: Row) -> bool:
        return True

    add = remove = attach = detach = pushed = refresh = served = ignore


class Places:
    """All rows and the ways to find them."""

    def __init__(self) -> None:
        self.now = 0
        self.rows: dict[bytes, Row] = {}
        self.lanes: dict[bytes, Lane] = {}
        self.woken: set[bytes] = set()
        """Queues that got a ready row since somebody last emptied this set."""
        self.suspended = False
        self._make_indexes()

    def _make_indexes(self) -> None:
        rows = self.rows
        self.keys = KeyIndex()
        self.entry_keys = OrderedKeys(self._is_entry)
        self.selection = Selection(self.lanes)
        self.future = LaneTimeline(self.lanes, FUTURE, self.selection.woke)
        self.leases = LaneTimeline(self.lanes, LEASED, self.selection.woke)
        self.expiry = Timeline(rows, lambda row: row.expires)
        self.dead = Timeline(rows, dead_until)
        self.tombs = Timeline(rows, lambda row: row.modified if row.place == TOMB else 0)

    def suspend(self) -> None:
        """Keep rows only from now on, until `resume`: applying a long log is twice as fast."""
        self.suspended = True
        nowhere: Any = _Nowhere()
        self.keys = self.selection = self.entry_keys = nowhere
        self.future = self.leases = self.expiry = self.dead = self.tombs = nowhere

    def resume(self) -> None:
        """Give every row its place and make the indexes anew."""
        self.suspended = False
        self._make_indexes()
        for lane in self.lanes.values():
            lane.reset()
            self.selection.attach(lane)
        waiting = []
        for row in self.rows.values():
            state = row.state
            if row.expires:
                self.expiry.add(row, row.expires)
            if state is WAITING or state is PROCESSING or state is State.DELETED:
                self.keys.add(row)
            if state is WAITING:
                waiting.append(row)
            else:
                self._stand(row)
        self._place_all(waiting)

    def _place_all(self, rows: list[Row]) -> None:
        """Find the places of many waiting rows: each heap is made in one go."""
        now, alone = self.now, self.keys.alone
        ready: dict[bytes, list[Entry]] = {}
        for row in rows:
            lane = row.lane
            if row.due > now or not lane.name or (row.key and not alone(row)):
                self._place(row)
            else:
                row.place = READY
                lane.counts[READY] += 1
                entries = ready.get(lane.name)
                if entries is None:
                    entries = ready[lane.name] = []
                entries.append((row.rank, row.due, row.inserted, row.id))
        for name, entries in ready.items():
            lane = self.lanes[name]
            lane.ready = Run([*entries, *lane.ready])
        for lane in self.lanes.values():
            self.selection.refresh(lane)
            if lane.listed:
                self.woken.add(lane.name)

    def _stand(self, row: Row) -> None:
        """Find the place of a row that does not wait."""
        lane = row.lane
        place = row.place = _PLACE_OF[row.state]
        lane.counts[place] += 1
        if place == LEASED:
            self.leases.add(row, row.lease_until)
            if not lane.name:
                self._list(row)
        elif place == DEAD:
            lane.dead[row.id] = row
            until = dead_until(row)
            if until:
                self.dead.add(row, until)
        elif place == TOMB:
            self.tombs.add(row, row.modified)

    def lane(self, name: bytes) -> Lane:
        """The queue of this name, made if need be."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = Lane(name, self.rows)
            self.selection.attach(lane)
        return lane

    def promote(self, now: int) -> int:
        """Make the rows ready that have become due; returns the state's time."""
        if now > self.now:
            self.now = now
        future = self.future
        while (row := future.head()) is not None and row.due <= self.now:
            row.lane.counts[FUTURE] -= 1
            self._place(row)
        return self.now

    def _place(self, row: Row) -> None:
        """Find the place of a waiting row."""
        if self.suspended:
            row.place = IDLE
            return
        lane = row.lane
        counts = lane.counts
        if not lane.name:
            row.place = IDLE
            counts[IDLE] += 1
            self._list(row)
        elif row.due > self.now:
            row.place = FUTURE
            counts[FUTURE] += 1
            self.future.add(row, row.due)
        elif row.key and not self.keys.alone(row) and self._held(row):
            row.place = HELD
            counts[HELD] += 1
        else:
            row.place = READY
            counts[READY] += 1
            ready = lane.ready
            ready.push((row.rank, row.due, row.inserted, row.id))
            if len(ready) > 2 * counts[READY] + SLACK:
                lane.rebuild()
            selection = self.selection
            if lane.listed != 1 or selection.heads:
                selection.pushed(lane, row)
            self.woken.add(lane.name)

    def _list(self, row: Row) -> None:
        """An entry's keys are to be found in order."""
        if row.key:
            self.entry_keys.add(row.key)
        for alias in row.rare.aliases:
            self.entry_keys.add(alias)

    def _is_entry(self, key: bytes) -> bool:
        return any(row.state <= PROCESSING for row in self.keys.find(b"", key))

    def _held(self, row: Row) -> bool:
        if row.policy.flags & k.KEEP_VERSIONS:
            return False
        return any(twin.place == LEASED for twin in self.keys.twin(row))

    def _unplace(self, row: Row) -> None:
        """The row leaves its place; a lease, if any, is over."""
        if self.suspended:
            row.lease_until = 0
            row.holder = None
            if row.place == DEAD:
                row.lane.dead.pop(row.id, None)
            return
        lane, place = row.lane, row.place
        lane.counts[place] -= 1
        if place == READY:
            row.place = IDLE
            first = lane.ready.first()
            if first is not None and first[3] == row.id:
                lane.ready.pop()
            if not lane.counts[READY]:
                self.selection.refresh(lane)
        elif place == LEASED:
            row.place = IDLE
            row.lease_until = 0
            row.holder = None
            if row.key and not self.keys.alone(row):
                self._release_twin(row)
            if lane.settings.concurrency:
                self.selection.refresh(lane)
                self.woken.add(lane.name)
        elif place == DEAD:
            lane.dead.pop(row.id, None)

    def _hold_twin(self, row: Row) -> None:
        """Images of a snapshot come in any order: the twin may stand ready already."""
        for twin in self.keys.twin(row):
            if twin.place == READY and twin is not row:
                self._unplace(twin)
                self._place(twin)

    def _release_twin(self, row: Row) -> None:
        for twin in self.keys.twin(row):
            if twin.place == HELD:
                twin.lane.counts[HELD] -= 1
                self._place(twin)

    def _unkey(self, row: Row) -> None:
        if row.state <= PROCESSING or row.state is State.DELETED:
            self.keys.remove(row)

    def _move(self, row: Row, queue: bytes) -> Lane:
        lane = row.lane
        if lane.name == queue:
            return lane
        self.leave(lane)
        lane = self.lane(queue)
        lane.total += 1
        return lane

    def leave(self, lane: Lane) -> None:
        """A row of this queue is gone."""
        lane.total -= 1
        if lane.unused and len(self.lanes) > _SPARE_LANES:
            self.selection.detach(lane)
            del self.lanes[lane.name]
