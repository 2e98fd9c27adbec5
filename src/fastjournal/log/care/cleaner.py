"""The cleaner: rewrites sealed segments without the records that a function gives up.

Rules:

1. Only sealed segments are visited, oldest first: those with a later segment that holds records,
   and these are synced first. So no power loss makes a cleaned segment the newest one again, the
   active segment is never visited, nor the standby behind it.
2. Kept records are copied byte for byte; their TIME stays, so they stay identified.
3. Write `<name>.rw`, sync it, say so in the manifest, rename it over the segment, sync the
   directory. If nothing remains, say so, remove the segment, sync the directory. A crash at any
   step leaves the old file or the new one.
4. Readers are locked out while a cleaner holds `read.lock`; appenders are not. It does not get it
   while a reader has pinned the log.
5. A fault in a segment, or one that is not what the manifest says, ends the cycle; that segment
   and the later ones stay as they are.
6. A segment is read twice, to judge and to copy, a stretch at a time: its size costs no memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import google_crc32c

from fastjournal.clock import Clock
from fastjournal.errors import (
    BadRequest,
    CorruptRecord,
    NotLocked,
    SegmentError,
    SkipSegment,
    write_failure,
)
from fastjournal.log.files import FileHandle, FileLock, make_file
from fastjournal.log.manifest import Digest, ManifestFile, digest_of, read_digest
from fastjournal.log.record import Record, decode_many
from fastjournal.log.segment import HEADER_SIZE, REWRITE_SUFFIX
from fastjournal.log.segment_directory import SegmentDirectory, has_records

__all__ = [
    "DAY",
    "STRETCH",
    "CleanFunction",
    "Cleaned",
    "Cleaner",
    "Stretch",
    "older_than",
    "read_stretches",
    "replace_segment",
    "rewrite",
    "sealed_segments",
    "segment_records",
    "write_work_file",
]

DAY = 24 * 3600 * 1_000_000_000
STRETCH = 1024 * 1024
"""Bytes of a segment that are in memory at a time."""
_NONE_LEFT = (1 << 62, 1 << 62)

CleanFunction = Callable[[Path, Record], bool]
"""True drops the record, False keeps it; raise `SkipSegment` to leave the segment alone."""


class Disposal(Protocol):
    """What becomes of the content that a cleaner gives up."""

    def leaves(self, path: Path) -> bool:
        """Whether `emptied` leaves this segment behind, cut to its header."""

    def emptied(self, path: Path) -> None:
        """Nothing of this segment is needed: remove it, or leave it without records."""

    def hold(self, path: Path) -> FileHandle | None:
        """This segment is about to be replaced."""

    def replaced(self, handle: FileHandle | None) -> None:
        """It was; `handle` is what `hold` gave."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What happened to one segment."""

    segment: int
    records: int
    kept: int
    bytes_before: int
    bytes_after: int
    """0 when the segment was removed."""
    last: int = field(default=0, compare=False)
    """The largest TIME that was kept; 0 if nothing was, or if that is not known."""
    dropped_to: int = field(default=0, compare=False)
    """The largest TIME that was dropped; 0 if that is not known."""


