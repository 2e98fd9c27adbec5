"""What Spark's tasks deal out by row answers as what is read by one process.

Asked for more than eight shares, by `shares` or `shards`, it goes through a shuffle; where a share
is small and two tasks work at a time, each walks the log and deals its shares out to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from fastjournal.journal.journal import Journal
from fastjournal.journal.language import codec as command
from fastjournal.journal.language import commands as k
from fastjournal.log.record import encode
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.spark import JournalTable
from fastjournal.spark.audit.run import audit
from fastjournal.spark.errors import explain
from fastjournal.spark.lake.exporter import export, files_of
from fastjournal.spark.lake.steps import Steps
from fastjournal.spark.report.write import report
from fastjournal.spark.tasks import Task
from fastjournal.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SHARES = 12
NOON = 1_700_000_000_000_000_000


def inline(tasks: Sequence[Task]) -> list[Any]:
    """Carry tasks out here, one after the other."""
    return [answer for task in tasks for answer in task()]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Jobs put one by one and in groups, some done, some failed, over several segments."""
    path, clock = tmp_path / "j", ManualClock(NOON)
    with Journal(path, clock=clock, background=False, sync="os", segment_size=4096) as made:
        made.put_many({"payload": b"x" * 30, "queue": "a", "key": f"k{n}"} for n in range(60))
        for n in range(90):
            clock.advance(1)
            made.put(b"%d" % n, queue="b", key=f"k{n % 40}")
            if job := made.lease("b") if n % 3 else None:
                job.done() if n % 2 else job.fail(b"why")
    return path


def lines(out: Path, table: str) -> list[tuple[Any, ...]]:
    order = "id" if table == "jobs" else "time_ns, member" if table == "events" else "ended_ns, id"
    query = f"select * from read_parquet(?, hive_partitioning = true) order by {order}"
    return duckdb.execute(query, [files_of(out, table)]).fetchall()


def test_an_export_through_a_shuffle_writes_the_rows_of_one_that_walks(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    alone, dealt = tmp_path / "alone", tmp_path / "dealt"
    for n in range(2):
        walked = export(inline, journal, alone, shares=1)
        told = export(spark, journal, dealt, shares=0 if n else SHARES)
        assert (told.records, told.rows, told.log_bytes) == (
            walked.records, walked.rows, walked.log_bytes,
        )  # fmt: skip
        for table in ("events", "attempts", "jobs"):
            assert lines(dealt, table) == lines(alone, table)
        step = Steps(dealt).last()
        assert step is not None
        assert {one.share[1] for one in step.files if one.share} == {SHARES}, "it is cut as before"
        if not n:
            with Journal(journal, clock=ManualClock(NOON + 10**15), background=False) as made:
                made.put(b"more", queue="b", key="k1")


def test_a_report_tells_the_same_figures_however_it_is_dealt_out(
    spark: SparkSession, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walked = report(inline, journal, shares=1, cleaning=False)
    assert report(spark, journal, shares=SHARES, cleaning=False).figures == walked.figures
    monkeypatch.setattr("fastjournal.spark.report.write.SHARE_BYTES", 1000)
    assert report(spark, journal, cleaning=False).figures == walked.figures


def test_an_audit_finds_the_same_however_it_is_dealt_out(
    spark: SparkSession, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orphans, a row that is put twice for one key, changes that do not fit, a broken group."""
    time = NOON + 10**16
    lone, twin = (n.to_bytes(16, "big") for n in (1, 2))
    newest = max(journal.glob("*.log"))
    bad = [
        k.Lease(lone, time, time + 5, 3, b"w"),
        k.Put(twin, b"a", b"k1", 5, time, time, time, 0, 1, b""),
        k.Redrive(twin, time, 3),
        k.Group((k.Purge(lone, b"q", b"", time), k.Touch(lone, time))),
    ]
    payloads = [*(command.encode(one) for one in bad), b"\x2c\x02\x01"]
    data = b"".join(encode(time + n, payload) for n, payload in enumerate(payloads))
    newest.write_bytes(newest.read_bytes() + data)
    (journal / segment_name(90)).write_bytes(WORKQ.encode() + encode(time, b"\x05" + lone))

    def found(shards: int) -> list[tuple[Any, ...]]:
        rows = audit(spark, journal, opinion=False, shards=shards).collect()
        return sorted((tuple(row) for row in rows), key=repr)

    walked = found(1)
    assert {row[1] for row in walked} >= {"orphan", "transition", "one-waiting", "command", "order"}
    assert found(SHARES) == walked
    assert found(0) == walked
    monkeypatch.setattr("fastjournal.spark.audit.run.SHARE_BYTES", 1000)
    assert found(0) == walked


def test_a_payload_that_is_no_command_is_told_by_its_place_in_the_log(
    spark: SparkSession, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = max(journal.glob("*.log"))
    data = path.read_bytes()
    bad = encode(NOON + 10**16, b"\x20" + bytes(16) + b"\xff")  # a put that ends too soon
    path.write_bytes(data + bad)
    for shards in (0, SHARES):
        with pytest.raises(Exception, match="fastjournal") as caught:
            JournalTable.for_path(spark, journal).jobs(shards=shards).count()
        told = explain(caught.value)
        assert told is not None and f"{path}: offset {len(data)}" in told[1]
    monkeypatch.setattr("fastjournal.spark.lake.exporter.SHARE_BYTES", 1000)
    with pytest.raises(Exception, match="fastjournal") as caught:
        export(spark, journal, tmp_path / "lake")
    told = explain(caught.value)
    assert told is not None and f"{path}: offset {len(data)}" in told[1]
