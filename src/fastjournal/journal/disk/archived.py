"""A journal and its archive: what the shipper is told of snapshots, and what it may stop."""

from __future__ import annotations

from collections.abc import Callable

from fastjournal.archive.shipper import ArchiveOptions, Shipper
from fastjournal.archive.source import LocalSnapshot, Source
from fastjournal.archive.store import Store
from fastjournal.clock import Clock
from fastjournal.errors import Stopped
from fastjournal.journal.disk.snapshot import Snapshot, checkpoint_path
from fastjournal.journal.disk.upkeep import Upkeep
from fastjournal.log.stream import Stream
from fastjournal.log.write.log_writer import LogWriter

__all__ = ["local_snapshot", "make_shipper"]


def make_shipper(
    stream: Stream,
    log: LogWriter,
    upkeep: Upkeep,
    address: str,
    options: ArchiveOptions | None,
    clock: Clock,
    store: Callable[[], Store] | None = None,
) -> Shipper:
    """The shipper of an open journal, not started yet."""

    def newest() -> LocalSnapshot | None:
        found = upkeep.snapshot
        return None if found is None else local_snapshot(stream, *found)

    # Under `os` nothing syncs the log by itself, and nothing is shipped that is not synced.
    settle = log.sync if log.options.sync == "os" else None
    source = Source(stream, newest, settle=settle)
    shipper = Shipper(source, address, options, clock=clock, store=store)
    shipper.on_behind = lambda told: log.stop(Stopped(told))
    return shipper


def local_snapshot(stream: Stream, snapshot: Snapshot, as_of: int) -> LocalSnapshot | None:
    """A snapshot as the shipper wants it; None: a newer one has taken its place."""
    path = checkpoint_path(stream, snapshot.first)
    try:
        handle = stream.files.open_read(path)
        try:
            checkpoint = handle.read(0, handle.size())
        finally:
            handle.close()
    except FileNotFoundError:
        return None
    return LocalSnapshot(
        snapshot.first, as_of, snapshot.size, snapshot.crc, snapshot.path, checkpoint
    )
