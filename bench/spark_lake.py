"""The journal joins the lake: export beside Spark's own Parquet writer, Spark as the consumer.

Rows: export of the events and of all tables, in MB of log; a report; jobs consumed by batch size
with a function that does nothing, from an embedded journal. The log holds random values. Spark's
writer gets the same rows with the same compression, zstd level 1, and no partitions, which only
makes it faster. `--quick`: 100 MB and 40,000 jobs; else 1 GB and 300,000 (BENCH_RECORDS,
BENCH_JOBS for other sizes). Beside each row by the clock stands one by CPU time.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.journal.journal import Journal
from fastjournal.spark import read
from fastjournal.spark.consume.loop import consume
from fastjournal.spark.lake.exporter import export
from fastjournal.spark.report.write import report
from harness import Bench
from spark import Meter, both_rows, session, write_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def exporting(bench: Bench, spark: SparkSession, directory: Path, work: Path, size: int) -> None:
    """The whole log, again and again, each time to a new place."""
    count = 0

    def fresh() -> Path:
        nonlocal count
        count += 1
        shutil.rmtree(work / f"out{count - 1}", ignore_errors=True)
        return work / f"out{count}"

    def spark_writer() -> None:
        writer = read(spark, directory).write.option("compression", "zstd")
        writer.option("parquet.compression.codec.zstd.level", "1").parquet(str(fresh()))

    size_mb = size / 1e6
    both_rows(
        bench, "export, events", "MB",
        Meter(size_mb, lambda: export(spark, directory, fresh(), tables=["events"])),
        {"df.write.parquet, same records": Meter(size_mb, spark_writer)},
    )  # fmt: skip
    both_rows(
        bench, "export, events, attempts and jobs", "MB",
        Meter(size_mb, lambda: export(spark, directory, fresh())), {},
    )  # fmt: skip
    both_rows(
        bench, "report", "MB",
        Meter(size_mb, lambda: report(spark, directory, cleaning=False).html()), {},
    )  # fmt: skip


def consuming(bench: Bench, spark: SparkSession, work: Path, jobs: int) -> None:
    """A queue worked off by a function that does nothing."""
    for batch in (1_000, 10_000, 50_000):
        total = min(jobs, 20 * batch)
        filled = [work / f"queue{batch}-{n}" for n in range(bench.repeats)]
        opened = []
        for path in filled:
            journal = Journal(path, sync="os", background=False, snapshot_bytes=0)
            journal.put_many([{"payload": b"x" * 100, "queue": "q"} for _ in range(total)])
            opened.append(journal)
        left = iter(opened)

        def work_off(batch: int = batch, left: object = left) -> None:
            told = consume(spark, next(left), "q", lambda _: None, batch, once=True)  # type: ignore[call-overload]
            assert told.lost == 0

        both_rows(bench, f"consume, batches of {batch:,}", "jobs", Meter(total, work_off), {})
        for journal, path in zip(opened, filled, strict=True):
            journal.close()
            shutil.rmtree(path)


def main() -> None:
    bench = Bench("spark_lake", "export, report and consume on Spark")
    records = int(os.environ.get("BENCH_RECORDS", 480_000 if bench.quick else 5_000_000))
    jobs = int(os.environ.get("BENCH_JOBS", 40_000 if bench.quick else 300_000))
    work = Path(tempfile.mkdtemp(prefix="fastjournal-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        size = write_log(work / "log", records)
        print(f"{records:,} records, {size / 1e6:.0f} MB\n", file=sys.stderr)
        spark = session(2)
        export(spark, work / "log", work / "warm", tables=["events"])
        shutil.rmtree(work / "warm")
        exporting(bench, spark, work / "log", work, size)
        consuming(bench, spark, work, jobs)
        spark.stop()
        bench.finish()
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
