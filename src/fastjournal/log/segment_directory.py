"""The segments of one log in one directory: their names, their headers, their locks.

Rules:

1. It is a directory, a header and settings; it holds no open file and no state.
2. `append.lock` excludes other appenders; `read.lock` is shared by cursors and taken alone by the
   cleaner, if no reader has pinned the log (`pins`). Appenders never wait for cursors or the
   cleaner, nor these for an appender.
3. The newest segment is the one with the highest number, even if it is empty.
4. Its writer may have reserved room ahead. That reads as zeros, and no record begins with a zero:
   zeros to the end of the newest segment with records are the end of the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.errors import LockTimeout, SegmentError, SettingError
from fastjournal.log.files import DISK, FileHandle, FileLock, Files
from fastjournal.log.pins import pinned_until
from fastjournal.log.record import FFFF_ZONE, MAX_PAYLOAD
from fastjournal.log.segment import CAPTAIN, HEADER_SIZE, Header, parse_name, segment_name
from fastjournal.log.synced_mark import APPEND_LOCK

__all__ = [
    "DEFAULT_SEGMENT_SIZE",
    "MAX_SEGMENT_SIZE",
    "MIN_SEGMENT_SIZE",
    "RESTORING",
    "SegmentDirectory",
    "has_records",
    "read_growing",
]

MIN_SEGMENT_SIZE = 4096
DEFAULT_SEGMENT_SIZE = 64 * 1024 * 1024
MAX_SEGMENT_SIZE = 1 << 30  # recovery holds what of one was not synced in memory
RESTORING = "restoring"
"""Beside a log that is being made again from an archive."""

_PIN_POLL = 0.05  # seconds between two looks at pins
_log = logging.getLogger(__name__)


class SegmentDirectory:
    """Where the segments of a log are, and how they are opened and locked."""

    def __init__(
        self,
        path: str | Path,
        header: Header = CAPTAIN,
        *,
        files: Files = DISK,
        clock: Clock = SYSTEM_CLOCK,
        max_payload: int = MAX_PAYLOAD,
        zone_bytes: str = "0000",
    ) -> None:
        if not 1 <= max_payload < 1 << 32:
            raise SettingError(
                f"max_payload must be 1..{(1 << 32) - 1}, not {max_payload}", name="max_payload"
            )
        if zone_bytes not in ("0000", "ffff"):
            raise SettingError(
                f"zone_bytes must be '0000' or 'ffff', not {zone_bytes!r}", name="zone_bytes"
            )
        self.path = Path(path)
        self.header = header
        self.files = files
        self.clock = clock
        self.max_payload = max_payload
        self.zone = FFFF_ZONE if zone_bytes == "ffff" else 0

    def create(self) -> None:
        """Make the directory if only its last component is missing."""
        if not self.files.exists(self.path):
            try:
                self.files.make_directory(self.path)
                self.files.sync_directory(self.path.parent)
            except OSError as error:
                raise SegmentError(self.path, f"cannot be created: {error}") from error

    def check_restored(self) -> None:
        """Refuse a directory that a restore has not finished: what is there is not the log."""
        path = self.path / RESTORING
        if self.files.exists(path):
            raise SegmentError(path, "a restore was not finished: run it again into this directory")

    def segments(self) -> list[int]:
        """The numbers of all segments, oldest first."""
        numbers = []
        for name in self._names():
            number = parse_name(name)
            if number is not None:
                numbers.append(number)
            elif name.endswith(".log"):
                _log.warning("%s: not a segment name, ignored", self.path / name)
        return sorted(numbers)

    def work_files(self, suffix: str) -> list[Path]:
        """Work files (`.rw` of a cleaner, `.new` of an appender) that may have been left behind.

        Between the name of the segment and the suffix may stand a word that makes them unique.
        """
        return sorted(
            self.path / name
            for name in self._names()
            if name.endswith(suffix)
            and parse_name(".".join(name.removesuffix(suffix).split(".")[:2])) is not None
        )

    def segment_path(self, number: int) -> Path:
        """Where segment `number` lives."""
        return self.path / segment_name(number)

    def open_segment(self, number: int, *, newest: bool) -> tuple[FileHandle, bool]:
        """Open a segment for reading and check its header; False if it holds no header yet.

        Only the newest segment may be without one: created, but not written before a crash.
        """
        path = self.segment_path(number)
        if self.files.exists(path) and not self.files.is_file(path):
            raise SegmentError(path, "is not a regular file")
        try:
            handle = self.files.open_read(path)
        except OSError as error:
            raise SegmentError(path, f"cannot be opened: {error}") from error
        try:
            head = handle.read(0, HEADER_SIZE)
            if len(head) < HEADER_SIZE or not any(head):
                if newest and self._is_unwritten(handle.read(0, handle.size())):
                    return handle, False
                raise SegmentError(path, "has no header")
            self.header.check(head, path)
        except OSError as error:
            handle.close()
            raise SegmentError(path, f"cannot be read: {error}") from error
        except BaseException:
            handle.close()
            raise
        return handle, True

    def _is_unwritten(self, content: bytes) -> bool:
        """Nothing, zeros, or a part of our own header: a segment whose making was cut short."""
        return not any(content) or self.header.encode().startswith(content)

    def lock_appender(self, timeout: float | None = None) -> FileLock:
        """Take `append.lock`: one appender per stream, over all processes."""
        return self._lock(APPEND_LOCK, exclusive=True, timeout=timeout)

    def lock_readers(self, *, exclusive: bool, timeout: float | None = None) -> FileLock:
        """Take `read.lock`: shared for a cursor, exclusive for the cleaner, who waits for pins too.

        Raises LockTimeout after `timeout` seconds; None: waits without limit.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            lock = self._lock("read.lock", exclusive=exclusive, timeout=left)
            until = self._pinned() if exclusive else ""
            if not until:
                return lock
            lock.release()
            if deadline is not None and time.monotonic() >= deadline:
                raise LockTimeout(
                    f"{self.path} is pinned by a reader until {until}", path=self.path
                )
            time.sleep(_PIN_POLL)

    def _pinned(self) -> str:
        try:
            return pinned_until(self.files, self.path, self.clock.now())
        except OSError as error:
            raise SegmentError(self.path, f"cannot be listed: {error}") from error

    def _lock(self, name: str, *, exclusive: bool, timeout: float | None) -> FileLock:
        self._names()  # a missing directory is named as such, not as a missing lock file
        try:
            return self.files.lock(self.path / name, exclusive=exclusive, timeout=timeout)
        except OSError as error:
            raise SegmentError(self.path / name, f"cannot be locked: {error}") from error

    def _names(self) -> list[str]:
        try:
            return self.files.names(self.path)
        except FileNotFoundError as error:
            raise SegmentError(self.path, "no such directory") from error
        except OSError as error:
            raise SegmentError(self.path, f"cannot be listed: {error.strerror}") from error


def has_records(handle: FileHandle) -> bool:
    """Whether anything stands behind a segment's header but room reserved ahead."""
    size = handle.size() - HEADER_SIZE
    if size <= 0:
        return False
    return handle.read(HEADER_SIZE, 1) != b"\0" or bool(
        handle.read(HEADER_SIZE, size).lstrip(b"\0")
    )


def read_growing(read: Callable[[int, int], bytes], start: int, size: int) -> bytes:
    """Up to `size` bytes of a segment that may be written to right now.

    A writer fills reserved room from front to back. So one look may miss bytes that were written
    before others that it sees; a second look at what the first one saw misses nothing.
    """
    data = read(start, size)
    seen = len(data.rstrip(b"\0"))
    return read(start, seen) + bytes(len(data) - seen)
