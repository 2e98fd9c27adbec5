"""One queue's rows, and the moments at which queues may have work again.

Rules:

1. The order in which a queue hands out is (rank, due, inserted, id). `inserted` is strictly
   increasing along puts, so it is the arrival number.
2. `future` and `leases` hold the instants at which this queue may have work again: rows falling
   due, leases ending. `Moments` keeps the queues in the order of their first instant, so that the
   first of all is found without looking at any other queue.
"""

from collections import OrderedDict
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final, final

from mypy_extensions import i64, u8

from fastjournal.journal.language.commands import SCHEMA_SHIFT
from fastjournal.journal.state.orders import Order, Timeline
from fastjournal.journal.state.row import IDLE, PLACES, READY, TOMB, QueueRules, Row
from fastjournal.journal.state.rows import Rows
from fastjournal.model import QueueSettings

__all__ = ["Moments", "PrefixQueues", "QueueRows", "QueueTimeline"]

_LEFT_AT_MOST: Final[i64] = 1000
"""Rows that have left and may stand in `Versions` besides as many as are ready."""


class QueueTimeline(Timeline):
    """The rows of one queue that wait for an instant, and the place of the queue in `Moments`."""

    def __init__(self, queue: "QueueRows") -> None:
        super().__init__()
        self.queue = queue
        self.top: Row | None = None
        """Its first row, as `Moments` knows it."""
        self.position: i64 = -1
        """In the heap of `Moments`; -1: not there."""


class PrefixQueues:
    """The open queues whose names begin alike, in turns."""

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.quick: OrderedDict[bytes, QueueRows] = OrderedDict()
        """Those with ordinary rows, the one served longest ago first."""
        self.slow: OrderedDict[bytes, QueueRows] = OrderedDict()
        """Those of which only slow rows are ready."""


@final
class Versions:
    """The ready rows of a queue by the version of their payloads, for who asks for one.

    A row that leaves is found out when it is first; it may come again meanwhile.
    """

    def __init__(self, name: bytes, ready: Iterable[Row]) -> None:
        self._name = name
        self._heaps: dict[int, list[tuple[int, int, int, bytes, Row]]] = {}
        self.size: i64 = 0
        """Rows, those that have left included."""
        for row in ready:
            self.push(row)

    def push(self, row: Row) -> None:
        """A row has become ready."""
        entry = (int(row.rank), int(row.due), int(row.inserted), row.id, row)
        heappush(self._heaps.setdefault(_version_of(row), []), entry)
        self.size += 1

    def first(self, version: int, now: i64) -> Row | None:
        """The first ready row of a version."""
        heap = self._heaps.get(version)
        while heap:
            rank, due, inserted, _, row = heap[0]
            if (
                row.place == READY
                and row.queue.name == self._name
                and row.rank == rank
                and row.due == due
                and row.inserted == inserted
                and _version_of(row) == version
                and (not row.expires or now <= row.expires)
            ):
                return row
            heappop(heap)
            self.size -= 1
        return None


def _version_of(row: Row) -> int:
    return int(row.policy.flags >> SCHEMA_SHIFT & 15)


