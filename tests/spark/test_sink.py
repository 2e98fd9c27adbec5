"""The sinks: rows become jobs, exactly once; nothing staged is left behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastjournal.journal.journal import Journal
from fastjournal.spark.errors import explain
from fastjournal.spark.table import JournalTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = 20_000


def rows(spark: SparkSession, count: int, first: int = 0) -> DataFrame:
    """So many rows with different payloads."""
    return spark.range(first, first + count, 1, 3).selectExpr(
        "concat('job ', id) as payload",
        "concat('q', id % 5) as queue",
        "cast(id % 256 as int) as priority",
    )


def write(frame: DataFrame, directory: Path, **options: Any) -> None:
    """Load a DataFrame."""
    frame.write.format("fastjournal").mode("append").options(**options).save(str(directory))


def payloads(directory: Path) -> list[bytes]:
    """The payloads of all jobs, in the order of their arrival."""
    with Journal(directory, background=False) as journal:
        found = [
            job for status in journal.queues() for job in journal.jobs(status.name, limit=10**7)
        ]
    return [job.value for job in sorted(found, key=lambda job: job.inserted)]


def expected(count: int) -> set[bytes]:
    return {b"job %d" % n for n in range(count)}


def test_rows_become_jobs_and_nothing_staged_stays(spark: SparkSession, tmp_path: Path) -> None:
    write(rows(spark, ROWS), tmp_path / "journal")
    found = payloads(tmp_path / "journal")
    assert len(found) == ROWS and set(found) == expected(ROWS)
    assert not (tmp_path / "journal" / "spark-staged").exists()
    assert JournalTable.for_path(spark, tmp_path / "journal").jobs().count() == ROWS


def test_a_write_repeated_under_its_txn_changes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    options = {"txnAppId": "nightly", "txnVersion": "4"}
    write(rows(spark, 500), tmp_path / "journal", **options)
    write(rows(spark, 500), tmp_path / "journal", **options)
    write(rows(spark, 500), tmp_path / "journal", txnAppId="nightly", txnVersion="3")
    assert len(payloads(tmp_path / "journal")) == 500
    write(rows(spark, 500, 500), tmp_path / "journal", txnAppId="nightly", txnVersion="5")
    assert set(payloads(tmp_path / "journal")) == expected(1000)
    table = JournalTable.for_path(spark, tmp_path / "journal")
    assert [row.rule for row in table.audit(opinion=False).collect()] == []
    told = [(row.version, row.new, row.repeated) for row in table.outcomes().collect()]
    assert told == [(4, 500, 0), (4, 0, 500), (3, 0, 500), (5, 500, 0)]


def test_what_was_read_is_written_as_it_is_and_told_by_its_outcomes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The same names for reading and writing; a version may be an instant in microseconds."""
    with Journal(tmp_path / "from", background=False) as journal:
        for n in range(6):
            journal.put(b"%d" % n, queue="q", key=f"k{n}", priority=n, ttl=3600)
    columns = ["payload", "priority", "due", "ttl", "key", "queue", "id"]
    read = JournalTable.for_path(spark, tmp_path / "from").jobs(columns=columns)
    write(read, tmp_path / "to", txnAppId="copy", txnVersion=1_769_860_800_000_000)
    as_text = read.selectExpr("'again' as payload", "key", "queue")
    write(as_text, tmp_path / "to", txnAppId="copy", txnVersion=1_769_860_800_000_001)
    table = JournalTable.for_path(spark, tmp_path / "to")
    with Journal(tmp_path / "from", background=False) as journal:
        own = {job.id.hex(): job.priority for job in journal.jobs("q")}
    found = {
        row.id_text: row for row in table.jobs(columns=["id_text", "priority", "payload"]).collect()
    }
    assert {name: row.priority for name, row in found.items()} == own
    assert {bytes(row.payload) for row in found.values()} == {b"again"}
    told = [(row.rows, row.new, row.merged) for row in table.outcomes().collect()]
    assert told == [(6, 6, 0), (6, 0, 6)]
    place = tmp_path / "to"
    spark.sql(
        f"create or replace temporary view by_sql using fastjournal"
        f" options (path '{place}', view 'jobs', columns 'id_text,priority')"
    )
    assert {row.id_text: row.priority for row in spark.table("by_sql").collect()} == own


