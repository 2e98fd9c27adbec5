"""Images of the state, so that recovery reads a snapshot and the rest of the log.

    000000012.snapshot    header `fjsn` 1, then log records: MARK, images, MARK, images, ...
    000000012.checkpoint  header `fjck` 1, count u64, size u64, CRC-32C u32 of the snapshot, CRC u32

Rules:

1. A snapshot is named by the first segment it does not cover, and valid only once its checkpoint
   exists and fits; the checkpoint is written last. One without is removed at start, if the log that
   it covers is still there: else it once was valid, and this is damage. The manifest knows; without
   one, a segment that it covers must be there. Where neither the manifest nor the snapshot is left,
   the MARK that stands in the log behind each snapshot says that the log is not whole.
2. It is taken while the journal works: rows are visited in parts, and the MARK before each part
   says as of which TIME (`when`) its images are. A row loaded from it counts as stated at that
   TIME + 1, and records of the log up to the last MARK are applied only to rows stated before
   them.
3. Segments below it may go only after it was read back whole (M3F-SNAP-1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

import google_crc32c

from fastjournal.errors import CorruptRecord, SegmentError, write_failure
from fastjournal.journal.disk.playback import pass_records
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.language.commands import SNAPSHOT_NOTE, Mark
from fastjournal.log.files import make_file, read_file, write_whole
from fastjournal.log.manifest import read as read_manifest
from fastjournal.log.read.cursor import Take
from fastjournal.log.record import Record, decode_many, encode_many
from fastjournal.log.segment import HEADER_SIZE, Header
from fastjournal.log.segment_directory import SegmentDirectory

__all__ = [
    "Snapshot",
    "checkpoint_path",
    "feed_snapshot",
    "first_uncovered",
    "needed_snapshot",
    "newest_snapshot",
    "old_snapshots",
    "older_snapshot",
    "read_snapshot",
    "remove_snapshots",
    "set_checkpoint",
    "snapshot_path",
    "snapshot_records",
    "snapshot_span",
    "write_snapshot",
]

SNAPSHOT = Header(b"fjsn")
CHECKPOINT = Header(b"fjck")

_FACTS = Struct(">QQI")
_CRC = Struct(">I")
_CHUNK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete snapshot on disk."""

    first: int
    """The first segment it does not cover."""
    path: Path
    records: int
    size: int
    crc: int


def write_snapshot(
    stream: SegmentDirectory, first: int, parts: Iterable[tuple[int, list[bytes]]]
) -> Snapshot:
    """Write parts (as-of TIME, payloads), sync, read back, then set the checkpoint."""
    files = stream.files
    path = snapshot_path(stream, first)
    try:
        for old in (_path(stream, first, "checkpoint"), path):
            if files.exists(old):
                files.remove(old)
        with closing(files.create(path)) as handle:
            data = SNAPSHOT.encode()
            write_whole(handle, data)
            crc = google_crc32c.value(data)
            count, size, time = 0, len(data), 0
            for as_of, payloads in parts:
                time = max(time + 1, as_of)
                mark = encode(Mark(as_of, first, 0, b"as of"))
                data, added = encode_many(time, [mark, *payloads])
                write_whole(handle, data)
                crc = google_crc32c.extend(crc, data)
                count, size, time = count + added, size + len(data), time + added
            handle.sync()
        snapshot = Snapshot(first, path, count, size, crc)
        _read_back(stream, snapshot)
        set_checkpoint(stream, snapshot)
    except OSError as error:
        with suppress(OSError):
            if files.exists(path):
                files.remove(path)
        raise write_failure(error, path) from error
    return snapshot


def newest_snapshot(stream: SegmentDirectory) -> Snapshot | None:
    """The newest snapshot with a fitting checkpoint; damage to the only one is refused."""
    manifest = read_manifest(stream.files, stream.path)  # before the names: a newer one may come
    needed = 0 if manifest is None else manifest.floor
    checkpoints, snapshots = _numbers(stream, "checkpoint"), _numbers(stream, "snapshot")
    oldest = min(stream.segments(), default=0)
    found = None
    for first in sorted(checkpoints, reverse=True):
        facts = _checkpoint_facts(stream, first)
        if facts is not None and first in snapshots and first >= needed:
            found = Snapshot(first, snapshot_path(stream, first), *facts)
            break
    if manifest is None and (found is None or found.first < oldest):
        needed = _needed_by_log(stream)
    if found is not None and found.first >= needed:
        return found
    for first in (needed,) if needed else (*checkpoints, *snapshots):
        if needed or first <= oldest or not oldest:
            path = _path(stream, first, "checkpoint" if first in snapshots else "snapshot")
            raise SegmentError(path, "is missing or damaged, and so is the log it stands for")
    return None


