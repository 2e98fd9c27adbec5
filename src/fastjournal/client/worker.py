"""A consumer loop: lease in bulk, work side by side, keep leases alive, say how it ended.

    def resize(job):
        make_thumbnail(job.payload)

    Worker(fastjournal.connect("fj://host/images"), resize, queues=["thumbs"], concurrency=8).run()

The function gets a `LeasedJob` to read. What it returns (bytes or None) is the result; an exception
fails the job with its traceback, `Retry` gives it back for later. An `async def` runs on a loop of
the worker, anything else in threads.

Rules:

1. At most `concurrency` jobs are worked on at a time; up to `prefetch` more are leased beforehand
   and given back unworked when the worker stops.
2. Every lease in hand is touched when a third of it has passed, so a job may take as long as it
   needs, up to `time_limit`. A lease that was lost meanwhile is not settled: somebody else has the
   job.
3. Past `time_limit` a job fails. A coroutine is cancelled; a thread cannot be, it keeps its place
   until it returns, and what it returns is dropped.
4. A stop leases nothing more, lets running jobs end for `grace` seconds, then gives up: their
   leases end by themselves.
5. Trouble with the journal is logged and tried again; only a closed journal ends the worker.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import random
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastjournal.edges import Length, Text, length
from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    Closed,
    JournalError,
    LeaseLost,
    NotFound,
)
from fastjournal.leased import Finisher, LeasedJob

__all__ = ["Retry", "Source", "Worker", "WorkerCounts"]

_log = logging.getLogger(__name__)
_SECOND = 1_000_000_000
_LOST = (LeaseLost, NotFound, AlreadyExists)


class Source(Finisher, Protocol):
    """What a worker needs of a journal: an embedded `Journal` and a `Client` have it."""

    def lease_many(
        self,
        count: int,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool = True,
        worker: Text = b"",
        take: bool = False,
    ) -> list[LeasedJob]:
        """Up to `count` jobs."""

    def complete_many(
        self, finished: Iterable[tuple[bytes, int | None, bytes | None]]
    ) -> list[bool]:
        """Complete many."""


class Retry(Exception):
    """Raised by a worker's function: give the job back, to be tried again after `delay` seconds."""

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__(f"again in {delay} s")
        self.delay = delay


@dataclass(slots=True)
class WorkerCounts:
    """What a worker has done."""

    leased: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    lost: int = 0
    """Leases that were somebody else's when the work was done."""
    released: int = 0
    timed_out: int = 0
    """Jobs that took longer than the time limit; counted as failed too."""


@dataclass(slots=True, eq=False)
class _Running:
    """A job in hand."""

    job: LeasedJob
    until: int
    """Monotonic ns at which the lease ends, by our own clock."""
    length: int
    started: float = 0.0
    """Monotonic seconds; 0: not yet."""
    settled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def claim(self) -> bool:
        """Be the one who says how it ended."""
        with self.lock:
            first, self.settled = not self.settled, True
            return first


