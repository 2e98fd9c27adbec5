"""From a directory to a state: the newest snapshot, then the rest of the log.

Rules:

1. The same `apply` as live; nothing else changes rows.
2. The log is read in stretches (`playback`); between two of them other threads have their turn.
3. Records up to the snapshot's last MARK may be in its images already: there, a record is applied
   only to a row stated before it (see `snapshot`).
4. An undecodable record is damage: file, offset and reason are named and nothing is served.
5. Python's collector of cycles rests meanwhile: rows hold none, and looking for them again and
   again takes a third of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

from fastjournal.errors import BadRequest, CorruptCommand, CorruptRecord
from fastjournal.journal.disk.playback import CLEAN_NOTE, Playback
from fastjournal.journal.disk.snapshot import (
    Snapshot,
    feed_snapshot,
    newest_snapshot,
    snapshot_span,
)
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.manifest import read as read_manifest
from fastjournal.log.read.cursor import Cursor
from fastjournal.log.segment import HEADER_SIZE, Position
from fastjournal.log.segment_directory import SegmentDirectory

__all__ = ["CLEAN_NOTE", "Replayed", "replay"]


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
    overlap: int = 0
    """The TIME as of which the snapshot ended; 0 without one."""
    accepted: int = 0
    """Jobs of Workq whose fields cannot be and that were taken all the same."""


def replay(
    stream: SegmentDirectory,
    progress: Callable[[int], None] | None = None,
    until: int | None = None,
    state: JournalState | None = None,
    accept: bool = False,
) -> Replayed:
    """Replay a journal's directory; `until`: only records up to this TIME.

    Then a snapshot is used only if it holds nothing later; BadRequest if the log before it is gone.

    `progress` is told, now and then, how many records have been read. `state`: an empty one to
    replay into. `accept`: take jobs of Workq whose fields cannot be, instead of refusing the log.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        return _replay(stream, progress, until, state or JournalState(), accept)
    finally:
        if collecting:
            gc.enable()


def _check_history(stream: SegmentDirectory, snapshot: Snapshot) -> None:
    """Whether the log before a snapshot is there: without it, what is left tells no state."""
    known = read_manifest(stream.files, stream.path)
    numbers = stream.segments()
    covered = known is not None and known.floor > 0
    if covered or not numbers or numbers[0] >= snapshot.first > 1:
        raise BadRequest(f"{stream.path}: the history before {snapshot.path.name} is gone")


def _replay(
    stream: SegmentDirectory,
    progress: Callable[[int], None] | None,
    until: int | None,
    state: JournalState,
    accept: bool,
) -> Replayed:
    snapshot = newest_snapshot(stream)
    if snapshot is not None and until is not None and snapshot_span(stream, snapshot)[1] > until:
        _check_history(stream, snapshot)
        snapshot = None
    playback = Playback(state, until)
    playback.accepts = accept
    start = None
    if snapshot is not None:
        try:
            feed_snapshot(stream, snapshot, playback.load)
        except CorruptCommand as error:
            raise CorruptRecord(snapshot.path, playback.at, str(error)) from error
        playback.overlap = playback.last_mark
        playback.own = True
        start = Position(snapshot.first, HEADER_SIZE)
    as_of = max(playback.first_mark, 0)
    cursor = Cursor(stream, start)
    try:
        applied = -1
        for _ in cursor.feed(playback.play):
            if progress is not None:
                progress(playback.count)
            if until is not None and applied == playback.count:
                break
            applied = playback.count
    except CorruptCommand as error:
        path = stream.segment_path(playback.file)
        raise CorruptRecord(path, playback.at, str(error)) from error
    finally:
        cursor.close()
    clean = until is None and playback.clean
    return Replayed(
        state, snapshot, as_of, playback.count, clean, playback.own,
        int(playback.overlap), int(playback.accepted),
    )  # fmt: skip
