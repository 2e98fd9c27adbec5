"""Spark over an archive."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from archiving import work_a_while
from fastjournal import Journal
from fastjournal.spark import JournalTable
from fastjournal.testing import ManualClock

pytestmark = pytest.mark.spark


def test_an_archive_is_loaded_like_a_journal(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock()
    with Journal(
        tmp_path / "jobs", sync="always", segment_size=4096, background=False, clock=clock,
        archive=tmp_path / "archive",
    ) as journal:  # fmt: skip
        work_a_while(journal, clock, Random(2), 200)
        journal.ship()
        here = JournalTable.for_path(spark, tmp_path / "jobs")
        there = JournalTable.for_path(spark, tmp_path / "archive")
        count = here.records().count()
        assert there.records().count() == count > 100
        by_format = spark.read.format("fastjournal").load(f"file://{tmp_path}/archive")
        assert by_format.count() == count
        columns = ["id", "state", "attempts"]
        mine = sorted(here.jobs(columns=columns).collect())
        assert sorted(there.jobs(columns=columns).collect()) == mine
        middle = there.segments().agg({"first_time": "max"}).first()
        assert middle is not None