class Worker:
    """Works off queues with one function; `run` until `stop`."""

    def __init__(
        self,
        source: Source,
        function: Callable[[LeasedJob], Any],
        *,
        queues: Sequence[Text] | None = None,
        prefix: Text | None = None,
        concurrency: int = 1,
        prefetch: int | None = None,
        lease: Length | None = None,
        time_limit: Length | None = None,
        grace: float = 30.0,
        name: Text = "",
        wait: float = 1.0,
    ) -> None:
        """`prefetch`: jobs leased ahead, as many as `concurrency` unless told; `lease`: length of a
        lease instead of that of the queue; `wait`: how long one request waits for jobs."""
        if concurrency < 1:
            raise BadRequest("concurrency must be at least 1")
        self.counts = WorkerCounts()
        self._source = source
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        self._queues = list(queues) if queues else None
        self._prefix = prefix
        self._concurrency = concurrency
        self._room = concurrency + (concurrency if prefetch is None else prefetch)
        self._lease = lease
        self._time_limit = (
            None if time_limit is None else length(time_limit, "time_limit") / _SECOND
        )
        self._grace = grace
        self._name = name
        self._wait = wait
        self._stopping = threading.Event()
        self._inbox: queue.SimpleQueue[_Running | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[_Running, bytes | None] | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._space = threading.Condition(self._mutex)
        self._in_hand: set[_Running] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> WorkerCounts:
        """Work until `stop` is called or the journal is closed; returns what was done."""
        helpers = [threading.Thread(target=self._settle, name="fastjournal-settle", daemon=True)]
        helpers.append(threading.Thread(target=self._beat, name="fastjournal-beat", daemon=True))
        if self._is_async:
            helpers.append(
                threading.Thread(target=self._run_loop, name="fastjournal-loop", daemon=True)
            )
        else:
            helpers += [
                threading.Thread(target=self._work, name=f"fastjournal-work-{n}", daemon=True)
                for n in range(self._concurrency)
            ]
        for thread in helpers:
            thread.start()
        try:
            self._fetch()
        finally:
            self._stopping.set()
            self._wind_up()
        return self.counts

    def stop(self) -> None:
        """Lease nothing more and end when the running jobs have ended; any thread may call it."""
        self._stopping.set()
        with self._space:
            self._space.notify_all()

    def _fetch(self) -> None:
        """Lease whenever there is room."""
        pause = 0.05
        while not self._stopping.is_set():
            with self._space:
                while len(self._in_hand) >= self._room and not self._stopping.is_set():
                    self._space.wait(0.5)
                room = self._room - len(self._in_hand)
            if self._stopping.is_set():
                return
            try:
                jobs = self._source.lease_many(
                    room, queues=self._queues, prefix=self._prefix, wait=self._wait,
                    lease=self._lease, worker=self._name,
                )  # fmt: skip
                pause = 0.05
            except Closed:
                return
            except JournalError as error:
                _log.warning("cannot lease, will try again: %s", error)
                self._stopping.wait(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, 5.0)
                continue
            self.counts.leased += len(jobs)
            for job in jobs:
                self._take(job)

    def _take(self, job: LeasedJob) -> None:
        given = job.lease
        lasts = max(0, given.until - given.job.lease_start) if given.job.lease_start else 0
        lasts = lasts or given.job.lease or 60 * _SECOND
        running = _Running(job, time.monotonic_ns() + lasts, lasts)
        with self._mutex:
            self._in_hand.add(running)
        self._inbox.put(running)

    def _drop(self, running: _Running) -> None:
        with self._space:
            self._in_hand.discard(running)
            self._space.notify()

    def _work(self) -> None:
        """One thread of work."""
        while (running := self._inbox.get()) is not None:
            if self._stopping.is_set():
                self._release(running)
                continue
            running.started = time.monotonic()
            try:
                result = self._function(running.job)
            except BaseException as error:
                self._failed(running, error)
            else:
                self._finished(running, result)

    def _run_loop(self) -> None:
        asyncio.run(self._work_async())

    async def _work_async(self) -> None:
        """The loop of coroutines; jobs are taken from the inbox by a thread."""
        self._loop = asyncio.get_running_loop()
        slots = asyncio.Semaphore(self._concurrency)
        tasks: set[asyncio.Task[None]] = set()
        while True:
            await slots.acquire()
            running = await asyncio.to_thread(self._inbox.get)
            if running is None:
                break
            if self._stopping.is_set():
                await asyncio.to_thread(self._release, running)
                slots.release()
                continue
            task = asyncio.create_task(self._one(running))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda _: slots.release())
        if tasks:
            await asyncio.wait(tasks, timeout=self._grace)
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _one(self, running: _Running) -> None:
        running.started = time.monotonic()
        outcome: Awaitable[Any] = self._function(running.job)
        try:
            async with asyncio.timeout(self._time_limit):
                result = await outcome
        except asyncio.CancelledError:
            self._drop(running)
            raise
        except TimeoutError as error:
            late = time.monotonic() - running.started
            if self._time_limit is not None and late >= self._time_limit:
                self.counts.timed_out += 1
            await asyncio.to_thread(self._failed, running, error)
        except BaseException as error:
            await asyncio.to_thread(self._failed, running, error)
        else:
            self._finished(running, result)

    def _finished(self, running: _Running, result: Any) -> None:
        if result is not None and not isinstance(result, bytes):
            kind = type(result).__name__
            self._failed(running, TypeError(f"a result is bytes or None, not {kind}"))
        elif running.claim():
            self._done.put((running, result))
        else:
            self._drop(running)

    def _settle(self) -> None:
        """Complete what was finished, many at a time."""
        ended = False
        while not ended:
            batch = [self._done.get()]
            while not self._done.empty():
                batch.append(self._done.get())
            finished = [one for one in batch if one is not None]
            ended = len(finished) < len(batch)
            if finished:
                self._complete(finished)

    def _complete(self, finished: list[tuple[_Running, bytes | None]]) -> None:
        items = [(r.job.id, r.job.token, result) for r, result in finished]
        try:
            outcomes = self._source.complete_many(items)
        except JournalError as error:
            _log.error("%d completions were not taken: %s", len(items), error)
            outcomes = [False] * len(items)
        done = sum(outcomes)
        self.counts.completed += done
        self.counts.lost += len(outcomes) - done
        for running, _ in finished:
            self._drop(running)

    def _failed(self, running: _Running, error: BaseException) -> None:
        if not running.claim():
            self._drop(running)
            return
        job = running.job
        try:
            if isinstance(error, Retry):
                self._source.release(job.id, job.token, error.delay)
                self.counts.retried += 1
            else:
                text = "".join(traceback.format_exception(error)).encode("utf-8", "replace")
                self._source.fail(job.id, job.token, text[-65_536:])
                self.counts.failed += 1
                _log.info("job %s failed: %r", job.id.hex(), error)
        except _LOST:
            self.counts.lost += 1
        except JournalError as trouble:
            _log.error("failure of %s was not taken: %s", job.id.hex(), trouble)
        self._drop(running)

    def _release(self, running: _Running) -> None:
        if running.claim():
            try:
                self._source.release(running.job.id, running.job.token)
                self.counts.released += 1
            except JournalError as error:
                _log.warning("job %s was not given back: %s", running.job.id.hex(), error)
        self._drop(running)

    def _beat(self) -> None:
        """Touch leases of which a third has passed; fail jobs that are past their time."""
        while True:
            with self._mutex:
                hand = [r for r in self._in_hand if not r.settled]
            now = time.monotonic_ns()
            nearest = min((r.until - r.length * 2 // 3 for r in hand), default=now + _SECOND)
            for running in hand:
                if running.until - now < running.length // 3 * 2:
                    self._touch(running)
                if self._is_late(running):
                    self.counts.timed_out += 1
                    self._failed_late(running)
            if self._stopping.is_set() and not hand:
                return
            time.sleep(min(max((nearest - time.monotonic_ns()) / _SECOND, 0.01), 0.25))

    def _is_late(self, running: _Running) -> bool:
        return (
            self._time_limit is not None
            and not self._is_async
            and running.started > 0
            and not running.settled
            and time.monotonic() - running.started > self._time_limit
        )

    def _failed_late(self, running: _Running) -> None:
        if not running.claim():
            return
        job = running.job
        try:
            self._source.fail(job.id, job.token, f"time limit of {self._time_limit} s".encode())
            self.counts.failed += 1
        except _LOST:
            self.counts.lost += 1
        except JournalError as trouble:
            _log.error("failure of %s was not taken: %s", job.id.hex(), trouble)

    def _touch(self, running: _Running) -> None:
        job = running.job
        try:
            self._source.touch(job.id, job.token, running.length / _SECOND)
            running.until = time.monotonic_ns() + running.length
        except _LOST:
            if not running.settled and running.claim():
                self.counts.lost += 1
                _log.warning("lease of job %s was lost", job.id.hex())
        except JournalError as error:
            _log.warning("lease of job %s was not prolonged: %s", job.id.hex(), error)

    def _wind_up(self) -> None:
        """Let what runs end, give back what does not."""
        give_up = time.monotonic() + self._grace
        for _ in range(self._concurrency):
            self._inbox.put(None)
        with self._space:
            while self._in_hand and (left := give_up - time.monotonic()) > 0:
                self._space.wait(min(left, 0.5))
            left_over = len(self._in_hand)
        self._done.put(None)
        if left_over:
            _log.warning("%d jobs were still running; their leases end by themselves", left_over)
