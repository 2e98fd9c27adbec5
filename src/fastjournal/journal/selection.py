"""Which row is handed out next, when a consumer asks one queue, some, those with a prefix, or all.

Rules:

1. Fair: queues take turns, the one served longest ago first, whatever their lengths. Strict: the
   row that is first in (rank, due, inserted, id) over all queues asked.
2. A queue is offered while it is `open`. It stands in a list of turns for each group (prefix) it
   belongs to, so no request looks at queues that have nothing to give.
3. Rows at `slow_from` and above are handed out only when no other row is ready in the queues
   asked; whether this consumer may have them is the caller's question (D-11).
4. Nothing here is logged: turns begin anew after a restart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from fastjournal.journal.lanes import Heads, Lane
from fastjournal.journal.rows import Row
from fastjournal.model import Where

__all__ = ["Group", "Selection"]

MAX_GROUPS = 64
"""Prefixes remembered; a further one forgets the one used longest ago."""


class Group:
    """The open queues whose names begin alike."""

    __slots__ = ("first", "prefix", "quick", "slow", "wake")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.quick: OrderedDict[bytes, Lane] = OrderedDict()
        self.slow: OrderedDict[bytes, Lane] = OrderedDict()
        self.first: Heads | None = None
        """Made when strict order is first asked for."""
        self.wake: Heads | None = None
        """Made when the next wake-up is first asked for."""


class Selection:
    """Picks rows; looks, never changes rows."""

    def __init__(self, lanes: dict[bytes, Lane]) -> None:
        self._lanes = lanes
        self._groups: OrderedDict[bytes, Group] = OrderedDict({b"": Group(b"")})
        self.heads = 0
        """How many heaps over queues are kept up to date; 0: nobody asked for one yet."""
        self._now = 0
        self._turn = 0

    def attach(self, lane: Lane) -> None:
        """A queue has come into being."""
        name = lane.name
        if name:
            lane.groups = tuple(g for p, g in self._groups.items() if name.startswith(p))

    def detach(self, lane: Lane) -> None:
        """A queue is gone."""
        self._list(lane, 0)

    def pushed(self, lane: Lane, row: Row) -> None:
        """A row has become ready."""
        if lane.listed != 1:
            if not lane.listed:
                self.refresh(lane)
            elif not lane.is_slow(row):
                self._list(lane, 1)
        if self.heads and lane.listed:
            first = lane.ready.first()
            if first is None or first[3] != row.id:
                return
            for group in lane.groups:
                if group.first is not None:
                    group.first.offer(lane)

    def woke(self, lane: Lane) -> None:
        """A row of the queue waits for an instant."""
        if self.heads:
            for group in lane.groups:
                if group.wake is not None:
                    group.wake.offer(lane)

    def refresh(self, lane: Lane) -> None:
        """The queue may have opened or closed."""
        if lane.open:
            if not lane.listed:
                self._list(lane, 1)
        elif lane.listed:
            self._list(lane, 0)

    def served(self, lane: Lane) -> None:
        """A row was handed out: it is the other queues' turn."""
        self._turn += 1
        lane.served = self._turn
        name = lane.name
        if lane.listed == 1:
            for group in lane.groups:
                group.quick.move_to_end(name)
        elif lane.listed:
            for group in lane.groups:
                group.slow.move_to_end(name)

    def pick(self, where: Where, now: int, fair: bool = True) -> Row | None:
        """The row to hand out next."""
        self._now = now
        if where.names:
            return self._pick_named(where.names, fair)
        group = self._group(where.prefix)
        return self._pick_fair(group) if fair else self._pick_strict(group)

    def next_wake(self, where: Where) -> int:
        """When the queues asked may have work again; 0: nothing in sight."""
        if where.names:
            wakes = (self._lanes[name].next_wake() for name in where.names if name in self._lanes)
            return min((wake for wake in wakes if wake), default=0)
        group = self._group(where.prefix)
        if group.wake is None:
            group.wake = self._make_heads(group, lambda lane: lane.next_wake() or None)
        lane = group.wake.first()
        return 0 if lane is None else lane.next_wake()

    def _pick_named(self, names: Sequence[bytes], fair: bool) -> Row | None:
        best: tuple[Any, Row] | None = None
        for name in names:
            lane = self._lanes.get(name)
            row = None if lane is None or not lane.listed else self._head(lane)
            if lane is None or row is None:
                continue
            entry = (row.rank, row.due, row.inserted, row.id)
            slow = lane.is_slow(row)
            order = (slow, lane.served, entry) if fair else (slow, entry)
            if best is None or order < best[0]:
                best = order, row
        return None if best is None else best[1]

    def _pick_fair(self, group: Group) -> Row | None:
        quick, now = group.quick, self._now
        while quick:
            lane = next(iter(quick.values()))
            row = lane.head(now)
            if row is None:
                self.refresh(lane)
            elif row.rank < lane.settings.slow_from or not lane.is_slow(row):
                return row
            else:
                self._list(lane, 2)
        while group.slow:
            lane = next(iter(group.slow.values()))
            row = self._head(lane)
            if row is not None:
                return row
        return None

    def _pick_strict(self, group: Group) -> Row | None:
        if group.first is None:
            group.first = self._make_heads(group, self._head_entry)
        lane = group.first.first()
        return None if lane is None else self._head(lane)

    def _head(self, lane: Lane) -> Row | None:
        row = lane.head(self._now)
        if row is None:
            self.refresh(lane)
        return row

    def _head_entry(self, lane: Lane) -> tuple[bool, int, int, int, bytes] | None:
        row = self._head(lane) if lane.listed else None
        if row is None:
            return None
        return (lane.is_slow(row), row.rank, row.due, row.inserted, row.id)

    def _make_heads(self, group: Group, key: Callable[[Lane], Any]) -> Heads:
        heads = Heads(self._lanes, key)
        self.heads += 1
        for lane in list(self._lanes.values()):
            if lane.name and lane.name.startswith(group.prefix):
                heads.offer(lane)
        return heads

    def _group(self, prefix: bytes) -> Group:
        groups = self._groups
        group = groups.get(prefix)
        if group is not None:
            if prefix:
                groups.move_to_end(prefix)
            return group
        if len(groups) > MAX_GROUPS:
            self._forget(next(p for p in groups if p))
        group = groups[prefix] = Group(prefix)
        for lane in self._lanes.values():
            if lane.name.startswith(prefix):
                lane.groups += (group,)
                if lane.listed:
                    (group.quick if lane.listed == 1 else group.slow)[lane.name] = lane
        return group

    def _forget(self, prefix: bytes) -> None:
        gone = self._groups.pop(prefix)
        for lane in self._lanes.values():
            if gone in lane.groups:
                lane.groups = tuple(group for group in lane.groups if group is not gone)

    def _list(self, lane: Lane, how: int) -> None:
        name, old = lane.name, lane.listed
        if old == how:
            return
        lane.listed = how
        for group in lane.groups:
            if old:
                del (group.quick if old == 1 else group.slow)[name]
            if how:
                (group.quick if how == 1 else group.slow)[name] = lane
        if how and self.heads:  # last: looking at the head may close the lane again
            for group in lane.groups:
                if group.first is not None:
                    group.first.offer(lane)