def older_snapshot(stream: SegmentDirectory, than: int) -> Snapshot | None:
    """The newest complete one of a lower number; it is there as long as a reader keeps the log."""
    snapshots = _numbers(stream, "snapshot")
    for first in sorted(_numbers(stream, "checkpoint"), reverse=True):
        facts = _checkpoint_facts(stream, first) if first < than and first in snapshots else None
        if facts is not None:
            return Snapshot(first, snapshot_path(stream, first), *facts)
    return None


def needed_snapshot(stream: SegmentDirectory) -> int:
    """The number of a snapshot without which the log is not whole; 0 if it is."""
    manifest = read_manifest(stream.files, stream.path)
    return _needed_by_log(stream) if manifest is None else manifest.floor


def _needed_by_log(stream: SegmentDirectory) -> int:
    """The same by the MARKs that stand behind snapshots, where no manifest tells.

    A log that begins later than such a MARK allows has lost nothing but what was cleaned away: so
    do those of old, and those of Workq.
    """
    numbers = stream.segments()
    if not numbers or numbers[0] <= 1:
        return 0
    needed = 0
    for number in numbers:
        handle, whole = stream.open_segment(number, newest=number == numbers[-1])
        try:
            data = handle.read(HEADER_SIZE, handle.size()) if whole else b""
        finally:
            handle.close()
        records, _, _ = decode_many(data, 0, len(data), number, HEADER_SIZE, stream.max_payload)
        for record in records:
            if record.payload[0] == _MARK_TYPE:
                mark = decode(record.payload)
                assert isinstance(mark, Mark)
                if mark.note == SNAPSHOT_NOTE and needed < mark.segment <= numbers[0]:
                    needed = mark.segment
    return needed


def first_uncovered(stream: SegmentDirectory) -> int:
    """The first segment that an opening reads: nothing may be written below it."""
    snapshot = newest_snapshot(stream)
    return 0 if snapshot is None else snapshot.first


def read_snapshot(
    stream: SegmentDirectory, snapshot: Snapshot
) -> Iterator[tuple[int, list[bytes]]]:
    """Its parts: as-of TIME and payloads. Damage is refused with its place."""
    for as_of, part in snapshot_records(stream, snapshot):
        yield as_of, [record.payload for record in part]


def snapshot_records(
    stream: SegmentDirectory, snapshot: Snapshot
) -> Iterator[tuple[int, list[Record]]]:
    """Its parts, cut so that none is too large: as-of TIME and records.

    TIMEs and offsets are those in the snapshot; the segment is its number with a minus sign.
    """
    as_of = size = 0
    part: list[Record] = []
    for record in _records(stream, snapshot):
        payload = record.payload
        if payload[0] == _MARK_TYPE:
            if part:
                yield as_of, part
            mark = decode(payload)
            assert isinstance(mark, Mark)
            as_of, part, size = mark.when, [], 0
            continue
        if part and (len(part) >= 10_000 or size + len(payload) > _CHUNK):
            yield as_of, part
            part, size = [], 0
        part.append(record)
        size += len(payload)
    yield as_of, part


def snapshot_span(stream: SegmentDirectory, snapshot: Snapshot) -> tuple[int, int]:
    """The TIMEs as of which its first and its last part are; all of it is read."""
    marks = [as_of for as_of, _ in snapshot_records(stream, snapshot)]
    return marks[0], marks[-1]


def snapshot_path(stream: SegmentDirectory, first: int) -> Path:
    """Where the snapshot of this number lies."""
    return _path(stream, first, "snapshot")


def checkpoint_path(stream: SegmentDirectory, first: int) -> Path:
    """Where the checkpoint of this number lies."""
    return _path(stream, first, "checkpoint")


