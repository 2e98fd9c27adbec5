"""The end of a growing log: which TIME it has reached, and how far a limit goes. No Spark.

Rules:

1. Only whole, CRC-valid records count: the TIME told is that of a record that a task can read.
2. What was walked once is not walked again, as long as its file is the same: a place is a segment,
   a byte and the file's number in its file system. Cleaning renames a new file over the old one;
   then the walk begins again at that segment's first record, and TIME says what is new.
3. Damage does not stop a walk: the tasks that read it say what is wrong, in the mode asked for.
4. Cleaning may take records before they were read. The manifest says up to which TIME records
   were dropped, and which segments should be there. In a log without one only a number that is
   missing between segments that are there tells.
5. What the node of a replicated journal has behind `commit.pos` may be cut off and written anew: it
   is not told of, and the walk goes on from there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Reversible
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple, TypeVar

from fastjournal.log.commit_mark import end_of_log
from fastjournal.log.files import DISK
from fastjournal.log.manifest import Sealed
from fastjournal.log.scan.scan import DROPMALFORMED, Chunk, Scan
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.segment_directory import read_growing
from fastjournal.spark.storage.segments import (
    Piece,
    SegmentListing,
    check_gone,
    first_time,
    journal_segments,
    pieces_between,
    safe_part,
)

__all__ = ["Limit", "Reached", "Tail"]

S = TypeVar("S", Piece, Sealed)

_CRC_SIZE = 4
_OVERHEAD = 20  # bytes of a record around its payload, nearly always
_READ = 16 << 20


class Reached(NamedTuple):
    """A record by its TIME, and the segment that holds it."""

    time: int
    segment: int


@dataclass(slots=True)
class _Place:
    """Behind the record of `time`: all before is known, all from `offset` on is newer."""

    segment: int
    inode: int
    offset: int
    time: int


class _Open:
    """A segment being walked from some byte on."""

    def __init__(self, piece: Piece, place: _Place | None) -> None:
        self._piece = piece
        self._file = open(piece.path, "rb")  # noqa: SIM115 - closed by `close`
        self.inode = os.fstat(self._file.fileno()).st_ino
        known = place is not None and (place.segment, place.inode) == (piece.number, self.inode)
        size = os.fstat(self._file.fileno()).st_size
        self.resumed = known and place is not None and place.offset <= size
        self.offset = place.offset if self.resumed and place is not None else HEADER_SIZE

    def chunks(self, after: int | None, upto: int | None) -> Iterator[tuple[Chunk, int]]:
        """Records with their bounds applied, and where their offsets count from.

        `offset` is the end of the sound part walked so far.
        """
        safe = safe_part(self._piece.directory) if self._piece.newest else None
        number = self._piece.number
        while True:
            base = self.offset
            # A whole record must fit, however large.
            data = read_growing(self._read, base, 2 * _READ)
            if not data:
                return

            def torn(at: int, following: int | None, base: int = base) -> bool:
                if safe is None:
                    return False
                found = None if following is None else base + following
                return safe.is_torn(number, base + at, found)

            # Not at the end of the file: what is cut off by the window comes with the next one.
            last = len(data) < 2 * _READ
            scan = Scan(
                data,
                path=self._piece.path,
                start=0,
                torn=torn if last else lambda at, following: following is None,
                mode=DROPMALFORMED,
                after=after,
                upto=upto,
            )
            for chunk in scan:
                assert isinstance(chunk, Chunk)
                yield chunk, base
            self.offset = base + scan.end
            if last or not scan.end:
                return

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._file.fileno(), size, at)

    def close(self) -> None:
        self._file.close()


def _end_of(chunk: Chunk, n: int) -> int:
    """The byte behind a record."""
    return int(chunk.starts[n]) + int(chunk.sizes[n]) + _CRC_SIZE


class Limit:
    """How many records, and how many bytes of them, a batch may still take.

    One record is always taken, however large.
    """

    def __init__(self, records: int | None, size: int | None) -> None:
        self._records = records if records is not None else 2**62
        self._bytes = size if size is not None else 2**62
        self._none_yet = True
        self.reached = False

    def take(self, chunk: Chunk) -> int:
        """How many of these records fit; sets `reached` once no more do."""
        import numpy as np

        sizes = np.cumsum(chunk.sizes + _OVERHEAD)
        fitting = int(np.searchsorted(sizes, self._bytes, side="right"))
        taken = min(self._records, fitting, len(chunk))
        if self._none_yet and len(chunk):
            taken = max(taken, 1)
        if taken:
            self._none_yet = False
            self._records -= taken
            self._bytes -= int(sizes[taken - 1])
        self.reached = taken < len(chunk) or self._records <= 0 or self._bytes <= 0
        return taken


def _since(number: int, segments: Reversible[S]) -> list[S]:
    """Those from a number on: what was read long ago is not looked at."""
    return list(takewhile(lambda one: one.number >= number, reversed(segments)))[::-1]


class Tail:
    """Follows one journal; keeps places, no open files."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._listing = SegmentListing(directory)
        self._end: _Place | None = None
        self._stop: _Place | None = None

    def newest(self) -> Reached | None:
        """The last whole record of the log; None while there is none.

        Of a replicated journal the last one that is there to stay (rule 5).
        """
        end = end_of_log(DISK, Path(self.directory))
        for piece in reversed(self._pieces()):
            if end is not None and (first_time(piece) or 0) > end:
                continue
            found = self._last(piece, end)
            if found is not None:
                return found
        return None

    def _pieces(self) -> list[Piece]:
        return journal_segments(self.directory, whole=False, listing=self._listing)

    def _last(self, piece: Piece, upto: int | None) -> Reached | None:
        try:
            opened = _Open(piece, self._end)
        except FileNotFoundError:
            check_gone(piece)
            return None
        try:
            time = self._end.time if opened.resumed and self._end is not None else None
            offset = opened.offset
            for chunk, base in opened.chunks(None, upto):
                if len(chunk):
                    time = int(chunk.times[-1])
                    offset = base + _end_of(chunk, len(chunk) - 1)
            if time is None:
                return None
            if upto is None:
                offset = opened.offset
            self._end = _Place(piece.number, opened.inode, offset, time)
            return Reached(time, piece.number)
        finally:
            opened.close()

    def reach(
        self, after: int, upto: Reached, *, records: int | None = None, size: int | None = None
    ) -> Reached:
        """The last record behind `after`, up to `upto`, that stays within the limits."""
        limit = Limit(records, size)
        found: Reached | None = None
        place = self._stop if self._stop is not None and self._stop.time == after else None
        for piece in self.pieces_between(after, upto.time):
            if place is not None and piece.number < place.segment:
                continue
            try:
                opened = _Open(piece, place)
            except FileNotFoundError:
                check_gone(piece)
                continue
            try:
                for chunk, base in opened.chunks(after, upto.time):
                    if take := limit.take(chunk):
                        n = take - 1
                        found = Reached(int(chunk.times[n]), piece.number)
                        end = base + _end_of(chunk, n)
                        self._stop = _Place(piece.number, opened.inode, end, found.time)
                    if limit.reached:
                        assert found is not None
                        return found
            finally:
                opened.close()
        return found if found is not None else upto

    def pieces_between(self, after: int, upto: int) -> list[Piece]:
        """The segments that may hold records with a TIME above `after` and not above `upto`."""
        return pieces_between(self._pieces(), after, upto)

    def loss(self, start: Reached) -> str | None:
        """Evidence that records behind `start` were cleaned away unread; None: there is none."""
        directory = self.directory
        pieces = self._pieces()
        if not all(Path(one.path).exists() for one in _since(start.segment, pieces)):
            self._listing = SegmentListing(directory)  # not by a cleaner, or since the last look
            pieces = self._pieces()
        if not start.segment or not pieces:
            return None
        numbers = [one.number for one in _since(start.segment, pieces)]
        manifest = self._listing.manifest()
        if manifest is not None:
            named = _since(start.segment, manifest.sealed.values())
            missing = {one.number for one in named if one.last > start.time} - set(numbers)
            # Those that went while we looked are among what was dropped.
            manifest = self._listing.manifest() or manifest
            for number in sorted(missing):
                if number in manifest.sealed:
                    return f"segment {number} of {directory} is missing: the manifest names it"
            if manifest.dropped_to > start.time:
                return (
                    f"{directory}: records were cleaned away unread, behind TIME {start.time} and"
                    f" up to {manifest.dropped_to}"
                )
        expected = start.segment + 1
        for number in numbers:
            if number > start.segment:
                if number > expected:
                    last = number - 1
                    which = f"{expected}" if last == expected else f"{expected} to {last}"
                    return f"segment {which} of {directory} was cleaned away unread"
                expected = number + 1
        if pieces[-1].number < start.segment:
            return f"{directory} ends with segment {pieces[-1].number}, before {start.segment}"
        return None
