"""Snapshots: where a replay may begin, so that only the rest of the log is read.

Rules:

1. Which snapshot counts, and as of when its images are, is said by `journal.snapshot`.
2. A snapshot taken after the instant asked for is of no use; history below it may be gone, and
   then the question has no answer: that is an error, never a half-empty table.
3. The log overlaps with the snapshot up to its last MARK: there, a record changes only rows that
   were stated before it.
4. A snapshot is a piece before those of the log, under the number of the first segment that it does
   not cover, with a minus sign. So it is dealt out by row as the log is, and read once; its MARKs
   go to every share.
5. On an object store it is fetched part by part: never all of it is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastjournal.archive.manifest import ShippedSnapshot
from fastjournal.archive.restore import plan_restore
from fastjournal.errors import BadRequest, SegmentError
from fastjournal.journal.disk.snapshot import (
    SNAPSHOT,
    Snapshot,
    newest_snapshot,
    older_snapshot,
)
from fastjournal.journal.language.codec import decode
from fastjournal.journal.language.commands import MARK, Mark
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.scan.scan import Buffer, Chunk, Scan
from fastjournal.log.segment import HEADER_SIZE, WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.kinds import SINGLE, among
from fastjournal.spark.locations import is_remote
from fastjournal.spark.replay.fold import Share, route
from fastjournal.spark.storage.mapped_file import map_file
from fastjournal.spark.storage.object_store import find_archive, read_part
from fastjournal.spark.storage.segments import Piece, first_time, load

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = [
    "Base",
    "MarkTimes",
    "base_of",
    "is_archived",
    "lives_base",
    "log_of",
    "mark_times",
    "open_snapshot",
    "replay_base",
    "scan_snapshot",
    "snapshot_images",
    "whole_history",
]

_WINDOW = 64 << 20


@dataclass(frozen=True, slots=True)
class Base:
    """Where a replay starts."""

    state: JournalState | None
    first: int
    """The first segment to be replayed."""
    overlap: int
    """Records up to this TIME may be in the state already."""


_NOTHING = Base(None, 0, 0)


def open_snapshot(
    directory: str | Path, below: int | None = None
) -> tuple[Snapshot, Buffer] | None:
    """The newest complete snapshot of a journal, or below a number, and its bytes, mapped."""
    stream = Stream(directory, WORKQ)
    snapshot = newest_snapshot(stream) if below is None else older_snapshot(stream, below)
    if snapshot is None:
        return None
    data = map_file(snapshot.path)
    if len(data) != snapshot.size:
        raise SegmentError(
            snapshot.path, f"has {len(data)} bytes, its checkpoint says {snapshot.size}"
        )
    SNAPSHOT.check(bytes(data[:HEADER_SIZE]), snapshot.path)
    return snapshot, data


def is_archived(pieces: Sequence[Piece]) -> bool:
    """Whether these are what an archive's manifest names, and not copies that lie there."""
    return any("/segments/" in piece.path or "/tail/" in piece.path for piece in pieces)


def whole_history(directory: str | Path, pieces: Sequence[Piece]) -> None:
    """Refuse copies on an object store that do not begin with the first segment.

    An archive has said itself whether its beginning is there.
    """
    if pieces and pieces[0].number > 1 and not is_archived(pieces):
        raise BadRequest(f"{directory}: its beginning is not there: no state without it")


class MarkTimes(NamedTuple):
    """What a snapshot says of itself."""

    segment: int
    """The first one that is not in it."""
    first: int
    """As of which TIME it begins; 0 if it does not say."""
    last: int
    """As of which TIME it ends: records up to it may be in it."""


def mark_times(directory: str | Path) -> MarkTimes | None:
    """When the newest snapshot was taken; None when there is none."""
    opened = open_snapshot(directory)
    if opened is None:
        return None
    times = _marks(*opened) or [0]
    return MarkTimes(opened[0].first, times[0], times[-1])


def _marks(snapshot: Snapshot, data: Buffer) -> list[int]:
    """As of when each part is; every record is checked."""
    scan = Scan(data, path=snapshot.path, kinds={MARK})
    return [time for chunk in _chunks(scan) for time in _times_of(chunk)]


def snapshot_images(directory: str | Path) -> Iterator[tuple[Path, Chunk, Array]]:
    """The images of the newest snapshot in order, with the TIME that each is as of."""
    found = _newest(directory, None)
    if found is not None:
        for chunk, as_of, _ in _images(found[0]):
            yield Path(found[0].path), chunk, as_of


