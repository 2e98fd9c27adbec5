"""Check every byte of a log and name each fault. Reads only.

Rules:

1. Every fault has a file, an offset, a length and a reason; after damage the search goes on at the
   next valid record, so one flipped byte is one fault.
2. A fault is `torn` if recovery would mend it by itself; everything else is damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fastjournal.errors import JournalError, SegmentError
from fastjournal.log.record import BrokenRecord, Record, decode_many
from fastjournal.log.recovery import Safe, next_valid_record
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.stream import Stream

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


def verify(stream: Stream, progress: Callable[[int], None] | None = None) -> Iterator[SegmentCheck]:
    """Check all segments, oldest first; `progress` is told the bytes of each one done."""
    numbers = stream.segments()
    safe = Safe.of(stream)
    tail = _newest_with_records(stream, numbers)
    for number in numbers:
        check = _check(stream, number, safe, newest=number == numbers[-1], tail=tail)
        yield check
        if progress is not None:
            progress(check.size)
    if safe.offset and safe.segment > max(numbers, default=-1):
        path = stream.segment_path(safe.segment)
        missing = SegmentCheck(safe.segment, path)
        missing.faults.append(Fault(path, 0, safe.offset, "segment is missing", torn=False))
        yield missing


def _check(stream: Stream, number: int, safe: Safe, *, newest: bool, tail: int) -> SegmentCheck:
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
        data = handle.read(0, check.size)
    except OSError as error:
        check.faults.append(Fault(path, 0, check.size, f"cannot be read: {error}", torn=False))
        return check
    finally:
        handle.close()
    if not whole:  # created but not written: nothing in it counts
        return _check_length(check, 0, safe)
    at = HEADER_SIZE
    while True:
        records, stop, broken = decode_many(data, at, len(data), number, 0, stream.max_payload)
        _count(check, records, at, stop)
        if broken is None:
            break
        found = next_valid_record(data, stop + 1, stream.max_payload)
        end = len(data) if found is None else found
        torn = number == tail and safe.is_torn(number, stop, found)
        if torn:
            end = len(data)
        check.faults.append(Fault(path, stop, end - stop, _reason(data, stop, broken), torn))
        if found is None or torn:
            break
        at = found
    # A sealed segment may have been cleaned since it was synced.
    return _check_length(check, check.size, safe) if number >= tail else check


def _check_length(check: SegmentCheck, length: int, safe: Safe) -> SegmentCheck:
    lost = safe.length(check.number) - length
    if lost > 0 and all(fault.torn for fault in check.faults):
        reason = "file is cut: more was synced"
        check.faults.append(Fault(check.path, length, lost, reason, torn=False))
    return check


def _count(check: SegmentCheck, records: list[Record], start: int, stop: int) -> None:
    if not records:
        return
    if not check.records:
        check.first_time = records[0].time
    check.last_time = records[-1].time
    check.records += len(records)
    check.payload_bytes += sum(len(record.payload) for record in records)
    check.good.append((start, stop))


def _reason(data: bytes, at: int, broken: BrokenRecord) -> str:
    return broken.reason if any(data[at:]) else "zeros in place of a record"


def _newest_with_records(stream: Stream, numbers: list[int]) -> int:
    for number in reversed(numbers):
        try:
            handle, whole = stream.open_segment(number, newest=number == numbers[-1])
        except JournalError:
            return number
        try:
            if whole and handle.size() > HEADER_SIZE:
                return number
        finally:
            handle.close()
    return -1
