"""Reads sealed segments again, so that damage at rest is found before somebody needs what it took.

Rules:

1. It goes at low priority: a bounded number of bytes with each upkeep, on that thread, without any
   lock but the readers'. A pass over all segments may take many upkeeps.
2. Damage is told once with its place, counted, and changes nothing: mending is for the operator
   (`fastjournal log repair`).
3. A pass is complete when every segment that was sealed at its beginning was read, or is gone.
"""

from __future__ import annotations

import logging

from fastjournal.errors import SegmentError
from fastjournal.log.care.cleaner import read_stretches, sealed_segments
from fastjournal.log.stream import Stream

__all__ = ["Scrub"]

_BYTES = 64 * 1024 * 1024
_log = logging.getLogger(__name__)


def _not_ours() -> None:
    """What is read need not be synced first, and syncing is for the writer."""


class Scrub:
    """The passes over one journal's log."""

    def __init__(self, stream: Stream, most: int = _BYTES) -> None:
        """`most`: bytes to read at a time; one segment is always read."""
        self._stream = stream
        self._most = most
        self._left: list[int] | None = None  # of the pass under way
        self._damaged: set[int] = set()
        self.passes = 0
        self.passed_at = 0
        """When the newest pass was complete, ns since 1970; 0: none yet."""

    @property
    def faults(self) -> int:
        """Segments that were found damaged."""
        return len(self._damaged)

    def go_on(self) -> None:
        """Read some more."""
        stream = self._stream
        if self._left is None:
            self._left = sealed_segments(stream, sync=_not_ours)
        read = 0
        while self._left and read < self._most:
            read += self._look(self._left.pop(0))
        if not self._left:
            self._left = None
            self.passes += 1
            self.passed_at = stream.clock.now()

    def _look(self, number: int) -> int:
        stream = self._stream
        try:
            return sum(len(stretch.data) for stretch in read_stretches(stream, number))
        except SegmentError as error:
            if stream.files.exists(stream.segment_path(number)) and number not in self._damaged:
                self._damaged.add(number)
                _log.error("%s. Run `fastjournal log verify`, and restore or repair", error)
        return 0