@pytest.mark.parametrize(
    ("select", "words"),
    [
        ("id as payload, 'q' as queue", "payload is bigint, not binary or string"),
        ("'x' as payload, 'q' as queue, 1 as colour", "a job has no column 'colour'"),
        ("'x' as payload", "name a queue"),
        ("'x' as payload, 'q' as queue, 'soon' as due", "due is string, not timestamp"),
    ],
)
def test_another_schema_is_refused_before_any_task_runs(
    spark: SparkSession, tmp_path: Path, select: str, words: str
) -> None:
    with pytest.raises(Exception, match="fastjournal") as caught:
        write(spark.range(3).selectExpr(*select.split(", ")), tmp_path / "journal")
    code, text = explain(caught.value) or ("", "")
    assert code == "CLIENT-ERROR" and words in text
    assert not (tmp_path / "journal").exists()


def test_a_write_with_a_failing_task_leaves_nothing_behind(
    spark: SparkSession, tmp_path: Path
) -> None:
    bad = rows(spark, 100).selectExpr(
        "payload", "queue", "if(payload = 'job 99', 300, 1) as priority"
    )
    with pytest.raises(Exception, match=r"priority: 300 is not in 0\.\.255"):
        write(bad, tmp_path / "journal")
    assert list((tmp_path / "journal").iterdir()) == []


def test_overwriting_and_unknown_options_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    frame = rows(spark, 1)
    with pytest.raises(Exception, match="not overwritten"):
        frame.write.format("fastjournal").mode("overwrite").save(str(tmp_path / "journal"))
    with pytest.raises(Exception, match="unknown option 'colour'"):
        write(frame, tmp_path / "journal", colour="red")
    with pytest.raises(Exception, match="go together"):
        write(frame, tmp_path / "journal", txnAppId="a")


@pytest.mark.slow
def test_tasks_that_fail_and_are_retried_leave_one_job_for_each_row_and_no_file(
    tmp_path: Path,
) -> None:
    (tmp_path / "marks").mkdir()
    child = Path(__file__).parent / "retrying_child.py"
    done = subprocess.run(
        [sys.executable, str(child), str(tmp_path / "marks"), str(tmp_path / "journal")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "marks").iterdir())) == 2
    assert "spark-staged" not in done.stdout
    found = payloads(tmp_path / "journal")
    assert len(found) == 3000 and set(found) == expected(3000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_rows_are_loaded_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    write(rows(spark, 10**6), tmp_path / "journal", txnAppId="million", txnVersion=1)
    table = JournalTable.for_path(spark, tmp_path / "journal")
    jobs = table.jobs(columns=["id", "queue", "payload"])
    assert jobs.count() == 10**6 == jobs.select("payload").distinct().count()
    assert {row["count"] for row in jobs.groupBy("queue").count().collect()} == {200_000}


class Pipeline:
    """A stream from one journal into another."""

    def __init__(self, spark: SparkSession, tmp_path: Path) -> None:
        self.spark = spark
        self.source, self.target = tmp_path / "source", tmp_path / "target"
        self.checkpoint = tmp_path / "checkpoint"
        self.first = 0

    def put(self, count: int) -> None:
        """More jobs at the source."""
        with Journal(self.source, background=False, sync="os", segment_size=8192) as journal:
            for n in range(self.first, self.first + count):
                journal.put(b"job %d" % n, queue="in")
        self.first += count

    def run(self, **options: str) -> int:
        """Carry over all there is; gives the number of the last batch."""
        stream = (
            self.spark.readStream.format("fastjournal")
            .options(commands="put", columns="payload", maxRecordsPerTrigger="70")
            .load(str(self.source))
            .selectExpr("payload", "'out' as queue")
        )
        query = (
            stream.writeStream.format("fastjournal")
            .options(**options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.target))
        )
        query.awaitTermination()
        return max(json.loads(p.json)["batchId"] for p in query.recentProgress)

    def forget(self, log: str) -> None:
        """As if Spark had died before it wrote the newest file of this log."""
        names = [p.name for p in (self.checkpoint / log).iterdir() if p.name.isdigit()]
        newest = max(map(int, names))
        (self.checkpoint / log / str(newest)).unlink()
        (self.checkpoint / log / f".{newest}.crc").unlink(missing_ok=True)


def test_a_stream_killed_at_any_stage_puts_each_job_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, tmp_path)
    pipeline.put(100)
    pipeline.run()  # dies after its commit log, before the next offset log
    pipeline.put(100)
    with (
        Journal(pipeline.target, background=False),
        pytest.raises(Exception, match="has a writer already"),
    ):
        pipeline.run(lockSeconds="0")  # dies after the offset log, before the adoption
    assert len(payloads(pipeline.target)) == 100
    number = pipeline.run()
    pipeline.forget("commits")  # dies after the adoption, before the commit log
    before = payloads(pipeline.target)
    assert pipeline.run() == number
    assert payloads(pipeline.target) == before
    assert len(before) == 200 and set(before) == expected(200)
    assert not (pipeline.target / "spark-staged").exists()