def remove_snapshots(
    stream: SegmentDirectory, keep: Snapshot | None, remove: Callable[[Path], None] | None = None
) -> list[Path]:
    """Remove all but `keep`: older ones, and those that were never finished.

    The caller has locked readers out: one of them may have begun with an older one.
    """
    old = old_snapshots(stream, keep)
    for path in old:
        try:
            (remove or stream.files.remove)(path)
            stream.files.sync_directory(stream.path)
        except OSError as error:
            raise SegmentError(path, f"cannot be removed: {error}") from error
    return old


def old_snapshots(stream: SegmentDirectory, keep: Snapshot | None) -> list[Path]:
    """The files of all snapshots but one, in the order in which they may go."""
    return [
        _path(stream, number, kind)
        for kind in ("checkpoint", "snapshot")  # never a checkpoint alone
        for number in _numbers(stream, kind)
        if keep is None or number != keep.first
    ]


_MARK_TYPE = encode(Mark(0, 0, 0, b""))[0]


def _records(stream: SegmentDirectory, snapshot: Snapshot) -> Iterator[Record]:
    for records in _stretches(stream, snapshot, decode_many):
        assert isinstance(records, list)
        yield from records


def feed_snapshot(stream: SegmentDirectory, snapshot: Snapshot, take: Take) -> int:
    """Hand all records on in stretches of the file; returns how many there were."""
    count = 0
    for taken in _stretches(stream, snapshot, take):
        assert isinstance(taken, int)
        count += taken
    return count


def _stretches(
    stream: SegmentDirectory, snapshot: Snapshot, take: Take
) -> Iterator[list[Record] | int]:
    path = snapshot.path
    try:
        handle = stream.files.open_read(path)
    except OSError as error:
        raise SegmentError(path, f"cannot be opened: {error}") from error
    try:
        if handle.size() != snapshot.size:
            raise SegmentError(
                path, f"has {handle.size()} bytes, its checkpoint says {snapshot.size}"
            )
        SNAPSHOT.check(handle.read(0, HEADER_SIZE), path)
        offset, want = HEADER_SIZE, _CHUNK
        while offset < snapshot.size:
            data = handle.read(offset, want)
            taken, stop, broken = take(
                data, 0, len(data), -snapshot.first, offset, stream.max_payload
            )
            if not taken:
                if len(data) == want and want < stream.max_payload * 2:
                    want = stream.max_payload * 2
                    continue
                reason = broken.reason if broken else "ends early"
                raise CorruptRecord(path, offset, reason)
            yield taken
            offset += stop
            want = _CHUNK
    except OSError as error:
        raise SegmentError(path, f"cannot be read: {error}") from error
    finally:
        handle.close()


def _read_back(stream: SegmentDirectory, snapshot: Snapshot) -> None:
    count = feed_snapshot(stream, snapshot, pass_records)
    if count != snapshot.records:
        raise SegmentError(
            snapshot.path, f"{snapshot.records} records were written, {count} are there"
        )


def set_checkpoint(stream: SegmentDirectory, snapshot: Snapshot) -> None:
    """Make a synced snapshot count."""
    body = CHECKPOINT.encode() + _FACTS.pack(snapshot.records, snapshot.size, snapshot.crc)
    data = body + _CRC.pack(google_crc32c.value(body))
    # The snapshot's own name must be durable before the checkpoint can be.
    stream.files.sync_directory(stream.path)
    make_file(stream.files, _path(stream, snapshot.first, "checkpoint"), [data])
    stream.files.sync_directory(stream.path)


def _checkpoint_facts(stream: SegmentDirectory, first: int) -> tuple[int, int, int] | None:
    data = read_file(stream.files, _path(stream, first, "checkpoint"))
    data = data[: HEADER_SIZE + _FACTS.size + _CRC.size]
    body, crc = data[: -_CRC.size], data[-_CRC.size :]
    if len(body) != HEADER_SIZE + _FACTS.size or body[:HEADER_SIZE] != CHECKPOINT.encode():
        return None
    if _CRC.unpack(crc)[0] != google_crc32c.value(body):
        return None
    records, size, total = _FACTS.unpack_from(body, HEADER_SIZE)
    return records, size, total


def _numbers(stream: SegmentDirectory, kind: str) -> list[int]:
    suffix = f".{kind}"
    names = stream.files.names(stream.path)
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return [int(stem) for stem in stems if stem.isdecimal()]


def _path(stream: SegmentDirectory, first: int, kind: str) -> Path:
    return stream.path / f"{first:09d}.{kind}"
