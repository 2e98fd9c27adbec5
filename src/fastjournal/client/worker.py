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
   needs, up to `time_limit`. A lease that was lost meanwhile is counted and left alone: somebody
   else has the job.
3. Past `time_limit` a job fails. A coroutine is cancelled; a thread cannot be, it keeps its place
   until it returns, and what it returns is dropped.
4. A stop leases nothing more, lets running jobs end for `grace` seconds, then gives up: their
   leases end by themselves.
5. Trouble with the journal is logged and tried again; only a closed journal ends the worker.
6. One alone says how a job ended: whoever claims it first.
7. All leases that are due are kept with one message: a daemon that does not answer holds the
   heartbeat up once, not once for each job.
8. A stop takes no lock: it may come from a signal handler, in the middle of code that holds one.
9. That the journal has gone is said when it is late by two seconds, for a client goes on trying by
   itself; and once more when it is back.
10. A result that is neither bytes nor None is dropped with a word in the log. The work was done,
    and would be done again and again for the sake of its result. A function whose annotation
    allows such a result is refused before its first run; no annotation, or one that cannot be read
    or says nothing definite (`Any`, `object`), is taken as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import queue
import random
import threading
import time
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastjournal.arguments import Length, Text, length
from fastjournal.clock import SECOND
from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    Closed,
    JournalError,
    LeaseLost,
    NotFound,
    failure_text,
)
from fastjournal.handles import Finisher, LeasedJob
from fastjournal.model import State

__all__ = [
    "Failure",
    "JobsInHand",
    "Retry",
    "Running",
    "Source",
    "Worker",
    "WorkerCounts",
    "check_result",
]


_SILENT = (Any, object, typing.NoReturn, typing.Never, inspect.Signature.empty)


def check_result(function: Callable[..., Any]) -> None:
    """Refuse a function that says that it returns neither bytes nor None."""
    wrong = [kind for kind in _members(_returned(function)) if not _is_result(kind)]
    if wrong:
        names = ", ".join(getattr(kind, "__name__", str(kind)) for kind in wrong)
        name = getattr(function, "__qualname__", repr(function))
        raise BadRequest(f"a result is bytes or None; {name} says that it returns {names}")


def _returned(function: Callable[..., Any]) -> Any:
    """The annotation of what it returns, or what a coroutine of it gives."""
    if not inspect.isroutine(function) and not inspect.isclass(function):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - an object to call
    try:
        return inspect.signature(function, eval_str=True).return_annotation
    except Exception:  # an annotation is code: whatever it raises, nothing is known of it
        return inspect.Signature.empty


def _members(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _is_result(kind: Any) -> bool:
    if kind is None or kind is types.NoneType or any(kind is silent for silent in _SILENT):
        return True
    kind = typing.get_origin(kind) or kind
    return not isinstance(kind, type) or issubclass(kind, bytes)


_log = logging.getLogger("fastjournal.client.worker")
_MAX_REASON = 65_536
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
        schema: int | None = None,
    ) -> list[LeasedJob]:
        """Up to `count` jobs."""

    def complete_many(
        self, finished: Iterable[tuple[bytes, int | None, bytes | None]]
    ) -> list[bool]:
        """Complete many."""

    def touch_many(
        self, held: Iterable[tuple[bytes, int]], extend: Length | None = None
    ) -> list[bool]:
        """Keep many leases."""


class Retry(Exception):
    """Raised by a worker's function: give the job back, to be tried again `after` so many seconds.

    It does not count as a failure.
    """

    def __init__(self, delay: Length = 0.0, *, after: Length | None = None) -> None:
        self.delay = length(delay if after is None else after, "after") / SECOND
        super().__init__(f"again in {self.delay} s")


class Failure(Exception):
    """Raised by a worker's function: the job failed, for a reason it puts into its own words.

    `delay`: until it is tried again, instead of what its queue says; `NEVER`: it is dead.
    """

    def __init__(self, reason: bytes, delay: Length | None = None) -> None:
        super().__init__(reason.decode("utf-8", "replace"))
        self.reason = reason
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
    dropped_results: int = 0
    """Results that were neither bytes nor None; their jobs are counted as completed."""


@dataclass(slots=True, eq=False)
class Running:
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


