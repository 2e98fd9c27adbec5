"""What there is to ship: a log's directory as seen at one moment.

Rules:

1. Only files are read, never the state of a writer: so the same code serves the process that
   writes the log and one that copies it from outside.
2. Nothing behind `synced.pos` is there. Under a policy that does not sync by itself, `settle` is
   called first.
3. The mark is read before the manifest: what was sealed in between is then seen as sealed. While a
   segment is sealed and not yet named, the view is not `complete`, and the tail is left out.
4. A file that is not what its line says was cleaned meanwhile: it is not shipped, and looked at
   again.
5. Of a replicated journal nothing is there that a majority does not have (`Reign`): a mark counts
   once its TIME is committed, and until then the mark before it. So no record is read to find out
   where that is.
6. Nodes count their segments on their own. `shift` is what to add to the number of a file for its
   number in the archive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from fastjournal.archive.store import CHUNK
from fastjournal.errors import SegmentError
from fastjournal.log.files import FileHandle
from fastjournal.log.manifest import Manifest, Sealed, first_time, measure
from fastjournal.log.manifest import read as read_log_manifest
from fastjournal.log.record import MAX_PAYLOAD, TIME_SIZE, BrokenRecord, Walk, decode_time
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.stream import Stream
from fastjournal.log.synced_mark import Mark, SyncedMark

__all__ = ["Changed", "Content", "LocalSnapshot", "Reign", "Source", "Tail", "View"]

_NOTHING = Mark(0, 0, 0)


class Tail(NamedTuple):
    """The segment that is written to, as far as it is synced."""

    segment: int
    end: int
    last: int
    """TIME of the last synced record."""
    first: int = 0
    """TIME of the first record in it; 0: not known."""


@dataclass(frozen=True, slots=True)
class Reign:
    """Who ships a replicated journal: the primary of an epoch."""

    epoch: int
    is_committed: Callable[[int], bool]
    """Whether a majority has the records up to a TIME. Asked on the shipper's thread."""


class LocalSnapshot(NamedTuple):
    """A complete snapshot on disk."""

    number: int
    as_of: int
    size: int
    crc: int
    path: Path
    checkpoint: bytes


class View(NamedTuple):
    """What there is at one moment."""

    sealed: tuple[Sealed, ...] = ()
    used: int = -1
    """The highest number that was ever sealed."""
    tail: Tail | None = None
    snapshot: LocalSnapshot | None = None
    last: int = 0
    """The last TIME that is synced."""
    complete: bool = True
    dropped_to: int = 0
    """The largest TIME that was ever dropped from the log."""
    floor: int = 0
    """Segments below this number are covered by a snapshot of that number."""


class Changed(Exception):
    """The file is not, or no longer, what was seen (rule 4)."""


class Source:
    """One log to ship from."""

    def __init__(
        self,
        stream: Stream,
        snapshot: Callable[[], LocalSnapshot | None] | None = None,
        *,
        settle: Callable[[], object] | None = None,
        synced: Callable[[], Mark | None] | None = None,
        measures: bool = False,
        reign: Reign | None = None,
    ) -> None:
        """`snapshot`: the newest one. `settle`: syncs the log. `synced`: how far it is safe.

        `measures`: read through segments that are sealed and not named, for nobody will name them.
        `reign`: of a replicated journal (rule 5).
        """
        self.shift = 0
        """See rule 6."""
        self._reign = reign
        self._committed = self._next = _NOTHING
        self._measures = measures
        self.stream = stream
        self._snapshot = snapshot
        self._settle = settle
        self._synced = synced or (lambda: SyncedMark.read(stream.files, stream.path))

    def mark(self) -> Mark:
        """How far the log is safe; costs one small read."""
        if self._reign is None:
            return self._synced() or _NOTHING
        for _ in range(2):  # the mark that was waited for, and what was synced since
            if self._reign.is_committed(self._next.last_time):
                self._committed = self._next
                self._next = self._synced() or _NOTHING
        return self._committed

    def view(self) -> View:
        """Look at the directory."""
        if self._settle is not None:
            self._settle()
        stream = self.stream
        mark = self.mark()
        known = read_log_manifest(stream.files, stream.path) or Manifest()
        sealed, used = tuple(known.sealed.values()), known.used
        if self._reign is not None:
            sealed = tuple(one for one in sealed if _is_before(one, mark))
            used = max((one.number for one in sealed), default=-1)
        unnamed = [n for n in stream.segments() if known.used < n < mark.segment]
        if self._measures:
            sealed += tuple(measure(stream, number) for number in unnamed)
            unnamed = []
        last = max(mark.last_time, max((one.last for one in sealed), default=0))
        tail = None
        if mark.segment > used and not unnamed and mark.offset > HEADER_SIZE:
            first = self._first_time(mark.segment)
            tail = Tail(mark.segment, mark.offset, mark.last_time, first)
        snapshot = None if self._snapshot is None else self._snapshot()
        used = max(used, max((one.number for one in sealed), default=-1))
        dropped_to, floor = known.dropped_to, known.floor
        view = View(sealed, used, tail, snapshot, last, not unnamed, dropped_to, floor)
        return _shifted(view, self.shift) if self.shift else view

    def _first_time(self, number: int) -> int:
        path = self.stream.segment_path(number)
        try:
            with closing(self.stream.files.open_read(path)) as handle:
                return first_time(handle.read(0, HEADER_SIZE + TIME_SIZE))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise SegmentError(path, f"cannot be read: {error}") from error

    def segment(self, one: Sealed) -> Content:
        """The bytes of a sealed segment."""
        path = self.stream.segment_path(one.number - self.shift)
        return Content(self, path, 0, one.size, one.crc)

    def snapshot(self, one: LocalSnapshot) -> Content:
        """The bytes of a snapshot."""
        return Content(self, one.path, 0, one.size, one.crc)

    def part(self, segment: int, start: int, end: int, fresh: int) -> Content:
        """A stretch of the segment that is written to; up to `fresh` it was shipped before."""
        path = self.stream.segment_path(segment - self.shift)
        content = Content(self, path, start, end, None)
        content.fresh = max(fresh, HEADER_SIZE)
        return content


