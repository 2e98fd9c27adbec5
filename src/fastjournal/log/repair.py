"""Get back what is left of a damaged log. Offline, for operators; nothing calls it by itself.

Rules:

1. Copies first: each file that changes is kept whole as `<name>.damaged-<time>`, synced, before it
   changes.
2. `salvage` keeps every whole record and drops the damaged stretches; `cut` keeps what lies before
   a point and moves the rest aside. Both return a list of everything dropped.
3. A salvaged log is marked so for ever (`salvaged`, one line each): its state may have holes.
4. The appender's and the cleaner's locks are held throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fastjournal.errors import BadRequest, SegmentError
from fastjournal.log.cleaner import rewrite
from fastjournal.log.record import decode_many
from fastjournal.log.recovery import keep_copy
from fastjournal.log.segment import HEADER_SIZE, Position
from fastjournal.log.stream import Stream
from fastjournal.log.verify import verify
from fastjournal.log.writer import SYNCED_MARK

__all__ = ["SALVAGED", "Dropped", "cut", "salvage"]

SALVAGED = "salvaged"


@dataclass(frozen=True, slots=True)
class Dropped:
    """Bytes that are no longer in the log, and where their copy is."""

    path: Path
    offset: int
    length: int
    records: int
    """Whole records among them; 0 for damaged bytes, of which nobody knows."""
    reason: str
    copy: Path


def salvage(stream: Stream, *, lock_timeout: float = 1.0) -> list[Dropped]:
    """Keep every whole record, drop damaged stretches; returns what was dropped."""
    with _Locks(stream, lock_timeout):
        dropped: list[Dropped] = []
        for check in list(verify(stream)):
            if not check.faults or not stream.files.exists(check.path):
                continue
            if not stream.files.is_file(check.path):
                raise SegmentError(check.path, "is not a regular file: move it away yourself")
            data = _content(stream, check.path)
            copy = keep_copy(stream.files, check.path, data, f"damaged-{stream.clock.now()}")
            if len(data) < HEADER_SIZE or data[:HEADER_SIZE] != stream.header.encode():
                # Without its own header nothing says that the bytes belong to this log.
                stream.files.remove(check.path)
                stream.files.sync_directory(stream.path)
            else:
                rewrite(stream, check.number, data, check.good)
            dropped += [
                Dropped(fault.path, fault.offset, fault.length, 0, fault.reason, copy)
                for fault in check.faults
            ]
        if dropped:
            _finish(stream, dropped)
        return dropped


def cut(stream: Stream, at: Position, *, lock_timeout: float = 1.0) -> list[Dropped]:
    """Keep what lies before `at`; the rest of that segment and all later ones are moved aside."""
    with _Locks(stream, lock_timeout):
        numbers = stream.segments()
        if at.segment not in numbers:
            raise BadRequest(f"there is no segment {at.segment}")
        path = stream.segment_path(at.segment)
        data = _content(stream, path)
        if not HEADER_SIZE <= at.offset <= len(data):
            raise BadRequest(f"offset must be {HEADER_SIZE}..{len(data)}, not {at.offset}")
        _, stop, _ = decode_many(data, HEADER_SIZE, at.offset, at.segment, 0, stream.max_payload)
        if stop != at.offset:
            raise BadRequest(
                f"offset {at.offset} is inside a record; the one before ends at {stop}"
            )
        suffix = f"damaged-{stream.clock.now()}"
        dropped = []
        for number in (n for n in numbers if n > at.segment):
            later = stream.segment_path(number)
            content = _content(stream, later)
            found, _, _ = decode_many(
                content, HEADER_SIZE, len(content), number, 0, stream.max_payload
            )
            copy = keep_copy(stream.files, later, content, suffix)
            stream.files.remove(later)
            dropped.append(Dropped(later, 0, len(content), len(found), "after the cut", copy))
        if at.offset < len(data):
            found, _, _ = decode_many(data, at.offset, len(data), at.segment, 0, stream.max_payload)
            copy = keep_copy(stream.files, path, data, suffix)
            handle = stream.files.open(path)
            try:
                handle.truncate(at.offset)
                handle.sync()
            finally:
                handle.close()
            dropped.insert(
                0,
                Dropped(path, at.offset, len(data) - at.offset, len(found), "after the cut", copy),
            )
        stream.files.sync_directory(stream.path)
        if dropped:
            _finish(stream, dropped)
        return dropped


class _Locks:
    def __init__(self, stream: Stream, timeout: float) -> None:
        self._append = stream.lock_appender(timeout)
        try:
            self._read = stream.lock_readers(exclusive=True, timeout=timeout)
        except BaseException:
            self._append.release()
            raise

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._read.release()
        self._append.release()


def _content(stream: Stream, path: Path) -> bytes:
    try:
        handle = stream.files.open_read(path)
    except OSError as error:
        raise SegmentError(path, f"cannot be opened: {error}") from error
    try:
        return handle.read(0, handle.size())
    finally:
        handle.close()


def _finish(stream: Stream, dropped: list[Dropped]) -> None:
    """Forget the synced position, which may lie in what was dropped, and leave the mark."""
    files, now = stream.files, stream.clock.now()
    if files.exists(stream.path / SYNCED_MARK):
        files.remove(stream.path / SYNCED_MARK)
    path = stream.path / SALVAGED
    handle = files.open(path) if files.exists(path) else files.create(path)
    try:
        for item in dropped:
            line = f"{now} {item.path.name} {item.offset} {item.length} {item.reason}\n"
            handle.write(line.encode())
        handle.sync()
    finally:
        handle.close()
    files.sync_directory(stream.path)
