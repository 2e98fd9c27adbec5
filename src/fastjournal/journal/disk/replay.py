"""From a directory to a state: the newest snapshot, then the rest of the log.

Rules:

1. The same `apply` as live; nothing else changes rows.
2. Records up to the snapshot's last MARK may be in its images already: there, a record is applied
   only to a row stated before it (see `snapshot`).
3. An undecodable record is damage: file, offset and reason are named and nothing is served.
4. Python's collector of cycles rests meanwhile: rows hold none, and looking for them again and
   again takes a third of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fastjournal.errors import CorruptCommand, CorruptRecord
from fastjournal.journal.disk.snapshot import Snapshot, newest_snapshot, snapshot_records
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, is_own
from fastjournal.journal.spill.cache import Values
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.record import Record
from fastjournal.log.segment import HEADER_SIZE, Position
from fastjournal.log.stream import Stream

__all__ = ["Replayed", "replay"]

_MARK = b"\x2d"
CLEAN_NOTE = b"clean"
"""Note of the MARK that ends an orderly shutdown."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay gave."""

    state: JournalState
    snapshot: Snapshot | None
    as_of: int
    """The TIME as of which the snapshot began; 0 without one."""
    records: int
    """Records read from the log, those of the snapshot not counted."""
    clean: bool
    """Whether the last record says that the journal was closed in order."""
    own: bool
    """Whether there is anything that the Workq server cannot read."""


def replay(
    stream: Stream,
    progress: Callable[[int], None] | None = None,
    until: int | None = None,
    state: JournalState | None = None,
) -> Replayed:
    """Replay a journal's directory; `until`: only records up to this TIME, without a snapshot.

    `progress` is told, now and then, how many records have been read. `state`: an empty one to
    replay into.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _replay(stream, progress, until, state or JournalState())
    finally:
        if collecting:
            gc.enable()


def _replay(
    stream: Stream,
    progress: Callable[[int], None] | None,
    until: int | None,
    state: JournalState,
) -> Replayed:
    snapshot = newest_snapshot(stream) if until is None else None
    as_of = overlap = 0
    start = None
    if snapshot is not None:
        as_of, overlap = _load(stream, snapshot, state)
        start = Position(snapshot.first, HEADER_SIZE)
    own = snapshot is not None
    count = 0
    record: Record | None = None
    cursor = stream.open_cursor(start)
    apply = state.replay
    bounded: Values | None = state.values
    try:
        for batch in cursor.batches():
            if until is not None and batch[-1].time > until:
                batch = [record for record in batch if record.time <= until]
            own = own or any(is_own(record.payload) for record in batch)
            if batch and batch[0].time <= overlap:
                over = [record for record in batch if record.time <= overlap]
                for record in _told(over, bounded):
                    _apply_over(state, decode(record.payload), record.time)
                count += len(over)
                batch = batch[len(over) :]
            for record in batch if bounded is None else _told(batch, bounded):
                apply(record[1], record[0])  # payload, time; by number, which is faster
            count += len(batch)
            if progress is not None:
                progress(count)
            if until is not None and not batch:
                break
    except CorruptCommand as error:
        assert record is not None
        path = stream.segment_path(record.segment)
        raise CorruptRecord(path, record.offset, str(error)) from error
    finally:
        cursor.close()
    if bounded is not None:
        bounded.here = None
    clean = until is None and record is not None and _is_clean_mark(record.payload)
    return Replayed(state, snapshot, as_of, count, clean, own)


def _load(stream: Stream, snapshot: Snapshot, state: JournalState) -> tuple[int, int]:
    """Apply the images; returns the TIMEs of the first part and of the last one."""
    first: int | None = None
    as_of = 0
    bounded: Values | None = state.values
    for as_of, records in snapshot_records(stream, snapshot):
        if first is None:
            first = as_of
        for record in _told(records, bounded):
            state.apply_part(decode(record.payload), as_of + 1)
    return first or 0, as_of


def _told(records: Iterable[Record], bounded: Values | None) -> Iterable[Record]:
    """The records; a bounded state hears where each of them stands before it is applied."""
    return records if bounded is None else _telling(records, bounded)


def _telling(records: Iterable[Record], values: Values) -> Iterator[Record]:
    large = values.large
    for record in records:
        if len(record.payload) >= large:
            values.here = (record.time, record.segment, record.offset)
        yield record


def _apply_over(state: JournalState, command: k.Command, time: int) -> None:
    members: tuple[k.Command, ...] = (command,)
    apply = state.apply
    if isinstance(command, k.Group):
        members, apply = command.members, state.apply_part
    for member in members:
        row = state.rows.get(getattr(member, "id", b""))
        if row is None or row.at <= time:
            apply(member, time)


def _is_clean_mark(payload: bytes) -> bool:
    if payload[:1] != _MARK:
        return False
    mark = decode(payload)
    return isinstance(mark, k.Mark) and mark.note == CLEAN_NOTE
