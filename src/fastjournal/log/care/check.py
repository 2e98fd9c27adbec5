"""Check every byte of a log and name each fault. Reads only.

Rules:

1. Every fault has a file, an offset, a length and a reason; after damage the search goes on at the
   next valid record, so one flipped byte is one fault.
2. A sound segment must also be the one that the manifest names, and none that it names may be
   missing; the manifest's own damage is a fault of it.
3. A fault is `torn` if recovery would mend it by itself; everything else is damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c

from fastjournal.errors import JournalError, SegmentError
from fastjournal.log.care.recovery import Safe
from fastjournal.log.files import file_size
from fastjournal.log.manifest import MANIFEST, Manifest, first_time
from fastjournal.log.manifest import read as read_manifest
from fastjournal.log.scan import scan
from fastjournal.log.scan.resync import fault_reason
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.segment_directory import SegmentDirectory, has_records, read_growing
from fastjournal.log.synced_mark import SYNCED_MARK, SyncedMark

__all__ = ["Fault", "SegmentCheck", "verify"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One stretch of bytes that is not what was written."""

    path: Path
    offset: int
    length: int
    reason: str
    torn: bool


@dataclass(slots=True)
class SegmentCheck:
    """What one segment holds."""

    number: int
    path: Path
    size: int = 0
    records: int = 0
    payload_bytes: int = 0
    first_time: int = 0
    last_time: int = 0
    faults: list[Fault] = field(default_factory=list)
    good: list[tuple[int, int]] = field(default_factory=list)
    """Byte ranges of whole records, neighbours merged."""


def verify(
    stream: SegmentDirectory, progress: Callable[[int], None] | None = None
) -> Iterator[SegmentCheck]:
    """Check all segments, oldest first; `progress` is told the bytes of each one done."""
    manifest, broken = _manifest(stream)
    if broken is not None:
        yield broken
    if _mark_is_unreadable(stream):
        check = SegmentCheck(-1, stream.path / SYNCED_MARK)
        check.faults.append(Fault(check.path, 0, 0, "no mark can be read", torn=True))
        yield check
    numbers = stream.segments()
    safe = Safe.of(stream) if broken is None else Safe(0, 0, 0, restarted=False)
    tail = _newest_with_records(stream, numbers)
    engine = scan.fitting(sum(_file_size(stream, stream.segment_path(n)) for n in numbers))
    for number in numbers:
        check = _check(
            stream, number, safe, manifest, newest=number == numbers[-1], tail=tail, engine=engine
        )
        yield check
        if progress is not None:
            progress(check.size)
    missing = {one.number: one.size for one in manifest.missing(numbers)}
    if missing:
        fresh, _ = _manifest(stream)  # a cleaner may be at work
        missing = {number: size for number, size in missing.items() if number in fresh.sealed}
    if safe.offset and safe.segment > max(numbers, default=-1):
        missing[safe.segment] = safe.offset
    for number, size in missing.items():
        check = SegmentCheck(number, stream.segment_path(number))
        check.faults.append(Fault(check.path, 0, size, "segment is missing", torn=False))
        yield check


def _mark_is_unreadable(stream: SegmentDirectory) -> bool:
    if not _file_size(stream, stream.path / SYNCED_MARK):
        return False
    return SyncedMark.read(stream.files, stream.path) is None


def _manifest(stream: SegmentDirectory) -> tuple[Manifest, SegmentCheck | None]:
    """The manifest, and its own faults if it has any."""
    try:
        return read_manifest(stream.files, stream.path) or Manifest(), None
    except JournalError as error:
        check = SegmentCheck(-1, stream.path / MANIFEST)
        reason = error.reason if isinstance(error, SegmentError) else str(error)
        check.faults.append(Fault(check.path, 0, 0, reason, torn=False))
        return Manifest(), check


def _check(
    stream: SegmentDirectory,
    number: int,
    safe: Safe,
    manifest: Manifest,
    *,
    newest: bool,
    tail: int,
    engine: str,
) -> SegmentCheck:
    path = stream.segment_path(number)
    check = SegmentCheck(number, path)
    try:
        handle, whole = stream.open_segment(number, newest=newest)
    except JournalError as error:
        reason = error.reason if isinstance(error, SegmentError) else str(error)
        check.faults.append(Fault(path, 0, HEADER_SIZE, reason, torn=False))
        return check
    try:
        check.size = handle.size()
        data = read_growing(handle.read, 0, check.size)
    except OSError as error:
        check.faults.append(Fault(path, 0, check.size, f"cannot be read: {error}", torn=False))
        return check
    finally:
        handle.close()
    if not whole:  # created but not written: nothing in it counts
        return _check_length(check, 0, safe)
    found = scan.verify(
        data,
        torn=lambda at, following: number >= tail and safe.is_torn(number, at, following),
        max_payload=stream.max_payload,
        engine=engine,
    )
    check.records, check.payload_bytes = found.records, found.payload_bytes
    check.first_time, check.last_time = found.first_time or 0, found.last_time or 0
    at = HEADER_SIZE
    for damage in found.damage:
        check.faults.append(
            Fault(path, damage.offset, damage.end - damage.offset, damage.reason, torn=False)
        )
        check.good += [(at, damage.offset)] * (at < damage.offset)
        at = damage.end
    check.good += [(at, found.end)] * (at < found.end)
    if found.torn:
        reason = fault_reason(data, found.end, len(data), stream.max_payload)
        check.faults.append(Fault(path, found.end, len(data) - found.end, reason, torn=True))
    if not check.faults:
        reason = _difference(stream, number, data, manifest)
        check.faults += [Fault(path, 0, check.size, reason, torn=False)] * bool(reason)
    # A sealed segment may have been cleaned since it was synced.
    return _check_length(check, check.size, safe) if number >= tail else check


def _difference(stream: SegmentDirectory, number: int, data: bytes, manifest: Manifest) -> str:
    """What the manifest has against a segment; a cleaner may be at work, so it is read again."""
    facts = number, len(data), first_time(data), google_crc32c.value(data)
    return manifest.fault(*facts) and _manifest(stream)[0].fault(*facts)


def _check_length(check: SegmentCheck, length: int, safe: Safe) -> SegmentCheck:
    lost = safe.length(check.number) - length
    if lost > 0 and all(fault.torn for fault in check.faults):
        reason = "file is cut: more was synced"
        check.faults.append(Fault(check.path, length, lost, reason, torn=False))
    return check


def _file_size(stream: SegmentDirectory, path: Path) -> int:
    """Length of a file; 0 where that cannot be told."""
    try:
        return file_size(stream.files, path)
    except OSError:
        return 0


def _newest_with_records(stream: SegmentDirectory, numbers: list[int]) -> int:
    for number in reversed(numbers):
        try:
            handle, whole = stream.open_segment(number, newest=number == numbers[-1])
        except JournalError:
            return number
        with closing(handle):
            if whole and has_records(handle):
                return number
    return -1