class QueueRows:
    """The rows of one queue."""

    def __init__(self, name: bytes, rows: Rows) -> None:
        self.name = name
        self.rules = QueueRules(name)
        self.rows = rows
        """Of all queues."""
        self.total: i64 = 0
        self.counts: list[int] = [0] * PLACES
        self.ready = Order()
        self.versions: Versions | None = None
        """Made when somebody asks for a version, dropped when what has left fills it."""
        self.future = QueueTimeline(self)
        self.leases = QueueTimeline(self)
        self.dead: dict[bytes, Row] = {}
        self.prefixes: list[PrefixQueues] = []
        self.listed: i64 = 0
        """0 not offered, 1 offered, 2 offered, but only slow rows are ready."""
        self.served: i64 = 0
        """Number of the last lease from here: the smallest is served next."""

    def tally(self, place: u8, change: i64) -> None:
        """So many rows more stand in this place."""
        counts = self.counts
        number: i64 = counts[place]
        counts[place] = number + change

    @property
    def settings(self) -> QueueSettings:
        """The rules in force."""
        return self.rules.settings

    @property
    def settings_at(self) -> int:
        """TIME of the newest QUEUE record; 0: none."""
        return self.rules.settings_at

    @property
    def unused(self) -> bool:
        """Nothing in it and nothing known about it."""
        return not self.total and not self.rules.settings_at

    @property
    def shown(self) -> bool:
        """Whether it is a queue to people: it has jobs, or settings of its own."""
        return bool(self.name) and (self.jobs > 0 or self.rules.settings_at > 0)

    @property
    def jobs(self) -> int:
        """Rows that are no tombstones."""
        return self.total - self.counts[TOMB]

    @property
    def open(self) -> bool:
        """Something is ready and may be handed out."""
        if not self.ready.count:
            return False
        rules = self.rules
        if rules.plain:
            return True
        concurrency = rules.concurrency
        return not rules.settings.paused and not 0 < concurrency <= self.leases.count

    def head(self, now: i64) -> Row | None:
        """The first ready row. One that has expired is set aside until its record is written."""
        while True:
            row = self.ready.first()
            if row is None or not row.expires or now <= row.expires:
                return row
            self.ready.remove(row)
            row.place = IDLE
            self.tally(READY, -1)
            self.tally(IDLE, 1)

    def add_ready(self, row: Row) -> None:
        """A row has become ready."""
        self.ready.push(row)
        versions = self.versions
        if versions is not None:
            versions.push(row)
            if versions.size > 2 * self.ready.count + _LEFT_AT_MOST:
                self.versions = None

    def head_of(self, version: int, now: i64) -> Row | None:
        """The first ready row with a payload of this version."""
        versions = self.versions
        if versions is None:
            versions = self.versions = Versions(self.name, self.ready)
        return versions.first(version, now)

    def is_slow(self, row: Row) -> bool:
        """Such a row waits for a pass without other work (D-11)."""
        return row.rank >= self.rules.slow_from and not row.workq

    def next_wake(self) -> int:
        """When there may be work again; 0: nothing in sight."""
        due, end = self.future.next(), self.leases.next()
        return min(due, end) if due and end else due or end


class Moments:
    """Queues by the first of their rows that leave one place: FUTURE or LEASED."""

    def __init__(self) -> None:
        self._heap: list[QueueTimeline] = []

    def push(self, line: QueueTimeline, row: Row) -> None:
        """A row of this queue waits for the instant `row.when`."""
        line.push(row)
        top = line.top
        if top is None or line.before(row, top):
            self._place(line, row)

    def remove(self, line: QueueTimeline, row: Row) -> None:
        """A row of this queue no longer waits."""
        line.remove(row)
        if row is line.top:
            self._place(line, line.first())

    def head(self) -> Row | None:
        """The row that leaves first."""
        heap = self._heap
        return heap[0].top if heap else None

    def next(self) -> int:
        """The first instant; 0: none."""
        row = self.head()
        return 0 if row is None else row.when

    def __len__(self) -> int:
        return len(self._heap)

    def _before(self, a: QueueTimeline, b: QueueTimeline) -> bool:
        mine, its = a.top, b.top
        return mine is not None and its is not None and a.before(mine, its)

    def _place(self, line: QueueTimeline, top: Row | None) -> None:
        """The first row of a queue has changed."""
        heap = self._heap
        at = line.position
        line.top = top
        if top is None:
            last = heap.pop()
            line.position = -1
            if last is not line:
                self._settle(last, at)
        elif at < 0:
            heap.append(line)
            self._rise(line, len(heap) - 1)
        else:
            self._settle(line, at)

    def _settle(self, line: QueueTimeline, at: i64) -> None:
        self._sink(line, at)
        if line.position == at:
            self._rise(line, at)

    def _rise(self, line: QueueTimeline, at: i64) -> None:
        heap = self._heap
        while at > 0:
            above = (at - 1) >> 1
            parent = heap[above]
            if not self._before(line, parent):
                break
            heap[at] = parent
            parent.position = at
            at = above
        heap[at] = line
        line.position = at

    def _sink(self, line: QueueTimeline, at: i64) -> None:
        heap = self._heap
        size: i64 = len(heap)
        while True:
            below = 2 * at + 1
            if below >= size:
                break
            child = heap[below]
            if below + 1 < size and self._before(heap[below + 1], child):
                below += 1
                child = heap[below]
            if not self._before(child, line):
                break
            heap[at] = child
            child.position = at
            at = below
        heap[at] = line
        line.position = at
