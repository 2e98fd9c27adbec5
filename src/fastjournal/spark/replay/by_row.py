"""The state of a large log, as a table: the log is dealt out by row and read once.

Rules:

1. Every share is folded by the code of the sharded scan, from what `dealt` lays together for it.
2. Where a snapshot lies before the instant asked for, each share begins with its rows of that, and
   only the log behind it is read. So a share without a record has rows too: it is told of.
3. All shares are as of one TIME, that of the last record when the table is made.
4. Many tasks read one journal, so no cleaner may come in between: the rows are made at once, while
   the log is pinned. What lies on an object store is not cleaned and is read when the table is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fastjournal.journal.state.apply import JournalState
from fastjournal.log.scan.scan import Buffer
from fastjournal.spark.errors import told
from fastjournal.spark.locations import is_remote
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.dealt import Deal, dealt
from fastjournal.spark.replay.fold import Share, fold
from fastjournal.spark.replay.job_rows import job_batches
from fastjournal.spark.replay.snapshots import base_of, first_segment
from fastjournal.spark.schema import ddl, made_columns, names_of
from fastjournal.spark.storage.segments import (
    Piece,
    journal_segments,
    load,
    newest_time,
    while_pinned,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["replay_by_shuffle"]


def replay_by_shuffle(
    spark: SparkSession,
    path: str,
    shares: int,
    *,
    as_of: str | None = None,
    columns: Iterable[str] = (),
    queues: Iterable[str] = (),
) -> DataFrame:
    """View `jobs` of one journal, folded in `shares` partitions."""
    with told():
        options = {"path": path, "view": "jobs"}
        if as_of is not None:
            options["asOf"] = as_of
        if chosen := ",".join(columns):
            options["columns"] = chosen
        if named := ",".join(queues):
            options["queue"] = named
        settings = Settings.parse(options)
        (path,) = settings.paths
        if is_remote(path):
            return _folded(spark, path, shares, settings)
        return while_pinned(path, lambda: _folded(spark, path, shares, settings).localCheckpoint())


def _folded(spark: SparkSession, path: str, shares: int, settings: Settings) -> DataFrame:
    settings = replace(settings, columns=names_of(settings))
    pieces = journal_segments(path)
    bounds = (settings.upto, newest_time(pieces[-1]) if pieces else None)
    upto = min((bound for bound in bounds if bound is not None), default=None)
    unread: list[tuple[Piece, Buffer]] = [(piece, b"") for piece in pieces]
    first = first_segment(path, unread, upto)
    wanted = [piece for piece in pieces if piece.number >= first]

    def folded(share: Share, mine: list[Piece]) -> Iterator[pa.RecordBatch]:
        base = base_of(path, unread, share, upto)
        state = fold(
            [(piece, load(piece)) for piece in mine],
            share=share, mode=settings.mode, state=base.state, overlap=base.overlap,
        )  # fmt: skip
        yield from made_columns(settings, partial(_rows_of, state, path))

    deal = Deal(shares, upto=upto, mode=settings.mode, state_only=True)
    return dealt(spark, wanted, deal, folded, ddl("jobs", settings.columns))


def _rows_of(state: JournalState, path: str, settings: Settings) -> Iterator[pa.RecordBatch]:
    return job_batches(state.rows.values(), settings.columns, path, settings.queues)
