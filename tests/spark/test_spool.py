"""Spark reads the spools of producers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.spool.forwarder import ForwardedSpool, Forwarder
from fastjournal.spool.writer import Spool
from fastjournal.testing import ManualClock
from spooling import JournalDestination, drain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOW = 1_700_000_000 * SECOND


def test_a_spool_is_a_table_of_its_jobs(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock(NOW)
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"a", queue="q", key="k", priority=7)
        spool.put(b"b", queue="other", delay=60)
        clock.advance(3600)
        spool.put(b"c", queue="q")
    first = min(tmp_path.glob("*.fjq"))
    first.write_bytes(first.read_bytes() + b"torn")
    table = spark.read.format("fastjournal").option("view", "spool").load(str(tmp_path))
    rows = table.orderBy("file", "offset").collect()
    assert [row.state for row in rows] == ["ready", "ready", "damaged", "ready"]
    assert [bytes(row.payload) for row in rows if row.payload] == [b"a", b"b", b"c"]
    assert (rows[0].queue, rows[0].key, rows[0].priority, rows[0].mode) == ("q", "k", 7, "merge")
    assert (rows[1].due - rows[1].put).total_seconds() == 60
    assert rows[2].reason and rows[2].id is None
    assert [row.file for row in rows] == ["20231114T22.fjq"] * 3 + ["20231114T23.fjq"]
    late = (
        spark.read.format("fastjournal")
        .options(view="spool", since=str(NOW + 1800 * SECOND), columns="payload,put_ns")
        .load(str(tmp_path))
    )
    assert [(bytes(row.payload), row.put_ns) for row in late.collect()] == [
        (b"c", NOW + 3600 * SECOND)
    ]


def test_a_job_is_found_in_the_spool_and_in_the_journal_by_its_id(
    spark: SparkSession, tmp_path: Path
) -> None:
    clock = ManualClock(NOW)
    with Spool(tmp_path / "spool", clock=clock) as spool:
        for number in range(20):
            spool.put(b"%d" % number, queue="q")
    with Journal(tmp_path / "journal", clock=clock, background=False) as journal:
        drain(
            Forwarder(ForwardedSpool(tmp_path / "spool"), clock=clock), JournalDestination(journal)
        )
    read = spark.read.format("fastjournal")
    spooled = read.options(view="spool").load(str(tmp_path / "spool"))
    jobs = spark.read.format("fastjournal").options(view="jobs").load(str(tmp_path / "journal"))
    both = spooled.join(jobs, "id").where(spooled.payload == jobs.payload)
    assert both.count() == 20
    assert {row.state for row in spooled.collect()} == {"done"}


def test_a_directory_that_is_no_spool_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    table = spark.read.format("fastjournal").option("view", "spool").load(str(tmp_path))
    with pytest.raises(Exception, match="no spool"):
        table.collect()
