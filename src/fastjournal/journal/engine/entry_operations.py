"""Requests about key/value entries, carried out at once: bytes and nanoseconds in and out.

Rules: those of `operations`, and

1. What is decided is logged first, then what lives in memory only is applied: a refused write
   leaves no half of it.
2. `now` is the time of the turn; 0: ask the clock.
3. `read` and `rows` give the rows themselves, after what reading changes in them, to whoever writes
   them out before anything else happens; `get` and `page` give pictures to keep.
"""

from typing import Any, Final, final

from mypy_extensions import i64

from fastjournal.entry_model import Entry, EntryPage
from fastjournal.errors import JournalFault
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.entries.ground import (
    Decided,
    EntryGround,
    is_busy,
    is_kept,
    keys_of,
    touch_length,
)
from fastjournal.journal.entries.key_query import KeyQuery
from fastjournal.journal.entries.locks import NOBODY, Lock, Writer
from fastjournal.journal.entries.once import EntryChanges
from fastjournal.journal.entries.reads import EntryReads, Page, Reading
from fastjournal.journal.entries.writes import EntryWrites
from fastjournal.journal.language.commands import LOCK_NOTE, Mark
from fastjournal.journal.state.row import IDLE, LEASED, Row, value_of

__all__ = ["EntryOperations"]

_PLAIN: Final = Reading()
_new: Final[Any] = tuple.__new__


