"""Where the values of rows lie when upkeep has rewritten files: the new files tell.

Rules:

1. A cleaner moves records inside their segment: their new places are noted after the files were
   replaced. Until then, and for whatever another process cleans, values are found in the old file
   while it is open, else by TIME.
2. A snapshot takes values out of the segments below it: their places in the snapshot are noted
   before any of these segments, or an older snapshot, goes.
3. A file is read in parts, and the lock is held for each by itself.
"""

from __future__ import annotations

from pathlib import Path

from fastjournal.errors import SegmentError
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.spill.records import note_positions
from fastjournal.log.record import record_size
from fastjournal.log.segment import HEADER_SIZE

__all__ = ["let_go", "note_cleaned", "note_snapshot"]

_PART = 256 * 1024


def note_cleaned(engine: Engine, segments: list[int]) -> None:
    """Segments were rewritten, or are gone."""
    stream = engine.log.stream
    for number in segments:
        path = stream.segment_path(number)
        if stream.files.exists(path):
            _note(engine, path, number, 0)
    let_go(engine)


def note_snapshot(engine: Engine, path: Path, first: int) -> None:
    """A snapshot of this number is complete; what it covers is about to go."""
    _note(engine, path, -first, first)


def let_go(engine: Engine) -> None:
    """Files are gone from the directory: keep none of them on the disk by holding it open."""
    with engine.lock:
        engine.fetching.close_files()


def _note(engine: Engine, path: Path, number: int, below: int) -> None:
    limit = engine.log.stream.max_payload
    try:
        handle = engine.log.stream.files.open_read(path)
    except OSError as error:
        raise SegmentError(path, f"cannot be opened: {error}") from error
    try:
        offset, want = HEADER_SIZE, _PART
        while data := handle.read(offset, want):
            with engine.lock:
                passed = note_positions(engine.state.rows, data, number, offset, limit, below)
            if not passed and want == record_size(limit):
                return  # damage: whoever wants a value behind it finds it by its TIME
            offset += passed
            want = _PART if passed else record_size(limit)
    except OSError as error:
        raise SegmentError(path, f"cannot be read: {error}") from error
    finally:
        handle.close()
