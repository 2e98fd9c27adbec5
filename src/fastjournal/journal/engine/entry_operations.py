"""Requests about key/value entries, carried out at once: bytes and nanoseconds in and out.

Rules: those of `operations`, and

1. What is decided is logged first, then what lives in memory only is applied: a refused write
   leaves no half of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fastjournal.entry import Entry
from fastjournal.errors import JournalFault
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.entries.cursor import Scan
from fastjournal.journal.entries.entries import Entries
from fastjournal.journal.entries.ground import Decided
from fastjournal.journal.entries.locks import Lock, Writer
from fastjournal.journal.entries.reads import Reading
from fastjournal.journal.state.row import IDLE, LEASED, Row

__all__ = ["EntryOperations", "EntryPage"]


class EntryPage(NamedTuple):
    """Some entries, and the cursor to the others."""

    entries: list[Entry]
    cursor: bytes


class EntryOperations:
    """All requests about entries."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.decide = Entries(engine.jobs.ground)
        engine.moved_by_steps.append(self.decide.locks.move_ends)

    def set(self, key: bytes, kind: int, data: bytes, **how: Any) -> Decided:
        """Store a value; `how`: the options of `Entries.set`, as for all below."""
        self._has_room()
        return self._done(self.decide.set(key, kind, data, self._now(), **how))

    def delete(self, key: bytes, **how: Any) -> Decided:
        """Delete an entry."""
        return self._done(self.decide.delete(key, self._now(), **how))

    def add(self, key: bytes, kind: int, data: bytes, **how: Any) -> Decided:
        """Add to a number."""
        self._has_room()
        return self._done(self._engine.ask(self.decide.add, key, kind, data, self._now(), **how))

    def flip(self, key: bytes, **how: Any) -> Decided:
        """Turn a boolean over."""
        return self._done(self._engine.ask(self.decide.flip, key, self._now(), **how))

    def truncate(self, key: bytes, size: int, **how: Any) -> Decided:
        """Cut or fill up a value."""
        self._has_room()
        return self._done(self._engine.ask(self.decide.truncate, key, size, self._now(), **how))

    def rename(self, key: bytes, new: bytes, **how: Any) -> Decided:
        """Give an entry another key."""
        self._has_room()
        decided = self._done(self.decide.rename(key, new, self._now(), **how))
        if not decided.stale:
            self.decide.locks.move(key, new)
        return decided

    def alias(self, key: bytes, further: bytes, **how: Any) -> Decided:
        """Give an entry a further key."""
        self._has_room()
        return self._done(self.decide.alias(key, further, self._now(), **how))

    def lock(self, key: bytes, owner: bytes, until: int = 0) -> Lock:
        """Lock a key until an instant."""
        return self.decide.lock(key, owner, self._now(), until)

    def unlock(self, key: bytes, by: Writer) -> bool:
        """Free a lock; False if there is none."""
        return self.decide.unlock(key, by, self._now())

    def get(self, key: bytes, reading: Reading | None = None) -> Entry:
        """One entry."""
        reading = reading or Reading()
        now = self._now()
        row = self.decide.get(key, now, reading)
        if reading.data:
            self._engine.load(row)
        self._read(row, now, reading, single=True)
        return self.decide.picture(row, key, now, reading.data)

    def page(self, scan: Scan, reading: Reading | None = None) -> EntryPage:
        """The entries of a range, a pattern, or the rest of either."""
        reading = reading or Reading()
        now = self._now()
        found = self.decide.page(scan, now, reading)
        entries = []
        read: set[bytes] = set()
        with self._engine.batch():
            for key, row in found.rows:
                if row.id not in read:
                    read.add(row.id)
                    self._read(row, now, reading, single=False)
                if reading.data:
                    self._engine.load(row)
                entries.append(self.decide.picture(row, key, now, reading.data))
        return EntryPage(entries, found.cursor)

    def count(self) -> int:
        """How many entries there are, each counted once whatever its keys."""
        engine, timers = self._engine, self._engine.jobs.timers
        while timers.overdue(self._now()) and engine.tick():
            pass
        lane = engine.state.queues.get(b"")
        return 0 if lane is None else lane.counts[IDLE] + lane.counts[LEASED]

    def _read(self, row: Row, now: int, reading: Reading, *, single: bool) -> None:
        """What reading changes; a journal that cannot write is read all the same."""
        command, logged = self.decide.reading_changes(row, now, reading, single=single)
        if command is None:
            return
        try:
            if logged:
                self._engine.commit(command)
            else:
                self._engine.remember(command)
        except JournalFault:
            if reading.lease or reading.expires:
                raise

    def _done(self, decided: Decided) -> Decided:
        engine = self._engine
        if decided.remembered is not None:
            engine.check_room(decided.remembered)
        if decided.logged is not None:
            engine.commit(decided.logged)
        if decided.remembered is not None:
            if engine.log.failure is not None:
                raise engine.log.failure
            engine.remember(decided.remembered)
        return decided

    def _has_room(self) -> None:
        self._engine.check_room_to_grow()

    def _now(self) -> int:
        return self._engine.clock.now()
