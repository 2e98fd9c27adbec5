"""A journal as an object with tables: `JournalTable.for_path(spark, "./jobs").jobs()`.

Rules:

1. Every call plans anew: a DataFrame is a picture of the moment it was made, as all of Spark's are.
2. Arguments are the options of the data source under Python's names and types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fastjournal.spark.locations import is_remote, place
from fastjournal.spark.replay.dealt import walkers
from fastjournal.spark.replay.jobs import replay_by_shuffle
from fastjournal.spark.session import register
from fastjournal.spark.storage.segments import SHARE_BYTES, journal_segments, share_count
from fastjournal.spark.tasks import parallelism

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from fastjournal.spark.lake.exporter import ExportReport
    from fastjournal.spark.maintain.clean import CleanReport
    from fastjournal.spark.report.write import Report

__all__ = ["JournalTable", "read"]

When: TypeAlias = datetime | int | str


def _instant(when: When) -> str:
    return when.isoformat() if isinstance(when, datetime) else str(when)


def read(
    spark: SparkSession,
    path: str | Path | Sequence[str | Path],
    *,
    columns: Iterable[str] = (),
    commands: Iterable[str | int] = (),
    queues: Iterable[str] = (),
    since: When | None = None,
    until: When | None = None,
    as_of: When | None = None,
    **options: Any,
) -> DataFrame:
    """Load a journal, or several, with the options of the data source."""
    reader = spark.read.format("fastjournal")
    for name, words in (("columns", columns), ("commands", commands), ("queue", queues)):
        if text := ",".join(map(str, words)):
            reader = reader.option(name, text)
    for name, when in (("since", since), ("until", until), ("asOf", as_of)):
        if when is not None:
            reader = reader.option(name, _instant(when))
    for name, value in options.items():
        reader = reader.option(name, value)
    if isinstance(path, (str, Path)):
        return reader.load(place(path))
    return reader.load([place(one) for one in path])


class JournalTable:
    """One journal, seen through a session."""

    def __init__(self, spark: SparkSession, path: str | Path) -> None:
        self.spark = spark
        self.path = place(path)

    @classmethod
    def for_path(cls, spark: SparkSession, path: str | Path) -> JournalTable:
        """The journal in a directory; registers the data source with the session."""
        journal_segments(path)
        return cls(register(spark), path)

    def records(self, **options: Any) -> DataFrame:
        """The log, one row a record; arguments as `read`."""
        return read(self.spark, self.path, **options)

    def events(self, **options: Any) -> DataFrame:
        """What each command did to its job, one row a command; arguments as `read`."""
        return read(self.spark, self.path, view="events", **options)

    def attempts(self, **options: Any) -> DataFrame:
        """How every lease that ended went, one row each; arguments as `read`."""
        return read(self.spark, self.path, view="attempts", **options)

    def segments(self) -> DataFrame:
        """The files, one row each."""
        return read(self.spark, self.path, view="segments")

    def jobs(
        self,
        as_of: When | None = None,
        *,
        columns: Iterable[str] = (),
        queues: Iterable[str] = (),
        shards: int = 0,
    ) -> DataFrame:
        """The rows of the state, now or as of an instant.

        Where few tasks run at a time each walks the log, when a query asks for rows. A large log on
        a larger cluster, and one on an object store, is read once and dealt out by row, and the
        rows are made at once. `shards`: into how many parts the rows are cut, a task for each.
        """
        pieces = journal_segments(self.path)
        size = sum(piece.size for piece in pieces)
        cores = parallelism(self.spark)
        count = share_count(size, cores, shards, most=SHARE_BYTES)
        if not walkers(count, pieces, shards or cores):
            upto = None if as_of is None else _instant(as_of)
            return replay_by_shuffle(
                self.spark, self.path, count, as_of=upto, columns=columns, queues=queues
            )
        more: dict[str, Any] = {"shards": shards} if shards else {}
        return self._walked_jobs(as_of, columns=columns, queues=queues, **more)

    def _walked_jobs(self, as_of: When | None, **more: Any) -> DataFrame:
        return read(self.spark, self.path, view="jobs", as_of=as_of, **more)

    def create_views(self, as_of: When | None = None) -> None:
        """Temporary views `records`, `jobs`, `events`, `attempts` and `segments` for SQL.

        Nothing is read before a query asks for it.
        """
        jobs = self.jobs(as_of) if is_remote(self.path) else self._walked_jobs(as_of)
        self.records().createOrReplaceTempView("records")
        self.events().createOrReplaceTempView("events")
        self.attempts().createOrReplaceTempView("attempts")
        jobs.createOrReplaceTempView("jobs")
        self.segments().createOrReplaceTempView("segments")

    def outcomes(self, **options: str) -> DataFrame:
        """What became of each batch written to it; options as those of the sink."""
        from fastjournal.spark.sink.outcomes import outcomes
        from fastjournal.spark.sink.writer import SinkSettings

        staging = SinkSettings.parse({"path": self.path, **options}).staging
        return outcomes(self.spark, staging)

    def audit(self, *, opinion: bool = True) -> DataFrame:
        """What is wrong with it, as rows."""
        from fastjournal.spark.audit.run import audit

        return audit(self.spark, self.path, opinion=opinion)

    def clean(
        self, *, now: int | None = None, dry_run: bool = False, work: str | Path | None = None
    ) -> CleanReport:
        """Drop from its sealed segments what replay does not need; arguments as `clean.clean`."""
        from fastjournal.spark.maintain.clean import clean

        return clean(self.spark, self.path, now=now, dry_run=dry_run, work=work)[0]

    def export(self, out: str | Path, **options: Any) -> ExportReport:
        """Write what is new to `out` as Parquet; options as `export.export`."""
        from fastjournal.spark.lake.exporter import export

        return export(self.spark, self.path, out, **options)

    def report(self, **options: Any) -> Report:
        """How it is doing; options as `report.report`."""
        from fastjournal.spark.report.write import report

        return report(self.spark, self.path, **options)
