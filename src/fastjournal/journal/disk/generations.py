"""Short-lived tables: when a generation begins, and what becomes of the files of an old one.

SNAP-SLT says: a table is used for an hour, a day or a month, then only emptied, then its file is
removed, reset or truncated. Here a table is a queue and its file is a stretch of the log.

Rules:

1. At the boundary of a period (in UTC) that any queue asks for, the log goes on in a new segment.
   So a generation has segments of its own, which empty together. The shortest period counts. A
   queue whose `schema` changes begins a new generation too: the old version drains by itself.
2. A segment without a record that anybody needs is removed (`delete`). With `truncate`, if a queue
   with a period asks for it, it is cut to its header at once and removed by the next cleaning.
   `keep` is treated as `truncate`: what stands behind the end of a reused file could not be told
   from damage.
3. If any queue is `secure`, the bytes of segments and snapshots are overwritten before they go:
   under a name that recovery does not take for a segment, so a crash in between harms nothing. Best
   effort: file systems and disks may keep copies of their own, and so does an archive.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fastjournal.clock import SECOND
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.files import FileHandle, Files, file_size
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.stream import Stream
from fastjournal.model import QueueSettings

__all__ = ["GONE_SUFFIX", "Disposal", "Generations", "generation_of"]

GONE_SUFFIX = ".gone"
_PERIODS = ("hour", "day", "month")  # the shortest first
_LOOK_AGAIN = SECOND  # how often the settings of all queues are looked at
_CHUNK = 1024 * 1024


def generation_of(now: int, period: str) -> tuple[int, ...]:
    """The generation of an instant: year, month, day and hour as far as the period goes."""
    date = datetime.fromtimestamp(now // SECOND, UTC)
    return (date.year, date.month, date.day, date.hour)[: 4 - _PERIODS.index(period)]


def shortest(settings: Iterable[QueueSettings]) -> str:
    """The shortest period that any of these queues asks for; empty if there is none."""
    asked = {one.period for one in settings}
    return next((period for period in _PERIODS if period in asked), "")


class Generations:
    """Tells when the next generation begins."""

    def __init__(self, state: JournalState, written: int) -> None:
        """`written`: TIME of the newest record, which may be of an older generation."""
        self._state = state
        self._at = written
        self._looked = -_LOOK_AGAIN
        self._schemas = schemas_of(state)

    def begins(self, now: int, monotonic: int) -> bool:
        """Whether a boundary was passed since this last said so, or since the newest record."""
        if monotonic - self._looked < _LOOK_AGAIN:
            return False
        self._looked = monotonic
        settings = settings_of(self._state)
        period = shortest(settings)
        before, self._at = self._at, now
        known, self._schemas = self._schemas, schemas_of(self._state)
        if known != self._schemas:
            return True
        if not period or not before:
            return False
        return generation_of(before, period) != generation_of(now, period)

    def left(self, now: int) -> float | None:
        """Seconds until the next boundary; None if no queue has a period."""
        period = shortest(settings_of(self._state))
        if not period:
            return None
        date = datetime.fromtimestamp(now // SECOND, UTC).replace(minute=0, second=0)
        if period == "hour":
            ends = date + timedelta(hours=1)
        elif period == "day":
            ends = date.replace(hour=0) + timedelta(days=1)
        else:
            ends = (date.replace(day=1, hour=0) + timedelta(days=32)).replace(day=1)
        return ends.timestamp() - now / SECOND


def settings_of(state: JournalState) -> list[QueueSettings]:
    """The settings of all queues that have any of their own."""
    return [lane.settings for lane in list(state.queues.values()) if lane.settings_at]


def schemas_of(state: JournalState) -> dict[bytes, int]:
    """The versions of what is put, by queue, where there is one."""
    lanes = list(state.queues.values())
    return {lane.name: lane.settings.schema for lane in lanes if lane.settings.schema}


class Disposal:
    """How files go, by the settings of all queues at this moment."""

    def __init__(self, stream: Stream, settings: Iterable[QueueSettings]) -> None:
        known = list(settings)
        self._files: Files = stream.files
        self._directory = stream.path
        self.secure = any(one.secure for one in known)
        self.truncate = any(
            one.period != "none" and one.file_management != "delete" for one in known
        )

    def emptied(self, path: Path) -> None:
        """Nobody needs a record of this segment."""
        if not self.leaves(path):
            self.remove(path)
            return
        with closing(self._files.open(path)) as handle:
            handle.truncate(HEADER_SIZE)
            handle.sync()

    def leaves(self, path: Path) -> bool:
        """Whether `emptied` leaves this segment behind, cut to its header."""
        if not self.truncate or self.secure:
            return False
        return file_size(self._files, path) > HEADER_SIZE

    def remove(self, path: Path) -> None:
        """Remove a file; the caller syncs the directory."""
        if not self.secure:
            self._files.remove(path)
            return
        gone = path.with_name(path.name + GONE_SUFFIX)
        self._files.rename(path, gone)
        self._files.sync_directory(self._directory)
        self._overwrite(gone)
        self._files.remove(gone)

    def hold(self, path: Path) -> FileHandle | None:
        """Keep hold of a file that is about to be replaced; None if that is not needed."""
        return self._files.open_in_place(path) if self.secure else None

    def replaced(self, handle: FileHandle | None) -> None:
        """Another file has taken its name."""
        if handle is not None:
            try:
                _blank(handle)
            finally:
                handle.close()

    def leftovers(self) -> None:
        """Finish what a crash has interrupted."""
        for name in self._files.names(self._directory):
            if name.endswith(GONE_SUFFIX):
                path = self._directory / name
                with suppress(OSError):
                    self._overwrite(path)
                    self._files.remove(path)

    def _overwrite(self, path: Path) -> None:
        handle = self._files.open_in_place(path)
        try:
            _blank(handle)
        finally:
            handle.close()


def _blank(handle: FileHandle) -> None:
    size, at = handle.size(), 0
    while at < size:
        at += handle.write_at(bytes(min(_CHUNK, size - at)), at)
    handle.sync()
