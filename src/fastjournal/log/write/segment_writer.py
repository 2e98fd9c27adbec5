"""One segment file that is being written.

Rules:

1. Bytes count only after a whole write: a short or failed one is cut off again, back to `offset`,
   and the cut is synced before anything else is written there: a power loss cannot bring it back.
   What it means to the caller is said by `diskfull`.
2. If the cut fails, or any sync fails, the writer is poisoned: it never writes or syncs again,
   because after a failed sync the kernel may have dropped the data and a second sync would say yes
   to nothing.
3. A new segment gets its name only when its header is on stable storage, and is used only when its
   name is too.
4. After each sync `synced.pos` says how far the newest segment is known to be safe. The side file
   is not synced itself: it may be old, never too new. Recovery takes damage before it for damage,
   not for a tear.
5. Before that, the segment and the appender's lock must be the files that have their names: if the
   directory was replaced under a running appender, what it writes is in no log, and rule 2 strikes.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import google_crc32c

from fastjournal.diskfull import short_write, write_failure
from fastjournal.errors import AppenderPoisoned, SegmentError
from fastjournal.log.files import FileHandle, FileLock, Files, Identity
from fastjournal.log.segment import HEADER_SIZE, NEW_SUFFIX, Header, segment_name

__all__ = [
    "APPEND_LOCK",
    "SYNCED_MARK",
    "Mark",
    "SegmentWriter",
    "SyncedMark",
    "write_failure",
    "write_whole",
]

SYNCED_MARK = "synced.pos"
APPEND_LOCK = "append.lock"

_MARK = Struct(">QQq16s")
_CRC = Struct(">I")
_SLOT = 64  # bytes; the slot of `begin`, then the slot of `set`


class Mark(NamedTuple):
    """What the side file says: everything before `offset` of `segment` was synced once."""

    segment: int
    offset: int
    last_time: int
    """TIME of the newest record at that moment, ns since 1970; 0 in an empty stream."""
    boot: bytes = b""
    """The run of the operating system in which this was written."""


class SyncedMark:
    """The side file that remembers how far the log is safe."""

    __slots__ = ("_boot", "_directory", "_files", "_handle", "_held", "_lock")

    def __init__(self, files: Files, directory: Path, lock: FileLock | None = None) -> None:
        """`lock`: the appender's, whose file must stay the one that has its name (rule 5)."""
        self._held = directory / APPEND_LOCK
        self._lock: Identity = None if lock is None else lock.identity()
        self._files = files
        self._directory = directory
        self._boot = files.boot_id()
        try:
            self._handle = files.open_in_place(directory / SYNCED_MARK)
        except OSError as error:
            raise write_failure(error, directory / SYNCED_MARK) from error

    def begin(self, segment: int, offset: int, last_time: int) -> None:
        """Remember where an appender begins; durable, so that recovery always finds one mark."""
        try:
            self._handle.truncate(0)
            data = self._encode(segment, offset, last_time)
            if (written := self._handle.write_at(data, 0)) != len(data):
                raise short_write(written, len(data))
            self._handle.sync()
            self._files.sync_directory(self._directory)
        except OSError as error:
            raise write_failure(error, self._directory / SYNCED_MARK) from error

    def set(self, segment: int, offset: int, last_time: int) -> None:
        """Remember that everything before this position is safe; may be lost with the machine."""
        # A lost mark costs only precision in recovery, never data.
        with contextlib.suppress(OSError):
            self._handle.write_at(self._encode(segment, offset, last_time), _SLOT)

    def stray(self, path: Path, identity: Identity) -> Path | None:
        """The first of the lock's file and an open one that has lost its name to another."""
        files, lock = self._files, self._lock
        if files.identity(path) != identity:
            return path
        held = self._held
        return held if lock is not None and files.identity(held) != lock else None

    def close(self) -> None:
        """Release the side file."""
        with contextlib.suppress(OSError):
            self._handle.close()

    def _encode(self, segment: int, offset: int, last_time: int) -> bytes:
        body = _MARK.pack(segment, offset, last_time, self._boot)
        return body + _CRC.pack(google_crc32c.value(body))

    @staticmethod
    def read(files: Files, directory: Path) -> Mark | None:
        """The furthest mark in the side file; None if there is none that can be trusted."""
        path = directory / SYNCED_MARK
        if not files.exists(path):
            return None
        try:
            handle = files.open_read(path)
            try:
                slots = [handle.read(at, _MARK.size + _CRC.size) for at in (0, _SLOT)]
            finally:
                handle.close()
        except OSError as error:
            raise SegmentError(path, f"cannot be read: {error}") from error
        return max(filter(None, map(_decode_mark, slots)), default=None)


def _decode_mark(data: bytes) -> Mark | None:
    if len(data) < _MARK.size + _CRC.size:
        return None
    if _CRC.unpack_from(data, _MARK.size)[0] != google_crc32c.value(data[: _MARK.size]):
        return None
    segment, offset, last_time, boot = _MARK.unpack_from(data)
    return Mark(segment, offset, last_time, boot if any(boot) else b"")


