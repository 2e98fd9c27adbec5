"""A durable log: an ordered stream of opaque payloads in CRC-checked segment files.

    record    one record: bytes <-> values        segment  the head and the name of a segment
    files     the only code that speaks to the operating system
    stream    a directory of segments, and what can be opened on it
    manifest  what the sealed segments are, so that a missing one is noticed
    write     appending, group commit, rotation       read  cursors, finding by time
    scan      whole segments as columns               care  recovery, checking, repair, cleaning

Knows nothing of jobs. `Stream` opens appenders, cursors and cleaners on a directory; `CommitLog`
puts many writers on one disk with group commit.
"""

from __future__ import annotations

from fastjournal.log.record import Record
from fastjournal.log.segment import CAPTAIN, WORKQ, Header, Position
from fastjournal.log.stream import Stream
from fastjournal.package.lazy_names import names_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastjournal.log.write.async_commit_log import AsyncCommitLog
    from fastjournal.log.write.commit_log import CommitLog

__all__ = [
    "CAPTAIN",
    "WORKQ",
    "AsyncCommitLog",
    "CommitLog",
    "Header",
    "Position",
    "Record",
    "Stream",
]

# Not everybody needs threads or an event loop.
__getattr__ = names_from(
    __name__,
    {"AsyncCommitLog": "write.async_commit_log", "CommitLog": "write.commit_log"},
)
