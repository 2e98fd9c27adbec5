"""A stream: one log in one directory, to be appended to, iterated and cleaned.

Who writes, reads or cleans knows the `SegmentDirectory` below it; the stream alone knows them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.log.segment import Position
from fastjournal.log.segment_directory import DEFAULT_SEGMENT_SIZE, SegmentDirectory

if TYPE_CHECKING:
    from fastjournal.log.care.cleaner import Cleaner
    from fastjournal.log.read.cursor import Cursor
    from fastjournal.log.write.appender import Appender, Ticker

__all__ = ["Stream"]


class Stream(SegmentDirectory):
    """A durable log of opaque payloads in one directory."""

    def open_appender(
        self,
        *,
        segment_size: int = DEFAULT_SEGMENT_SIZE,
        sync: str = "os",
        sync_interval: int | None = None,
        ticker: Ticker | None = None,
        preallocate: bool = False,
    ) -> Appender:
        """An appender; lock it (or use `with`) before the first append.

        `segment_size`: bytes after which the next append opens a new file, 4096 to 1 GiB.
        `sync`: `os`, `interval` or `always`; `sync_interval` in ms, only with `interval`.
        `preallocate`: reserve room ahead, for a caller that syncs often.
        """
        from fastjournal.log.write.appender import Appender, AppendOptions

        options = AppendOptions(segment_size, sync, sync_interval)
        return Appender(self, options, ticker, preallocate=preallocate)

    def open_cursor(
        self, start: Position | None = None, *, after: int | None = None, follow: bool = False
    ) -> Cursor:
        """A cursor over all records, those from a position on, or those with a TIME above `after`.

        With `follow` it never ends for good: at the end `next` returns None and goes on later,
        over new segments too. A position holds until the cleaner rewrites its segment; a TIME
        holds for ever.
        """
        from fastjournal.log.read.cursor import Cursor

        return Cursor(self, start, after=after, follow=follow)

    def open_cleaner(self) -> Cleaner:
        """A cleaner; lock it (or use `with`) before cleaning."""
        from fastjournal.log.care.cleaner import Cleaner

        return Cleaner(self)
