"""Spark as the consumer: what is done is done once, what is lost comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from fastjournal.errors import BadRequest, SettingError, Unavailable
from fastjournal.journal.journal import Journal
from fastjournal.model import State
from fastjournal.spark.consume.bulk_edit import Applied, apply_frame
from fastjournal.spark.consume.executor_side import answered
from fastjournal.spark.consume.loop import Consumed, consume, per_job
from fastjournal.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = 1_769_860_800_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON)


@pytest.fixture
def journal(tmp_path: Path, clock: ManualClock) -> Iterator[Journal]:
    with Journal(tmp_path / "j", clock=clock, background=False, sync="os") as opened:
        yield opened


def fill(journal: Journal, count: int, queue: str = "q") -> None:
    journal.put_many([{"payload": b"%d" % n, "queue": queue} for n in range(count)])


def states(journal: Journal) -> dict[str, int]:
    found: dict[str, int] = {}
    for job in journal.jobs(limit=10_000):
        found[job.state.name] = found.get(job.state.name, 0) + 1
    return found


def doubled(jobs: pa.RecordBatch) -> list[bytes]:
    return [b"%d" % (2 * int(value)) for value in jobs.column("payload").to_pylist()]


def test_every_job_is_worked_on_once_and_its_result_kept(
    spark: SparkSession, journal: Journal
) -> None:
    fill(journal, 250)
    seen: list[Consumed] = []
    told = consume(spark, journal, "q", doubled, 100, once=True, progress=seen.append)
    assert (told.leased, told.done, told.failed, told.lost) == (250, 250, 0, 0)
    assert told.batches == 3 and len(seen) == 3 and seen[-1].done == 250
    found = {int(job.value): int(job.result) for job in journal.jobs(limit=1000)}
    assert found == {n: 2 * n for n in range(250)}


def test_jobs_without_results_just_go_and_other_queues_stay(
    spark: SparkSession, journal: Journal
) -> None:
    fill(journal, 30)
    fill(journal, 5, "other")
    told = consume(spark, journal, "q", lambda jobs: None, once=True)
    assert told.done == 30 and states(journal) == {"WAITING": 5}


def test_a_job_that_fails_is_tried_again_and_dies_with_its_reason(
    spark: SparkSession, journal: Journal, clock: ManualClock
) -> None:
    journal.configure("q", max_fails=2, backoff_base=1)
    fill(journal, 10)

    def odd(value: bytes) -> bytes | None:
        if int(value) % 2:
            raise ValueError(f"{value!r} is odd")
        return None

    first = consume(spark, journal, "q", per_job(odd), once=True)
    assert (first.done, first.failed) == (5, 5) and states(journal) == {"WAITING": 5}
    clock.advance(10)
    second = consume(spark, journal, "q", per_job(odd), once=True)
    assert (second.done, second.failed) == (0, 5) and states(journal) == {"FAILED": 5}
    assert all(b"is odd" in job.result for job in journal.jobs())


def _batch(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "place": pa.array(range(count), pa.int64()),
            "id": [bytes(16)] * count,
            "queue": ["q"] * count,
            "key": [""] * count,
            "payload": [b"v"] * count,
            "attempt": pa.array([1] * count, pa.int32()),
        }
    )


@pytest.mark.parametrize(
    ("answer", "results", "errors"),
    [
        (None, [None, None], [None, None]),
        ([b"a", None], [b"a", None], [None, None]),
        (pa.array(["a", "b"]), [b"a", b"b"], [None, None]),
        (pa.table({"error": ["bad", None]}), [None, None], ["bad", None]),
        (pa.table({"result": [b"x", b"y"]}), [b"x", b"y"], [None, None]),
    ],
)
def test_answers_come_in_several_shapes(
    answer: Any, results: list[bytes | None], errors: list[str | None]
) -> None:
    found = answered(lambda jobs: answer, _batch(2)).to_pydict()
    assert (found["result"], found["error"]) == (results, errors)


@pytest.mark.parametrize(
    ("answer", "word"),
    [([b"a"], "1 answers for 2 jobs"), (pa.table({"x": [1, 2]}), "neither"), (7, "Error")],
)
def test_an_answer_that_does_not_fit_fails_its_batch(answer: Any, word: str) -> None:
    found = answered(lambda jobs: answer, _batch(2)).to_pydict()
    assert all(word in error for error in found["error"])


class Touched:
    """A journal that tells by a file that leases were touched."""

    def __init__(self, journal: Journal, mark: Path) -> None:
        self._journal = journal
        self._mark = mark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def touch_many(self, held: Any, extend: Any = None) -> Any:
        until = self._journal.touch_many(held, extend)
        self._mark.touch()
        return until


def test_leases_are_touched_while_a_batch_runs(
    spark: SparkSession, journal: Journal, tmp_path: Path
) -> None:
    mark = tmp_path / "touched"
    name = str(mark)

    def patient(jobs: pa.RecordBatch) -> None:
        from fastjournal.testing import wait_until

        wait_until(lambda: Path(name).exists(), seconds=60)

    fill(journal, 3)
    told = consume(spark, Touched(journal, mark), "q", patient, once=True, lease=0.3)
    assert told.done == 3 and told.touched >= 1


def test_what_an_executor_takes_with_it_comes_back_by_time_out(
    spark: SparkSession, journal: Journal, clock: ManualClock
) -> None:
    fill(journal, 4)

    def fatal(jobs: pa.RecordBatch) -> None:
        import os

        os._exit(3)

    with pytest.raises(Unavailable, match="Spark job failed"):
        consume(spark, journal, "q", fatal, once=True)
    assert states(journal) == {"PROCESSING": 4}
    clock.advance(61)
    journal.tick()
    assert states(journal) == {"WAITING": 4}
    told = consume(spark, journal, "q", lambda jobs: None, once=True)
    assert told.done == 4
    assert states(journal) == {}


class Late:
    """A journal whose leases are all lost before the results arrive."""

    def __init__(self, journal: Journal, clock: ManualClock) -> None:
        self._journal = journal
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def complete_many(self, finished: Any) -> list[bool]:
        self._clock.advance(100)
        self._journal.tick()
        return self._journal.complete_many(finished)


def test_a_result_that_comes_too_late_is_not_acknowledged(
    spark: SparkSession, journal: Journal, clock: ManualClock
) -> None:
    """FJ: a lease is a fencing token."""
    fill(journal, 6)
    stop = threading.Event()
    told = consume(
        spark, Late(journal, clock), "q", doubled, stop=stop, depth=1,
        progress=lambda _: stop.set(),
    )  # fmt: skip
    assert (told.done, told.lost) == (0, 6)
    assert states(journal) == {"WAITING": 6}


def test_a_stop_settles_what_runs_and_leases_nothing_more(
    spark: SparkSession, journal: Journal
) -> None:
    fill(journal, 500)
    stop = threading.Event()
    told = consume(
        spark, journal, "q", lambda jobs: None, 100, stop=stop, depth=1, wait=0.01,
        progress=lambda _: stop.set(),
    )  # fmt: skip
    assert told.done == told.leased == 100
    assert states(journal) == {"WAITING": 400}


def test_a_daemon_is_consumed_by_its_url(spark: SparkSession, tmp_path: Path) -> None:
    import fastjournal
    from fastjournal.testing.daemon import LocalDaemon

    with LocalDaemon(tmp_path / "data") as daemon:
        with fastjournal.connect(daemon.url) as client:
            client.put_many([{"payload": b"%d" % n, "queue": "q"} for n in range(120)])
        told = consume(spark, daemon.url, "q", doubled, 50, once=True)
        assert (told.done, told.lost) == (120, 0)
        with fastjournal.connect(daemon.url) as client:
            assert len(client.jobs("q", state=State.COMPLETED, limit=500)) == 120


def test_dead_jobs_chosen_by_sql_wait_again(spark: SparkSession, journal: Journal) -> None:
    from fastjournal.spark import JournalTable

    journal.configure("q", max_fails=1)
    fill(journal, 6)
    for job in journal.lease_many(6, "q"):
        job.fail(b"broken")
    assert states(journal) == {"FAILED": 6}
    journal.sync()
    JournalTable.for_path(spark, journal.path).create_views()
    dead = spark.sql("select id, payload from jobs where state = 'FAILED' and payload < X'33'")
    assert apply_frame(journal, dead, "redrive") == Applied(3, 0)
    assert states(journal) == {"FAILED": 3, "WAITING": 3}
    assert apply_frame(journal, dead, "redrive") == Applied(0, 3)
    rest = spark.sql("select id from jobs where payload >= X'33'")
    assert apply_frame(journal, rest, "delete") == Applied(3, 0)
    assert states(journal) == {"WAITING": 3}


def test_rows_of_a_frame_are_put_and_slips_are_told(spark: SparkSession, journal: Journal) -> None:
    frame = spark.createDataFrame(
        [(b"a", "k1", 5), (b"b", None, None)], "value binary, key string, priority int"
    )
    from pyspark.sql import functions as F  # noqa: N812

    assert apply_frame(journal, frame.withColumn("queue", F.lit("q")), "put") == Applied(2, 0)
    assert sorted((job.value, job.rank) for job in journal.jobs("q")) == [(b"a", 5), (b"b", 100)]
    with pytest.raises(BadRequest, match="no argument colour"):
        apply_frame(journal, frame.withColumn("colour", F.lit("red")), "put")
    with pytest.raises(BadRequest, match="needs a column 'id'"):
        apply_frame(journal, frame)
    with pytest.raises(SettingError, match="redrive, delete, put"):
        apply_frame(journal, frame, "paint")
    with pytest.raises(SettingError, match="at least 1"):
        consume(spark, journal, "q", lambda jobs: None, 0)
