"""Where rows stand, and which queue may give what: the indexes kept in step with the rows.

Rules:

1. A waiting row is FUTURE until it is due, then HELD while a row of its key is worked on in the
   same queue, else READY. Rows without a queue are IDLE: nobody is handed one.
2. A row leaves its place before it changes and gets a place afterwards.
3. The state's own time, `now`, never goes back, even when the wall clock does.
4. Moving a row from FUTURE to READY is not an event: it follows from the clock, `promote`.
"""

from typing import Final

from mypy_extensions import i64

from fastjournal.journal.language.commands import KEEP_VERSIONS
from fastjournal.journal.state.entry_keys import OrderedKeys
from fastjournal.journal.state.keys import KeyIndex
from fastjournal.journal.state.orders import Expiry, Timeline
from fastjournal.journal.state.queue_rows import Moments, QueueRows
from fastjournal.journal.state.row import (
    COMPLETED_ROW,
    DEAD,
    DELETED_ROW,
    DONE,
    FAILED_ROW,
    FUTURE,
    HELD,
    IDLE,
    LEASED,
    PROCESSING_ROW,
    READY,
    TOMB,
    Row,
)
from fastjournal.journal.state.rows import Rows
from fastjournal.journal.state.selection import Selection

__all__ = ["Placement"]

_LAST_INSTANT: Final[i64] = 9_223_372_036_854_775_807
_SPARE_QUEUES: Final = 1000
"""Up to so many queues are kept when they become empty: making one anew costs more."""


