"""A durable log: an ordered stream of opaque payloads in CRC-checked segment files.

    record, segment    one record, and the head and name of a segment: bytes <-> values
    files              the only code that speaks to the operating system
    scan               whole segments as columns
    synced_mark        how far the newest segment is known to be safe
    segment_directory  where the segments lie, and their locks
    manifest           what the sealed segments are, so that a missing one is noticed
    care               recovery, checking, repair, cleaning
    read, write        cursors and finding by time; appending, group commit, rotation
    stream             opens all of these on one directory
    disktest           does a disk keep what it says it has synced?

Each knows those above it in this list, and nothing knows of jobs. `Stream` opens appenders, cursors
and cleaners on a directory; `CommitLog` puts many writers on one disk with group commit.
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
