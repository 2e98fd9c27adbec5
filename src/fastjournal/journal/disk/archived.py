"""A journal and its archive: what the shipper is told of snapshots, and what it may stop.

`back_up` does from outside, for a journal that is open or not, what the shipper does inside.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial

from fastjournal.archive.shipper import ArchiveOptions, ArchiveStatus, Shipper
from fastjournal.archive.shipping import Superseded
from fastjournal.archive.source import LocalSnapshot, Source
from fastjournal.clock import Clock
from fastjournal.errors import ArchiveError, BadRequest, NotFound, SegmentError, Stopped
from fastjournal.journal.disk.snapshot import (
    Snapshot,
    checkpoint_path,
    newest_snapshot,
    snapshot_span,
)
from fastjournal.journal.disk.upkeep import Upkeep
from fastjournal.log.care.recovery import Safe
from fastjournal.log.files import read_file
from fastjournal.log.scan.scan import FAILFAST, verify
from fastjournal.log.segment_directory import read_growing
from fastjournal.log.stream import Stream
from fastjournal.log.synced_mark import Mark
from fastjournal.log.write.log_writer import LogWriter

__all__ = ["back_up", "local_snapshot", "make_shipper"]

_ROUNDS = 10
_LOCK_SECONDS = 60.0


def make_shipper(
    stream: Stream,
    log: LogWriter,
    upkeep: Upkeep,
    address: str,
    options: ArchiveOptions | None,
    clock: Clock,
) -> Shipper:
    """The shipper of an open journal, not started yet."""

    def newest() -> LocalSnapshot | None:
        found = upkeep.snapshot
        return None if found is None else local_snapshot(stream, *found)

    # Under `os` nothing syncs the log by itself, and nothing is shipped that is not synced.
    settle = log.sync if log.options.sync == "os" else None
    source = Source(stream, newest, settle=settle, reign=options.reign if options else None)
    shipper = Shipper(source, address, options, clock=clock)
    shipper.on_behind = lambda reason: log.stop(Stopped(reason))
    return shipper


def local_snapshot(stream: Stream, snapshot: Snapshot, as_of: int) -> LocalSnapshot | None:
    """A snapshot as the shipper wants it; None: a newer one has taken its place."""
    path = checkpoint_path(stream, snapshot.first)
    try:
        checkpoint = read_file(stream.files, path)
    except FileNotFoundError:
        return None
    return LocalSnapshot(
        snapshot.first, as_of, snapshot.size, snapshot.crc, snapshot.path, checkpoint
    )


def back_up(stream: Stream, address: str, options: ArchiveOptions | None = None) -> ArchiveStatus:
    """Copy a journal to an archive, consistently, while it may be at work.

    The cleaner waits meanwhile; appending goes on. What lies there already is not sent again.
    """
    stream.check_restored()
    if not stream.segments():
        raise NotFound(f"no journal in {stream.path}")
    lock = stream.lock_readers(exclusive=False, timeout=_LOCK_SECONDS)
    try:
        if _end_of(stream) is None and newest_snapshot(stream) is None:
            raise NotFound(f"{stream.path} holds no record yet")
        snapshot = newest_snapshot(stream)
        local: LocalSnapshot | None = None
        if snapshot is not None:
            local = local_snapshot(stream, snapshot, snapshot_span(stream, snapshot)[1])
        source = Source(stream, lambda: local, synced=lambda: _end_of(stream), measures=True)
        shipper = Shipper(source, address, options, clock=stream.clock, remembers=False)
        if shipper.is_own_archive():
            raise BadRequest(f"{address}: the journal ships there by itself")
        for _ in range(_ROUNDS):  # what is appended meanwhile may wait for the next one
            shipper.ship_once()
            status = shipper.status()
            if status.archived_to and not status.lag_bytes:
                break
        if not status.archived_to:
            raise ArchiveError(f"{stream.path} changes too quickly to be copied: try again")
        return status
    except Superseded as error:
        raise ArchiveError(f"{address}: somebody else ships there at this moment") from error
    finally:
        lock.release()


def _end_of(stream: Stream) -> Mark | None:
    """How far the log goes, once that is on stable storage."""
    safe = Safe.of(stream)
    for number in reversed(stream.segments()):
        path = stream.segment_path(number)
        try:
            with closing(stream.files.open_read(path)) as handle:
                handle.sync()
                data = read_growing(handle.read, 0, handle.size())
        except OSError as error:
            raise SegmentError(path, f"cannot be read: {error}") from error
        found = verify(
            data,
            path=path,
            torn=partial(safe.is_torn, number),
            mode=FAILFAST,
            max_payload=stream.max_payload,
        )
        if found.max_time is not None:
            return Mark(number, found.end, found.max_time)
    return None
