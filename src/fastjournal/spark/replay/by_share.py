"""The log replayed by many tasks: the state as of any instant, as a table.

Rules:

1. Sharded scan: every task walks the whole log and applies the records of its share of the rows.
   No shuffle; the order is the order in the file. It costs one walk of the log per task, so there
   are few, and a source of data can do nothing else.
2. Whoever has a session has a large log dealt out instead (`by_row`), and folded by the same code.
3. A journal is read as of one moment: all its segments are opened under the readers' lock, and
   what is appended later is left out by its TIME.
4. Where a snapshot lies before the instant asked for, only the log behind it is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.journal.state.apply import JournalState
from fastjournal.log.scan.scan import Buffer
from fastjournal.spark.locations import is_remote
from fastjournal.spark.options import Settings
from fastjournal.spark.partitions import Shard
from fastjournal.spark.replay.fold import Share, fold
from fastjournal.spark.replay.job_rows import job_batches
from fastjournal.spark.replay.snapshots import Base, base_of, is_archived
from fastjournal.spark.storage.segments import (
    Piece,
    at_one_moment,
    journal_segments,
    load,
    newest_time,
    share_count,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["replay_share", "shard_batches", "shards"]


def shards(settings: Settings) -> Iterator[Shard]:
    """The shares of every journal the settings name."""
    for directory in settings.paths:
        pieces = journal_segments(directory, whole=settings.whole)
        if not pieces:
            continue
        # An archive grows too; what was copied there whole does not.
        grows = pieces[-1].newest or is_archived(pieces)
        frozen = newest_time(pieces[-1]) if grows else None
        bounds = [bound for bound in (settings.upto, frozen) if bound is not None]
        # Every share of a log on a store would fetch all of it.
        many = 1 if is_remote(directory) else settings.cores
        count = share_count(sum(piece.size for piece in pieces), many, settings.shards)
        newest = pieces[-1].number
        for index in range(count):
            yield Shard(directory, index, count, min(bounds) if bounds else None, newest)


def shard_batches(shard: Shard, settings: Settings) -> Iterator[pa.RecordBatch]:
    """The rows of one share, in batches of the columns asked for."""
    state = replay_share(
        shard.directory,
        Share(shard.index, shard.count),
        shard.upto,
        settings,
        newest=shard.newest,
    )
    yield from job_batches(state.rows.values(), settings.columns, shard.directory, settings.queues)


def replay_share(
    directory: str | Path,
    share: Share,
    upto: int | None,
    settings: Settings,
    *,
    newest: int = 0,
    lock: bool = True,
) -> JournalState:
    """The rows of a share, from a snapshot and the rest of the log where there is one.

    `newest`: the newest segment that the driver saw. `lock` is False for a caller that holds the
    readers' lock itself.
    """

    def opened() -> tuple[list[tuple[Piece, Buffer]], Base]:
        found = [
            (piece, load(piece))
            for piece in journal_segments(directory, least=newest, whole=settings.whole)
        ]
        return found, base_of(directory, found, share, upto)

    segments, base = at_one_moment(directory, opened) if lock else opened()
    wanted = [
        (piece, data)
        for piece, data in segments
        if piece.number >= base.first
        and settings.from_segment <= piece.number <= settings.to_segment
    ]
    return fold(
        wanted, share=share, upto=upto, mode=settings.mode, state=base.state, overlap=base.overlap
    )
