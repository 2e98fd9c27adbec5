"""The state of a log as rows of view `jobs`, by the journal's own `apply`, split by row.

Rules:

1. Every share of the rows is folded by one code (`replay_share`), from what there is of the log for
   it: all of it, or what was laid together (`dealt`).
2. Whoever has a session has a large log dealt out by Spark (`replay_by_shuffle`) where many tasks
   run at a time: each byte is read once, however many there are.
3. A source of data cannot shuffle. There are as many tasks as run at a time; each walks the log
   once, lays together on its own disk what concerns its rows, as many shares of them as fit into
   memory one after the other, and folds share by share. So the log is read as often as there are
   tasks, never as often as there are shares.
4. All shares are as of one TIME, that of the last record when the table is made.
5. A task that reads without a pin opens all files as of one moment, under the readers' lock. Many
   tasks that read one journal pin it, and the rows are made at once. What lies on an object store
   is not cleaned.
6. Values are those of `journal.rows.job_of`: what a caller of the journal sees is what SQL sees. An
   instant of 0 means "not set" and becomes null; nothing else does. `held` is not a column: whether
   a row waits behind its twin depends on another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row, job_of
from fastjournal.model import Job
from fastjournal.spark.decode.record_columns import readable
from fastjournal.spark.errors import coded_errors
from fastjournal.spark.locations import is_remote
from fastjournal.spark.options import Settings
from fastjournal.spark.partitions import Shard
from fastjournal.spark.replay.dealt import Deal, deal_here, dealt
from fastjournal.spark.replay.fold import Share, fold, no_collection
from fastjournal.spark.replay.snapshots import base_of, is_archived, lives_base, log_of, replay_base
from fastjournal.spark.schema import arrow_schema, ddl, made_columns, names_of
from fastjournal.spark.storage.segments import (
    Piece,
    at_one_moment,
    journal_segments,
    load,
    newest_time,
    pieces_between,
    share_count,
    while_pinned,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "job_batches",
    "replay_by_shuffle",
    "replay_share",
    "shard_batches",
    "shards",
    "shares_of",
]

_ROWS = 20_000
_NEVER = 1 << 63
_TASK_BYTES = 128 << 20  # of log, told of at a time: some 400,000 jobs that wait, 700 MB in a task
_INSTANTS = frozenset({"due", "inserted", "modified", "expires", "lease_start", "lease_until"})
_TEXTS = frozenset({"queue", "key", "worker", "note"})
_PLACES = {name.removesuffix("_bytes"): place for place, name in enumerate(Job._fields)}


def replay_share(
    pieces: Sequence[Piece], share: Share, *, upto: int | None = None, mode: str = "FAILFAST"
) -> JournalState:
    """The rows of a share, from a snapshot before the segments and those behind it."""
    base = base_of(pieces, share)
    segments = [(piece, load(piece)) for piece in pieces if piece.number >= base.first]
    return fold(segments, share=share, upto=upto, mode=mode, state=base.state, overlap=base.overlap)


def replay_by_shuffle(
    spark: SparkSession,
    path: str,
    shares: int,
    *,
    as_of: str | None = None,
    columns: Iterable[str] = (),
    queues: Iterable[str] = (),
) -> DataFrame:
    """View `jobs` of one journal, folded in `shares` shares that Spark deals out."""
    with coded_errors():
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

    def folded(share: Share, mine: list[Piece]) -> Iterator[pa.RecordBatch]:
        state = replay_share(mine, share, upto=upto, mode=settings.mode)
        yield from made_columns(settings, partial(_rows_of, state, path))

    deal = Deal(shares, upto=upto, mode=settings.mode, state_only=True)
    wanted = _behind(replay_base(path, pieces, upto), pieces)
    return dealt(spark, wanted, deal, folded, ddl("jobs", settings.columns))


def _behind(base: Piece | None, pieces: list[Piece]) -> list[Piece]:
    """A snapshot and the segments that it does not cover."""
    if base is None:
        return pieces
    return [base, *(piece for piece in pieces if piece.number >= -base.number)]


def _rows_of(state: JournalState, path: str, settings: Settings) -> Iterator[pa.RecordBatch]:
    return job_batches(state.rows.values(), settings.columns, path, settings.queues)


def shards(settings: Settings) -> Iterator[Shard]:
    """The tasks for every journal the settings name."""
    for directory in settings.paths:
        pieces = journal_segments(directory, whole=settings.whole)
        if not pieces:
            continue
        # An archive grows too; what was copied there whole does not.
        grows = pieces[-1].newest or is_archived(pieces)
        frozen = newest_time(pieces[-1]) if grows else None
        bounds = [bound for bound in (settings.upto, frozen) if bound is not None]
        # Every task of a log on a store would fetch all of it.
        many = 1 if is_remote(directory) else settings.cores
        size = sum(piece.size for piece in pieces)
        count = share_count(size, many, settings.shards)
        newest = pieces[-1].number
        for index in range(count):
            yield Shard(directory, index, count, min(bounds, default=None), newest)


def shares_of(
    shard: Shard,
    settings: Settings,
    *,
    state_only: bool = False,
    after: int | None = None,
    parts: int = 0,
) -> Iterator[tuple[Share, list[Piece]]]:
    """The shares of one task and what there is of the log for each, a snapshot before it.

    What is said of one is there until the next one is asked for. If not `state_only`, for those who
    tell lives: then all of the log is there, or what is behind `after`, and a snapshot only where
    its beginning is gone. `parts`: how many there are; else as the size of the log asks for, which
    need not be the same for all tasks.
    """

    def opened() -> list[Piece]:
        pieces = journal_segments(shard.directory, least=shard.newest, whole=settings.whole)
        if state_only:
            base = replay_base(shard.directory, pieces, shard.upto)
            first, last = settings.from_segment, settings.to_segment
            pieces = [one for one in _behind(base, pieces) if first <= one.number <= last]
        elif after is not None:
            base, pieces = None, pieces_between(pieces, after, shard.upto or _NEVER)
        else:
            base = lives_base(shard.directory, pieces)
        pieces = pieces if base is None else [base, *log_of(pieces)]
        # What lies on a store does not change: it is fetched when its turn comes.
        return [one if is_remote(one.path) else replace(one, data=load(one)) for one in pieces]

    pieces = at_one_moment(shard.directory, opened)
    size = sum(piece.size for piece in pieces)
    parts = parts or max(1, -(-size // (shard.count * _TASK_BYTES)))
    task = Share(shard.index, shard.count)
    deal = Deal(shard.count * parts, after, shard.upto, settings.mode, state_only, task=task)
    yield from deal_here(pieces, deal)


def shard_batches(shard: Shard, settings: Settings) -> Iterator[pa.RecordBatch]:
    """The rows of one task, share by share, in batches of the columns asked for."""
    for share, mine in shares_of(shard, settings, state_only=True):
        state = replay_share(mine, share, upto=shard.upto, mode=settings.mode)
        yield from _rows_of(state, shard.directory, settings)


def _column(
    name: str, fields: Sequence[Sequence[Any]], directory: str, kind: pa.DataType
) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if name == "_directory":
        return pa.repeat(pa.scalar(directory), len(fields[0]))
    values = fields[_PLACES[name.removesuffix("_ns").removesuffix("_bytes")]]
    if name in _INSTANTS:
        nanos = np.array(values, dtype=np.int64)
        return pa.array(np.floor_divide(nanos, 1000), mask=nanos == 0).cast(kind)
    if name in _TEXTS:
        return readable(pa.array(values, pa.binary()))
    if name == "state":
        return pa.array([state.name for state in values], kind)
    return pa.array(values, kind)


def job_batches(
    rows: Iterable[Row], names: Sequence[str], directory: str, queues: frozenset[str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows as batches of the columns `names`."""
    import pyarrow as pa

    schema = arrow_schema("jobs", names)
    if queues is not None:
        rows = (row for row in rows if row.queue.name.decode("utf-8", "backslashreplace") in queues)
    left = iter(rows)
    while some := list(islice(left, _ROWS)):
        with no_collection():
            # A job is a tuple: to turn twenty thousand of them into columns costs next to nothing.
            fields: list[tuple[Any, ...]] = list(zip(*map(job_of, some), strict=True))
            columns = [_column(name, fields, directory, schema.field(name).type) for name in names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
