"""Where the segments of a history lie: a journal, its archive, or a copy on an object store.

Rules:

1. A journal is a directory on this machine or on a shared disk. A copy of sealed segments may be
   anywhere `spark.stores` reads: `s3://bucket/jobs`, `gs://`, `abfs://`, `hdfs://`, `file:///`.
2. An archive holds segments as they were before they were cleaned: where both have a segment, the
   archive's counts, unless it is one that is still being shipped.
3. Beside what was shipped there may be copies that 0.1.0 made. Such a copy counts where nothing was
   shipped, or less of it, which is what cleaning had left.
4. Copies are sealed: a torn tail in one is damage.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fastjournal.spark.locations import is_remote, place
from fastjournal.spark.storage.object_store import is_growing, list_copies
from fastjournal.spark.storage.segments import Piece, first_time, journal_segments, newest_time
from fastjournal.spark.storage.segments import load as read_piece

__all__ = ["History", "is_remote", "read_piece"]


class History:
    """All segments of one journal in order, from the journal and its archive."""

    def __init__(self, path: str | Path, archive: str | Path | None = None) -> None:
        self.path = place(path)
        found = {piece.number: piece for piece in journal_segments(self.path)}
        if archive is not None:
            for piece in _archived(place(archive)):
                known = found.get(piece.number)
                if known is None or not (known.newest or is_growing(piece.path)):
                    found[piece.number] = replace(piece, newest=False)
        self.pieces = [found[number] for number in sorted(found)]
        self._starts = [first_time(piece) for piece in self.pieces]

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
            time = newest_time(piece)
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


def _archived(archive: str) -> list[Piece]:
    """The segments of an archive, each from where it is most whole (rule 3)."""
    found = {piece.number: piece for piece in journal_segments(archive)}
    newest = max(found, default=0)
    for one in list_copies(archive) if is_remote(archive) else ():
        number = one.number
        if number < newest and (number not in found or found[number].size < one.size):
            found[number] = Piece(one.address, number, one.size, newest=False)
    return [found[number] for number in sorted(found)]
