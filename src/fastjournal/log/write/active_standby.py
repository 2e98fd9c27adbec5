"""Two segments, open at all times: the active one and the standby that comes next.

Rules:

1. The standby is made, synced and named ahead of time, so that a swap creates no file.
2. A swap trims the active segment and syncs it first, and waits for a sync that is under way:
   records in a newer file imply that no older one can be lost, and that it has its final length.
   Closing the old file, making the next standby and naming the old one in the manifest is left to
   a background thread; the next swap waits for it. If making the standby failed, the swap tries
   once more itself; if that fails too, the active segment stays what it is: nothing was lost, this
   is no failed sync, and the next swap tries again.
3. A standby never holds a record: readers take it for empty, and a log that is opened again after a
   crash uses it again. But an empty newest segment may also be the active one, its standby never
   made: so writing never goes on below the segment that `synced.pos` names, nor below the `floor`
   of whoever has put a snapshot in the place of everything before it.
4. A segment that has reached its size is left before the next write, which goes to the standby.
   While there is none to be had (no descriptors, no space) writing goes on in the old one, at most
   to the largest size that a segment may have; every write tries again. It is told once.
5. Whoever writes or swaps holds the lock of the active segment; a sync needs none.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

from mypy_extensions import i64

from fastjournal.errors import (
    JournalError,
    NoSpace,
    RequestError,
    RotationFailed,
    SegmentError,
    because,
)
from fastjournal.log.files import FileLock
from fastjournal.log.manifest import ManifestFile
from fastjournal.log.segment import HEADER_SIZE, Position
from fastjournal.log.segment_directory import MAX_SEGMENT_SIZE, SegmentDirectory
from fastjournal.log.synced_mark import SyncedMark
from fastjournal.log.write.appender import name_sealed, open_newest, take_in
from fastjournal.log.write.counters import Counters
from fastjournal.log.write.segment_writer import SegmentWriter

__all__ = ["SegmentPair", "is_harmless"]

_SECOND: Final = 1_000_000_000
_LATELY: Final = 8  # syncs
_NEVER: Final[i64] = 9_223_372_036_854_775_807
_log: Final = logging.getLogger(__name__)


@final
class SegmentPair:
    """The open segments of a recovered stream."""

    def __init__(
        self,
        stream: SegmentDirectory,
        last_time: int,
        used: int,
        lock: FileLock,
        roll_at: int | None,
        counters: Counters,
        on_fault: Callable[[BaseException], object],
        floor: int = 0,
        preallocate: Callable[[], bool] | None = None,
    ) -> None:
        """`used`: the highest number in the manifest: nothing is appended up to there.

        `lock`: the appender's.

        `roll_at`: bytes at which a segment is left by itself; None: never.

        `on_fault` is told, on the background thread, that an old segment could not be closed.
        `floor`: the lowest segment that may be written (rule 3). `preallocate`: asked before room
        is reserved in the active one; None: it never is.
        """
        self._stream = stream
        self._roll_at: i64 = _NEVER if roll_at is None else roll_at
        self._counters = counters
        self._on_fault = on_fault
        self._preallocate = preallocate
        self._mark = SyncedMark(stream.files, stream.path, lock)
        self._manifest = ManifestFile(stream)
        self._preparing: threading.Thread | None = None
        self._standby: SegmentWriter | None = None
        self._missing = False
        """No standby could be made, and that was told."""
        self._count: Any = threading.Lock()
        """Syncs are counted on two threads."""
        self.sync_seconds = 0.0
        """How long a sync takes, on average of late."""
        self.on_write: Callable[[int, bytes, int, bool], object] | None = None
        """See `LogWriter.tell_writes`."""
        try:
            self.active, self._standby = self._open(last_time, used, floor)
        except BaseException:
            self._mark.close()
            raise
        self.active.preallocate = self._preallocate
        try:
            take_in(self._manifest, self.active.number - 1)
        except BaseException:
            with contextlib.suppress(JournalError):
                self.close(remove_standby=False)
            raise

    @property
    def paths(self) -> tuple[Path, Path]:
        """The active file and the standby, also while that one is still being made."""
        active = self.active
        return active.path, self._stream.segment_path(active.number + 1)

    @property
    def position(self) -> Position:
        """Where the next record goes."""
        active = self.active
        return Position(active.number, active.offset)

    def ready(self) -> SegmentWriter:
        """The segment for the next write; leaves one that has reached its size (rule 4)."""
        active = self.active
        return active if active.offset < self._roll_at else self._roll()

    def write(self, active: SegmentWriter, data: bytes, count: i64, last_time: i64) -> None:
        """Write `count` whole records, the last of which has `last_time`, to what is `ready`."""
        after = active.last_time
        begins = active.offset == HEADER_SIZE
        active.write(data, last_time)
        if self.on_write is not None:
            self.on_write(after, data, last_time, begins)
        counters = self._counters
        counters.writes += count
        counters.bytes += len(data)

    def sync(self, segment: SegmentWriter) -> None:
        """Bring all of a segment to stable storage; waits for a sync of it that is under way."""
        clock = self._stream.clock
        started = clock.monotonic()
        if segment.sync():
            seconds = (clock.monotonic() - started) / _SECOND
            with self._count:
                self.sync_seconds += (seconds - self.sync_seconds) / _LATELY
                self._counters.syncs += 1
                self._counters.last_sync = clock.now()
                self._counters.sync_seconds.observe(seconds)

    def swap(self) -> SegmentWriter:
        """Go on in the standby; returns the new active segment, all older records synced."""
        started = self._stream.clock.monotonic()
        old = self.active
        old.trim()
        self.sync(old)
        fresh = self._take_standby()
        fresh.last_time = old.last_time
        fresh.preallocate = self._preallocate
        fresh.mark_synced()
        self.active, self._standby = fresh, None
        self._counters.rotations += 1
        seconds = (self._stream.clock.monotonic() - started) / _SECOND
        self._counters.rotation_seconds.observe(seconds)
        preparing = threading.Thread(
            target=self._prepare,
            args=(old, fresh.number + 1),
            name="fastjournal-standby",
            daemon=True,
        )
        try:
            preparing.start()
        except RuntimeError:  # no thread to be had
            self._prepare(old, fresh.number + 1)
        else:
            self._preparing = preparing
        return fresh

    def _roll(self) -> SegmentWriter:
        """Leave a segment that has reached its size, if that can be (rule 4)."""
        try:
            return self.swap()
        except (NoSpace, RotationFailed):
            if self.active.offset >= MAX_SEGMENT_SIZE:
                raise
            return self.active

    def close(self, *, remove_standby: bool) -> None:
        """Close both files; the standby, which never held a record, goes if so told."""
        self._join()
        standby, self._standby = self._standby, None
        files = self._stream.files
        try:
            remove = remove_standby and standby is not None and standby.is_where_it_was
            try:
                self.active.close()
            finally:
                if standby is not None:
                    standby.close()
            if standby is not None and remove:
                files.remove(standby.path)
                files.sync_directory(self._stream.path)
        finally:
            self._mark.close()

    def _take_standby(self) -> SegmentWriter:
        self._join()
        if self._standby is None:
            try:
                self._standby = self._make(self.active.number + 1)
            except NoSpace:
                raise
            except JournalError as error:
                self._tell_missing(error)
                failed = RotationFailed(f"the next segment cannot be made: {error}")
                raise because(failed, error) from error
        if self._missing:
            self._missing = False
            _log.warning("%s: segments can be made again", self._standby.path)
        return self._standby

    def _tell_missing(self, error: JournalError) -> None:
        if not self._missing:
            self._missing = True
            _log.error(
                "%s: the next segment cannot be made, writing goes on in this one: %s. It is tried"
                " again at every write; free what is missing (descriptors: see `ulimit -n`)",
                self.active.path,
                error,
            )

    def _prepare(self, old: SegmentWriter, number: int) -> None:
        try:
            old.close()
        except BaseException as error:  # whatever it is, the log must know
            self._counters.faults["close"] += 1
            self._on_fault(error)
            return
        try:
            self._standby = self._make(number)
        except JournalError:
            self._counters.failed("open")  # the next swap tries again
        except BaseException as error:  # as above
            self._on_fault(error)
            return
        try:
            self._counters.errors += not name_sealed(self._manifest, old)
        except BaseException as error:  # as above
            self._on_fault(error)

    def _join(self) -> None:
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            preparing.join()

    def _make(self, number: int) -> SegmentWriter:
        stream = self._stream
        return SegmentWriter.create(stream.files, stream.path, number, stream.header, self._mark, 0)

    def _open(
        self, last_time: int, used: int, floor: int
    ) -> tuple[SegmentWriter, SegmentWriter | None]:
        stream, mark = self._stream, self._mark
        numbers = stream.segments()
        if floor > max(numbers, default=0):
            raise SegmentError(
                stream.segment_path(floor), "is missing: a snapshot covers all before it"
            )
        synced = SyncedMark.read(stream.files, stream.path)
        lowest = floor if synced is None else max(floor, synced.segment)
        opened: list[SegmentWriter] = []
        try:
            standing = len(numbers) > 1 and numbers[-2] == numbers[-1] - 1
            if standing and used < numbers[-2] >= lowest:
                newest = self._resume(numbers[-1], last_time)
                opened.append(newest)
                if newest.offset == HEADER_SIZE:  # a standby left by a crash
                    active = self._resume(numbers[-2], last_time)
                    opened.append(active)
                    mark.begin(active.number, active.offset, last_time)
                    return active, newest
                opened.clear()
                newest.close()
            active = open_newest(stream, mark, last_time, used)
            opened.append(active)
            standby = None
            with contextlib.suppress(NoSpace):  # the next swap tries again
                standby = self._make(active.number + 1)
            return active, standby
        except BaseException:
            for segment in opened:
                with contextlib.suppress(JournalError):
                    segment.close()
            raise

    def _resume(self, number: int, last_time: int) -> SegmentWriter:
        stream = self._stream
        return SegmentWriter.resume(
            stream.files, stream.path, number, stream.header, self._mark, last_time
        )


def is_harmless(error: BaseException) -> bool:
    """Whether the log is as trustworthy as before: refused, no space, or no next segment yet."""
    return isinstance(error, (RequestError, NoSpace, RotationFailed))
