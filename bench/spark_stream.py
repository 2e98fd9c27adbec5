"""Streams over a live journal, and sinks into one.

Rows: the streaming source (records/s of a query that reads all there is), how far a query with a
one-second trigger is behind a daemon that takes 5,000 puts a second, and the sinks: rows without
keys, with keys, and into a running daemon. Beside the source stands the batch reader on the same
log, beside the sink Spark's own Parquet writer with the same rows: it writes a file and asks
nobody. Page cache warm, two cores; `--quick`: a tenth of the rows.

The lag of a record is the time from its TIME in the log until the batch that holds it has been
worked on: half a second of waiting for the trigger is in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import fastjournal
from daemon import free_port
from fastjournal.spark import read
from harness import Bench
from spark import Meter, both_rows, drain, say, session
from spark_data import write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATE = 5000  # puts a second
PUTS = 50  # in one message
PATIENCE = 300  # seconds


def sourcing(bench: Bench, spark: SparkSession, work: Path, records: int) -> None:
    """A query that reads a whole log and ends."""
    write_log(work / "log", records)
    numbers = count()

    def stream() -> None:
        frame = spark.readStream.format("fastjournal").load(str(work / "log"))
        checkpoint = str(work / f"source-{next(numbers)}")
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()

    drain(read(spark, work / "log"))
    peer = Meter(records, lambda: drain(read(spark, work / "log")))
    both_rows(bench, "source", "records", Meter(records, stream), {"batch reader": peer})


class Daemon:
    """A daemon, and a client that puts at a steady rate."""

    def __init__(self, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.data = work / "data"
        self.url = f"fj://127.0.0.1:{self.port}"
        self._over = threading.Event()
        self._feeder: threading.Thread | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fastjournal.cli.app", "serve", str(self.data), "--listen",
             f"127.0.0.1:{self.port}", "--log-level", "error"],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        fastjournal.connect(f"{self.url}?connect_timeout=60").close()

    @property
    def journal(self) -> Path:
        return self.data / "default"

    def feed(self) -> None:
        """Put until `stop`."""

        def run() -> None:
            with fastjournal.connect(self.url) as client:
                began = time.monotonic()
                for n in count():
                    client.put_many([{"payload": b"x" * 100, "queue": "q"}] * PUTS)
                    ahead = began + n * PUTS / RATE - time.monotonic()
                    if self._over.wait(max(ahead, 0)):
                        return

        self._feeder = threading.Thread(target=run, daemon=True)
        self._feeder.start()

    def stop(self) -> None:
        self._over.set()
        if self._feeder is not None:
            self._feeder.join()
        self._process.terminate()
        self._process.wait()


def lags(spark: SparkSession, work: Path, batches: int, number: int) -> np.ndarray[Any, Any]:
    """How old each record is when its batch is done, in seconds.

    The first two batches pay for the start of the query and do not count.
    """
    daemon = Daemon(work / f"lag-{number}")
    found: list[np.ndarray[Any, Any]] = []
    enough = threading.Event()
    try:
        with fastjournal.connect(daemon.url) as client:
            client.put(b"first", queue="q")
        daemon.feed()

        def work_on(batch: DataFrame, _: int) -> None:
            table = batch.toArrow()
            ages = time.time_ns() - table.column("time_ns").to_numpy()
            found.append(ages / 1e9)
            if len(found) == batches + 2:
                enough.set()

        frame = (
            spark.readStream.format("fastjournal")
            .options(startingOffsets="latest", columns="time_ns,queue,payload")
            .load(str(daemon.journal))
        )
        query = (
            frame.writeStream.foreachBatch(work_on)
            .option("checkpointLocation", str(work / f"lag-checkpoint-{number}"))
            .trigger(processingTime="1 second")
            .start()
        )
        if not enough.wait(PATIENCE):
            raise SystemExit(f"{len(found)} batches in {PATIENCE} s: {query.lastProgress}")
        query.stop()
    finally:
        daemon.stop()
    say(f"{sum(map(len, found)):,} records in {len(found)} batches")
    return np.concatenate(found[2 : batches + 2])


def lagging(bench: Bench, spark: SparkSession, work: Path) -> None:
    """The same runs give the median and the 99th percentile."""
    batches = 4 if bench.quick else 30
    figures = [lags(spark, work, batches, n) for n in range(bench.repeats)]
    for percent in (50, 99):
        told = iter([float(np.percentile(one, percent)) for one in figures])
        row = f"lag p{percent}, {RATE:,} puts/s, 1 s trigger"
        bench.row(row, told.__next__, unit="s", better="lower")


def sinking(bench: Bench, spark: SparkSession, work: Path, rows: int) -> None:
    """Rows of 100 random bytes, computed beforehand and read from Parquet."""
    numbers = count()

    def made(rows: int) -> DataFrame:
        frame = spark.range(0, rows, 1, 4).selectExpr(
            "unhex(sha2(cast(id as string), 512)) || unhex(sha2(cast(id as string), 256)) payload",
            "concat('queue-', id % 20) as queue",
            "concat('key ', id) as key",
        )
        target = str(work / f"rows-{next(numbers)}")
        frame.write.parquet(target)
        return spark.read.parquet(target)

    plain = made(rows).select("payload", "queue")

    def sink(frame: DataFrame, target: str) -> None:
        frame.write.format("fastjournal").mode("append").save(target)

    def fresh() -> str:
        return str(work / f"sink-{next(numbers)}")

    sink(plain.limit(1000), fresh())
    peers = {"Spark's Parquet writer": Meter(rows, lambda: plain.write.parquet(fresh()))}
    both_rows(bench, "sink, no keys", "rows", Meter(rows, lambda: sink(plain, fresh())), peers)
    few = made(rows // 5)
    both_rows(bench, "sink, keys", "rows", Meter(rows // 5, lambda: sink(few, fresh())), {})
    daemon = Daemon(work / "sink-daemon")
    try:
        ours = Meter(rows // 5, lambda: sink(few.select("payload", "queue"), daemon.url))
        both_rows(bench, "sink, into a daemon", "rows", ours, {})
    finally:
        daemon.stop()


def main() -> None:
    bench = Bench("spark_stream", "streams over a live journal, and sinks into one", 3)
    records = int(os.environ.get("BENCH_RECORDS", 50_000 if bench.quick else 1_000_000))
    work = Path(tempfile.mkdtemp(prefix="fastjournal-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        say("starting Spark")
        spark = session(2)
        sinking(bench, spark, work, records)
        sourcing(bench, spark, work, records)
        lagging(bench, spark, work)
        spark.stop()
        bench.finish()
        say("done")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
