"""Spark as the consumer: the driver leases and settles, executors do the work.

    from fastjournal.spark.consume.loop import consume

    def resize(jobs):                     # a pyarrow.RecordBatch: id, queue, key, payload, attempt
        return [thumbnail(value.as_py()) for value in jobs.column("payload")]

    consume(spark, "fj://host/images", "thumbs", resize, 20_000, once=True)

Rules:

1. Only the driver speaks to the journal. A job is completed, or failed, after its result has
   arrived, with the token of its lease: work done twice is acknowledged once.
2. While a batch runs its leases are touched when a third of them has passed.
3. What an executor took with it is not settled: its leases end by themselves and the jobs are
   handed out again. A Spark job that fails as a whole is such a case too.
4. `fn` answers for a batch: None (all done), a list or an array of results (bytes or null), or a
   table with columns `result` and `error`, where an error fails its job. An exception fails all
   jobs of its batch with the end of its text.
5. A stop leases nothing more, lets running batches end, and settles them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from fastjournal.arguments import Length, Text
from fastjournal.errors import (
    AlreadyExists,
    JournalError,
    LeaseLost,
    NotFound,
    SettingError,
    Unavailable,
)
from fastjournal.handles import LeasedJob
from fastjournal.model import State
from fastjournal.spark.consume.executor_side import ANSWER, MAX_REASON, Work, per_job, working
from fastjournal.spark.replay.fold import no_collection
from fastjournal.spark.tasks import parallelism

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["Consumed", "Source", "StopSign", "consume", "opened", "per_job"]

_log = logging.getLogger(__name__)
_LOST = (LeaseLost, NotFound, AlreadyExists)
_AT_ONCE = 10_000  # jobs asked for with one message
_SECOND = 1_000_000_000
_GIVE_UP = 3  # Spark jobs in a row that fail as a whole


class StopSign(Protocol):
    """How a consumer is told to end: a `threading.Event`, or what a signal handler may set."""

    def set(self) -> None:
        """Say so."""

    def is_set(self) -> bool:
        """Whether that was said."""


class Source(Protocol):
    """What is needed of a journal: an embedded `Journal` and a `Client` have it."""

    def lease_many(
        self,
        count: int,
        queue: Text | None = None,
        *,
        wait: Length = 0,
        lease: Length | None = None,
        worker: Text = b"",
    ) -> list[LeasedJob]:
        """Up to `count` jobs; waits only for the first one."""

    def complete_many(self, finished: Any) -> list[bool]:
        """Complete many (id, token, result); False where the lease was lost."""

    def touch(self, job_id: bytes, token: int, extend: Length | None = None) -> int:
        """Keep a lease."""

    def fail(
        self, job_id: bytes, token: int | None, reason: bytes = b"", delay: Length | None = None
    ) -> State:
        """The work failed."""

    def release(self, job_id: bytes, token: int, delay: Length | None = None) -> None:
        """Give a job back unworked."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """What has been done so far."""

    leased: int = 0
    done: int = 0
    failed: int = 0
    lost: int = 0
    """Jobs whose lease was lost, or that went down with a Spark job."""
    batches: int = 0
    touched: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Jobs settled in a second."""
        return (self.done + self.failed) / max(self.seconds, 1e-9)


def opened(journal: Any) -> tuple[Any, bool]:
    """The journal behind a URL, or the one given; and whether it was opened here."""
    if not isinstance(journal, str):
        return journal, False
    # By name: where only files are, nothing of the client is loaded.
    return import_module("fastjournal").connect(journal), True


def consume(
    spark: SparkSession,
    journal: Source | str,
    queue: Text | None,
    fn: Work,
    batch: int = 50_000,
    *,
    once: bool = False,
    stop: StopSign | None = None,
    lease: Length | None = None,
    wait: float = 1.0,
    depth: int = 2,
    partitions: int = 0,
    worker: Text = b"spark",
    progress: Callable[[Consumed], None] | None = None,
) -> Consumed:
    """Work off a queue (None: all queues) with `fn` on the executors.

    `once` ends when nothing more is to be had; else it goes on until `stop` is set. Up to `depth`
    batches are under way at a time, so that leasing, working and settling overlap. `wait`: how many
    seconds to wait for a job before looking at `stop` again. `partitions`: tasks of a batch, by
    cores unless told. `progress` is called after each batch.
    """
    if batch < 1 or depth < 1:
        raise SettingError("batch and depth are at least 1", name="batch")
    source, ours = opened(journal)
    running = _Consumer(
        spark, source, queue, fn, batch, once, stop or threading.Event(), lease, wait,
        partitions or parallelism(spark), worker, progress,
    )  # fmt: skip
    try:
        return running.run(depth)
    finally:
        if ours:
            source.close()


