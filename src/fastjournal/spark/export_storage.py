"""Where the segments of a history lie: a journal, its archive, or a copy on an object store.

Rules:

1. A journal is a directory on this machine or on a shared disk. A copy of sealed segments may be
   anywhere `pyarrow.fs` reads: `s3://bucket/jobs`, `gs://`, `abfs://`, `hdfs://`, `file:///`.
2. An archive holds segments as they were before they were cleaned: where both have a segment, the
   archive's counts.
3. Copies are sealed: a torn tail in one is damage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fastjournal.errors import NotFound, SegmentError
from fastjournal.log.record import BrokenRecord, decode_time
from fastjournal.log.scan import Buffer
from fastjournal.log.segment import HEADER_SIZE, WORKQ, parse_name
from fastjournal.spark.plan import Piece, absolute, first_time, journal_segments, load, newest_time

__all__ = ["History", "is_remote", "read_piece"]


def is_remote(path: str | Path) -> bool:
    """Whether a place is read through `pyarrow.fs`."""
    return "://" in str(path)


@cache
def _filesystem(uri: str) -> tuple[Any, str]:
    import pyarrow as pa
    from pyarrow.fs import FileSystem

    try:
        found, path = FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, OSError) as error:
        raise NotFound(f"{uri}: {error}") from error
    return found, path


def _remote_segments(uri: str) -> list[Piece]:
    import pyarrow.fs as pfs

    files, path = _filesystem(uri)
    try:
        entries = files.get_file_info(pfs.FileSelector(path))
    except FileNotFoundError:
        raise NotFound(f"no such journal: {uri}") from None
    found = []
    for entry in entries:
        number = parse_name(entry.base_name)
        if number is not None and entry.is_file and entry.size > HEADER_SIZE:
            found.append((number, f"{uri.rstrip('/')}/{entry.base_name}", entry.size))
    return [Piece(path, number, size, newest=False) for number, path, size in sorted(found)]


def _opened(piece: Piece) -> Any:
    folder, _, name = piece.path.rpartition("/")
    files, path = _filesystem(folder)
    return files.open_input_file(f"{path.rstrip('/')}/{name}")


def read_piece(piece: Piece) -> Buffer:
    """The bytes of a segment, wherever it is; empty when it is gone."""
    if not is_remote(piece.path):
        return load(piece)
    try:
        with _opened(piece) as file:
            data: bytes = file.read()
    except FileNotFoundError:
        return b""
    if len(data) < HEADER_SIZE:
        raise SegmentError(Path(piece.path), f"{len(data)} bytes, shorter than its header")
    WORKQ.check(data[:HEADER_SIZE], Path(piece.path))
    return data


def _first_time(piece: Piece) -> int | None:
    if not is_remote(piece.path):
        return first_time(piece.path)
    with _opened(piece) as file:
        head = file.read_at(15, HEADER_SIZE)
    try:
        return decode_time(head) if len(head) == 15 else None
    except BrokenRecord:
        return None


class History:
    """All segments of one journal in order, from the journal and its archive."""

    def __init__(self, path: str | Path, archive: str | Path | None = None) -> None:
        self.path = str(path) if is_remote(path) else absolute(path)
        found = {piece.number: piece for piece in self._segments(self.path)}
        if archive is not None:
            place = str(archive) if is_remote(archive) else absolute(archive)
            for piece in self._segments(place):
                known = found.get(piece.number)
                if known is None or not known.newest:
                    found[piece.number] = replace(piece, newest=False)
        self.pieces = [found[number] for number in sorted(found)]
        self._starts = [_first_time(piece) for piece in self.pieces]

    @staticmethod
    def _segments(place: str) -> Sequence[Piece]:
        return _remote_segments(place) if is_remote(place) else journal_segments(place)

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(piece.size for piece in self.pieces)

    def first(self) -> int | None:
        """TIME of the first record."""
        return next((start for start in self._starts if start is not None), None)

    def last(self) -> int | None:
        """TIME of the last whole record, at this moment."""
        for piece in reversed(self.pieces):
            time = _last_time(piece)
            if time is not None:
                return time
        return None

    def behind(self, after: int) -> list[Piece]:
        """The segments that may hold records with a TIME above `after`."""
        found = []
        for n, piece in enumerate(self.pieces):
            following = next((time for time in self._starts[n + 1 :] if time is not None), None)
            if following is None or following > after + 1:
                found.append(piece)
        return found


def _last_time(piece: Piece) -> int | None:
    if not is_remote(piece.path):
        return newest_time(piece)
    from fastjournal.log.scan import verify

    return verify(read_piece(piece) or bytes(HEADER_SIZE)).last_time