def scan_snapshot(piece: Piece) -> Iterator[tuple[Chunk, int]]:
    """The records of a snapshot, and where the offsets of each chunk count from (rule 5)."""
    if piece.held is not None or not is_remote(piece.path):
        yield from ((chunk, 0) for chunk in _chunks(Scan(load(piece), path=piece.path)))
        return
    SNAPSHOT.check(read_part(piece.path, 0, HEADER_SIZE), piece.path)
    at, want = HEADER_SIZE, _WINDOW
    while at < piece.size:
        size = min(want, piece.size - at)
        data = read_part(piece.path, at, size)
        if len(data) != size:
            raise SegmentError(piece.path, f"is shorter than {piece.size} bytes, as it should be")
        last = at + size == piece.size
        # What the window cuts off is no damage: the next one begins with it.
        torn = None if last else _anything
        scan = Scan(data, path=piece.path, start=0, base=at, torn=torn)
        for chunk in _chunks(scan):
            yield chunk, at
        at += size if last else scan.end
        want = _WINDOW if scan.end else 2 * want


def _anything(at: int, following: int | None) -> bool:
    return True


def _chunks(scan: Scan) -> Iterator[Chunk]:
    for chunk in scan:
        assert isinstance(chunk, Chunk)
        yield chunk


def _images(piece: Piece) -> Iterator[tuple[Chunk, Array, int]]:
    """Images, the TIME that each is as of, and that of the part in which they end."""
    import numpy as np

    last = 0
    for chunk, _ in scan_snapshot(piece):
        marks = chunk.kinds == MARK
        times = np.array([last, *_times_of(chunk.select(marks))])
        last = int(times[-1])
        yield chunk.select(~marks), times[np.cumsum(marks)][~marks], last


def _times_of(marks: Chunk) -> Iterator[int]:
    for start, size in zip(marks.starts.tolist(), marks.sizes.tolist(), strict=True):
        mark = decode(bytes(marks.data[start : start + size]))
        assert isinstance(mark, Mark)
        yield mark.when


def log_of(pieces: Sequence[Piece]) -> list[Piece]:
    """The segments among them, without a snapshot."""
    return [piece for piece in pieces if piece.number >= 0]


def replay_base(directory: str | Path, pieces: Sequence[Piece], upto: int | None) -> Piece | None:
    """The snapshot with which a replay up to an instant begins; None: the log is replayed.

    Raises BadRequest where neither tells of that instant.
    """
    if is_remote(directory):
        archive = find_archive(str(directory)) if is_archived(pieces) else None
        if archive is None:
            whole_history(directory, pieces)
            return None
        found = plan_restore(archive, upto).snapshot
        return None if found is None else _archived(directory, found)
    serving = _newest(directory, upto)
    if serving is None:
        return None
    piece, last = serving
    if upto is not None and last > upto:
        if not pieces or pieces[0].number >= -piece.number:
            raise BadRequest(f"{directory}: the history before {Path(piece.path).name} is gone")
        return None
    return piece


def lives_base(directory: str | Path, pieces: Sequence[Piece]) -> Piece | None:
    """The snapshot that tells what was before the first segment; None: nothing was, or is known.

    Its `upto` is before the first record that is left.
    """
    first = first_time(pieces[0]) if pieces else None
    if first is None:
        return None
    if not is_remote(directory):
        serving = _newest(directory, None)
        # A node that began with a snapshot has it as number 1.
        if serving is None or pieces[0].number == 1 < -serving[0].number:
            return None
        return replace(serving[0], upto=first - 1)
    if pieces[0].number == 1:
        return None
    archive = find_archive(str(directory)) if is_archived(pieces) else None
    if archive is None or not archive.floor:
        return None
    earliest = min(archive.snapshots, key=lambda one: one.number)
    return replace(_archived(directory, earliest), upto=first - 1)


def _archived(directory: str | Path, found: ShippedSnapshot) -> Piece:
    address = f"{str(directory).rstrip('/')}/{found.name}"
    return Piece(address, -found.number, found.size, newest=False)


def _newest(directory: str | Path, upto: int | None) -> tuple[Piece, int] | None:
    """The newest snapshot of a directory, and as of when it ends."""
    opened = open_snapshot(directory)
    marks = [] if opened is None else _marks(*opened)
    # One may have been taken since the log was pinned.
    while opened is not None and upto is not None and marks and marks[-1] > upto:
        older = open_snapshot(directory, opened[0].first)
        if older is None:
            break
        opened, marks = older, _marks(*older)
    if opened is None or not marks:
        return None
    found = opened[0]
    return Piece(str(found.path), -found.first, found.size, newest=False), marks[-1]


def base_of(pieces: Sequence[Piece], share: Share) -> Base:
    """The rows of a share in the snapshot that comes before the log, where there is one."""
    if not pieces or pieces[0].number >= 0:
        return _NOTHING
    state, last = JournalState(), 0
    single = among(SINGLE)
    for chunk, as_of, last in _images(pieces[0]):  # noqa: B007 - the last one counts
        ids = chunk.ids().view("u8")
        mine = route(ids[:, 0], ids[:, 1], share.count) == share.index
        mine |= ~single[chunk.kinds]
        some = chunk.select(mine)
        columns = (some.starts.tolist(), some.sizes.tolist(), as_of[mine].tolist())
        for start, size, when in zip(*columns, strict=True):
            state.apply_part(decode(bytes(some.data[start : start + size])), when + 1)
    return Base(state, -pieces[0].number, last)
