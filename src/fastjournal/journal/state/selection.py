"""Which row is handed out next, when a consumer asks one queue, some, those with a prefix, or all.

Rules:

1. Fair: queues take turns, the one served longest ago first, whatever their lengths. Strict: the
   row that is first in (rank, due, inserted, id) over all queues asked.
2. A queue is offered while it is `open`. It stands in a list of turns for each prefix it
   belongs to, so no request looks at queues that have nothing to give.
3. Rows at `slow_from` and above are handed out only when no other row is ready in the queues
   asked; whether this consumer may have them is the caller's question (D-11).
4. Nothing here is logged: turns begin anew after a restart.
5. Strict order, and the next wake-up of a prefix, are asked for seldom: `Heads` are kept only from
   the first time on.
"""

from collections import OrderedDict
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any, Final

from mypy_extensions import i64

from fastjournal.journal.state.queue_rows import PrefixQueues, QueueRows
from fastjournal.journal.state.row import Row
from fastjournal.model import Where

__all__ = ["Heads", "Selection"]

MAX_PREFIXES: Final = 64
"""Prefixes remembered; a further one forgets the one used longest ago."""
_SLACK: Final = 64


class Heads:
    """The smallest key over many queues, each with a key that changes or vanishes.

    `offer` when a queue's key may have become smaller; keys that became larger are noticed when
    they come to the head.
    """

    def __init__(self, queues: dict[bytes, QueueRows], key: Callable[[QueueRows], Any]) -> None:
        self._queues = queues
        self._key = key
        self._heap: list[tuple[Any, bytes]] = []
        self._at: dict[bytes, Any] = {}

    def offer(self, queue: QueueRows) -> None:
        """The queue's key may have become smaller."""
        key = self._key(queue)
        if key is None:
            return
        old = self._at.get(queue.name)
        if old is None or key < old:
            self._at[queue.name] = key
            heappush(self._heap, (key, queue.name))
            if len(self._heap) > 2 * len(self._queues) + _SLACK:
                self._rebuild()

    def __len__(self) -> int:
        return len(self._heap)

    def first(self) -> QueueRows | None:
        """The queue with the smallest key."""
        heap, at, queues = self._heap, self._at, self._queues
        while heap:
            key, name = heap[0]
            if at.get(name) != key:
                heappop(heap)
                continue
            queue = queues.get(name)
            current = None if queue is None else self._key(queue)
            if current is None:
                heappop(heap)
                del at[name]
            elif current == key:
                return queue
            else:
                at[name] = current
                heapreplace(heap, (current, name))
        return None

    def _rebuild(self) -> None:
        """Drop what is left of queues that are gone, and of keys that became smaller."""
        self._at = {name: key for name, key in self._at.items() if name in self._queues}
        self._heap = [(key, name) for name, key in self._at.items()]
        heapify(self._heap)


