"""A consumer loop: lease in bulk, work side by side, keep leases alive, say how it ended.

    def resize(job):
        make_thumbnail(job.payload)

    Worker(fastjournal.connect("fj://host/images"), resize, queues=["thumbs"], concurrency=8).run()

The function gets a `LeasedJob` to read. What it returns (bytes or None) is the result; an exception
fails the job with its traceback, `Retry` gives it back for later. An `async def` runs on a loop of
the worker, anything else in threads. A function that says that it returns something else is refused
before its first run.

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
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastjournal.arguments import Length, Text, length
from fastjournal.client.worker.jobs_in_hand import (
    JobsInHand,
    Running,
    Source,
    WorkerCounts,
)
from fastjournal.client.worker.results import check_result
from fastjournal.clock import SECOND
from fastjournal.errors import BadRequest, Closed, JournalError
from fastjournal.handles import LeasedJob

__all__ = ["Worker"]

_log = logging.getLogger("fastjournal.client.worker")
_FIRST_PAUSE = 0.05
PATIENCE = 2.0
"""Seconds by which an answer may be late before the worker says so."""


class Worker(JobsInHand):
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
        grace: Length = 30.0,
        name: Text = "",
        wait: Length = 1.0,
        schema: int | None = None,
    ) -> None:
        """`prefetch`: jobs leased ahead, as many as `concurrency` unless told; `lease`: length of a
        lease instead of that of the queue; `wait`: how long one request waits for jobs; `schema`:
        only jobs with payloads of this version."""
        if concurrency < 1:
            raise BadRequest("concurrency must be at least 1")
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        )
        check_result(function)
        super().__init__(source, time_limit, is_async)
        self._function = function
        self._queues = list(queues) if queues else None
        self._prefix = prefix
        self._concurrency = concurrency
        self._ahead = concurrency if prefetch is None else prefetch
        self._lease = lease
        self._grace = length(grace, "grace") / SECOND
        self._name = name
        self._wait = length(wait, "wait") / SECOND
        self._patience = self._wait + PATIENCE
        self._schema = schema
        self._inbox: queue.SimpleQueue[Running | None] = queue.SimpleQueue()
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
            self._stopping = True
            self._wind_up()
        return self.counts

    def _fetch(self) -> None:
        """Lease whenever there is room."""
        pause = _FIRST_PAUSE
        while not self._stopping:
            room = self._concurrency + self._ahead - self._held()
            if room <= self._ahead // 2:  # while work is at hand, many with one request
                self._rest(0.5)
                continue
            self._rest(0)  # forget what woke us so far
            try:
                self._asked = time.monotonic()
                jobs = self._lease_some(room)
                self._tell_back()
                pause = _FIRST_PAUSE
            except Closed:
                return
            except JournalError as error:
                self._tell_away(error)
                self._pause(pause * random.uniform(0.5, 1.5))
                pause = min(pause * 2, 5.0)
                continue
            finally:
                self._asked = 0.0
            self.counts.leased += len(jobs)
            for job in jobs:
                self._take(job)

    def _lease_some(self, room: int) -> list[LeasedJob]:
        """Up to `room` jobs, waited for."""
        return self._source.lease_many(
            room, queues=self._queues, prefix=self._prefix, wait=self._wait,
            lease=self._lease, worker=self._name, schema=self._schema,
        )  # fmt: skip

    def _pause(self, seconds: float) -> None:
        """Wait so long, or until a stop was asked for."""
        over = time.monotonic() + seconds
        while not self._stopping and (left := over - time.monotonic()) > 0:
            self._rest(left)

    def _take(self, job: LeasedJob) -> None:
        given = job.lease
        lasts = max(0, given.until - given.job.lease_start) if given.job.lease_start else 0
        lasts = lasts or given.job.lease or 60 * SECOND
        running = Running(job, time.monotonic_ns() + lasts, lasts)
        with self._mutex:
            self._in_hand.add(running)
        self._inbox.put(running)

    def _work(self) -> None:
        """One thread of work."""
        while (running := self._inbox.get()) is not None:
            if self._stopping:
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
            try:
                running = self._inbox.get_nowait()  # a thread costs more than most jobs
            except queue.Empty:
                running = await asyncio.to_thread(self._inbox.get)
            if running is None:
                break
            if self._stopping:
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

    async def _one(self, running: Running) -> None:
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

    def _wind_up(self) -> None:
        """Let what runs end, give back what does not."""
        give_up = time.monotonic() + self._grace
        for _ in range(self._concurrency):
            self._inbox.put(None)
        while (left_over := self._held()) and (left := give_up - time.monotonic()) > 0:
            self._rest(min(left, 0.5))
        self._done.put(None)
        if left_over:
            _log.warning("%d jobs were still running; their leases end by themselves", left_over)