class Cleaner:
    """Cleans one stream; made by `Stream.open_cleaner`."""

    def __init__(
        self,
        stream: SegmentDirectory,
        sync: Callable[[], None] | None = None,
        disposal: Disposal | None = None,
    ) -> None:
        """`sync`: how an appender in this process syncs; see `sealed_segments`."""
        self.stream = stream
        self._sync = sync
        self._disposal = disposal
        self._manifest = ManifestFile(stream)
        self._lock: FileLock | None = None
        stream.segments()  # a missing directory is an error now, not at the first cycle

    def lock(self, timeout: float | None = None) -> None:
        """Lock readers out; waits for them, at most `timeout` seconds."""
        if self._lock is not None:
            raise BadRequest("the cleaner is locked already")
        self._lock = self.stream.lock_readers(exclusive=True, timeout=timeout)

    def unlock(self) -> None:
        """Let readers in again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    close = unlock

    def clean(
        self, clean: CleanFunction, before_replace: Callable[[], None] | None = None
    ) -> list[Cleaned]:
        """Visit every sealed segment once; returns those that were changed.

        `before_replace` is called after a segment was judged, before it is replaced.
        """
        if self._lock is None:
            raise NotLocked("lock the cleaner before cleaning")
        changed = []
        for number in sealed_segments(self.stream, self._sync):
            with contextlib.suppress(SkipSegment):
                cleaned = self._clean_segment(number, clean, before_replace)
                if cleaned is not None:
                    changed.append(cleaned)
        if changed:
            self._manifest.settle()
        return changed

    def _clean_segment(
        self, number: int, clean: CleanFunction, before_replace: Callable[[], None] | None
    ) -> Cleaned | None:
        path = self.stream.segment_path(number)
        kept: list[tuple[int, int]] = []
        total = count = last = dropped_to = first = size = crc = 0
        for stretch in read_stretches(self.stream, number):
            records = stretch.records
            size = stretch.at + len(stretch.data)
            crc = google_crc32c.extend(crc, stretch.data)
            if records and not total:
                first = records[0].time
            total += len(records)
            ends = [record.offset for record in records[1:]]
            ends.append(size)
            for record, end in zip(records, ends, strict=False):
                if clean(path, record):
                    dropped_to = max(dropped_to, record.time)
                    continue
                count += 1
                last = max(last, record.time)
                if kept and kept[-1][1] == record.offset:
                    kept[-1] = (kept[-1][0], end)
                else:
                    kept.append((record.offset, end))
        if count == total and total:
            return None
        self._manifest.check(number, Digest(size, first, crc))
        if before_replace is not None:
            before_replace()
        work, after = None, 0
        if kept:
            work = write_work_file(self.stream, number, self._kept_bytes(number, kept, crc))
            after = HEADER_SIZE + sum(end - start for start, end in kept)
        cleaned = Cleaned(number, total, count, size, after, last, dropped_to)
        replace_segment(self.stream, self._manifest, cleaned, work, self._disposal)
        return cleaned

    def _kept_bytes(
        self, number: int, kept: list[tuple[int, int]], expected: int
    ) -> Iterator[bytes]:
        """The header and the byte ranges `kept`, read again; refused if the file reads otherwise.

        `expected`: the CRC of the whole file, as it was judged.
        """
        crc, at, runs = 0, 0, iter(kept)
        start, end = next(runs)
        for data in _read_chunks(self.stream, number):
            crc = google_crc32c.extend(crc, data)
            stop = at + len(data)
            parts = [] if at else [data[:HEADER_SIZE]]
            while start < stop:
                parts.append(data[max(start - at, 0) : min(end, stop) - at])
                if end > stop:
                    break
                start, end = next(runs, _NONE_LEFT)
            yield b"".join(parts)
            at = stop
        if crc != expected:
            path = self.stream.segment_path(number)
            raise SegmentError(path, "reads otherwise the second time: the disk or memory is bad")

    def __enter__(self) -> Self:
        self.lock()
        return self

    def __exit__(self, *_: object) -> None:
        self.unlock()


def sealed_segments(stream: SegmentDirectory, sync: Callable[[], None] | None = None) -> list[int]:
    """Segments that no appender writes any more, oldest first; syncs the one behind (rule 1).

    An appender in the same process must do that by its own `sync`: a sync that fails on another
    handle may take the error away from it, and the data too.
    """
    numbers = stream.segments()
    for index in range(len(numbers) - 1, 0, -1):
        handle, whole = stream.open_segment(numbers[index], newest=index == len(numbers) - 1)
        try:
            if whole and has_records(handle):
                (sync or handle.sync)()
                return numbers[:index]
        except OSError as error:
            path = stream.segment_path(numbers[index])
            raise SegmentError(path, f"cannot be synced: {error}") from error
        finally:
            handle.close()
    return []


class Stretch(NamedTuple):
    """Some of a segment: whole records, and before the first of them the header."""

    at: int
    """Where its bytes begin in the file."""
    data: bytes
    records: list[Record]


def read_stretches(stream: SegmentDirectory, number: int) -> Iterator[Stretch]:
    """A sealed segment from front to back; raises `CorruptRecord` at the first fault.

    A stretch is about `STRETCH` bytes, or one record that is larger: memory is bounded.
    """
    path = stream.segment_path(number)
    handle, _ = stream.open_segment(number, newest=False)
    try:
        size = handle.size()
        at, skip, want = 0, HEADER_SIZE, STRETCH
        while at < size or not at:
            data = handle.read(at, min(want, size - at))
            records, stop, broken = decode_many(
                data, skip, len(data), number, at, stream.max_payload
            )
            if broken is not None:
                if not broken.torn or at + len(data) >= size:
                    raise CorruptRecord(path, at + stop, broken.reason)
                if stop == skip:  # a record that is larger than a stretch
                    want *= 2
                    continue
            yield Stretch(at, data[:stop], records)
            at, skip, want = at + stop, 0, STRETCH
    except OSError as error:
        raise SegmentError(path, f"cannot be read: {error}") from error
    finally:
        handle.close()


def _read_chunks(stream: SegmentDirectory, number: int) -> Iterator[bytes]:
    """The bytes of a sealed segment, `STRETCH` at a time."""
    handle, _ = stream.open_segment(number, newest=False)
    try:
        size = handle.size()
        for at in range(0, size, STRETCH):
            yield handle.read(at, min(STRETCH, size - at))
    except OSError as error:
        raise SegmentError(stream.segment_path(number), f"cannot be read: {error}") from error
    finally:
        handle.close()


def segment_records(stream: SegmentDirectory, number: int) -> Iterator[Record]:
    """The records of a sealed segment; see `read_stretches`."""
    for stretch in read_stretches(stream, number):
        yield from stretch.records


def replace_segment(
    stream: SegmentDirectory,
    manifest: ManifestFile | None,
    cleaned: Cleaned,
    work: Path | None,
    disposal: Disposal | None = None,
) -> None:
    """Put a synced work file in the place of a segment; None: nothing is left of it.

    The caller holds `read.lock` exclusively. `manifest`: None for a directory that has none.
    `disposal` sees to old content in another way.
    """
    files, number = stream.files, cleaned.segment
    path = stream.segment_path(number)
    try:
        if work is None:
            leaves = disposal is not None and disposal.leaves(path)
            if manifest is not None:
                left = digest_of(stream.header.encode()) if leaves else None
                manifest.change(number, left, 0, cleaned.dropped_to)
            if disposal is None:
                files.remove(path)
            else:
                disposal.emptied(path)
            files.sync_directory(stream.path)
            return
        if manifest is not None:
            manifest.change(number, read_digest(files, work), cleaned.last, cleaned.dropped_to)
        old = None if disposal is None else disposal.hold(path)
        files.rename(work, path)
        files.sync_directory(stream.path)
        if disposal is not None:
            disposal.replaced(old)
    except OSError as error:
        with contextlib.suppress(OSError):
            if work is not None and files.exists(work):
                files.remove(work)
        raise write_failure(error, path) from error


def write_work_file(stream: SegmentDirectory, number: int, content: Iterable[bytes]) -> Path:
    """Write and sync what is to become of a segment, beside it."""
    files, path = stream.files, stream.segment_path(number)
    work = path.with_name(path.name + REWRITE_SUFFIX)
    try:
        if files.exists(work):
            files.remove(work)
        make_file(files, work, content)
    except (OSError, SegmentError) as error:
        with contextlib.suppress(OSError):
            if files.exists(work):
                files.remove(work)
        if isinstance(error, SegmentError):
            raise
        raise write_failure(error, work) from error
    return work


def rewrite(
    stream: SegmentDirectory, number: int, data: bytes, kept: list[tuple[int, int]]
) -> None:
    """Leave only the byte ranges `kept` of a segment's content, for a repair.

    The caller holds `read.lock` exclusively and sees to the manifest. Nothing kept: it is removed.
    """
    files, path = stream.files, stream.segment_path(number)
    try:
        if kept:
            left = [data[:HEADER_SIZE], *(data[start:end] for start, end in kept)]
            files.rename(write_work_file(stream, number, left), path)
        else:
            files.remove(path)
        files.sync_directory(stream.path)
    except OSError as error:
        raise write_failure(error, path) from error


def older_than(clock: Clock, age: int = DAY) -> CleanFunction:
    """A clean function that drops records at least `age` ns old, 24 hours unless told."""

    def clean(path: Path, record: Record) -> bool:
        return clock.now() - record.time >= age

    return clean