class Selection:
    """Picks rows; looks, never changes rows."""

    def __init__(self, queues: dict[bytes, QueueRows]) -> None:
        self._queues = queues
        self._all = PrefixQueues(b"")
        self._by_prefix: dict[bytes, PrefixQueues] = {b"": self._all}
        self._firsts: dict[bytes, Heads] = {}
        """By prefix: the queue whose first row is first of all."""
        self._wakes: dict[bytes, Heads] = {}
        """By prefix: the queue that may have work again first."""
        self._now: i64 = 0
        self._turn: i64 = 0

    def attach(self, queue: QueueRows) -> None:
        """A queue has come into being."""
        name = queue.name
        if name:
            queue.prefixes = [self._all]
            if len(self._by_prefix) > 1:
                queue.prefixes = [g for p, g in self._by_prefix.items() if name.startswith(p)]

    def detach(self, queue: QueueRows) -> None:
        """A queue is gone."""
        self._list(queue, 0)

    def pushed(self, queue: QueueRows, row: Row) -> None:
        """A row has become ready."""
        if queue.listed != 1:
            if not queue.listed:
                self.refresh(queue)
            elif not queue.is_slow(row):
                self._list(queue, 1)
        if self._firsts and queue.listed and queue.ready.first() is row:
            self._offer_first(queue)

    def woke(self, queue: QueueRows) -> None:
        """A row of the queue waits for an instant."""
        if self._wakes and queue.name:
            for prefix, heads in self._wakes.items():
                if queue.name.startswith(prefix):
                    heads.offer(queue)

    def refresh(self, queue: QueueRows) -> None:
        """The queue may have opened or closed."""
        if queue.open:
            if not queue.listed:
                self._list(queue, 1)
        elif queue.listed:
            self._list(queue, 0)

    def served(self, queue: QueueRows) -> None:
        """A row was handed out: it is the other queues' turn."""
        self._turn += 1
        queue.served = self._turn
        if not queue.listed:
            return
        name = queue.name
        for queues in queue.prefixes:
            turns = queues.quick if queue.listed == 1 else queues.slow
            if len(turns) > 1:
                turns.move_to_end(name)

    def pick(self, where: Where, now: i64, fair: bool = True) -> Row | None:
        """The row to hand out next."""
        self._now = now
        names = where.names
        if where.schema >= 0:
            if not names:
                queues = self._queues_with(where.prefix)
                names = (*queues.quick, *queues.slow)
            return self._pick_named(names, fair, where.schema)
        if names:
            if len(names) == 1:
                queue = self._queues.get(names[0])
                return None if queue is None or not queue.listed else self._head(queue)
            return self._pick_named(names, fair)
        queues = self._queues_with(where.prefix)
        return self._pick_fair(queues) if fair else self._pick_strict(queues)

    def next_wake(self, where: Where) -> int:
        """When the queues asked may have work again; 0: nothing in sight."""
        if where.names:
            soonest = 0
            for name in where.names:
                asked = self._queues.get(name)
                wake = 0 if asked is None else asked.next_wake()
                if wake and (not soonest or wake < soonest):
                    soonest = wake
            return soonest
        prefix = self._queues_with(where.prefix).prefix
        heads = self._wakes.get(prefix)
        if heads is None:
            heads = self._wakes[prefix] = self._make_heads(prefix, _next_wake)
        queue = heads.first()
        return 0 if queue is None else queue.next_wake()

    def has_version(self, name: bytes, version: int) -> bool:
        """Whether a queue may hand out a job with a payload of this version."""
        queue = self._queues.get(name)
        return queue is not None and queue.open and queue.head_of(version, self._now) is not None

    def _pick_named(self, names: tuple[bytes, ...], fair: bool, version: int = -1) -> Row | None:
        best: Row | None = None
        order: tuple[Any, ...] = ()
        for name in names:
            queue = self._queues.get(name)
            if queue is None or not queue.listed:
                continue
            row = self._head(queue) if version < 0 else queue.head_of(version, self._now)
            if row is None:
                continue
            rank = (row.rank, row.due, row.inserted, row.id)
            slow = queue.is_slow(row)
            its: tuple[Any, ...] = (slow, queue.served, rank) if fair else (slow, rank)
            if best is None or its < order:
                best, order = row, its
        return best

    def _pick_fair(self, queues: PrefixQueues) -> Row | None:
        while queues.quick:
            queue = _first_of(queues.quick)
            row = queue.head(self._now)
            if row is None:
                self.refresh(queue)
            elif not queue.is_slow(row):
                return row
            else:
                self._list(queue, 2)
        while queues.slow:
            row = self._head(_first_of(queues.slow))
            if row is not None:
                return row
        return None

    def _pick_strict(self, queues: PrefixQueues) -> Row | None:
        heads = self._firsts.get(queues.prefix)
        if heads is None:
            heads = self._firsts[queues.prefix] = self._make_heads(queues.prefix, self._head_entry)
        queue = heads.first()
        return None if queue is None else self._head(queue)

    def _head(self, queue: QueueRows) -> Row | None:
        row = queue.head(self._now)
        if row is None:
            self.refresh(queue)
        return row

    def _head_entry(self, queue: QueueRows) -> Any:
        row = self._head(queue) if queue.listed else None
        if row is None:
            return None
        return (queue.is_slow(row), row.rank, row.due, row.inserted, row.id)

    def _make_heads(self, prefix: bytes, key: Callable[[QueueRows], Any]) -> Heads:
        heads = Heads(self._queues, key)
        for queue in list(self._queues.values()):
            if queue.name and queue.name.startswith(prefix):
                heads.offer(queue)
        return heads

    def _offer_first(self, queue: QueueRows) -> None:
        for prefix, heads in self._firsts.items():
            if queue.name.startswith(prefix):
                heads.offer(queue)

    def _queues_with(self, prefix: bytes) -> PrefixQueues:
        if not prefix:
            return self._all
        known = self._by_prefix
        queues = known.pop(prefix, None)
        if queues is not None:
            known[prefix] = queues  # used last
            return queues
        if len(known) > MAX_PREFIXES:
            for oldest in known:
                if oldest:
                    self._forget(oldest)
                    break
        queues = known[prefix] = PrefixQueues(prefix)
        for queue in self._queues.values():
            if queue.name.startswith(prefix):
                queue.prefixes.append(queues)
                if queue.listed:
                    (queues.quick if queue.listed == 1 else queues.slow)[queue.name] = queue
        return queues

    def _forget(self, prefix: bytes) -> None:
        gone = self._by_prefix.pop(prefix)
        self._firsts.pop(prefix, None)
        self._wakes.pop(prefix, None)
        for queue in self._queues.values():
            if gone in queue.prefixes:
                queue.prefixes.remove(gone)

    def _list(self, queue: QueueRows, how: i64) -> None:
        name, old = queue.name, queue.listed
        if old == how:
            return
        queue.listed = how
        for queues in queue.prefixes:
            if old:
                del (queues.quick if old == 1 else queues.slow)[name]
            if how:
                (queues.quick if how == 1 else queues.slow)[name] = queue
        if how and self._firsts:  # last: looking at the head may close the queue again
            self._offer_first(queue)


def _first_of(turns: OrderedDict[bytes, QueueRows]) -> QueueRows:
    for queue in turns.values():
        return queue
    raise AssertionError("asked of a prefix without queues")


def _next_wake(queue: QueueRows) -> Any:
    return queue.next_wake() or None