@final
class EntryOperations:
    """All requests about entries."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.ground = ground = EntryGround(engine.ground, engine.locks)
        self.locks = ground.locks
        self._writes = EntryWrites(ground)
        self._changes = EntryChanges(ground, self._writes)
        self._reads = EntryReads(ground)
        engine.moved_by_steps.append(self.locks.move_ends)

    def set(
        self,
        key: bytes,
        kind: int,
        data: bytes,
        *,
        timestamp: int = 0,
        expires: int = 0,
        ttl: int = 0,
        exact: bool = True,
        overwrite: bool = True,
        persist: bool = True,
        by: Writer = NOBODY,
        now: i64 = 0,
    ) -> Decided:
        """Store a value; see `EntryWrites.set`."""
        now = now or self._now()
        decided = self._writes.set(
            key, kind, data, now, timestamp=timestamp, expires=expires, ttl=ttl, exact=exact,
            overwrite=overwrite, persist=persist, by=by,
        )  # fmt: skip
        return self._done(decided, now, grows=True)

    def delete(
        self,
        key: bytes,
        *,
        timestamp: int = 0,
        purge: bool = False,
        persist: bool | None = None,
        by: Writer = NOBODY,
        now: i64 = 0,
    ) -> Decided:
        """Delete an entry; see `EntryWrites.delete`."""
        now = now or self._now()
        decided = self._writes.delete(
            key, now, timestamp=timestamp, purge=purge, persist=persist, by=by
        )
        return self._done(decided, now)

    def add(
        self,
        key: bytes,
        kind: int,
        data: bytes,
        *,
        sender: bytes = b"",
        number: int = 0,
        timestamp: int = 0,
        persist: bool = True,
        by: Writer = NOBODY,
        now: i64 = 0,
    ) -> Decided:
        """Add to a number; see `EntryChanges.add`."""
        now = now or self._now()
        decided = self._changes.add(
            self._found(key, now, timestamp, by), key, kind, data, now, sender=sender,
            number=number, timestamp=timestamp, persist=persist,
        )  # fmt: skip
        return self._done(decided, now, grows=True)

    def flip(
        self,
        key: bytes,
        *,
        sender: bytes = b"",
        number: int = 0,
        timestamp: int = 0,
        by: Writer = NOBODY,
        now: i64 = 0,
    ) -> Decided:
        """Turn a boolean over; see `EntryChanges.flip`."""
        now = now or self._now()
        row = self._found(key, now, timestamp, by)
        decided = self._changes.flip(
            row, key, now, sender=sender, number=number, timestamp=timestamp
        )
        return self._done(decided, now)

    def truncate(
        self, key: bytes, size: int, *, timestamp: int = 0, by: Writer = NOBODY, now: i64 = 0
    ) -> Decided:
        """Cut or fill up a value; see `EntryChanges.truncate`."""
        now = now or self._now()
        row = self._found(key, now, timestamp, by)
        decided = self._changes.truncate(row, key, size, now, timestamp=timestamp)
        return self._done(decided, now, grows=True)

    def rename(
        self,
        key: bytes,
        new: bytes,
        *,
        timestamp: int = 0,
        overwrite: bool = False,
        by: Writer = NOBODY,
        now: i64 = 0,
    ) -> Decided:
        """Give an entry another key; see `EntryWrites.rename`."""
        now = now or self._now()
        decided = self._writes.rename(
            key, new, now, timestamp=timestamp, overwrite=overwrite, by=by
        )
        self._done(decided, now, grows=True)
        if not decided.stale:
            self.locks.move(key, new)
        return decided

    def alias(
        self, key: bytes, further: bytes, *, timestamp: int = 0, by: Writer = NOBODY, now: i64 = 0
    ) -> Decided:
        """Give an entry a further key; see `EntryWrites.alias`."""
        now = now or self._now()
        decided = self._writes.alias(key, further, now, timestamp=timestamp, by=by)
        return self._done(decided, now, grows=True)

    def lock(self, key: bytes, owner: bytes, until: int = 0) -> Lock:
        """Lock a key for an owner until an instant; there need not be an entry yet."""
        ground = self.ground
        ground.check_key(key)
        now = ground.base.time(self._now())
        return self.locks.lock(ground.names(key, now), owner, now, until, self._new_fence)

    def _new_fence(self) -> int:
        self._engine.check_room_to_grow()
        return self._engine.commit(Mark(self._now(), 0, 0, LOCK_NOTE))

    def unlock(self, key: bytes, by: Writer) -> bool:
        """Free a lock; False if there is none any more."""
        ground = self.ground
        ground.check_key(key)
        now = ground.base.time(self._now())
        return self.locks.unlock(ground.names(key, now), by, now)

    def find(self, key: bytes, now: i64) -> Row | None:
        """The row of a key, if it has an entry; nothing is read, nothing changes."""
        return self.ground.live(key, self.ground.base.time(now))

    def read(self, key: bytes, reading: Reading = _PLAIN, now: i64 = 0) -> Row:
        """The row of one entry; its value is in memory if that is to be read."""
        now = now or self._now()
        row = self._reads.get(key, now, reading)
        if reading.data:
            self._engine.load(row)
        self._note(row, now, reading, single=True)
        return row

    def get(self, key: bytes, reading: Reading = _PLAIN, now: i64 = 0) -> Entry:
        """One entry."""
        now = now or self._now()
        found = self.find(key, now)
        accessed = 0 if found is None else self.ground.accessed.of(found.id)
        row = self.read(key, reading, now)
        return self.picture(row, key, now, reading.data, accessed)

    def rows(self, wanted: KeyQuery, reading: Reading = _PLAIN, now: i64 = 0) -> Page:
        """The rows of a range, a pattern, or the rest of either; `load` their values in turn."""
        now = now or self._now()
        page = self._reads.page(wanted, now, reading)
        if reading.lease or reading.expires or reading.touch:
            read: set[bytes] = set()  # a row may be found by several keys
            with self._engine.batch():
                for _, row in page.rows:
                    if row.id not in read:
                        read.add(row.id)
                        self._note(row, now, reading, single=False)
        return page

    def page(self, wanted: KeyQuery, reading: Reading = _PLAIN, now: i64 = 0) -> EntryPage:
        """The entries of a range, a pattern, or the rest of either."""
        now = now or self._now()
        found = self.rows(wanted, reading, now)
        entries: list[Entry] = []
        for key, row in found.rows:
            if reading.data:
                self._engine.load(row)
            accessed = self.ground.accessed.of(row.id)
            entries.append(self.picture(row, key, now, reading.data, accessed))
        return EntryPage(entries, found.cursor)

    def picture(self, row: Row, key: bytes, now: i64, data: bool, accessed: int) -> Entry:
        """A row as it is shown to who asked for it by one of its keys."""
        now = self.ground.base.time(now)
        busy = is_busy(row, now)
        keys = keys_of(row)
        entry: Entry = _new(
            Entry,
            (
                key,
                row.kind,
                value_of(row) if data else b"",
                row.inserted,
                row.modified,
                row.expires,
                touch_length(row),
                is_kept(row),
                row.when if busy else 0,
                row.rare.worker if busy else b"",
                row.attempts,
                self.locks.holder(keys, now) is not None,
                keys,
                accessed,
            ),
        )
        return entry

    def count(self) -> int:
        """How many entries there are, each counted once whatever its keys."""
        engine = self._engine
        while engine.timers.overdue(self._now()) and engine.tick():
            pass
        lane = engine.state.queues.get(b"")
        return 0 if lane is None else lane.counts[IDLE] + lane.counts[LEASED]

    def _note(self, row: Row, now: i64, reading: Reading, *, single: bool) -> None:
        """Do what reading changes; a journal that cannot write is read all the same."""
        if reading.data:
            self.ground.accessed.note(row.id, now)
        decided = self._reads.reading_changes(row, now, reading, single=single)
        if decided is None:
            return
        try:
            if decided.logged is not None:
                self._engine.commit(decided.logged)
            if decided.remembered is not None:
                self._engine.remember(decided.remembered)
        except JournalFault:
            if reading.lease or reading.expires:
                raise

    def _found(self, key: bytes, now: i64, timestamp: int, by: Writer) -> Row | None:
        """The row whose value is about to be changed where it stands: in memory, that is."""
        row = self._changes.find(key, now, timestamp, by)
        if row is not None and row.value is None:
            self._engine.load(row)
        return row

    def _done(self, decided: Decided, now: i64, *, grows: bool = False) -> Decided:
        """Carry it out; `grows`: not on a full disk. What was done before is told there too."""
        engine = self._engine
        remembered = decided.remembered
        if grows and (decided.logged is not None or remembered is not None):
            engine.check_room_to_grow()
        if remembered is not None:
            engine.check_room(remembered)
        if decided.logged is not None:
            engine.commit(decided.logged, now)
        if remembered is not None:
            if engine.log.failure is not None:
                raise engine.log.failure
            engine.remember(remembered)
        return decided

    def _now(self) -> i64:
        return self._engine.clock.now()