class SegmentWriter:
    """Appends whole buffers to one segment and syncs it."""

    __slots__ = (
        "_closed",
        "_guard",
        "_handle",
        "_identity",
        "_mark",
        "_poison",
        "dirty",
        "last_time",
        "number",
        "offset",
        "path",
    )

    def __init__(
        self,
        handle: FileHandle,
        path: Path,
        number: int,
        offset: int,
        mark: SyncedMark,
        last_time: int,
    ) -> None:
        self._handle = handle
        self._identity = handle.identity()
        self._mark = mark
        self._poison: BaseException | None = None
        self._guard = threading.Lock()  # keeps `close` from pulling the file away under a sync
        self._closed = False
        self.last_time = last_time
        """TIME of the stream's newest record, ns since 1970; 0 if there is none."""
        self.path = path
        self.number = number
        self.offset = offset
        """Where the next record goes; everything before is whole."""
        self.dirty = False
        """Whether something was written since the last sync."""

    @classmethod
    def create(
        cls,
        files: Files,
        directory: Path,
        number: int,
        header: Header,
        mark: SyncedMark,
        last_time: int,
    ) -> SegmentWriter:
        """Make a new segment under another name, sync it, then give it its own (rule 3)."""
        path = directory / segment_name(number)
        work = path.with_name(path.name + NEW_SUFFIX)
        try:
            if files.exists(work):
                files.remove(work)
            handle = files.create(work)
        except OSError as error:
            raise write_failure(error, work) from error
        try:
            _write_header(handle, header)
            files.rename(work, path)
            files.sync_directory(directory)
        except OSError as error:
            # A segment with a header alone is legal, so a failed clean-up does no harm.
            with contextlib.suppress(OSError):
                handle.close()
            with contextlib.suppress(OSError):
                files.remove(work if files.exists(work) else path)
            raise write_failure(error, path) from error
        return cls(handle, path, number, HEADER_SIZE, mark, last_time)

    @classmethod
    def resume(
        cls,
        files: Files,
        directory: Path,
        number: int,
        header: Header,
        mark: SyncedMark,
        last_time: int,
    ) -> SegmentWriter:
        """Open a segment that recovery has found whole; a missing header is written first."""
        path = directory / segment_name(number)
        try:
            handle = files.open(path)
        except OSError as error:
            raise write_failure(error, path) from error
        try:
            head = handle.read(0, HEADER_SIZE)
            if len(head) < HEADER_SIZE or not any(head):
                handle.truncate(0)
                _write_header(handle, header)
                files.sync_directory(directory)
            else:
                header.check(head, path)
            size = handle.size()
        except OSError as error:
            with contextlib.suppress(OSError):
                handle.close()
            raise write_failure(error, path) from error
        except BaseException:
            handle.close()
            raise
        return cls(handle, path, number, size, mark, last_time)

    def write(self, data: bytes, last_time: int) -> None:
        """Append all of `data`, whose newest record has `last_time`, or nothing of it."""
        if self._poison is not None:
            self.check()
        try:
            if (written := self._handle.write(data)) != len(data):
                raise short_write(written, len(data))
        except OSError as error:
            self._undo(error)
            raise write_failure(error, self.path) from error
        # In this order, for a sync on another thread: whoever sees the new `last_time` finds it
        # dirty or being synced, and `sync` never notes an offset without the TIME before it.
        self.dirty = True
        self.last_time = last_time
        self.offset += written

    def sync(self) -> bool:
        """Return once everything written is on stable storage; False if it was so already.

        Also sees that this is still the file of its name (rule 5). May run on one thread while
        another one writes or syncs.
        """
        with self._guard:
            self.check()
            if not self.dirty:
                self._check_place()
                return False
            # What another thread adds from here on counts as dirty and lies behind the mark;
            # `last_time` may then be too new, which is harmless.
            self.dirty = False
            offset = self.offset
            last_time = self.last_time
            try:
                self._handle.sync()
            except OSError as error:
                self._poison = error
                self.dirty = True
                raise AppenderPoisoned(f"{self.path}: sync failed: {error}") from error
            self._check_place()
            self._mark.set(self.number, offset, last_time)
            return True

    def mark_synced(self) -> None:
        """Note that this segment is now the newest one with synced content."""
        self._mark.set(self.number, self.offset, self.last_time)

    def close(self) -> None:
        """Close the file; what was written since the last sync is left to the system."""
        with self._guard:
            self._closed = True
            try:
                self._handle.close()
            except OSError as error:
                self._poison = error
                raise AppenderPoisoned(f"{self.path}: close failed: {error}") from error

    @property
    def in_place(self) -> bool:
        """Whether this is the file of its name, in the directory that was locked."""
        return self._mark.stray(self.path, self._identity) is None

    def _check_place(self) -> None:
        stray = self._mark.stray(self.path, self._identity)
        if stray is not None:
            self._poison = SegmentError(stray, "is another file: the directory was replaced")
            raise AppenderPoisoned(
                f"{stray} is not the file that this process has open: its directory was replaced,"
                " by a restore perhaps; nothing is written any more, start again"
            )

    @property
    def poisoned(self) -> bool:
        """Whether rule 2 has struck."""
        return self._poison is not None

    def check(self) -> None:
        """Raise `AppenderPoisoned` if rule 2 has struck."""
        if self._poison is not None:
            raise AppenderPoisoned(
                f"{self.path}: poisoned by an earlier fault: {self._poison}"
            ) from self._poison

    def _undo(self, error: OSError) -> None:
        try:
            if self._handle.size() == self.offset:
                return  # nothing of it reached the file, as on a full disk
            self._handle.truncate(self.offset)
        except OSError as second:
            self._poison = error
            raise AppenderPoisoned(
                f"{self.path}: a failed write could not be undone: {second}"
            ) from second
        self.dirty = True
        self.sync()


def write_whole(handle: FileHandle, data: bytes) -> None:
    """Write all of `data`, in several calls if the system takes it so (at most 2 GiB at once)."""
    view = memoryview(data)
    while view:
        written = handle.write(view)
        if not written:
            raise short_write(0, len(view))
        view = view[written:]


def _write_header(handle: FileHandle, header: Header) -> None:
    write_whole(handle, header.encode())
    handle.sync()
