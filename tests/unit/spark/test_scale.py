"""What must not grow with a journal: the memory of a cleaning, and open descriptors.

Figures of these runs stand in docs/benchmarks.md.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

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


def test_ten_thousand_segments_are_planned_read_and_followed_with_few_descriptors(
    tmp_path: Path,
) -> None:
    def put(number: int, count: int = 3) -> None:
        records = [encode(T0 + 10 * number + n, b"\x05" + bytes(16)) for n in range(count)]
        (tmp_path / segment_name(number)).write_bytes(WORKQ.encode() + b"".join(records))

    for number in range(1, 10_001):
        put(number)
    schema = struct("records", ["time_ns"])
    settings = Settings.parse({"path": str(tmp_path), "columns": "time_ns"})
    batch = JournalReader(schema, settings)
    before = descriptors()
    spans = batch.partitions()
    assert sum(one.num_rows for span in spans for one in batch.read(span)) == 30_000
    assert descriptors() <= before + 2

    stream = JournalStreamReader(
        schema, StreamSettings.parse({"path": str(tmp_path), "startingOffsets": "latest"})
    )
    offset = stream.initialOffset()
    opened = []
    for trigger in range(200):
        put(10_001 + trigger)
        following = stream.latestOffset(offset, ReadAllAvailable())
        parts = stream.partitions(offset, following)
        assert sum(one.num_rows for part in parts for one in stream.read(part)) == 3
        offset = following
        opened.append(descriptors())
    assert max(opened) <= before + 3 and len(set(opened[10:])) == 1
