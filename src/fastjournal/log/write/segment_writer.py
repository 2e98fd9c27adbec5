"""One segment file that is being written.

Rules:

1. Bytes count only after a whole write: a short or failed one is cut off again, back to `offset`,
   and the cut is synced before anything else is written there: a power loss cannot bring it back.
   What it means to the caller is said by `errors`.
2. If the cut fails, or any sync fails, the writer is poisoned: it never writes or syncs again,
   because after a failed sync the kernel may have dropped the data and a second sync would say yes
   to nothing.
3. A new segment gets its name only when its header is on stable storage, and is used only when its
   name is too.
4. After each sync the side file (`synced_mark`) says how far the newest segment is known to be
   safe. Before that, the segment and the appender's lock must be the files that have their names:
   if the directory was replaced under a running appender, rule 2 strikes.
5. With `preallocate`, room is reserved ahead: as much as is there already, from 64 KiB to 4 MiB. So
   a sync has no size to bring to the disk, which takes a third of its time. What is reserved reads
   as zeros, and no record begins with a zero: they are the end of the log. A segment that is left,
   or closed in good order, is trimmed.
"""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

from mypy_extensions import i64

from fastjournal.errors import AppenderPoisoned, SegmentError, because, short_write, write_failure
from fastjournal.log.files import FileHandle, Files, write_whole
from fastjournal.log.segment import HEADER_SIZE, NEW_SUFFIX, Header, segment_name
from fastjournal.log.synced_mark import SyncedMark

__all__ = ["SegmentWriter"]

_LEAST_AHEAD: Final[i64] = 64 * 1024
_MOST_AHEAD: Final[i64] = 4 * 1024 * 1024


@final
class SegmentWriter:
    """Appends whole buffers to one segment and syncs it."""

    def __init__(
        self,
        handle: FileHandle,
        path: Path,
        number: i64,
        offset: i64,
        mark: SyncedMark,
        last_time: i64,
    ) -> None:
        self._handle = handle
        self._name = handle.current_name()
        self._identity = None if self._name else handle.identity()
        self._mark = mark
        self._reserved: i64 = 0
        """How far the file reaches; 0: nothing was reserved, writes append."""
        self._poison: BaseException | None = None
        self._guard: Any = threading.Lock()
        """Keeps `close` from pulling the file away under a sync."""
        self._closed = False
        self.last_time: i64 = last_time
        """TIME of the stream's newest record, ns since 1970; 0 if there is none."""
        self.path = path
        self.number: i64 = number
        self.offset: i64 = offset
        """Where the next record goes; everything before is whole."""
        self.dirty = False
        """Whether something was written since the last sync."""
        self.preallocate: Callable[[], bool] | None = None
        """Asked before room is reserved ahead (rule 5); None: it never is."""

    @staticmethod
    def create(
        files: Files,
        directory: Path,
        number: i64,
        header: Header,
        mark: SyncedMark,
        last_time: i64,
    ) -> "SegmentWriter":
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
        return SegmentWriter(handle, path, number, HEADER_SIZE, mark, last_time)

    @staticmethod
    def resume(
        files: Files,
        directory: Path,
        number: i64,
        header: Header,
        mark: SyncedMark,
        last_time: i64,
    ) -> "SegmentWriter":
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
        return SegmentWriter(handle, path, number, size, mark, last_time)

    def write(self, data: bytes, last_time: i64) -> None:
        """Append all of `data`, whose newest record has `last_time`, or nothing of it."""
        if self._poison is not None:
            self.check()
        size: i64 = len(data)
        end = self.offset + size
        if end > self._reserved and self.preallocate is not None and self.preallocate():
            self._reserve(end)
        try:
            if self._reserved:
                written: i64 = self._handle.write_at(data, self.offset)
            else:
                written = self._handle.write(data)
            if written != size:
                raise short_write(written, size)
        except OSError as error:
            self._undo(error)
            raise write_failure(error, self.path) from error
        # In this order, for a sync on another thread: whoever sees the new `last_time` finds it
        # dirty or being synced, and `sync` never notes an offset without the TIME before it.
        self.dirty = True
        self.last_time = last_time
        self.offset = end

    def _reserve(self, end: i64) -> None:
        self._reserved = end
        size = end + min(max(end, _LEAST_AHEAD), _MOST_AHEAD)
        with contextlib.suppress(OSError):  # no room for more than is needed: that is enough
            self._handle.reserve(self.offset, size - self.offset)
            self._reserved = size

    def trim(self) -> None:
        """Cut off what was reserved ahead; the next sync brings that to the disk."""
        if not self._reserved:
            return
        self.check()
        self._cut("what was reserved could not be cut off")

    def sync(self) -> bool:
        """Return once everything written is on stable storage; False if it was so already.

        Also sees that this is still the file of its name (rule 5). May run on one thread while
        another one writes or syncs.
        """
        with self._guard:
            self.check()
            if self._closed:  # and so synced before: another thread has left this segment
                return False
            if not self.dirty:
                self._check_directory()
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
                raise because(
                    AppenderPoisoned(f"{self.path}: sync failed: {error}"), error
                ) from error
            self._check_directory()
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
                raise because(
                    AppenderPoisoned(f"{self.path}: close failed: {error}"), error
                ) from error

    @property
    def is_where_it_was(self) -> bool:
        """Whether this is the file of its name, in the directory that was locked."""
        return self._stray() is None

    def _stray(self) -> Path | None:
        if self._handle.current_name() != self._name:
            return self.path
        return self._mark.stray(self.path, self._identity)

    def _check_directory(self) -> None:
        stray = self._stray()
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
            reason = f"{self.path}: poisoned by an earlier fault: {self._poison}"
            raise because(AppenderPoisoned(reason), self._poison)

    def _undo(self, error: OSError) -> None:
        try:
            if self._handle.size() == self.offset:  # nothing of it reached it, as on a full disk
                self._reserved = min(self._reserved, self.offset)
                return
        except OSError:
            pass  # then it is cut to be sure
        self._cut("a failed write could not be undone", error)
        self.sync()

    def _cut(self, reason: str, cause: OSError | None = None) -> None:
        """Cut the file to `offset`; if that fails, rule 2 strikes."""
        try:
            self._handle.truncate(self.offset)
        except OSError as error:
            self._poison = cause or error
            raise because(AppenderPoisoned(f"{self.path}: {reason}: {error}"), error) from error
        self._reserved = min(self._reserved, self.offset)
        self.dirty = True


def _write_header(handle: FileHandle, header: Header) -> None:
    write_whole(handle, header.encode())
    handle.sync()
