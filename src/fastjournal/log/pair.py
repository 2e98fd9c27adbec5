"""Two segments, open at all times: the active one and the standby that comes next.

Rules:

1. The standby is made, synced and named ahead of time, so that a swap creates no file.
2. A swap syncs the active segment first: records in a newer file imply that no older one can be
   lost. Closing the old file and making the next standby is left to a background thread; the next
   swap waits for it. If making the standby failed, the swap tries once more itself.
3. A standby never holds a record: readers take it for empty, and a log that is opened again after a
   crash uses it again.
4. Whoever calls `swap` holds the lock of the active segment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from fastjournal.errors import JournalError
from fastjournal.log.appender import open_newest
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.stream import Stream
from fastjournal.log.writer import SegmentWriter, SyncedMark

__all__ = ["SegmentPair"]


class SegmentPair:
    """The open segments of a recovered stream."""

    def __init__(
        self, stream: Stream, last_time: int, on_fault: Callable[[BaseException], object]
    ) -> None:
        """`on_fault` is told, on the background thread, that an old segment could not be closed."""
        self._stream = stream
        self._on_fault = on_fault
        self._mark = SyncedMark(stream.files, stream.path)
        self._preparing: threading.Thread | None = None
        self._error: JournalError | None = None
        self._standby: SegmentWriter | None = None
        self.rotations = 0
        try:
            self.active, standby = self._open(last_time)
        except BaseException:
            self._mark.close()
            raise
        self._standby = standby

    @property
    def paths(self) -> tuple[Path, Path]:
        """The active file and the standby, also while that one is still being made."""
        active = self.active
        return active.path, self._stream.segment_path(active.number + 1)

    def swap(self) -> SegmentWriter:
        """Go on in the standby; returns the new active segment, all older records synced."""
        fresh = self._take_standby()
        old = self.active
        if old.dirty:
            old.sync()
        fresh.last_time = old.last_time
        fresh.mark_synced()
        self.active, self._standby = fresh, None
        self.rotations += 1
        self._preparing = threading.Thread(
            target=self._prepare,
            args=(old, fresh.number + 1),
            name="fastjournal-standby",
            daemon=True,
        )
        self._preparing.start()
        return fresh

    def close(self, *, remove_standby: bool) -> None:
        """Close both files; the standby, which never held a record, goes if so told."""
        self._join()
        standby, self._standby = self._standby, None
        try:
            self.active.close()
            if standby is not None:
                standby.close()
                if remove_standby:
                    self._stream.files.remove(standby.path)
                    self._stream.files.sync_directory(self._stream.path)
        finally:
            self._mark.close()

    def _take_standby(self) -> SegmentWriter:
        self._join()
        if self._standby is None:
            if self._error is None:
                raise JournalError("there is no standby segment")
            self._error = None
            self._standby = self._make(self.active.number + 1)
        return self._standby

    def _prepare(self, old: SegmentWriter, number: int) -> None:
        try:
            old.close()
            self._standby = self._make(number)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the log must know
            if isinstance(error, JournalError) and not old.poisoned:
                self._error = error
            else:
                self._on_fault(error)

    def _join(self) -> None:
        preparing, self._preparing = self._preparing, None
        if preparing is not None:
            preparing.join()

    def _make(self, number: int) -> SegmentWriter:
        stream = self._stream
        return SegmentWriter.create(stream.files, stream.path, number, stream.header, self._mark, 0)

    def _open(self, last_time: int) -> tuple[SegmentWriter, SegmentWriter]:
        stream, mark = self._stream, self._mark
        numbers = stream.segments()
        if len(numbers) > 1 and numbers[-2] == numbers[-1] - 1:
            newest = self._resume(numbers[-1], last_time)
            if newest.offset == HEADER_SIZE:  # a standby left by a crash
                active = self._resume(numbers[-2], last_time)
                mark.begin(active.number, active.offset, last_time)
                return active, newest
            newest.close()
        active = open_newest(stream, mark, last_time)
        return active, self._make(active.number + 1)

    def _resume(self, number: int, last_time: int) -> SegmentWriter:
        stream = self._stream
        return SegmentWriter.resume(
            stream.files, stream.path, number, stream.header, self._mark, last_time
        )
