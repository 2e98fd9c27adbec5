"""Replay behind one shuffle: for more shares than walks of the log would pay for.

Rules:

1. Records travel by the share of their row, a GROUP to the shares of its members' rows, a queue's
   settings to every share; inside a share they are put back in the order of the log and folded by
   the code of the sharded scan. What else names no row says nothing of any.
2. Where a snapshot lies before the instant asked for, each share begins with its rows of that, and
   only the log behind it is read. So a share without a record has rows too: it is told of.
3. All shares are as of one TIME, that of the last record when the table is made.
4. Many tasks read one journal, so no cleaner may come in between: the rows are made at once, while
   the log is pinned. What lies on an object store is not cleaned and is read when the table is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from fastjournal.errors import CorruptCommand
from fastjournal.journal.language.codec import decode
from fastjournal.journal.language.commands import Group, Queue
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.record import encode
from fastjournal.log.scan.scan import Buffer
from fastjournal.log.segment import WORKQ
from fastjournal.spark.errors import told
from fastjournal.spark.kinds import SINGLE
from fastjournal.spark.locations import is_remote
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.fold import Share, fold, route
from fastjournal.spark.replay.job_rows import job_batches
from fastjournal.spark.replay.snapshots import base_of, first_segment
from fastjournal.spark.schema import ddl, made_columns, names_of
from fastjournal.spark.storage.segments import Piece, journal_segments, newest_time, while_pinned

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    Array = np.ndarray[Any, Any]

__all__ = ["replay_by_shuffle"]

_SPREAD = "share int, _segment bigint, _offset bigint, time_ns bigint, record binary"


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
    from pyspark.sql import functions as F  # noqa: N812

    settings = replace(settings, columns=names_of(settings))
    pieces = journal_segments(path)
    bounds = (settings.upto, newest_time(pieces[-1]) if pieces else None)
    upto = min((bound for bound in bounds if bound is not None), default=None)
    first = first_segment(path, _unread(pieces), upto)
    reader = spark.read.format("fastjournal").option("columns", "_segment,_offset,time_ns,record")
    reader = reader.option("fromSegment", str(first))
    if upto is not None:
        reader = reader.option("until", str(upto + 1))

    def spread(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _with_share(batch, shares)

    def folded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with told():
            yield from _fold_partition(batches, path, pieces, upto, shares, settings)

    records = reader.load(path).mapInArrow(spread, _SPREAD)
    every = spark.range(shares).selectExpr(
        "cast(id as int) share", "-1L _segment", "-1L _offset", "0L time_ns", "x'' record"
    )
    return (
        records.union(every)
        .repartition(shares, F.col("share"))
        .sortWithinPartitions("share", "_segment", "_offset")
        .mapInArrow(folded, ddl("jobs", settings.columns))
    )


def _with_share(batch: pa.RecordBatch, shares: int) -> pa.RecordBatch:
    """The records with the share they go to, one for each share that a record concerns."""
    import numpy as np
    import pyarrow as pa

    payloads = batch.column(3).to_pylist()
    single = np.array([bool(p) and p[0] in SINGLE for p in payloads], dtype=bool)
    where = np.flatnonzero(single)
    told = _shares_of([payloads[n][1:17] for n in where.tolist()], shares)
    for n in np.flatnonzero(~single).tolist():
        concerned = _concerned(payloads[n], shares)
        where = np.concatenate([where, np.full(len(concerned), n)])
        told = np.concatenate([told, concerned])
    taken = pa.array(where)
    return pa.RecordBatch.from_arrays(
        [pa.array(told.astype(np.int32)), *(column.take(taken) for column in batch.columns)],
        names=["share", *batch.schema.names],
    )


def _shares_of(ids: Sequence[bytes], shares: int) -> Array:
    import numpy as np

    joined = b"".join(one.ljust(16, b"\0") for one in ids)
    pairs = np.frombuffer(joined, dtype=np.uint64).reshape(-1, 2)
    return route(pairs[:, 0], pairs[:, 1], shares).astype(np.int64)


def _concerned(payload: bytes, shares: int) -> Array:
    """The shares that a record without a row of its own concerns: rule 1."""
    import numpy as np

    try:
        command = decode(payload)
    except CorruptCommand:
        return np.zeros(1, dtype=np.int64)  # one is enough to refuse it
    members = command.members if isinstance(command, Group) else (command,)
    if any(isinstance(member, Queue) for member in members):
        return np.arange(shares)
    return np.unique(_shares_of([member.id for member in members if member.id], shares))


def _fold_partition(
    batches: Iterable[pa.RecordBatch],
    path: str,
    pieces: list[Piece],
    upto: int | None,
    shares: int,
    settings: Settings,
) -> Iterator[pa.RecordBatch]:
    """A partition may hold several shares, one behind the other; each is folded as a segment."""
    records = (
        row
        for batch in batches
        for row in zip(*(batch.column(n).to_pylist() for n in (0, 1, 3, 4)), strict=True)
    )
    for share, mine in groupby(records, itemgetter(0)):
        data = bytearray(WORKQ.encode())
        for _, segment, time, payload in mine:
            if segment >= 0:
                data += encode(time, payload)
        piece = Piece(f"{path} (share {share})", 0, len(data), newest=False)
        part = Share(share, shares)
        base = base_of(path, _unread(pieces), part, upto)
        state = fold(
            [(piece, memoryview(data))],
            share=part, mode=settings.mode, state=base.state, overlap=base.overlap,
        )  # fmt: skip
        yield from made_columns(settings, partial(_rows_of, state, path))


def _rows_of(state: JournalState, path: str, settings: Settings) -> Iterator[pa.RecordBatch]:
    return job_batches(state.rows.values(), settings.columns, path, settings.queues)


def _unread(pieces: list[Piece]) -> list[tuple[Piece, Buffer]]:
    return [(piece, b"") for piece in pieces]
