"""Spark over the log, beside Spark's own readers and a plain Python replay of the same records.

Rows: reading all columns, five, one; replay; audit; clean; growth with the log and with cores.
The log holds random values, which do not compress: what Parquet gains is layout, not zip. Page
cache warm, two cores, Spark's full compiler. `--quick`: 100 MB, else 1 GB and 5 million records
(BENCH_RECORDS=1000000 for another size); five repeats unless told. Beside each row by the clock
stands one by CPU time, of the JVM and all Python workers together: on a shared machine it is the
steadier figure. What is being done goes to standard error.

JSON lines are read for all columns only: a reader of JSON parses a whole line for any of them. One
Python process replays the log of a fifth of the size: it takes minutes for the large one, and its
speed does not depend on the size.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM, signal
from time import perf_counter
from typing import TYPE_CHECKING

from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.record import encode_many
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.spark import local_session, read
from fastjournal.spark.audit.run import audit
from fastjournal.spark.maintain.clean import clean
from harness import Bench
from spark_data import T0, write_log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIVE = ["time", "command", "id", "queue", "size"]


_BEGAN = perf_counter()


def say(words: str) -> None:
    """What is being done now, for whoever waits."""
    print(f"[{perf_counter() - _BEGAN:5.0f} s] {words}", file=sys.stderr, flush=True)


def drain(frame: DataFrame) -> None:
    """Compute every row and keep none."""
    frame.write.format("noop").mode("overwrite").save()


def cpu_seconds() -> float:
    """CPU time of this process and all its descendants, the dead ones included."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            spent[int(entry.name)] = sum(map(int, fields[11:15])) / tick
    mine = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in mine} - mine
        mine |= more
        grown = bool(more)
    return sum(spent.get(pid, 0.0) for pid in mine)


class Meter:
    """Things done in a second by the clock; remembers how many in a second of CPU time."""

    def __init__(
        self, count: float, work: Callable[[], object], prepare: Callable[[], object] | None = None
    ) -> None:
        """`prepare` is done before each run and does not count."""
        self._count = count
        self._work = work
        self._prepare = prepare
        self.by_cpu: list[float] = []

    def __call__(self) -> float:
        if self._prepare is not None:
            self._prepare()
        cpu, start = cpu_seconds(), perf_counter()
        self._work()
        took = perf_counter() - start
        self.by_cpu.append(self._count / max(cpu_seconds() - cpu, 0.01))
        return self._count / took


def both_rows(bench: Bench, name: str, unit: str, ours: Meter, peers: dict[str, Meter]) -> None:
    """One row by the clock, one by CPU time, from the same runs."""
    say(name)
    bench.row(name, ours, peers, unit=f"{unit}/s", better="higher")
    told = {peer: iter(meter.by_cpu).__next__ for peer, meter in peers.items()}
    bench.row(
        f"{name}, by CPU",
        iter(ours.by_cpu).__next__,
        told,
        unit=f"{unit}/CPU-s",
        better="higher",
    )


def plain_replay(directory: Path) -> None:
    """One Python process, the journal's own state, indexes and all: what a start does."""
    state = JournalState()
    cursor = Stream(directory, WORKQ).open_cursor()
    for batch in cursor.batches():
        for record in batch:
            state.apply(decode(record.payload), record.time)
    cursor.close()


def session(cores: int) -> SparkSession:
    return local_session(
        f"local[{cores}]",
        **{
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.driver.memory": "3g",
            "spark.sql.shuffle.partitions": "4",
        },
    )


