"""The cleaner: rewrites sealed segments without the records that a function gives up.

Rules:

1. Only sealed segments are visited, oldest first: those with a later segment that holds records,
   and these are synced first. So no power loss makes a cleaned segment the newest one again, the
   active segment is never visited, nor the standby behind it.
2. Kept records are copied byte for byte; their TIME stays, so they stay identified.
3. Write `<name>.rw`, sync it, say so in the manifest, rename it over the segment, sync the
   directory. If nothing remains, say so, remove the segment, sync the directory. A crash at any
   step leaves the old file or the new one.
4. Readers are locked out while a cleaner holds `read.lock`; appenders are not.
5. A fault in a segment, or one that is not what the manifest says, ends the cycle; that segment
   and the later ones stay as they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from fastjournal.clock import Clock
from fastjournal.errors import (
    BadRequest,
    CorruptRecord,
    NotLocked,
    SegmentError,
    SkipSegment,
)
from fastjournal.log.files import FileHandle, FileLock, Files
from fastjournal.log.manifest import ManifestFile
from fastjournal.log.record import Record, decode_many
from fastjournal.log.segment import HEADER_SIZE, REWRITE_SUFFIX
from fastjournal.log.segment_directory import SegmentDirectory, has_records
from fastjournal.log.write.segment_writer import write_failure, write_whole

__all__ = [
    "DAY",
    "CleanFunction",
    "Cleaned",
    "Cleaner",
    "older_than",
    "replace_segment",
    "rewrite",
    "sealed_segments",
    "write_work_file",
]

DAY = 24 * 3600 * 1_000_000_000

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
        data, records = read_segment(self.stream, number)
        kept: list[tuple[int, int]] = []
        count = last = dropped_to = 0
        ends = [record.offset for record in records[1:]]
        ends.append(len(data))
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
        if count == len(records) and records:
            return None
        self._manifest.check(number, data)
        if before_replace is not None:
            before_replace()
        content = _joined(data, kept)
        work = write_work_file(self.stream, number, content) if kept else None
        cleaned = Cleaned(number, len(records), count, len(data), len(content), last, dropped_to)
        replace_segment(self.stream, self._manifest, cleaned, work, self._disposal)
        return cleaned

    def __enter__(self) -> Self:
        self.lock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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


def read_segment(stream: SegmentDirectory, number: int) -> tuple[bytes, list[Record]]:
    """All bytes and records of a sealed segment; raises `CorruptRecord` at the first fault."""
    handle, _ = stream.open_segment(number, newest=False)
    try:
        data = handle.read(0, handle.size())
    except OSError as error:
        raise SegmentError(stream.segment_path(number), f"cannot be read: {error}") from error
    finally:
        handle.close()
    records, at, broken = decode_many(data, HEADER_SIZE, len(data), number, 0, stream.max_payload)
    if broken is not None:
        raise CorruptRecord(stream.segment_path(number), at, broken.reason)
    return data, records


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
            left = stream.header.encode() if leaves else b""
            if manifest is not None:
                manifest.change(number, left, 0, cleaned.dropped_to)
            if disposal is None:
                files.remove(path)
            else:
                disposal.emptied(path)
            files.sync_directory(stream.path)
            return
        if manifest is not None:
            manifest.change(number, _content(files, work), cleaned.last, cleaned.dropped_to)
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


def write_work_file(stream: SegmentDirectory, number: int, content: bytes) -> Path:
    """Write and sync what is to become of a segment, beside it."""
    files, path = stream.files, stream.segment_path(number)
    work = path.with_name(path.name + REWRITE_SUFFIX)
    try:
        if files.exists(work):
            files.remove(work)
        handle = files.create(work)
        try:
            write_whole(handle, content)
            handle.sync()
        finally:
            handle.close()
    except OSError as error:
        with contextlib.suppress(OSError):
            if files.exists(work):
                files.remove(work)
        raise write_failure(error, work) from error
    return work


def _joined(data: bytes, kept: list[tuple[int, int]]) -> bytes:
    """The byte ranges `kept` of a segment behind its header; empty if there is none."""
    if not kept:
        return b""
    return b"".join([data[:HEADER_SIZE], *(data[start:end] for start, end in kept)])


def rewrite(
    stream: SegmentDirectory, number: int, data: bytes, kept: list[tuple[int, int]]
) -> None:
    """Leave only the byte ranges `kept` of a segment's content, for a repair.

    The caller holds `read.lock` exclusively and sees to the manifest. Nothing kept: it is removed.
    """
    files, path = stream.files, stream.segment_path(number)
    try:
        if kept:
            files.rename(write_work_file(stream, number, _joined(data, kept)), path)
        else:
            files.remove(path)
        files.sync_directory(stream.path)
    except OSError as error:
        raise write_failure(error, path) from error


def _content(files: Files, path: Path) -> bytes:
    handle = files.open_read(path)
    try:
        return handle.read(0, handle.size())
    finally:
        handle.close()


def older_than(clock: Clock, age: int = DAY) -> CleanFunction:
    """A clean function that drops records at least `age` ns old, 24 hours unless told."""

    def clean(path: Path, record: Record) -> bool:
        return clock.now() - record.time >= age

    return clean
