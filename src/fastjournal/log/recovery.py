"""Open a log after a crash.

Rules:

1. Torn is normal, damaged is not. Only the tail of the newest segment with records is mended by
   itself: it is torn if the bytes end too early, are all zero, or fail without a valid record
   behind them, and none of this lies before `synced.pos`. Everything else is refused with file,
   offset and reason.
2. What is cut is first copied to `<name>.torn-<time>` and synced.
3. The segment is synced before it is read, so that what was read is what will be there next time.
4. Running recovery twice equals running it once; a crash inside it changes nothing of this.
5. Left-over `.rw` files go, unless a cleaner is at work right now.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from fastjournal.errors import CorruptRecord, LockTimeout, SegmentError
from fastjournal.log.files import FileHandle, Files
from fastjournal.log.record import BrokenRecord, decode, decode_many
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.stream import Stream
from fastjournal.log.writer import Mark, SyncedMark

__all__ = ["SEARCH_LIMIT", "Cut", "Recovery", "classify", "next_valid_record", "recover"]

SEARCH_LIMIT = 1024 * 1024  # bytes searched behind a fault for a valid record


@dataclass(frozen=True, slots=True)
class Cut:
    """A torn tail that was removed."""

    path: Path
    offset: int
    length: int
    reason: str
    copy: Path


@dataclass(frozen=True, slots=True)
class Recovery:
    """What recovery found and did."""

    segments: int
    last_time: int
    """TIME of the newest record, ns since 1970; 0 in an empty stream."""
    cut: Cut | None = None
    removed: tuple[Path, ...] = ()


def recover(stream: Stream, *, strict: bool = False, trust_mark: bool = False) -> Recovery:
    """Mend the tail of a stream; the caller holds `append.lock`.

    `strict` refuses a torn tail too. `trust_mark` reads only what lies behind `synced.pos`: for a
    caller that checks all records itself, as a replay does.
    """
    removed = _remove_rewrites(stream)
    numbers = stream.segments()
    mark = SyncedMark.read(stream.files, stream.path)
    if mark is not None and mark.segment > max(numbers, default=0):
        raise SegmentError(stream.segment_path(mark.segment), "is missing: it was synced before")
    last_time = mark.last_time if mark is not None else 0
    tail = _tail(stream, numbers)
    if tail is None:
        return Recovery(len(numbers), last_time, None, removed)
    if mark is not None and mark.segment != tail:
        if mark.segment > tail and mark.offset > HEADER_SIZE:
            raise SegmentError(stream.segment_path(mark.segment), "is empty: it was synced before")
        mark = None
    cut, newest = _mend(stream, tail, mark, strict=strict, trust_mark=trust_mark)
    return Recovery(len(numbers), max(last_time, newest), cut, removed)


def classify(data: bytes, at: int, broken: BrokenRecord, synced: int, limit: int) -> int | None:
    """None if the fault at `at` is a torn tail; else the next valid offset, -1 if there is none.

    `synced`: offset up to which the segment was known to be synced.
    """
    found = next_valid_record(data, at + 1, limit)
    if found is not None:
        return found
    return -1 if at < synced else None


def next_valid_record(data: bytes, at: int, max_payload: int) -> int | None:
    """Where the next record with a right CRC begins, at most `SEARCH_LIMIT` bytes behind `at`."""
    end = len(data)
    last = min(end, at + SEARCH_LIMIT)
    at = data.find(b"\x01", at, last)  # every record begins with time version 1
    while at >= 0:
        with contextlib.suppress(BrokenRecord):
            decode(data, at, end, max_payload)
            return at
        at = data.find(b"\x01", at + 1, last)
    return None


def _tail(stream: Stream, numbers: list[int]) -> int | None:
    """The newest segment that holds more than a header."""
    for number in reversed(numbers):
        handle, _ = stream.open_segment(number, newest=number == numbers[-1])
        try:
            size = handle.size()
            if size > HEADER_SIZE and (number != numbers[-1] or any(handle.read(0, size))):
                return number
        finally:
            handle.close()
    return None


def _mend(
    stream: Stream, number: int, mark: Mark | None, *, strict: bool, trust_mark: bool
) -> tuple[Cut | None, int]:
    path = stream.segment_path(number)
    handle = stream.files.open(path)
    try:
        handle.sync()
        data = handle.read(0, handle.size())
        synced = mark.offset if mark is not None else 0
        if len(data) < synced:
            raise CorruptRecord(path, len(data), f"file is cut: {synced} bytes were synced")
        start = synced if trust_mark and synced >= HEADER_SIZE else HEADER_SIZE
        records, at, broken = decode_many(data, start, len(data), number, 0, stream.max_payload)
        newest = max((record.time for record in records), default=0)
        if broken is None:
            return None, newest
        if any(data[at:]) or at < synced:
            found = classify(data, at, broken, synced, stream.max_payload)
            if found is not None or strict:
                raise CorruptRecord(
                    path, at, broken.reason, found if found is not None and found > 0 else None
                )
        elif strict:
            raise CorruptRecord(path, at, "zeros in place of a record")
        return _cut(stream, path, handle, data, at, broken), newest
    except OSError as error:
        raise SegmentError(path, f"cannot be recovered: {error}") from error
    finally:
        handle.close()


def _cut(
    stream: Stream, path: Path, handle: FileHandle, data: bytes, at: int, broken: BrokenRecord
) -> Cut:
    copy = keep_copy(stream.files, path, data[at:], f"torn-{stream.clock.now()}")
    handle.truncate(at)
    handle.sync()
    reason = broken.reason if any(data[at:]) else "zeros in place of a record"
    return Cut(path, at, len(data) - at, reason, copy)


def keep_copy(files: Files, path: Path, data: bytes, suffix: str) -> Path:
    """Put `data` durably beside `path` under `<name>.<suffix>`; an equal name gets a number."""
    copy = path.with_name(f"{path.name}.{suffix}")
    again = 0
    while files.exists(copy):
        again += 1
        copy = path.with_name(f"{path.name}.{suffix}-{again}")
    handle = files.create(copy)
    try:
        if data and handle.write(data) != len(data):
            raise OSError(f"{copy}: short write")
        handle.sync()
    finally:
        handle.close()
    files.sync_directory(path.parent)
    return copy


def _remove_rewrites(stream: Stream) -> tuple[Path, ...]:
    rewrites = stream.rewrites()
    if not rewrites:
        return ()
    try:
        lock = stream.lock_readers(exclusive=True, timeout=0)
    except LockTimeout:
        return ()
    try:
        for path in rewrites:
            stream.files.remove(path)
        stream.files.sync_directory(stream.path)
    except OSError as error:
        raise SegmentError(stream.path, f"left-over rewrite cannot be removed: {error}") from error
    finally:
        lock.release()
    return tuple(rewrites)
