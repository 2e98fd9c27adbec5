"""A durable log: an ordered stream of opaque payloads in CRC-checked segment files.

Knows nothing of jobs. `Stream` opens appenders, cursors and cleaners on a directory; `CommitLog`
puts many writers on one disk with group commit.
"""

from __future__ import annotations

from fastjournal.log.record import Record
from fastjournal.log.segment import CAPTAIN, WORKQ, Header, Position
from fastjournal.log.stream import Stream

__all__ = ["CAPTAIN", "WORKQ", "Header", "Position", "Record", "Stream"]
