"""One record of a stream, found again by where it stood, else by its TIME.

Rules:

1. A position is where a record was seen last. What stands there counts only if it is a whole record
   with a right CRC and the TIME asked for.
2. If it is not, its segment was rewritten (records never change their segment), or it was never
   known where it stands: the segment is looked through for the TIME, then the one that should hold
   it by the TIMEs of the others.
3. The offsets of the records of the segments looked through last are remembered, for the others
   that have moved too.
4. Damage is told with file, offset and reason, and concerns its own record only.
5. No lock is needed: a file that was opened stays whole while a cleaner renames another over it,
   and one that was blanked meanwhile fails its CRC and is opened anew.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import OrderedDict
from contextlib import closing
from pathlib import Path

from fastjournal.errors import CorruptRecord, SegmentError
from fastjournal.log.files import Files, read_file
from fastjournal.log.record import (
    MIN_RECORD,
    TIME_SIZE,
    BrokenRecord,
    Record,
    decode,
    decode_time,
    record_size,
)
from fastjournal.log.scan.resync import is_blank, next_valid
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.segment_directory import SegmentDirectory

__all__ = ["Lookup", "read_record"]

_AROUND = 512  # bytes of a record that are not its value, most often
_REMEMBERED = 32  # segments


def read_record(
    files: Files, path: Path, offset: int, guess: int, max_payload: int
) -> tuple[int, bytes]:
    """TIME and payload of the record at an offset; `BrokenRecord` or `OSError` if there is none.

    `guess`: how many bytes it may have, to read it at once.
    """
    with closing(files.open_read(path)) as handle:
        data = handle.read(offset, guess)
        try:
            time, start, stop, _ = decode(data, 0, len(data), max_payload)
        except BrokenRecord as broken:
            if not broken.torn or len(data) < guess:
                raise
            data = handle.read(offset, record_size(min(_size_at(data), max_payload)))
            time, start, stop, _ = decode(data, 0, len(data), max_payload)
        return time, data[start:stop]


class _Offsets:
    """The large records of one segment, and what is broken in it."""

    __slots__ = ("broken", "offsets", "times")

    def __init__(self) -> None:
        self.times = array("q")
        self.offsets = array("q")
        self.broken: list[tuple[int, int, str]] = []
        """Offset, TIME (0 if it is broken too) and reason."""

    def find(self, time: int) -> int:
        """Where the record of this TIME stands; 0: nowhere."""
        at = bisect_left(self.times, time)
        if at < len(self.times) and self.times[at] == time:
            return self.offsets[at]
        try:  # TIMEs of other writers may go back
            return self.offsets[self.times.index(time)]
        except ValueError:
            return 0


class Lookup:
    """Reads single records of one stream."""

    def __init__(self, stream: SegmentDirectory, large: int = 0) -> None:
        """`large`: only records with a payload of at least so many bytes will be asked for."""
        self._stream = stream
        self._large = large
        self._known: OrderedDict[int, _Offsets] = OrderedDict()
        self.searches = 0
        """How many segments were looked through."""

    def read(self, time: int, segment: int, offset: int, size: int) -> Record:
        """The record of this TIME, last seen there; `size`: about how large its payload is.

        Raises `CorruptRecord` if it is damaged, `SegmentError` if it is nowhere.
        """
        if offset:
            found = self._read(time, segment, offset, size)
            if found is not None:
                return found
        tried: set[int] = set()
        for number in (segment, self._holder(time)):
            if number is None or number in tried:
                continue
            tried.add(number)
            found = self._search(time, number, size)
            if found is not None:
                return found
        for number in sorted(tried):
            self._tell_damage(time, number, offset if number == segment else 0)
        raise SegmentError(
            self._stream.segment_path(segment), f"the record of TIME {time} is not there"
        )

    def _read(self, time: int, segment: int, offset: int, size: int) -> Record | None:
        stream = self._stream
        path = stream.segment_path(segment)
        try:
            found, payload = read_record(
                stream.files, path, offset, size + _AROUND, stream.max_payload
            )
        except (BrokenRecord, FileNotFoundError):
            return None
        except OSError as error:
            raise SegmentError(path, f"cannot be read: {error}") from error
        return Record(time, payload, segment, offset) if found == time else None

    def _search(self, time: int, number: int, size: int) -> Record | None:
        """Look a segment through, unless that was done and still holds."""
        known = self._known.get(number)
        if known is not None and (offset := known.find(time)):
            found = self._read(time, number, offset, size)
            if found is not None:
                return found
        offsets = self._look_through(number)
        if offsets is None:
            return None
        self._known[number] = offsets
        self._known.move_to_end(number)
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        offset = offsets.find(time)
        return self._read(time, number, offset, size) if offset else None

    def _look_through(self, number: int) -> _Offsets | None:
        """All that stands in a segment; None if there is no such file."""
        stream = self._stream
        path = stream.segment_path(number)
        try:
            data = read_file(stream.files, path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SegmentError(path, f"cannot be read: {error}") from error
        self.searches += 1
        offsets, limit = _Offsets(), stream.max_payload
        at: int | None = HEADER_SIZE
        end = len(data)
        while at is not None and at < end:
            try:
                time, start, stop, after = decode(data, at, end, limit)
            except BrokenRecord as broken:
                if is_blank(data, at, end):
                    break
                offsets.broken.append((at, _time_at(data, at), broken.reason))
                at = next_valid(data, at + 1, end, limit)
                continue
            if stop - start >= self._large:
                offsets.times.append(time)
                offsets.offsets.append(at)
            at = after
        return offsets

    def _holder(self, time: int) -> int | None:
        """The segment in which a record of this TIME would stand."""
        numbers = self._stream.segments()
        for number in reversed(numbers):
            first = self._first_time(number)
            if first is not None and first <= time:
                return number
        return None

    def _first_time(self, number: int) -> int | None:
        path = self._stream.segment_path(number)
        try:
            with closing(self._stream.files.open_read(path)) as handle:
                return _time_at(handle.read(HEADER_SIZE, MIN_RECORD), 0) or None
        except FileNotFoundError:  # cleaned away since
            return None
        except OSError as error:
            raise SegmentError(path, f"cannot be read: {error}") from error

    def _tell_damage(self, time: int, number: int, offset: int) -> None:
        """If the segment is damaged where the record may have stood, say so."""
        known = self._known.get(number)
        if known is None or not known.broken:
            return
        broken = known.broken
        for at, stamp, reason in broken:
            if stamp == time or at == offset:
                raise CorruptRecord(self._stream.segment_path(number), at, reason)
        at, _, reason = broken[0]
        raise CorruptRecord(self._stream.segment_path(number), at, reason)


def _size_at(data: bytes) -> int:
    """The SIZE that stands in the head of a record."""
    size = shift = 0
    for byte in data[TIME_SIZE : TIME_SIZE + 5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return size


def _time_at(data: bytes, at: int) -> int:
    """The TIME that stands there; 0 if it is none."""
    try:
        return decode_time(data[at : at + MIN_RECORD])
    except (BrokenRecord, struct.error):
        return 0
