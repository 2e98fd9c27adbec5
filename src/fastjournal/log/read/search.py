"""Finding records by bytes they hold, without decoding the log: for people who look things up.

Rules:

1. The bytes of a segment are searched first, at memory speed; only around a hit is a record looked
   for, and its CRC must prove it. What is damaged or torn is not found, and not complained about.
2. Newest segments first, back to one that begins before `since`; never more than `max_bytes` are
   read and never more than `max_records` are returned: `Found.complete` says whether that was all.
3. The needle must stand within the first 64 KiB of its record.
4. No lock is taken: a segment that a cleaner removes meanwhile is passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from fastjournal.errors import SegmentError
from fastjournal.log.record import MAX_PAYLOAD, BrokenRecord, Record, decode
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.segment_directory import SegmentDirectory

__all__ = ["Found", "Readable", "find_in_segments", "segments_of"]

_CHUNK = 1 << 20  # bytes searched at a time: under a millisecond of the interpreter
_BACK = 1 << 16  # bytes before a hit in which its record may begin
_AHEAD = 1 << 12  # bytes behind a hit that are enough for most records
_HEAD = b"\x01\x00\x00\x00"  # how every TIME begins, for some tens of thousands of years


class Readable(Protocol):
    """As much of an open file as searching needs."""

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`."""

    def size(self) -> int:
        """Its bytes."""

    def close(self) -> None:
        """Release it."""


class Found(NamedTuple):
    """What a search gave."""

    records: list[Record]
    """In order of their TIMEs."""
    searched: int
    """Bytes that were looked at."""
    complete: bool
    """Nothing was left out for the sake of the limits."""


def segments_of(stream: SegmentDirectory) -> Iterator[tuple[int, Readable]]:
    """The segments of a log that hold a header, the newest first."""
    numbers = stream.segments()
    for number in reversed(numbers):
        try:
            handle, whole = stream.open_segment(number, newest=number == numbers[-1])
        except SegmentError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                continue
            raise
        if whole:
            yield number, handle
        else:
            handle.close()


def find_in_segments(
    segments: Iterator[tuple[int, Readable]],
    needle: bytes,
    *,
    since: int = 0,
    max_bytes: int = 1 << 30,
    max_records: int = 1000,
    max_payload: int = MAX_PAYLOAD,
) -> Found:
    """Records whose payload holds `needle`, at least all those with a TIME of `since` or later.

    The segments come newest first, wherever they lie; each is closed behind it.
    """
    found: list[Record] = []
    searched = 0
    complete = True
    for number, handle in segments:
        try:
            if searched >= max_bytes or len(found) >= max_records:
                complete = False
                break
            size = _written(handle)
            searched += size
            found.extend(_in_segment(handle, size, number, needle, max_payload))
            if since and _first_time(handle, max_payload) <= since:
                break
        finally:
            handle.close()
    found.sort()
    if len(found) > max_records:
        complete = False
        del found[:-max_records]
    return Found(found, searched, complete)


def _in_segment(
    handle: Readable, size: int, number: int, needle: bytes, limit: int
) -> Iterator[Record]:
    behind = HEADER_SIZE  # the end of the last record found
    for at in _hits(handle, size, needle):
        if at < behind:
            continue
        found = _record_around(handle, number, at, behind, limit)
        if found is not None:
            record, behind = found
            yield record


def _hits(handle: Readable, size: int, needle: bytes) -> Iterator[int]:
    overlap = len(needle) - 1
    for start in range(HEADER_SIZE, size, _CHUNK):
        data = handle.read(start, min(_CHUNK + overlap, size - start))
        at = data.find(needle)
        while at >= 0:
            yield start + at
            at = data.find(needle, at + 1)


def _record_around(
    handle: Readable, number: int, at: int, first: int, limit: int
) -> tuple[Record, int] | None:
    """The record that holds the byte at `at`, and where it ends; it begins at `first` or later."""
    base = max(first, at - _BACK)
    data = handle.read(base, at - base + _AHEAD)
    begin = data.rfind(_HEAD, 0, at - base)
    while begin >= 0:
        found = _record_at(handle, data, base, begin, limit)
        if found is not None:
            time, payload, end = found
            if end > at:
                return Record(time, payload, number, base + begin), end
            return None  # a whole record ends before the hit: the hit is in none
        begin = data.rfind(_HEAD, 0, begin + len(_HEAD) - 1)
    return None


def _record_at(
    handle: Readable, data: bytes, base: int, begin: int, limit: int
) -> tuple[int, bytes, int] | None:
    try:
        time, start, stop, after = decode(data, begin, len(data), limit)
        return time, data[start:stop], base + after
    except BrokenRecord as broken:
        if not broken.torn:
            return None
    whole = handle.read(base + begin, limit + _AHEAD)
    try:
        time, start, stop, after = decode(whole, 0, len(whole), limit)
    except BrokenRecord:
        return None
    return time, whole[start:stop], base + begin + after


def _written(handle: Readable) -> int:
    """Bytes of a segment without room reserved ahead."""
    size = handle.size()
    while size and not handle.read(max(0, size - _CHUNK), _CHUNK).strip(b"\0"):
        size = max(0, size - _CHUNK)
    return size


def _first_time(handle: Readable, limit: int) -> int:
    """TIME of a segment's first record; the far future if that cannot be told."""
    data = handle.read(HEADER_SIZE, _CHUNK)
    try:
        return decode(data, 0, len(data), limit)[0]
    except BrokenRecord:
        return 1 << 63
