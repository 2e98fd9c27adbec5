"""Decisions that change a value where it stands: add, flip, truncate.

Rules: those of `entry_ground`, and

1. They are not subject to the newest timestamp: a sum has no order. The entry's own time moves on.
2. A change with its sender's name and timestamp is made once, however often it is sent within ten
   minutes (D-21). Without a name it is made whenever it is asked for.
3. Adding to a key that is not there makes it; there must be something to flip or to truncate.
"""

from __future__ import annotations

from fastjournal.entry import added, flipped, resized
from fastjournal.errors import BadRequest, ClockSkew, NotFound
from fastjournal.journal.entries.ground import Decided, Plan, is_kept
from fastjournal.journal.entries.locks import NOBODY, Writer
from fastjournal.journal.entries.writes import EntryWrites
from fastjournal.journal.language.commands import Value
from fastjournal.journal.state.numbered import made, operation_of
from fastjournal.journal.state.row import Row, value_of
from fastjournal.model import State

__all__ = ["EntryChanges"]


class EntryChanges(EntryWrites):
    """add, flip, truncate."""

    def add(
        self,
        key: bytes,
        kind: int,
        data: bytes,
        now: int,
        *,
        sender: bytes = b"",
        number: int = 0,
        timestamp: int = 0,
        persist: bool = True,
        by: Writer = NOBODY,
    ) -> Decided:
        """Add a number to a number of the same type.

        `number`: the timestamp as its sender gave it, where `timestamp` is by our clock.
        """
        self.check_value(kind, data)
        row, now = self._changing(key, now, timestamp, by)
        operation = operation_of(sender, number or timestamp) if sender else b""
        if row is not None:
            if done := self._done(row, operation, timestamp, now):
                return done
            total = added(row.kind, value_of(row), kind, data)
            return self._change(row, row.kind, total, operation, timestamp, now)
        slot = self.slot(key)
        if operation and slot is not None:
            if slot.state is State.DELETED and timestamp <= slot.modified:
                return Decided(stale=True)
            if done := self._done(slot, operation, timestamp, now):
                return done
        elif operation:
            made(None, operation, timestamp, now)
        data = added(kind, data, kind, bytes(len(data)))  # a number it must be
        inserted = self._draw_stamp(now)
        modified = self.when(timestamp, now, inserted, slot)
        if slot is not None:
            modified = max(modified, slot.modified)
        plan = Plan()
        put = self.new_put(b"", key, kind, data, inserted, modified, persist=persist)
        row_id = self._store(plan, slot, False, put, persist)
        if operation:
            plan.add(Value(row_id, kind, data, modified, operation), persist)
        return plan.decided(0, kind, data)

    def flip(
        self,
        key: bytes,
        now: int,
        *,
        sender: bytes = b"",
        number: int = 0,
        timestamp: int = 0,
        by: Writer = NOBODY,
    ) -> Decided:
        """Turn a boolean into the other one; `number`: as for `add`."""
        row, now = self._changing(key, now, timestamp, by)
        if row is None:
            raise NotFound(f"no entry {key!r}")
        operation = operation_of(sender, number or timestamp) if sender else b""
        if done := self._done(row, operation, timestamp, now):
            return done
        turned = flipped(row.kind, value_of(row))
        return self._change(row, row.kind, turned, operation, timestamp, now)

    def truncate(
        self,
        key: bytes,
        size: int,
        now: int,
        *,
        timestamp: int = 0,
        by: Writer = NOBODY,
    ) -> Decided:
        """Cut a value to a size, or fill it up with zero bytes."""
        if type(size) is not int or size < 0:
            raise BadRequest("a size is a number, not negative")
        self.limits.check_value(size)
        row, now = self._changing(key, now, timestamp, by)
        if row is None:
            raise NotFound(f"no entry {key!r}")
        data = resized(row.kind, value_of(row), size)
        return self._change(row, row.kind, data, b"", timestamp, now)

    def _changing(self, key: bytes, now: int, timestamp: int, by: Writer) -> tuple[Row | None, int]:
        self.check_key(key)
        now = self._clock(now)
        if timestamp > now + self.limits.max_skew:
            raise ClockSkew
        row = self.live(key, now)
        self.may_change(row, key, now, by)
        return row, now

    def _done(self, row: Row, operation: bytes, timestamp: int, now: int) -> Decided | None:
        """The answer to a change that was made already: what it was the first time."""
        answer = made(row.rare.operations, operation, timestamp, now) if operation else None
        if answer is None:
            return None
        _, kind, data = answer
        return Decided(stale=True, found=1, kind=kind, data=data)

    def _change(
        self, row: Row, kind: int, data: bytes, operation: bytes, timestamp: int, now: int
    ) -> Decided:
        modified = max(row.modified, timestamp or self._draw_stamp(now))
        command = self.restated(row, Value(row.id, kind, data, modified, operation), now)
        plan = Plan()
        plan.add(command, is_kept(row))
        return plan.decided(1, kind, data)
