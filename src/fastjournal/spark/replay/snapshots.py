"""A share of a journal from its newest snapshot, so that only the rest of the log is replayed.

Rules:

1. Which snapshot counts, and as of when its images are, is said by `journal.snapshot`.
2. A snapshot taken after the instant asked for is of no use; history below it may be gone, and
   then the question has no answer: that is an error, never a half-empty table.
3. The log overlaps with the snapshot up to its last MARK: there, a record changes only rows that
   were stated before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import google_crc32c

from fastjournal.archive.manifest import SnapshotEntry
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
from fastjournal.spark.kinds import names_a_row
from fastjournal.spark.locations import is_remote
from fastjournal.spark.replay.fold import Share, route
from fastjournal.spark.storage.mapped_file import map_file
from fastjournal.spark.storage.object_store import find_archive, read_whole
from fastjournal.spark.storage.segments import Piece

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = [
    "Base",
    "MarkTimes",
    "archived_snapshot",
    "base_of",
    "first_base",
    "first_segment",
    "is_archived",
    "mark_times",
    "open_snapshot",
    "snapshot_images",
    "whole_history",
]


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


def archived_snapshot(
    directory: str | Path, upto: int | None, pieces: Sequence[Piece]
) -> tuple[Snapshot, bytes] | None:
    """The newest snapshot of an archive up to an instant; None: there is none, or no archive.

    Raises BadRequest for an instant that the archive cannot tell.
    """
    if not is_archived(pieces):
        return None
    archive = find_archive(str(directory))
    if archive is None:
        return None
    found = plan_restore(archive, upto).snapshot
    return None if found is None else _read_archived(directory, found)


def first_base(directory: str | Path, pieces: Sequence[Piece], share: Share) -> Base:
    """What was before an archive's first segment: its earliest snapshot's rows of a share."""
    archive = find_archive(str(directory)) if is_archived(pieces) else None
    if archive is None or not archive.floor:
        return _NOTHING
    earliest = min(archive.snapshots, key=lambda one: one.number)
    found = _opened(*_read_archived(directory, earliest))
    return _base_from(found, share) if found.marks else _NOTHING


def _read_archived(directory: str | Path, found: SnapshotEntry) -> tuple[Snapshot, bytes]:
    address = f"{str(directory).rstrip('/')}/{found.name}"
    data = read_whole(address)
    if len(data) != found.size or google_crc32c.value(data) != found.crc:
        raise SegmentError(address, "is not what the archive says")
    SNAPSHOT.check(data[:HEADER_SIZE], address)
    return Snapshot(found.number, Path(address), 0, found.size, found.crc), data


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
    times = [when for _, when in _marks(*opened)] or [0]
    return MarkTimes(opened[0].first, times[0], times[-1])


def _marks(snapshot: Snapshot, data: Buffer) -> Iterator[tuple[int, int]]:
    """Where each part begins, and as of when it is."""
    for chunk in Scan(data, path=snapshot.path, kinds={MARK}):
        assert isinstance(chunk, Chunk)
        for offset, start, size in zip(
            chunk.offsets.tolist(), chunk.starts.tolist(), chunk.sizes.tolist(), strict=True
        ):
            mark = decode(bytes(data[start : start + size]))
            assert isinstance(mark, Mark)
            yield offset, mark.when


def snapshot_images(directory: str | Path) -> Iterator[tuple[Path, Chunk, Array]]:
    """The images of the newest snapshot in order, with the TIME that each is as of."""
    opened = open_snapshot(directory)
    found = None if opened is None else _opened(*opened)
    if found is not None and found.marks:
        for chunk, as_of in _images(*found):
            yield found.snapshot.path, chunk, as_of


def _images(
    snapshot: Snapshot, data: Buffer, marks: list[tuple[int, int]]
) -> Iterator[tuple[Chunk, Array]]:
    import numpy as np

    starts, times = (np.array(column) for column in zip(*marks, strict=True))
    for chunk in Scan(data, path=snapshot.path):
        assert isinstance(chunk, Chunk)
        images = chunk.select(chunk.kinds != MARK)
        part = np.searchsorted(starts, images.offsets) - 1
        yield images, np.where(part < 0, 0, times[part])


def first_segment(
    directory: str | Path, segments: Sequence[tuple[Piece, Buffer]], upto: int | None
) -> int:
    """The first segment that a replay reads; 0 without a snapshot that serves."""
    found = _serving(directory, segments, upto)
    return 0 if found is None else found.snapshot.first


def base_of(
    directory: str | Path,
    segments: Sequence[tuple[Piece, Buffer]],
    share: Share,
    upto: int | None,
) -> Base:
    """The snapshot's rows of a share, or nothing and the beginning of the log."""
    found = _serving(directory, segments, upto)
    return _NOTHING if found is None else _base_from(found, share)


class _Opened(NamedTuple):
    snapshot: Snapshot
    data: Buffer
    marks: list[tuple[int, int]]


def _opened(snapshot: Snapshot, data: Buffer) -> _Opened:
    return _Opened(snapshot, data, list(_marks(snapshot, data)))


def _serving(
    directory: str | Path, segments: Sequence[tuple[Piece, Buffer]], upto: int | None
) -> _Opened | None:
    """The snapshot that a replay up to an instant begins with."""
    opened: tuple[Snapshot, Buffer] | None
    if is_remote(directory):
        pieces = [piece for piece, _ in segments]
        opened = archived_snapshot(directory, upto, pieces)
        if opened is None:
            whole_history(directory, pieces)
    else:
        opened = open_snapshot(directory)
    if opened is None:
        return None
    found = _opened(*opened)
    # One may have been taken since the log was pinned.
    while (
        upto is not None and found.marks and found.marks[-1][1] > upto and not is_remote(directory)
    ):
        older = open_snapshot(directory, found.snapshot.first)
        if older is None:
            break
        found = _opened(*older)
    if not found.marks:
        return None
    if upto is not None and found.marks[-1][1] > upto:
        if not segments or segments[0][0].number >= found.snapshot.first > 1:
            raise BadRequest(f"{directory}: the history before {found.snapshot.path.name} is gone")
        return None
    return found


def _base_from(found: _Opened, share: Share) -> Base:
    state = JournalState()
    single = names_a_row()
    for chunk, as_of in _images(*found):
        ids = chunk.ids().view("u8")
        mine = route(ids[:, 0], ids[:, 1], share.count) == share.index
        mine |= ~single[chunk.kinds]
        some = chunk.select(mine)
        columns = (some.starts.tolist(), some.sizes.tolist(), as_of[mine].tolist())
        for start, size, when in zip(*columns, strict=True):
            state.apply_part(decode(bytes(found.data[start : start + size])), when + 1)
    return Base(state, found.snapshot.first, found.marks[-1][1])
