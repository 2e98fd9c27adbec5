"""Decisions that change a value where it stands, each of them once: add, flip, truncate.

Rules: those of `ground`, and

1. They are not subject to the newest timestamp: a sum has no order. The entry's own time moves on.
2. A change with its sender's name and timestamp is made once, however often it is sent within ten
   minutes (D-21). Without a name it is made whenever it is asked for.
3. Adding to a key that is not there makes it; there must be something to flip or to truncate.
"""

from typing import Final, final

from mypy_extensions import i64

from fastjournal.entry_value import added, flipped, resized
from fastjournal.errors import BadRequest, NotFound, quoted
from fastjournal.journal.entries.ground import Decided, EntryGround, Plan, is_kept
from fastjournal.journal.entries.locks import Writer
from fastjournal.journal.entries.writes import EntryWrites
from fastjournal.journal.language.commands import Value
from fastjournal.journal.state.numbered import made, operation_of
from fastjournal.journal.state.row import DELETED_ROW, Row, value_of

__all__ = ["EntryChanges"]

_LARGEST: Final = 9_223_372_036_854_775_807


@final
class EntryChanges:
    """add, flip, truncate."""

    def __init__(self, ground: EntryGround, writes: EntryWrites) -> None:
        self._ground = ground
        self._writes = writes

    def find(self, key: bytes, now: i64, timestamp: int, by: Writer) -> Row | None:
        """The row that is to be changed, if there is one and it may be; it must have its value."""
        ground = self._ground
        now = ground.base.time(now)
        ground.check_key(key)
        ground.check_skew(timestamp, now)
        row = ground.live(key, now)
        ground.may_change(row, key, now, by)
        return row

    def add(
        self,
        row: Row | None,
        key: bytes,
        kind: int,
        data: bytes,
        now: i64,
        *,
        sender: bytes = b"",
        number: int = 0,
        timestamp: int = 0,
        persist: bool = True,
    ) -> Decided:
        """Add a number to a number of the same type; `row`: what was found.

        `number`: the timestamp as its sender gave it, where `timestamp` is by our clock.
        """
        ground = self._ground
        ground.check_value(kind, data)
        now = ground.base.time(now)
        operation = operation_of(sender, number or timestamp) if sender else b""
        if row is not None:
            done = self._done(row, operation, timestamp, now)
            if done is not None:
                return done
            total = added(row.kind, value_of(row), kind, data)
            return self._change(row, total, operation, timestamp, now)
        slot = ground.slot(key)
        if operation and slot is not None:
            if slot.stage == DELETED_ROW and timestamp <= slot.modified:
                return Decided(stale=True)
            done = self._done(slot, operation, timestamp, now)
            if done is not None:
                return done
        elif operation:
            made(None, operation, timestamp, now)
        data = added(kind, data, kind, bytes(len(data)))  # a number it must be
        inserted = ground.base.draw_stamp(now)
        newest: i64 = 0 if slot is None else slot.modified
        modified = max(ground.when(timestamp, now, inserted, newest), newest)
        plan = Plan()
        put = ground.new_put(b"", key, kind, data, inserted, modified, persist=persist)
        self._writes.store(plan, slot, put, now)
        if operation:
            plan.add(Value(put.id, kind, data, modified, operation), persist)
        return plan.decided(0, kind, data)

    def flip(
        self,
        row: Row | None,
        key: bytes,
        now: i64,
        *,
        sender: bytes = b"",
        number: int = 0,
        timestamp: int = 0,
    ) -> Decided:
        """Turn a boolean into the other one; `row`, `number`: as for `add`."""
        now = self._ground.base.time(now)
        if row is None:
            raise NotFound(f"no entry {quoted(key)}")
        operation = operation_of(sender, number or timestamp) if sender else b""
        done = self._done(row, operation, timestamp, now)
        if done is not None:
            return done
        turned = flipped(row.kind, value_of(row))
        return self._change(row, turned, operation, timestamp, now)

    def truncate(
        self, row: Row | None, key: bytes, size: int, now: i64, *, timestamp: int = 0
    ) -> Decided:
        """Cut a value to a size, or fill it up with zero bytes; `row`: as for `add`."""
        if size < 0:
            raise BadRequest("a size is a number, not negative")
        self._ground.limits.check_value(min(size, _LARGEST))
        now = self._ground.base.time(now)
        if row is None:
            raise NotFound(f"no entry {quoted(key)}")
        data = resized(row.kind, value_of(row), size)
        return self._change(row, data, b"", timestamp, now)

    def _done(self, row: Row, operation: bytes, timestamp: int, now: i64) -> Decided | None:
        """The answer to a change that was made already: what it was the first time."""
        if not operation:
            return None
        answer = made(row.rare.operations, operation, timestamp, now)
        if answer is None:
            return None
        return Decided(stale=True, found=1, kind=answer.kind, data=answer.value)

    def _change(self, row: Row, data: bytes, operation: bytes, timestamp: int, now: i64) -> Decided:
        ground = self._ground
        modified: i64 = timestamp or ground.base.draw_stamp(now)
        value = Value(row.id, i64(row.kind), data, max(row.modified, modified), operation)
        command = ground.restated(row, value, now)
        if is_kept(row):
            return Decided(command, None, False, 1, row.kind, data)
        return Decided(None, command, False, 1, row.kind, data)