class JobsInHand:
    """Jobs in hand."""

    def __init__(self, source: Source, time_limit: Length | None, is_async: bool) -> None:
        self.counts = WorkerCounts()
        self._source = source
        self._is_async = is_async
        self._time_limit = None if time_limit is None else length(time_limit, "time_limit") / SECOND
        self._stopping = False
        # `put` may interrupt any other call of it: a signal handler needs no more than that.
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Running, bytes | None] | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._in_hand: set[Running] = set()
        self._asked = 0.0
        """Since when the journal owes us an answer, monotonic seconds; 0: it does not."""
        self._patience = math.inf
        """Seconds for which that is nothing to speak of."""
        self._is_away = False

    def stop(self) -> None:
        """Lease nothing more and end when the running jobs have ended.

        Any thread may call it, and any signal handler.
        """
        self._stopping = True
        self._woken.put(None)

    def _jobs_in_hand(self) -> int:
        with self._mutex:
            return len(self._in_hand)

    def _rest(self, seconds: float) -> None:
        """Wait so long, or until a job was let go of or a stop was asked for."""
        with contextlib.suppress(queue.Empty):
            self._woken.get(timeout=max(0.0, seconds))
            while True:
                self._woken.get_nowait()

    def _drop(self, running: Running) -> None:
        with self._mutex:
            self._in_hand.discard(running)
        self._woken.put(None)

    def _finished(self, running: Running, result: Any) -> None:
        if not running.claim():
            self._drop(running)
            return
        if result is not None and not isinstance(result, bytes):
            _log.error(
                "job %s is done, but its result is dropped: it is bytes or None, not %s",
                running.job.id.hex(), type(result).__name__,
            )  # fmt: skip
            self.counts.dropped_results += 1
            result = None
        self._done.put((running, result))

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

    def _complete(self, finished: list[tuple[Running, bytes | None]]) -> None:
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

    def _failed(self, running: Running, error: BaseException) -> None:
        if not running.claim():
            self._drop(running)
            return
        job = running.job
        try:
            if isinstance(error, Retry):
                self._source.release(job.id, job.token, error.delay)
                self.counts.retried += 1
            else:
                if isinstance(error, Failure):
                    reason, delay = error.reason, error.delay
                else:
                    reason, delay = failure_text(error, _MAX_REASON), None
                state = self._source.fail(job.id, job.token, reason, delay)
                self.counts.failed += 1
                _log.warning(
                    "job %s of %s failed%s\n%s", job.id.hex(), job.queue,
                    " and is dead" if state is State.FAILED else "",
                    reason.decode("utf-8", "replace").rstrip(),
                )  # fmt: skip
        except _LOST:
            self.counts.lost += 1
        except JournalError as trouble:
            _log.error("failure of %s was not taken: %s", job.id.hex(), trouble)
        self._drop(running)

    def _release(self, running: Running) -> None:
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
            nearest = min((r.until - r.length * 2 // 3 for r in hand), default=now + SECOND)
            self._touch([r for r in hand if r.until - now < r.length // 3 * 2])
            for running in hand:
                limit = self._exceeded(running)
                if limit is not None:
                    self.counts.timed_out += 1
                    self._failed_late(running, limit)
            if self._stopping and not hand:
                return
            if self._asked and time.monotonic() - self._asked > self._patience:
                self._tell_away("it does not answer")
            time.sleep(min(max((nearest - time.monotonic_ns()) / SECOND, 0.01), 0.25))

    def _tell_away(self, why: object) -> None:
        """Say once that the journal has gone."""
        if not self._is_away:
            self._is_away = True
            _log.warning("the journal is away, will go on trying: %s: %r", why, self._source)

    def _tell_back(self) -> None:
        """Say that it is back, if it was said that it has gone."""
        if self._is_away:
            self._is_away = False
            _log.warning("the journal answers again: %r", self._source)

    def _limit_of(self, running: Running) -> float | None:
        """Seconds that the work may take; None: as long as it needs."""
        return self._time_limit

    def _exceeded(self, running: Running) -> float | None:
        """The time limit that the work is past; None: it is not."""
        limit = self._limit_of(running)
        if limit is None or self._is_async or running.settled or not running.started:
            return None
        return limit if time.monotonic() - running.started > limit else None

    def _failed_late(self, running: Running, limit: float) -> None:
        if not running.claim():
            return
        job = running.job
        try:
            self._source.fail(job.id, job.token, f"time limit of {limit:g} s".encode())
            _log.warning("job %s of %s took longer than %g s", job.id.hex(), job.queue, limit)
            self.counts.failed += 1
        except _LOST:
            self.counts.lost += 1
        except JournalError as trouble:
            _log.error("failure of %s was not taken: %s", job.id.hex(), trouble)

    def _touch(self, due: Sequence[Running]) -> None:
        """Keep these leases, all of one length with one message."""
        by_length: dict[int, list[Running]] = {}
        for running in due:
            by_length.setdefault(running.length, []).append(running)
        for lasts, together in by_length.items():
            began = time.monotonic_ns()
            try:
                kept = self._source.touch_many(
                    [(r.job.id, r.job.token) for r in together], lasts / SECOND
                )
            except JournalError as error:
                _log.warning("%d leases were not prolonged: %s", len(together), error)
                continue
            for running, is_ours in zip(together, kept, strict=True):
                if is_ours:
                    running.until = began + lasts
                elif not running.settled and running.claim():
                    self.counts.lost += 1
                    _log.warning("lease of job %s was lost", running.job.id.hex())


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
            room = self._concurrency + self._ahead - self._jobs_in_hand()
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
        while (left_over := self._jobs_in_hand()) and (left := give_up - time.monotonic()) > 0:
            self._rest(min(left, 0.5))
        self._done.put(None)
        if left_over:
            _log.warning("%d jobs were still running; their leases end by themselves", left_over)
