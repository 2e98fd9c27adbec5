"""What must not grow with a journal: memory, open descriptors, the time of a trigger.

Figures of these runs stand in docs/benchmarks.md. `make test-slow ARGS="tests/spark/test_scale.py"`
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadAllAvailable

from fastjournal.log.manifest import ManifestFile
from fastjournal.log.record import encode
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.spark.maintain.clean import clean_journal
from fastjournal.spark.options import Settings
from fastjournal.spark.schema import struct
from fastjournal.spark.source.data_source import JournalReader
from fastjournal.spark.stream.reader import JournalStreamReader, StreamSettings
from fastjournal.spark.tasks import Task
from large_log import T0, write_large_log

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def own_memory() -> int:
    """Bytes of this process that are no mapped file."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def most_memory(work: Callable[[], Any]) -> tuple[Any, int]:
    """What work gives, and by how much the process grew meanwhile."""
    done = threading.Event()
    before = peak = own_memory()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        return work(), peak - before
    finally:
        done.set()
        watcher.join()


@pytest.mark.parametrize("rows", [500_000, 6_000_000])
def test_memory_of_a_cleaning_does_not_grow_with_the_rows(
    tmp_path: Path, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = 0

    def shipped(tasks: Sequence[Task]) -> list[Any]:
        """Each task as Spark has it: sent, done, and its answers sent back."""
        nonlocal answered
        found: list[Any] = []
        for task in tasks:
            answers = pickle.dumps(list(pickle.loads(pickle.dumps(task))()))
            answered += len(answers)
            found += pickle.loads(answers)
        return found

    write_large_log(tmp_path / "small", 1000, live=0.5, segments=2)
    clean_journal(shipped, Stream(tmp_path / "small", WORKQ), now=2**62)  # loads the kernels
    answered = 0
    living = write_large_log(tmp_path / "j", rows, live=0.4, segments=rows // 125_000)
    size = sum(path.stat().st_size for path in (tmp_path / "j").iterdir())
    report, grown = most_memory(
        lambda: clean_journal(
            shipped, Stream(tmp_path / "j", WORKQ), now=2**62, cores=2, most_rows=1 << 18
        )
    )
    with capsys.disabled():
        print(f"\n{rows:,} rows, {size:,} bytes: {grown:,} of memory, {answered:,} of answers")
    assert report.live_rows == living
    assert report.bytes_after < 0.6 * size
    assert grown < 200 << 20
    assert answered < 2000 * (report.bytes_before // (125_000 * 242) + 4)


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("named", [True, False], ids=["with a manifest", "without"])
@pytest.mark.parametrize("segments", [1_000, 10_000])
def test_many_segments_are_planned_read_and_followed_in_flat_time_with_few_descriptors(
    tmp_path: Path, segments: int, named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def put(number: int, count: int = 3) -> None:
        records = [encode(T0 + 10 * number + n, b"\x05" + bytes(16)) for n in range(count)]
        (tmp_path / segment_name(number)).write_bytes(WORKQ.encode() + b"".join(records))

    for number in range(1, segments + 1):
        put(number)
    manifest = ManifestFile(Stream(tmp_path, WORKQ)) if named else None
    if manifest is not None:
        manifest.take_in(segments - 1)
    schema = struct("records", ["time_ns"])
    settings = Settings.parse({"path": str(tmp_path), "columns": "time_ns"})
    batch = JournalReader(schema, settings)
    before, began = descriptors(), process_time()
    spans = batch.partitions()
    planned, began = process_time() - began, process_time()
    assert sum(one.num_rows for span in spans for one in batch.read(span)) == 3 * segments
    took = process_time() - began
    assert descriptors() <= before + 2

    stream = JournalStreamReader(
        schema, StreamSettings.parse({"path": str(tmp_path), "startingOffsets": "latest"})
    )
    offset = stream.initialOffset()
    opened, times = [], []
    for trigger in range(200):
        put(segments + 1 + trigger)
        if manifest is not None:
            manifest.seal(segments + trigger, T0 + 10 * (segments + trigger) + 2)
        began = process_time()
        following = stream.latestOffset(offset, ReadAllAvailable())
        parts = stream.partitions(offset, following)
        assert sum(one.num_rows for part in parts for one in stream.read(part)) == 3
        times.append(process_time() - began)
        offset = following
        opened.append(descriptors())
    first, last = median(times[:50]), median(times[-50:])
    with capsys.disabled():
        print(
            f"\n{segments:,} segments, manifest: {named}:"
            f" CPU to plan {planned:.3f} s, to read {took:.2f} s,"
            f" a trigger {1e3 * first:.1f} ms at first and {1e3 * last:.1f} ms at last"
        )
    assert max(opened) <= before + 3 and len(set(opened[10:])) == 1
    assert last < 2 * first + 0.01


ALL_OF_IT = """
import json, sys
from time import perf_counter
from fastjournal.spark import JournalTable, local_session
journal, lake = sys.argv[1:]
spark = local_session("local[2]", **{
    "spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.memory": "1g"})
table = JournalTable.for_path(spark, journal)

def tell(name, work):
    print(json.dumps({"begins": name}), flush=True)
    began = perf_counter()
    found = work()
    print(json.dumps({"ended": name, "seconds": perf_counter() - began, **found}), flush=True)

def replay(**options):
    frame = table.jobs(**options)
    return {"rows": frame.groupBy("state").count().groupBy().sum("count").collect()[0][0]}

def export():
    told = table.export(lake, delta=True)
    return {"records": told.records, **told.rows}

def clean():
    told = table.clean(now=2**62)
    return {"rows": told.live_rows, "bytes": told.bytes_after, "dropped": told.records_dropped}

def every_column():
    table.jobs().write.format("noop").mode("overwrite").save()
    return {}

tell("replay", lambda: replay(columns=["state"]))
tell("export", export)
tell("clean", clean)
tell("replay of what is left", lambda: replay(columns=["state"]))
tell("replay, every column", every_column)
spark.stop()
"""


def family(pid: int) -> Iterator[int]:
    """A process and all that come from it."""
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for one in children:
        yield from family(int(one))


def memory_of(pid: int) -> tuple[int, int]:
    """Bytes of a process that are no mapped file, and all that it has in memory.

    Files of the log are the page cache's. A page that workers share since they were forked is
    counted once in the first, a part for each, and for each of them in the second.
    """
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0, 0
    sizes = [
        sum(int(told.partition(name)[2].split()[0]) * 1024 for name in names if name in told)
        for names in (("Pss_Anon:", "Pss_Shmem:"), ("Rss:",))
    ]
    return sizes[0], sizes[1]


@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(133_333, id="0.3 million records"),
        pytest.param(1_333_333, id="3 million records"),
        pytest.param(4_444_444, id="10 million records"),
        pytest.param(13_333_333, id="30 million records"),
    ],
)
def test_millions_of_living_rows_are_replayed_exported_and_cleaned_in_four_gigabytes(
    tmp_path: Path, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In total: the JVM, the driver and all workers at the same moment."""
    journal, lake = tmp_path / "j", tmp_path / "lake"
    segments = max(rows // 125_000, 2)
    living = write_large_log(journal, rows, live=0.75, segments=segments)
    ever = rows // segments * segments + 1
    records = 2 * ever + (ever - living)
    size = sum(path.stat().st_size for path in journal.iterdir())
    done = subprocess.Popen(
        [sys.executable, "-c", ALL_OF_IT, str(journal), str(lake)],
        env={**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert done.stdout is not None
    peak, resident, over = 0, 0, threading.Event()

    def watch() -> None:
        nonlocal peak, resident
        while not over.wait(1):
            own, all_of_it = zip(*map(memory_of, family(done.pid)), strict=True)
            peak, resident = max(peak, sum(own)), max(resident, sum(all_of_it))

    watcher = threading.Thread(target=watch)
    watcher.start()
    told: dict[str, dict[str, Any]] = {}
    peaks: dict[str, int] = {}
    try:
        for line in done.stdout:
            found = json.loads(line)
            if "begins" in found:
                peak = resident = 0
            else:
                told[found["ended"]], peaks[found["ended"]] = found, peak
                with capsys.disabled():
                    print(f"\n  {found} {peak:,} bytes, mapped {resident:,}", flush=True)
        assert done.wait() == 0
    finally:
        over.set()
        watcher.join()
        done.kill()
    with capsys.disabled():
        print(f"\n{records:,} records, {living:,} living rows, {size:,} bytes")
        for name, found in told.items():
            print(f"  {name}: {found['seconds']:.0f} s, {peaks[name] / 1e9:.2f} GB in total")
    assert told["replay"]["rows"] == told["replay of what is left"]["rows"] == living
    assert (told["export"]["records"], told["export"]["jobs"]) == (records, living)
    assert (told["export"]["events"], told["export"]["attempts"]) == (records, ever - living)
    assert told["clean"]["rows"] == living
    events = duckdb.from_arrow(DeltaTable(lake / "events").to_pyarrow_dataset())
    counted = events.query("rows", "select count(*), count(distinct time_ns) from rows").fetchall()
    assert counted == [(records, records)]
    assert max(peaks.values()) < 4e9
