"""Spark over an archive, in a directory and on S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import DataFrame, SparkSession

from archiving import work_a_while
from fastjournal import Journal
from fastjournal.archive.manifest import find_newest
from fastjournal.archive.shipper import ArchiveOptions
from fastjournal.archive.store import open_store
from fastjournal.journal.disk.replay import replay
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark import JournalTable
from fastjournal.testing import ManualClock
from s3_server import BUCKET, serve_s3

pytestmark = pytest.mark.spark

COLUMNS = ["id", "state", "attempts"]


@pytest.fixture(params=["directory", "s3"])
def archive(
    request: pytest.FixtureRequest, spark: SparkSession, s3_port: int, tmp_path: Path
) -> Iterator[str]:
    """Where a test may ship to."""
    if request.param == "directory":
        yield f"file://{tmp_path}/archive"
        return
    pytest.importorskip("obstore")
    with serve_s3(s3_port):
        yield f"s3://{BUCKET}/{tmp_path.name}"


def rows(frame: DataFrame) -> dict[bytes, tuple[str, int]]:
    return {bytes(row.id): (row.state, row.attempts) for row in frame.collect()}


def test_an_archive_is_loaded_like_a_journal(
    spark: SparkSession, tmp_path: Path, archive: str
) -> None:
    """Sealed segments and a tail in parts; with a beginning that only a snapshot tells of."""
    clock, chance = ManualClock(), Random(2)
    with Journal(
        tmp_path / "jobs", sync="always", segment_size=4096, background=False, clock=clock,
        archive=archive, archive_options=ArchiveOptions(keep_days=1, compress=True),
    ) as journal:  # fmt: skip
        work_a_while(journal, clock, chance, 200)
        journal.ship()
        here = JournalTable.for_path(spark, tmp_path / "jobs")
        there = JournalTable.for_path(spark, archive)
        by_format = spark.read.format("fastjournal").load(archive)
        assert by_format.count() == here.records().count() > 100
        mine = rows(here.jobs(columns=COLUMNS))
        assert rows(there.jobs(columns=COLUMNS)) == mine
        by_format = spark.read.format("fastjournal").option("view", "jobs").load(archive)
        assert rows(by_format) == mine

        journal.snapshot()
        clock.advance(3 * 86_400)
        work_a_while(journal, clock, chance, 20)
        middle, then = clock.now(), set(journal.engine.state.rows)
        clock.advance(1)
        work_a_while(journal, clock, chance, 40)
        journal.ship()
        manifest = find_newest(open_store(archive))
        assert manifest is not None and manifest.floor > 1 and manifest.parts
        mine = {
            bytes(row_id): (row.state.name, row.attempts)
            for row_id, row in replay(Stream(tmp_path / "jobs", WORKQ)).state.rows.items()
        }
        there = JournalTable.for_path(spark, archive)
        assert rows(there.jobs(columns=COLUMNS)) == mine
        assert set(rows(there.jobs(middle, columns=COLUMNS))) == {bytes(one) for one in then}
        by_format = spark.read.format("fastjournal").option("view", "jobs").load(archive)
        assert rows(by_format) == mine
        assert rows(here.jobs(columns=COLUMNS, shards=25)) == mine, "behind a shuffle, here too"
