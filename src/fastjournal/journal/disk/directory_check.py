"""A journal's directory as a whole: its log, manifest and marks, its snapshot with its checkpoint.

Rules:

1. What `verify` finds clean can be opened, and holds what it held when it was left; what it finds
   torn the next opening mends.
2. `salvage` mends the log (see `log.repair`), then the snapshot: every whole image is kept, with a
   copy of what was there before, and the checkpoint is made anew from it.
3. If the snapshot is gone, all that is left is the log behind it. `salvage` says so, and that the
   rows which stood only in the snapshot are lost; then the log is taken for whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import google_crc32c

from fastjournal.errors import CorruptRecord, JournalError, SegmentError
from fastjournal.journal.disk.snapshot import (
    SNAPSHOT,
    Snapshot,
    checkpoint_path,
    needed_snapshot,
    newest_snapshot,
    set_checkpoint,
    snapshot_path,
)
from fastjournal.log.care import repair
from fastjournal.log.care.check import Fault, SegmentCheck
from fastjournal.log.care.check import verify as verify_log
from fastjournal.log.care.recovery import keep_copy
from fastjournal.log.care.repair import Dropped
from fastjournal.log.files import read_file, replace_file
from fastjournal.log.manifest import MANIFEST, ManifestFile
from fastjournal.log.manifest import read as read_manifest
from fastjournal.log.scan import scan
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.stream import Stream

__all__ = ["salvage", "verify"]

_GONE = "the snapshot is gone: rows that stood only in it are lost"


def verify(stream: Stream, progress: Callable[[int], None] | None = None) -> Iterator[SegmentCheck]:
    """Check a journal's directory: its segments, oldest first, then what else has a fault."""
    yield from verify_log(stream, progress)
    path, reason, offset = _snapshot_fault(stream)
    if reason:
        check = SegmentCheck(-1, path)
        check.faults.append(Fault(path, offset, 0, reason, torn=False))
        yield check


def salvage(stream: Stream, *, lock_timeout: float = 1.0) -> list[Dropped]:
    """Keep every whole record and image, drop damaged stretches; returns what was dropped."""
    dropped = repair.salvage(stream, lock_timeout=lock_timeout)
    with repair.locked(stream, lock_timeout):
        if _snapshot_fault(stream)[1]:
            dropped += _salvage_snapshot(stream)
    return dropped


def _snapshot_fault(stream: Stream) -> tuple[Path, str, int]:
    """The file, what is wrong with it, and where; an empty reason if all is well."""
    try:
        snapshot = newest_snapshot(stream)
    except SegmentError as error:
        path = Path(error.path)
        return path, "" if path.name == MANIFEST else error.reason, 0  # verify_log tells that one
    except OSError as error:
        return stream.path, f"cannot be read: {error}", 0
    if snapshot is None:
        return stream.path, "", 0
    path = snapshot.path
    try:
        data = read_file(stream.files, path)
        if len(data) != snapshot.size:
            return path, f"has {len(data)} bytes, its checkpoint says {snapshot.size}", 0
        SNAPSHOT.check(data, path)
        found = scan.verify(data, path=path, mode=scan.FAILFAST, max_payload=stream.max_payload)
    except CorruptRecord as error:
        return path, error.reason, error.offset
    except JournalError as error:
        return path, error.reason if isinstance(error, SegmentError) else str(error), 0
    except OSError as error:
        return path, f"cannot be read: {error}", 0
    if found.records != snapshot.records or google_crc32c.value(data) != snapshot.crc:
        return path, "is not the one that its checkpoint was made for", 0
    return path, "", 0


def _salvage_snapshot(stream: Stream) -> list[Dropped]:
    first = _number(stream)
    path, checkpoint = snapshot_path(stream, first), checkpoint_path(stream, first)
    data = read_file(stream.files, path) if stream.files.exists(path) else b""
    if data[:HEADER_SIZE] != SNAPSHOT.encode():
        dropped = [Dropped(path, 0, len(data), 0, _GONE, _copy(stream, path, data))]
        repair.remember(stream, dropped)
        _remove(stream, checkpoint, path)
        _do_without(stream)
        return dropped
    found = scan.verify(data, max_payload=stream.max_payload)
    copy = _copy(stream, path, data) if found.damage else None
    dropped = [
        Dropped(path, one.offset, one.end - one.offset, 0, one.reason, copy) for one in found.damage
    ]
    if not dropped:
        dropped = [Dropped(checkpoint, 0, 0, 0, "made anew from its snapshot", None)]
    repair.remember(stream, dropped)
    _remove(stream, checkpoint)
    kept = _without(data, [(one.offset, one.end) for one in found.damage])
    if found.damage:
        replace_file(stream.files, path, [kept])
    size, crc = len(kept), google_crc32c.value(kept)
    set_checkpoint(stream, Snapshot(first, path, found.records, size, crc))
    return dropped


def _number(stream: Stream) -> int:
    """The number of the snapshot that should be there."""
    needed = needed_snapshot(stream)
    if needed:
        return needed
    with contextlib.suppress(SegmentError):
        snapshot = newest_snapshot(stream)
        if snapshot is not None:
            return snapshot.first
    names = stream.files.names(stream.path)
    return max(
        int(name.split(".")[0]) for name in names if name.endswith((".snapshot", ".checkpoint"))
    )


def _do_without(stream: Stream) -> None:
    manifest = read_manifest(stream.files, stream.path)
    if manifest is None:
        repair.count_as_whole(stream)
    elif manifest.floor:
        ManifestFile(stream).replace(replace(manifest, floor=0))


def _without(data: bytes, holes: list[tuple[int, int]]) -> bytes:
    starts = [0, *(end for _, end in holes)]
    ends = [*(start for start, _ in holes), len(data)]
    return b"".join(data[start:end] for start, end in zip(starts, ends, strict=True))


def _copy(stream: Stream, path: Path, data: bytes) -> Path | None:
    suffix = f"damaged-{stream.clock.now()}"
    return keep_copy(stream.files, path, data, suffix) if data else None


def _remove(stream: Stream, *paths: Path) -> None:
    for path in paths:
        if stream.files.exists(path):
            stream.files.remove(path)
    stream.files.sync_directory(stream.path)
