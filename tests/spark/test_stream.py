"""The streaming source: a live journal as an endless table, across rotation, cleaning, restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastjournal.journal.journal import Journal
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., list[int]]


def times(directory: Path) -> list[int]:
    """The TIMEs of all records of the log, by its own cursor."""
    with Stream(directory, WORKQ).open_cursor() as cursor:
        return [record.time for record in cursor]


def put(directory: Path, count: int, *, size: int = 4096) -> None:
    """So many jobs, one after the other, in small segments."""
    with Journal(directory, background=False, sync="os", segment_size=size) as journal:
        for n in range(count):
            journal.put(b"x" * 100, queue=f"q{n % 3}")


class Query:
    """A streaming query that appends the TIMEs of its records to Parquet, batch by batch."""

    def __init__(self, spark: SparkSession, directory: Path, work: Path) -> None:
        self.spark, self.directory, self.work = spark, directory, work
        self.checkpoint = work / "checkpoint"
        self.progress: list[dict[str, Any]] = []

    def run(self, **options: str) -> list[int]:
        """Read all there is, then stop; gives the TIMEs of all batches so far, in their order."""
        stream = (
            self.spark.readStream.format("fastjournal")
            .option("columns", "time_ns")
            .options(**options)
            .load(str(self.directory))
        )
        out = str(self.work / "out")

        def write(batch: Any, number: int) -> None:
            batch.coalesce(1).write.mode("overwrite").parquet(f"{out}/batch={number:06d}")

        query = (
            stream.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.progress = [json.loads(p.json) for p in query.recentProgress]
        return self.output()

    def batches(self) -> list[int]:
        """Rows in each batch."""
        found = sorted((self.work / "out").glob("batch=*"))
        return [self.spark.read.parquet(str(one)).count() for one in found]

    def output(self) -> list[int]:
        """The TIMEs read so far."""
        rows = self.spark.read.parquet(str(self.work / "out")).orderBy("batch", "time_ns")
        return [row.time_ns for row in rows.collect()]

    def forget(self, *logs: str) -> None:
        """Make it look as if Spark had died before writing the newest file of these logs."""
        for log in logs:
            newest = max(int(p.name) for p in (self.checkpoint / log).iterdir() if p.name.isdigit())
            (self.checkpoint / log / str(newest)).unlink()
            (self.checkpoint / log / f".{newest}.crc").unlink(missing_ok=True)


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    put(tmp_path / "journal", 60)
    return Query(spark, tmp_path / "journal", tmp_path)


def test_a_stream_gives_every_record_once_across_rotation_and_restarts(query: Query) -> None:
    assert query.run() == times(query.directory)
    put(query.directory, 50)
    assert len(list(query.directory.glob("*.log"))) > 3
    assert query.run() == times(query.directory)
    assert query.run() == times(query.directory)


def test_a_query_killed_before_its_commit_repeats_and_misses_nothing_and_tells_its_lag(
    query: Query,
) -> None:
    query.run(maxRecordsPerTrigger="25")
    known = times(query.directory)
    assert query.batches() == [25, 25, len(known) - 50]
    source = query.progress[0]["sources"][0]
    assert (source["endOffset"]["time"], source["latestOffset"]["time"]) == (known[24], known[-1])
    query.forget("commits")
    put(query.directory, 20)
    assert query.run(maxRecordsPerTrigger="25") == times(query.directory)
    query.forget("commits", "offsets")
    assert query.run() == times(query.directory)