def reading(bench: Bench, spark: SparkSession, directory: Path, work: Path, count: int) -> None:
    """All columns, five, one; beside Parquet and JSON lines of the same rows."""
    whole = read(spark, directory)
    say("writing Parquet and JSON")
    whole.write.option("compression", "zstd").parquet(str(work / "parquet"))
    whole.write.json(str(work / "json"))
    schema = whole.schema

    def parquet() -> DataFrame:
        return spark.read.parquet(str(work / "parquet"))

    def lines() -> DataFrame:
        return spark.read.schema(schema).json(str(work / "json"))

    rows: list[tuple[str, list[str]]] = [
        ("all columns", []),
        ("5 columns", FIVE),
        ("1 column, counted by value", ["command"]),
    ]
    for name, columns in rows:

        def finish(frame: DataFrame, columns: list[str] = columns) -> None:
            chosen = frame.select(*columns) if columns else frame
            drain(chosen.groupBy("command").count() if len(columns) == 1 else chosen)

        peers = {"Parquet, zstd": Meter(count, lambda f=finish: f(parquet()))}  # type: ignore[misc]
        if not columns:
            peers["JSON lines"] = Meter(count, lambda f=finish: f(lines()))  # type: ignore[misc]
        ours = Meter(count, lambda c=columns, f=finish: f(read(spark, directory, columns=c)))  # type: ignore[misc]
        both_rows(bench, f"read, {name}", "records", ours, peers)
    shutil.rmtree(work / "json")
    shutil.rmtree(work / "parquet")


def replaying(
    bench: Bench, spark: SparkSession, directory: Path, count: int, words: str, *, peer: bool
) -> None:
    """The state from the log, beside one plain Python process."""
    plain = Meter(count, lambda: plain_replay(directory))
    peers = {"one Python process, all indexes": plain} if peer else {}
    ours = Meter(count, lambda: drain(read(spark, directory, view="jobs", shards=2)))
    both_rows(bench, f"replay, {count:,} records, {words}", "records", ours, peers)


def auditing(bench: Bench, spark: SparkSession, directory: Path, count: int) -> None:
    """Every record applied and checked."""
    ours = Meter(count, lambda: audit(spark, directory, opinion=False).count())
    both_rows(bench, "audit", "records", ours, {})
    if bench.quick:
        return
    ours = Meter(count, lambda: audit(spark, directory).count())
    both_rows(bench, "audit with the second opinion", "records", ours, {})


def cleaning(bench: Bench, spark: SparkSession, directory: Path, work: Path, size: int) -> None:
    """A whole journal, of which most is dead."""
    copy = work / "clean"

    def prepare() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        (copy / segment_name(999)).write_bytes(WORKQ.encode() + _one_record())

    ours = Meter(size / 1e6, lambda: clean(spark, copy, now=T0 + 10**18), prepare)
    both_rows(bench, "clean", "MB", ours, {})
    shutil.rmtree(copy)


def one_core(bench: Bench, directory: Path, count: int) -> None:
    """The same replay with half the cores."""
    spark = session(1)
    measure = Meter(count, lambda: drain(read(spark, directory, view="jobs", shards=1)))
    say("a session with one core")
    measure()
    measure.by_cpu.clear()
    both_rows(bench, f"replay, {count:,} records, 1 core", "records", measure, {})
    spark.stop()


def _one_record() -> bytes:
    return encode_many(T0 + 10**15, [encode(k.Mark(T0, 1, 8, b""))])[0]


def main() -> None:
    bench = Bench("spark", "Spark over the log, beside Spark's own readers and plain Python", 5)
    signal(SIGTERM, lambda *_: sys.exit(143))  # the files go when it is stopped, too
    large = int(os.environ.get("BENCH_RECORDS", 480_000 if bench.quick else 5_000_000))
    small = large // 5
    work = Path(tempfile.mkdtemp(prefix="fastjournal-bench-", dir=os.environ.get("BENCH_DIR")))
    try:
        say("writing logs")
        write_log(work / "small", small)
        write_log(work / "living", small, ending=False)
        size = write_log(work / "large", large)
        say(f"{large:,} records, {size / 1e6:.0f} MB; starting Spark")
        spark = session(2)
        drain(read(spark, work / "small"))
        reading(bench, spark, work / "large", work, large)
        replaying(bench, spark, work / "living", small, "no job ended", peer=True)
        replaying(bench, spark, work / "small", small, "most ended", peer=True)
        replaying(bench, spark, work / "large", large, "most ended", peer=False)
        auditing(bench, spark, work / "small", small)
        cleaning(bench, spark, work / "large", work, size)
        spark.stop()
        if not bench.quick:  # a second session takes ten seconds to start
            one_core(bench, work / "large", large)
        bench.finish()
        say("done")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
