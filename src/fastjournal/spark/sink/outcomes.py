"""What became of the rows of each batch: noted by the commit, read as a table.

Rules:

1. A sink in Python has no place in a query's progress: so the commit notes one line for each batch
   in a file beside the directory of staged files, and logs it.
2. A note is no promise: a batch whose commit died before its note is noted as `repeated` when it
   comes again. The newest notes are kept, `MOST` at least.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastjournal.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fastjournal.spark.sink.batch import Batch
    from fastjournal.spark.sink.commit import Adopted

__all__ = ["newest_outcome", "note_outcome", "outcomes"]

MOST = 5_000
_LONG = 1000  # bytes, more than twice those of a line
_log = logging.getLogger(__name__)
_COUNTS = ("rows", "new", "merged", "stale", "refused", "repeated")


def _file(staging: str) -> Path:
    name = Path(staging).name.removeprefix("spark-staged")
    return Path(staging).with_name(f"{name or 'spark'}-outcomes.jsonl")


def note_outcome(staging: str, batch: Batch, done: Adopted) -> None:
    """Write down what became of a batch."""
    path = _file(staging)
    now = SYSTEM_CLOCK.now() // 1000
    outcome = {"time": now, "app": batch.app, "version": batch.version, **done._asdict()}
    _log.info("%s", outcome)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(outcome) + "\n")
        _shorten(path)
    except OSError as error:  # the rows are in, whatever becomes of the note
        _log.warning("%s: what became of a batch is not noted: %s", path, error)


def _shorten(path: Path) -> None:
    if path.stat().st_size > MOST * _LONG:
        lines = path.read_text("utf-8").splitlines(keepends=True)
        draft = path.with_suffix(".new")
        draft.write_text("".join(lines[-MOST:]), "utf-8")
        draft.replace(path)


def newest_outcome(staging: str) -> dict[str, Any] | None:
    """The newest note of the sink that stages there; None: there is none to be seen here."""
    path = _file(staging)
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return dict(json.loads(lines[-1])) if lines else None


def outcomes(spark: SparkSession, staging: str) -> DataFrame:
    """What became of each batch that was written by the sink that stages there.

    One row a batch: how many of its rows are new jobs, were merged into waiting ones, are stale
    (the waiting job is newer), were refused (expired before they came), or came before.
    """
    found = _file(staging)
    counts = ", ".join(f"{name} bigint" for name in _COUNTS)
    rows = spark.read.schema(f"time bigint, app string, version bigint, {counts}")
    return rows.json(found.as_uri()).selectExpr(
        "timestamp_micros(time) as time", "app", "version", *_COUNTS
    )
