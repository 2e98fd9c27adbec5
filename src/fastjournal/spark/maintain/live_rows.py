"""The rows that live, as a cleaning asks for them: read from the log once, kept in files. No Spark.

Rules:

1. What `journal.retention` asks of a row is the TIME of its newest whole record and its expiry.
   That follows from few kinds of record: images, removals, touches and tombstones. The tests hold
   it equal to a whole replay.
2. What it asks of queues, senders and marks is little and goes with every task (`Rowless`).
3. A snapshot comes before the log behind it. Where the two overlap facts are not folded before all
   are together: a row that the snapshot states later than a record is not changed by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastjournal.errors import CorruptCommand, CorruptRecord
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode
from fastjournal.log.scan.scan import Chunk, Scan
from fastjournal.model import DEFAULT_SETTINGS, QueueSettings
from fastjournal.spark.decode.fields import Fields
from fastjournal.spark.decode.groups import commands_of
from fastjournal.spark.kinds import REMOVING, SINGLE, STATING, among
from fastjournal.spark.maintain.row_files import Facts, RowSet, Run, Shelf, facts_array
from fastjournal.spark.replay.snapshots import snapshot_images
from fastjournal.spark.storage.segments import Piece, load, tear_rule

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["LiveRows", "Read", "Rowless", "read_log", "read_snapshot"]


@dataclass(slots=True)
class Rowless:
    """What commands say that name no row; the later word counts."""

    queues: dict[bytes, tuple[int, QueueSettings]] = field(default_factory=dict)
    senders: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Mark and TIME; a mark of 0 forgets the sender."""
    mark_at: int = 0
    snapshot_at: int = 0
    ends_at: int = 0
    applied: int = 0

    def note(self, time: int, command: k.Command) -> None:
        """Take one command."""
        if isinstance(command, k.Queue):
            self.queues[command.queue] = (time, command.settings)
        elif isinstance(command, k.Sender):
            self.senders[command.name] = (command.mark, time)
        elif isinstance(command, k.Ends):
            self.ends_at = time
        elif isinstance(command, k.Mark):
            self.mark_at = time
            if command.note == k.SNAPSHOT_NOTE:
                self.snapshot_at = time

    def follow(self, later: Rowless) -> None:
        """Take what was read behind this."""
        self.queues |= later.queues
        self.senders |= later.senders
        self.mark_at = later.mark_at or self.mark_at
        self.snapshot_at = later.snapshot_at or self.snapshot_at
        self.ends_at = later.ends_at or self.ends_at
        self.applied = max(self.applied, later.applied)


@dataclass(frozen=True, slots=True)
class Read:
    """What a task has read of its part of the log."""

    runs: list[Run]
    rowless: Rowless


class _Reader:
    """Facts of one task, written whenever there are too many."""

    def __init__(self, shelf: Shelf, overlap: int) -> None:
        self._shelf, self._overlap = shelf, overlap
        self._facts = Facts()
        self.found = Read([], Rowless())

    def take(self, chunk: Chunk, path: str | Path, times: Array | None = None) -> None:
        """Take consecutive records; `times` where those of the records do not count."""
        commands = commands_of(chunk, path)
        wide = commands.chunk
        when = wide.times if times is None else times[commands.record]
        for n, command in _rowless(wide, path):
            self.found.rowless.note(int(when[n]), command)
        facts = _facts(wide, when, path)
        early = facts["at"] <= self._overlap
        if times is None and early.any():
            self.write()
            self.found.runs.append(self._shelf.write(facts[early]))
            facts = facts[~early]
        self._facts.add(facts)
        if self._facts.count >= self._shelf.most:
            self.write()

    def write(self) -> None:
        """Write what is held."""
        if self._facts.count:
            self.found.runs.append(self._shelf.write(self._facts.rows()))
            self._facts.clear()


def read_log(pieces: Sequence[Piece], shelf: Shelf, overlap: int = 0) -> Read:
    """The facts of consecutive segments; records up to TIME `overlap` may be in a snapshot."""
    reader = _Reader(shelf, overlap)
    rowless = reader.found.rowless
    for piece in pieces:
        data = load(piece)
        for chunk in Scan(data, path=piece.path, torn=tear_rule(piece)) if data else ():
            assert isinstance(chunk, Chunk)
            rowless.applied = max(rowless.applied, int(chunk.times.max()))
            reader.take(chunk, piece.path)
    reader.write()
    return reader.found


def read_snapshot(directory: str | Path, shelf: Shelf) -> Read:
    """The facts of the newest snapshot."""
    reader = _Reader(shelf, 0)
    for path, chunk, as_of in snapshot_images(directory):
        reader.take(chunk, path, as_of + 1)
    reader.write()
    return reader.found


def _rowless(chunk: Chunk, path: str | Path) -> Iterator[tuple[int, k.Command]]:
    """Commands that name no row; what is no command at all is refused here."""
    import numpy as np

    for n in np.flatnonzero(~among(SINGLE)[chunk.kinds]).tolist():
        yield n, _command(chunk, path, n)


def _facts(chunk: Chunk, times: Array, path: str | Path) -> Array:
    import numpy as np

    from fastjournal.spark.decode.field_kernel import EXPIRES
    from fastjournal.spark.maintain.fact_kernel import CHANGE, FOUND, GONE, STATED

    meaning = np.full(256, -1)
    for number, what in ((k.TOUCH, CHANGE), (k.TOMB, FOUND)):
        meaning[number] = what
    meaning[[*STATING]] = STATED
    meaning[[*REMOVING]] = GONE
    what = meaning[chunk.kinds]
    some = chunk.select(what >= 0)
    fields = Fields(some, every=True)
    for n in np.flatnonzero(fields.bad).tolist():
        _command(some, path, n)  # says what is wrong
    ids = some.ids().view(np.uint64)
    mine = what >= 0
    return facts_array(ids[:, 0], ids[:, 1], times[mine], fields.numbers[EXPIRES], what[mine])


def _command(chunk: Chunk, path: str | Path, n: int) -> k.Command:
    start = int(chunk.starts[n])
    try:
        return decode(bytes(chunk.data[start : start + int(chunk.sizes[n])]))
    except CorruptCommand as fault:
        raise CorruptRecord(path, int(chunk.offsets[n]), str(fault)) from fault


@dataclass(frozen=True, slots=True)
class Lane:
    """What retention asks of a queue that has settings of its own."""

    settings_at: int
    settings: QueueSettings


class LiveRows:
    """All living rows; stands for a `JournalState` before `journal.retention`."""

    ended = 0

    def __init__(self, rows: RowSet, rowless: Rowless) -> None:
        self.rows = rows
        self.queues = {
            name: Lane(*found)
            for name, found in rowless.queues.items()
            if found[1] != DEFAULT_SETTINGS
        }
        self.senders = {name: found for name, found in rowless.senders.items() if found[0]}
        self.mark_at = rowless.mark_at
        self.snapshot_at = rowless.snapshot_at
        self.ends_at = rowless.ends_at
        self.applied = rowless.applied
