"""The end of an archive that is still shipped to: which TIME it has reached. No Spark.

Rules:

1. The newest manifest says what there is, and up to which TIME: a look costs as much as reading it,
   however many objects there are. No object is fetched unless a batch is limited.
2. A growing segment is read by the parts of its tail; later the whole segment stands in their
   place. TIME says what was read, so nothing is read twice.
3. What retention took from the archive before it was read is a loss, and is told.
"""

from __future__ import annotations

from fastjournal.archive.manifest import Manifest
from fastjournal.errors import BadRequest
from fastjournal.log.scan.scan import DROPMALFORMED, Chunk, Scan
from fastjournal.spark.storage.object_store import find_archive, list_copies
from fastjournal.spark.storage.segments import Piece, journal_segments, load, pieces_between
from fastjournal.spark.stream.tail import Limit, Reached

__all__ = ["ArchiveTail"]


class ArchiveTail:
    """Follows one journal by its archive; keeps nothing."""

    def __init__(self, address: str) -> None:
        self.directory = address

    def newest(self) -> Reached | None:
        """The last record that was shipped; None while there is none."""
        archive = self._archive()
        if archive is None or not archive.end:
            return None
        last = archive.parts[-1].segment if archive.parts else archive.segments[-1].number
        return Reached(archive.end, last)

    def _archive(self) -> Manifest | None:
        archive = find_archive(self.directory)
        if archive is None and list_copies(self.directory):
            raise BadRequest(
                f"{self.directory}: copies of segments are no archive; a stream follows a journal's"
                " directory, or what is shipped of it"
            )
        return archive

    def reach(
        self, after: int, upto: Reached, *, records: int | None = None, size: int | None = None
    ) -> Reached:
        """The last record behind `after`, up to `upto`, that stays within the limits."""
        limit = Limit(records, size)
        found = upto
        for piece in self.pieces_between(after, upto.time):
            for chunk in Scan(
                load(piece), path=piece.path, torn=lambda at, following: False, mode=DROPMALFORMED,
                after=after, upto=upto.time,
            ):  # fmt: skip
                assert isinstance(chunk, Chunk)
                if take := limit.take(chunk):
                    found = Reached(int(chunk.times[take - 1]), piece.number)
                if limit.reached:
                    return found
        return upto

    def pieces_between(self, after: int, upto: int) -> list[Piece]:
        """The segments that may hold records with a TIME above `after` and not above `upto`."""
        return pieces_between(journal_segments(self.directory), after, upto)

    def loss(self, start: Reached) -> str | None:
        """Evidence that records behind `start` were dropped unread; None: there is none."""
        archive = self._archive()
        if archive is None or not start.segment:
            return None
        pieces = journal_segments(self.directory)
        numbers = {piece.number for piece in pieces if piece.number > start.segment}
        if numbers and min(numbers) > start.segment + 1:
            return (
                f"{self.directory} begins with segment {min(numbers)}: what lies behind segment"
                f" {start.segment} was dropped unread"
            )
        if archive.end < start.time:
            return f"{self.directory} ends at TIME {archive.end}, before {start.time}"
        return None