def _is_before(one: Sealed, mark: Mark) -> bool:
    """Whether a mark lies behind all of a segment."""
    return one.number < mark.segment or (
        one.number == mark.segment and 0 < one.last <= mark.last_time
    )


def _shifted(view: View, shift: int) -> View:
    """What is there, by the numbers of the archive (rule 6)."""
    tail, snapshot = view.tail, view.snapshot
    return view._replace(
        sealed=tuple(one._replace(number=one.number + shift) for one in view.sealed),
        used=view.used + shift,
        tail=tail and tail._replace(segment=tail.segment + shift),
        snapshot=snapshot and snapshot._replace(number=snapshot.number + shift),
        floor=view.floor and view.floor + shift,
    )


class Content:
    """A stretch of a file, read once from front to back; raises `Changed` if it is another one."""

    def __init__(self, source: Source, path: Path, start: int, end: int, crc: int | None) -> None:
        self._files = source.stream.files
        self._path = path
        self._start, self._end = start, end
        self._expected = crc
        self.size = end - start
        """Its bytes."""
        self.crc = 0
        """Of what was read."""
        self.first = 0
        """TIME of the first record in it; 0 if none begins it."""
        self.last = 0
        """TIME of the last whole record behind `fresh`.

        That of `synced.pos` may be of a record that lies behind the end.
        """
        self.fresh: int | None = None
        self.changed = False
        """Whether reading ended with `Changed`, whatever a store made of that."""

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._read()
        except Changed:
            self.changed = True
            raise

    def _read(self) -> Iterator[bytes]:
        self.crc = 0
        try:
            handle = self._files.open_read(self._path)
        except FileNotFoundError:
            raise Changed(str(self._path)) from None
        except OSError as error:
            raise SegmentError(self._path, f"cannot be read: {error}") from error
        try:
            yield from self._chunks(handle)
        except OSError as error:
            raise SegmentError(self._path, f"cannot be read: {error}") from error
        finally:
            handle.close()
        if self._expected is not None and self.crc != self._expected:
            raise Changed(str(self._path))

    def _chunks(self, handle: FileHandle) -> Iterator[bytes]:
        size = handle.size()
        if size < self._end or (self._expected is not None and size != self._end):
            raise Changed(str(self._path))
        head = handle.read(max(self._start, HEADER_SIZE), TIME_SIZE)
        try:
            self.first = decode_time(head) if len(head) == TIME_SIZE else 0
        except BrokenRecord:
            self.first = 0
        at, left = self._start, b""
        while at < self._end:
            data = handle.read(at, min(CHUNK, self._end - at))
            if not data:
                raise Changed(str(self._path))
            self.crc = google_crc32c.extend(self.crc, data)
            at += len(data)
            if self.fresh is not None and at > self.fresh:
                left = self._walk(left + data[max(0, self.fresh - (at - len(data))) :])
            yield data
        if left:  # it does not end with a record: not what was synced
            raise Changed(str(self._path))

    def _walk(self, data: bytes) -> bytes:
        """Note the last TIME; returns what is left of a record that goes on."""
        walk = Walk(data, 0, len(data), MAX_PAYLOAD)
        at = 0
        while at < len(data):
            try:
                walk.step()
            except BrokenRecord as broken:
                if broken.torn:
                    break
                raise SegmentError(self._path, f"cannot be archived: {broken.reason}") from broken
            at, self.last = int(walk.at), int(walk.time)
        return data[at:]