@dataclass
class _Consumer:
    spark: SparkSession
    source: Source
    queue: Text | None
    fn: Work
    batch: int
    once: bool
    stop: StopSign
    lease: Length | None
    wait: float
    partitions: int
    worker: Text
    progress: Callable[[Consumed], None] | None
    _counts: Consumed = field(default_factory=Consumed)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _asking: threading.Lock = field(default_factory=threading.Lock)
    _broken: int = 0
    _started: float = 0.0
    _error: BaseException | None = None

    def run(self, depth: int) -> Consumed:
        self._started = perf_counter()
        threads = [threading.Thread(target=self._loop, daemon=True) for _ in range(depth)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.5)
        except BaseException:  # Ctrl-C: end as `stop` does, then tell
            self.stop.set()
            for thread in threads:
                thread.join()
            raise
        if self._error is not None:
            raise self._error
        return replace(self._counts, seconds=perf_counter() - self._started)

    def _loop(self) -> None:
        try:
            while not self.stop.is_set():
                jobs = self._lease()
                if jobs:
                    self._work(jobs)
                elif self.once:
                    return
        except BaseException as error:
            self._error = self._error or error
            self.stop.set()

    def _lease(self) -> list[LeasedJob]:
        """One batch; one thread asks at a time, so that batches are full."""
        found: list[LeasedJob] = []
        # Leases hold no cycles; looking for some would take half as long again.
        with self._asking, no_collection():
            while len(found) < self.batch and not self.stop.is_set():
                wait = self.wait if not found and not self.once else 0
                more = self.source.lease_many(
                    min(self.batch - len(found), _AT_ONCE), self.queue,
                    wait=wait, lease=self.lease, worker=self.worker,
                )  # fmt: skip
                if not more:
                    break
                found += more
        return found

    def _work(self, jobs: list[LeasedJob]) -> None:
        keeper = _Keeper(self.source, jobs)
        try:
            answers = self._computed(jobs)
        except Exception as error:
            keeper.end()
            self._count(leased=len(jobs), lost=len(jobs), batches=1, touched=keeper.touched)
            _log.warning("a batch of %d jobs went down with its Spark job: %s", len(jobs), error)
            with self._guard:
                self._broken += 1
                broken = self._broken
            if self.once or broken >= _GIVE_UP:
                raise Unavailable(f"Spark job failed: {_first_line(error)}") from error
            return
        except BaseException:
            keeper.end()
            raise
        keeper.end()
        self._broken = 0
        self._settle(jobs, answers, keeper)

    def _computed(self, jobs: list[LeasedJob]) -> pa.Table:
        import pyarrow as pa

        # Each chunk of a table becomes a partition: no shuffle.
        size = -(-len(jobs) // self.partitions)
        tables = [_table(jobs[start : start + size], start) for start in range(0, len(jobs), size)]
        frame = self.spark.createDataFrame(pa.concat_tables(tables))
        return frame.mapInArrow(working(self.fn), ANSWER).toArrow()

    def _settle(self, jobs: list[LeasedJob], answers: pa.Table, keeper: _Keeper) -> None:
        import pyarrow.compute as pc

        good = answers.filter(pc.is_null(answers["error"]))
        places = good["place"].to_pylist()
        finished = [
            (jobs[place].lease.job.id, jobs[place].lease.token, result)
            for place, result in zip(places, good["result"].to_pylist(), strict=True)
        ]
        done = sum(self.source.complete_many(finished)) if finished else 0
        failed = 0
        bad = answers.filter(pc.is_valid(answers["error"]))
        for place, error in zip(bad["place"].to_pylist(), bad["error"].to_pylist(), strict=True):
            lease = jobs[place].lease
            with suppress(*_LOST):
                self.source.fail(lease.job.id, lease.token, error.encode()[-MAX_REASON:])
                failed += 1
        self._count(
            leased=len(jobs), done=done, failed=failed, lost=len(jobs) - done - failed,
            batches=1, touched=keeper.touched,
        )  # fmt: skip

    def _count(self, **more: int) -> None:
        with self._guard:
            old = self._counts
            sums = {name: getattr(old, name) + count for name, count in more.items()}
            self._counts = replace(old, seconds=perf_counter() - self._started, **sums)
            if self.progress is not None:
                self.progress(self._counts)


class _Keeper:
    """Touches the leases of a batch until it ends."""

    def __init__(self, source: Source, jobs: Sequence[LeasedJob]) -> None:
        self._source = source
        self._leases = [(one.lease.job.id, one.lease.token) for one in jobs]
        lengths = [one.lease.until - one.lease.job.lease_start for one in jobs]
        self._pause = max(min(lengths, default=_SECOND) / _SECOND / 3, 0.01)
        self._over = threading.Event()
        self.touched = 0
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        while not self._over.wait(self._pause):
            try:
                self.touched += self._touch()
            except JournalError as error:  # the next turn may do better; settling will tell
                _log.warning("leases could not be touched: %s", error)

    def _touch(self) -> int:
        many = getattr(self._source, "touch_many", None)
        if many is not None:
            return sum(many(self._leases))
        count = 0
        for job_id, token in self._leases:
            if self._over.is_set():
                break
            with suppress(*_LOST):
                self._source.touch(job_id, token)
                count += 1
        return count

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def _table(jobs: Sequence[LeasedJob], first: int = 0) -> pa.Table:
    import pyarrow as pa

    # A job is a tuple: turning many of them into columns costs next to nothing.
    columns = list(zip(*[one.lease.job for one in jobs], strict=True))
    found = dict(zip(jobs[0].lease.job._fields, columns, strict=True))
    return pa.table(
        {
            "place": pa.array(range(first, first + len(jobs)), pa.int64()),
            "id": pa.array(found["id"], pa.binary()),
            "queue": _text(found["queue_bytes"]),
            "key": _text(found["key_bytes"]),
            "payload": pa.array(found["payload"], pa.binary()),
            "attempt": pa.array(found["attempts"], pa.int32()),
        }
    )


def _text(values: Sequence[bytes]) -> pa.Array:
    import pyarrow as pa

    from fastjournal.spark.decode.record_columns import readable

    return readable(pa.array(values, pa.binary()))


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