class Placement:
    """All rows and the ways to find them."""

    def __init__(self) -> None:
        self.now: i64 = 0
        self.rows = Rows()
        self.queues: dict[bytes, QueueRows] = {}
        self.woken: set[bytes] = set()
        """Queues that got a ready row since somebody last emptied this set."""
        self.keys = KeyIndex()
        self.entry_keys = OrderedKeys(self.keys)
        self.selection = Selection(self.queues)
        self.future = Moments()
        self.leases = Moments()
        self.expiry = Expiry()
        self.dead = Timeline()
        """Dead rows that are to be forgotten."""
        self.tombs = Timeline()
        self._recent = QueueRows(b"", self.rows)
        """The queue asked for last: most requests come in runs."""

    def queue(self, name: bytes) -> QueueRows:
        """The queue of this name, made if need be."""
        queue = self._recent
        if queue.name == name and queue.prefixes:
            return queue
        found = self.queues.get(name)
        if found is None:
            found = self.queues[name] = QueueRows(name, self.rows)
            self.selection.attach(found)
        self._recent = found
        return found

    def queue_of(self, row: Row) -> QueueRows:
        """The queue in which a row stands."""
        queue = self._recent
        return queue if queue.rules is row.queue else self.queues[row.queue.name]

    def promote(self, now: i64) -> i64:
        """Make the rows ready that have become due; returns the state's time."""
        if now > self.now:
            self.now = now
        future = self.future
        while True:
            row = future.head()
            if row is None or row.when > self.now:
                return self.now
            queue = self.queue_of(row)
            future.remove(queue.future, row)
            queue.tally(FUTURE, -1)
            self._place_due(row, queue)

    def place(self, row: Row) -> None:
        """Find the place of a waiting row."""
        queue = self.queue_of(row)
        if not queue.name:
            row.place = IDLE
            queue.tally(IDLE, 1)
            self.list_entry(row)
        elif row.due > self.now:
            row.place = FUTURE
            queue.tally(FUTURE, 1)
            self.future.push(queue.future, row)
            self.selection.woke(queue)
        else:
            self._place_due(row, queue)

    def _place_due(self, row: Row, queue: QueueRows) -> None:
        if row.key and not self.keys.alone(row) and self._is_held(row):
            row.place = HELD
            queue.tally(HELD, 1)
            return
        row.place = READY
        queue.tally(READY, 1)
        queue.add_ready(row)
        self.selection.pushed(queue, row)
        self.woken.add(queue.name)

    def stand(self, row: Row) -> None:
        """Find the place of a row that neither waits nor is worked on."""
        queue = self.queue_of(row)
        if row.stage == COMPLETED_ROW:
            row.place = DONE
        elif row.stage == FAILED_ROW:
            row.place = DEAD
            queue.dead[row.id] = row
            self.keep_dead(row)
        elif row.stage == DELETED_ROW:
            row.place = TOMB
            self.tombs.push(row)
        queue.tally(row.place, 1)

    def keep_dead(self, row: Row) -> None:
        """A dead row that never expires is to be forgotten as its queue says."""
        keep: i64 = row.queue.settings.dead_keep
        more = row.own()
        if row.expires or not keep or keep > _LAST_INSTANT - more.when:
            more.until = 0  # never
        else:
            more.until = more.when + keep
            self.dead.push(row)

    def hand_out(self, row: Row, until: i64) -> None:
        """The row, which has left its place, is worked on until then."""
        queue = self.queue_of(row)
        row.stage = PROCESSING_ROW
        row.place = LEASED
        row.own().until = until
        queue.tally(LEASED, 1)
        self.leases.push(queue.leases, row)
        self.selection.woke(queue)
        if row.key and not self.keys.alone(row):
            self._hold_twin(row)
        if queue.rules.concurrency:
            self.selection.refresh(queue)
        self.selection.served(queue)

    def renew(self, row: Row, until: i64) -> None:
        """The lease ends then."""
        queue = self.queue_of(row)
        self.leases.remove(queue.leases, row)
        row.own().until = until
        self.leases.push(queue.leases, row)
        self.selection.woke(queue)

    def unplace(self, row: Row) -> None:
        """The row leaves its place; a lease, if any, is over."""
        queue = self.queue_of(row)
        place = row.place
        queue.tally(place, -1)
        if place == READY:
            queue.ready.remove(row)
            row.place = IDLE
            if not queue.ready.count:
                self.selection.refresh(queue)
        elif place == LEASED:
            self.leases.remove(queue.leases, row)
            row.place = IDLE
            if row.key and not self.keys.alone(row):
                self._release_twin(row)
            if queue.rules.concurrency:
                self.selection.refresh(queue)
                self.woken.add(queue.name)
        elif place == FUTURE:
            self.future.remove(queue.future, row)
        elif place == DEAD:
            queue.dead.pop(row.id, None)
            if row.when:
                self.dead.remove(row)
        elif place == TOMB:
            self.tombs.remove(row)
        row.place = IDLE

    def set_expiry(self, row: Row, expires: i64) -> None:
        """The row is gone after this instant; 0: never."""
        if expires == row.expires:
            return
        if row.expires:
            self.expiry.remove(row)
        row.expires = expires
        if expires:
            self.expiry.push(row)

    def unkey(self, row: Row) -> None:
        """The row is found by its keys no longer."""
        if row.stage <= PROCESSING_ROW or row.stage == DELETED_ROW:
            self.keys.remove(row)

    def list_entry(self, row: Row) -> None:
        """An entry's keys are to be found in order."""
        if row.key:
            self.entry_keys.add(row.key)
        if row.more is not None:
            for alias in row.more.aliases:
                self.entry_keys.add(alias)

    def leave(self, queue: QueueRows) -> None:
        """A row of this queue is gone."""
        queue.total -= 1
        if not queue.total and len(self.queues) > _SPARE_QUEUES and queue.unused:
            self.selection.detach(queue)
            queue.prefixes = []
            del self.queues[queue.name]

    def _is_held(self, row: Row) -> bool:
        if row.policy.flags & KEEP_VERSIONS:
            return False
        for twin in self.keys.twins(row):
            if twin.place == LEASED:
                return True
        return False

    def _hold_twin(self, row: Row) -> None:
        """Images of a snapshot come in any order: the twin may stand ready already."""
        for twin in self.keys.twins(row):
            if twin.place == READY:
                self.unplace(twin)
                self.place(twin)

    def _release_twin(self, row: Row) -> None:
        for twin in self.keys.twins(row):
            if twin.place == HELD:
                queue = self.queue_of(twin)
                queue.tally(HELD, -1)
                self.place(twin)
