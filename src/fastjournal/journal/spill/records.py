"""Records that hold values: the value in one, and where those of a whole file stand."""

from typing import Final

from mypy_extensions import i32, i64

from fastjournal.journal.language.codec import decode
from fastjournal.journal.language.commands import (
    ADD,
    GROUP,
    PUT,
    SCHEDULE,
    VALUE,
    Command,
    Group,
    Put,
    Value,
    WorkqJob,
)
from fastjournal.journal.state.row import Row
from fastjournal.journal.state.rows import Rows
from fastjournal.log.record import BrokenRecord, Walk

__all__ = ["note_positions", "value_at", "value_in"]

_WITH_VALUES: Final = (PUT, VALUE, ADD, SCHEDULE)


def value_at(data: bytes, at: i64, row: Row, max_payload: i64) -> bytes | None:
    """The row's value, if its record begins there.

    None: another record does, or it is not the row's. `BrokenRecord`: none does; `CorruptCommand`:
    nothing that can be understood.
    """
    walk = Walk(data, at, len(data), max_payload)
    walk.step()
    if row.segment > 0 and walk.time != row.value_at:
        return None
    return value_in(data[walk.start : walk.stop], row)


def value_in(payload: bytes, row: Row) -> bytes | None:
    """The row's value in this payload; None: it is not there."""
    command = decode(payload)
    found: bytes | None = None
    if isinstance(command, Group):
        for member in command.members:
            if member.id == row.id:
                value = _value_of(member)
                if value is not None:
                    found = value
    elif command.id == row.id:
        found = _value_of(command)
    return found if found is not None and len(found) == i64(row.size) else None


def note_positions(
    rows: Rows, data: bytes, number: i64, base: i64, max_payload: i64, below: i64 = 0
) -> i64:
    """Note where values lie by the records of a stretch of a file; returns the bytes of those.

    `base` is the file offset of `data[0]`, `number` that of the file as `Row.segment` has it. With
    `below` all values that lie below this segment, or in another snapshot, move here; without it
    only those whose very record this is.
    """
    walk = Walk(data, 0, len(data), max_payload)
    while walk.at < walk.end:
        here = walk.at
        try:
            walk.step()
        except BrokenRecord:
            return here
        start = walk.start
        if start == walk.stop:
            continue
        kind: i64 = data[start]
        if kind in _WITH_VALUES:
            row = rows.get(data[start + 1 : start + 17])
            if row is not None:
                _note(row, walk.time, number, base + here, below)
        elif kind == GROUP:
            command = decode(data[start : walk.stop])
            assert isinstance(command, Group)
            for member in command.members:
                row = rows.get(member.id)
                if row is not None and _value_of(member) is not None:
                    _note(row, walk.time, number, base + here, below)
    return walk.at


def _note(row: Row, time: i64, number: i64, offset: i64, below: i64) -> None:
    segment = i64(row.segment)
    if not segment:  # of no size, in memory only, or not written yet
        return
    if below:
        if segment < below:
            row.segment = i32(number)
            row.offset = i32(offset)
    elif segment == number and row.value_at == time:
        row.offset = i32(offset)


def _value_of(command: Command) -> bytes | None:
    if isinstance(command, Put):
        return command.value
    if isinstance(command, Value):
        return command.value
    return command.payload if isinstance(command, WorkqJob) else None
