"""Views `events` and `attempts`: what happened to each job, and one row for every lease.

Rules:

1. A task walks the log once and tells of its part of the jobs, share by share, as in view `jobs`:
   what a command did follows from all commands before it. So `since` bounds what is told, not what
   is read.
2. The log is read as of one moment; where its beginning is gone, a snapshot tells what was there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastjournal.spark.lifecycle.commands import parts_of
from fastjournal.spark.lifecycle.rows import attempts_of, events_of
from fastjournal.spark.lifecycle.seed import rows_before
from fastjournal.spark.lifecycle.walk import Fold, Lives
from fastjournal.spark.options import Settings
from fastjournal.spark.partitions import Shard
from fastjournal.spark.replay.jobs import shares_of
from fastjournal.spark.replay.snapshots import log_of
from fastjournal.spark.schema import arrow_schema
from fastjournal.spark.storage.segments import load

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

__all__ = ["life_batches", "wanted_rows"]

_VALUES = frozenset({"payload", "result"})


def life_batches(shard: Shard, settings: Settings) -> Iterator[pa.RecordBatch]:
    """The rows of one task, share by share, in batches of the columns asked for."""
    for share, pieces in shares_of(shard, settings):
        rows = Fold(share, rows_before(pieces, share))
        parts = (
            part
            for piece in log_of(pieces)
            for part in parts_of(piece, load(piece), share, None, shard.upto)
        )
        for lives in rows.batches(parts):
            yield from wanted_rows(rows, lives, shard.directory, settings)


def wanted_rows(
    rows: Fold, lives: Lives, directory: str, settings: Settings
) -> Iterator[pa.RecordBatch]:
    """The rows of a batch that the settings ask for."""
    import numpy as np
    import pyarrow as pa

    if settings.view == "events":
        table = events_of(lives, values=not _VALUES.isdisjoint(settings.columns))
        times, queues = lives.times(), lives.queues
        kinds = np.concatenate([part.chunk.kinds for part in lives.parts])
    else:
        table = attempts_of(rows, lives)
        times, queues, kinds = lives.ended("ended"), lives.ended("queue"), None
    names = pa.array([one.decode("utf-8", "backslashreplace") for one in rows.queues], pa.string())
    wanted = np.ones(len(times), dtype=bool)
    if settings.after is not None:
        wanted &= times > settings.after
    if settings.queues is not None:
        chosen = [n for n, name in enumerate(names.to_pylist()) if name in settings.queues]
        wanted &= np.isin(queues, chosen)
    if settings.commands is not None and kinds is not None:
        wanted &= np.isin(kinds, list(settings.commands))
    more = {
        "queue": names.take(pa.array(queues, mask=queues < 0)),
        "_directory": pa.repeat(pa.scalar(directory), len(times)),
    }
    for name, column in more.items():
        if name in settings.columns:
            table = table.append_column(name, column)
    schema = arrow_schema(settings.view, settings.columns)
    table = table.select(settings.columns).filter(pa.array(wanted)).cast(schema)
    yield from table.combine_chunks().to_batches()
