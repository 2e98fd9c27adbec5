"""Batches into a running daemon: exactly once, though the daemon or the writer is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import fastjournal
from daemon_process import DaemonProcess
from fastjournal.journal.journal import Journal
from fastjournal.model import NewJob
from fastjournal.spark.sink.batch import Batch
from fastjournal.spark.sink.commit import Adopted, adopt_into
from fastjournal.spark.sink.encode import Staged, stage
from fastjournal.spool.daemon_destination import Delivered, Delivery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 6000


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    running = DaemonProcess(tmp_path / "d")
    running.start()
    yield running
    if running.process is not None:
        running.stop()


@pytest.fixture
def staged(tmp_path: Path) -> list[Staged]:
    """A batch of two files; every third row has a key."""
    files = []
    for first in (0, ROWS // 2):
        numbers = range(first, first + ROWS // 2)
        rows = pa.RecordBatch.from_pydict(
            {
                "payload": pa.array([b"job %d" % n for n in numbers]),
                "key": pa.array([f"key {n}" if n % 3 == 0 else None for n in numbers]),
                "queue": pa.array(["q"] * len(numbers)),
            }
        )
        files.append(stage([rows], tmp_path / f"part-{first}.log"))
    return files


class Disturbed(Delivery):
    """A delivery that meets trouble before job number `at`, or before it forgets its sender."""

    def __init__(self, url: str, at: int, trouble: Callable[[], None]) -> None:
        super().__init__(url)
        self.at, self.trouble = at, trouble

    def put_from(self, sender: bytes, jobs: Iterator[tuple[int, NewJob]]) -> Delivered:  # type: ignore[override]
        def watched() -> Iterator[tuple[int, NewJob]]:
            for job in jobs:
                self.at -= 1
                if self.at == 0:
                    self.trouble()
                yield job

        return super().put_from(sender, watched())

    def forget_sender(self, sender: bytes) -> None:
        if self.at > 0:
            self.trouble()
        super().forget_sender(sender)


def check(daemon: DaemonProcess) -> None:
    """Every row is there once."""
    assert daemon.stop() == 0
    with Journal(daemon.data / "default", background=False) as journal:
        found = journal.jobs("q", limit=10**6)
        assert sorted(job.value for job in found) == sorted(b"job %d" % n for n in range(ROWS))
        assert len(journal.engine.state.senders) == 1  # the application; the batch is forgotten


@pytest.mark.kill
@pytest.mark.parametrize("at", [1, 4321, ROWS, ROWS + 1])
def test_a_daemon_killed_during_the_adoption_has_every_row_once(
    daemon: DaemonProcess, staged: list[Staged], at: int
) -> None:
    def kill() -> None:
        daemon.kill()
        daemon.start()

    delivery = Disturbed(daemon.url, at, kill)
    done = adopt_into(delivery, Batch("query", 1), staged)
    assert (done.rows, done.new + done.repeated) == (ROWS, ROWS)
    assert adopt_into(Delivery(daemon.url), Batch("query", 1), staged) == Adopted(
        ROWS, repeated=ROWS
    )
    check(daemon)


class Killed(BaseException):
    """The writer dies here."""


@pytest.mark.parametrize("at", [1, 4321, ROWS, ROWS + 1])
def test_a_writer_killed_during_the_adoption_is_carried_on(
    daemon: DaemonProcess, staged: list[Staged], at: int
) -> None:
    def die() -> None:
        raise Killed

    with pytest.raises(Killed):
        adopt_into(Disturbed(daemon.url, at, die), Batch("query", 1), staged)
    adopt_into(Delivery(daemon.url), Batch("query", 1), staged)
    check(daemon)


def test_a_dataframe_is_written_to_a_running_daemon_once(
    spark: SparkSession, daemon: DaemonProcess, tmp_path: Path
) -> None:
    rows = spark.range(ROWS).selectExpr("concat('job ', id) as payload", "'q' as queue")
    options = {"txnAppId": "load", "txnVersion": 1, "stagingLocation": str(tmp_path / "staging")}
    for _ in range(2):
        rows.write.format("fastjournal").mode("append").options(**options).save(daemon.url)
    with fastjournal.connect(daemon.url) as client:
        assert client.queue("q").ready == ROWS
    assert not (tmp_path / "staging").exists()
    check(daemon)
