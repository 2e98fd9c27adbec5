"""A worker of an app: leases its queues, runs its tasks, fires its schedules, tells who it is.

Rules: those of `client.worker`, and

1. `threads` run calls side by side; coroutine functions run on one loop beside them. `asyncio`: all
   on one loop, plain functions in threads. `processes`: one call at a time in each. Unless told, an
   app all of whose tasks are coroutine functions gets `asyncio`, any other `threads`.
2. One job is leased ahead where jobs are long, and as many as half a second takes where they are
   short.
3. Tokens of a queue's rate are taken before its jobs are leased, and what was not used is given
   back. A call whose own rate is used up goes back until there is a token.
4. It announces itself every ten seconds, and takes the announcement back when it ends.
5. A journal that takes nothing in when the worker starts is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Literal

from fastjournal.arguments import Length
from fastjournal.client.worker import Retry, Running, Worker, WorkerCounts
from fastjournal.clock import SECOND
from fastjournal.errors import (
    BadRequest,
    JournalError,
    NoSpace,
    ReadOnly,
    SettingError,
    Unauthorized,
)
from fastjournal.handles import LeasedJob
from fastjournal.tasks.announcing import (
    EVERY,
    RunningJob,
    WorkerInfo,
    announce_worker,
    forget_worker,
)
from fastjournal.tasks.call_codec import BadArguments, open_envelope
from fastjournal.tasks.execution import about, aexecute, execute, prepare, settle
from fastjournal.tasks.handle import App
from fastjournal.tasks.processes import Child
from fastjournal.tasks.rates import take_tokens
from fastjournal.tasks.scheduler import Scheduler
from fastjournal.tasks.task import Task

__all__ = ["LookAhead", "Mode", "TaskWorker"]

Mode = Literal["threads", "asyncio", "processes"]
_log = logging.getLogger("fastjournal.tasks")
_AHEAD_SECONDS = 0.5
_MOST_AHEAD = 256
_LONGEST_SLEEP = 30.0
_LATER = 1.0  # seconds until a journal that takes nothing in is asked again


class LookAhead:
    """How many jobs are leased beforehand: work for half a second."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._seconds = 1.0
        """What a call takes, the newest counting most."""

    def note(self, seconds: float) -> int:
        """Another call took so long; how many that makes."""
        self._seconds += (seconds - self._seconds) * 0.1
        each = self._concurrency / max(self._seconds, 1e-6)
        return max(1, min(_MOST_AHEAD, int(_AHEAD_SECONDS * each)))


class TaskWorker(Worker):
    """Works off the queues of an app; `run` until `stop`."""

    def __init__(
        self,
        app: App,
        *,
        queues: Sequence[str] | None = None,
        mode: Mode | None = None,
        concurrency: int | None = None,
        prefetch: int | None = None,
        target: str = "",
        recycle_jobs: int = 0,
        recycle_memory: int = 0,
        place: str = "",
        lease: Length | None = None,
        grace: Length = 30.0,
        name: str = "",
        wait: Length = 1.0,
        schedules: bool = True,
        schema: int | None = None,
    ) -> None:
        """`queues`: those of the app's tasks unless told. `target`: where processes find the app,
        module:app. `recycle_jobs`, `recycle_memory`: calls and bytes after which a process is
        replaced. `place`: the address of the journal, for processes whose app does not say it
        itself. `prefetch`: jobs leased ahead, by how long they take unless told. `schema`: only
        calls that were put under this version of their queue's payloads."""
        if mode is None:
            all_async = app.tasks and all(task.is_async for task in app.tasks.values())
            mode = "asyncio" if all_async else "threads"
        if mode not in ("threads", "asyncio", "processes"):
            raise BadRequest(f"mode is threads, asyncio or processes, not {mode!r}")
        if mode == "processes" and not target:
            raise SettingError("processes find the app by its name, module:app", name="target")
        if concurrency is None:
            concurrency = 100 if mode == "asyncio" else os.cpu_count() or 1
        self.app = app
        self.mode = mode
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        named = list(queues) if queues else app.queues
        if not named:
            raise SettingError("the app has no task", name="app")
        work: Any = self._arun if mode == "asyncio" else self._run
        super().__init__(
            app.journal, work, queues=named, concurrency=concurrency,
            prefetch=1 if prefetch is None else prefetch, lease=lease, grace=grace,
            name=self.name, wait=wait, schema=schema,
        )  # fmt: skip
        self._look_ahead = LookAhead(concurrency) if prefetch is None else None
        self._names = named
        self._rated = {name: app.rates[name] for name in named if name in app.rates}
        self._has_rates = any(task.options.rate is not None for task in app.tasks.values())
        self._not_before: dict[str, float] = {}
        self._limits: dict[bytes, float] = {}
        self._target = target
        self._place = place
        self._recycle = recycle_jobs, recycle_memory
        self._own = threading.local()
        self._children: list[Child] = []
        self._started = 0
        self._scheduler = Scheduler(app) if schedules else None
        self._upkeep_woken: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._announces = True

    def run(self) -> WorkerCounts:
        """Work until `stop` is called or the journal is closed; returns what was done."""
        self._started = self.app.now()
        while not self._declare_queues() and not self._stopping:
            self._pause(_LATER)
        upkeep = threading.Thread(target=self._upkeep, name="fastjournal-upkeep", daemon=True)
        upkeep.start()
        try:
            return super().run()
        finally:
            self._stopping = True
            self._upkeep_woken.put(None)
            upkeep.join(5)
            for child in self._children:
                child.close()
            with contextlib.suppress(JournalError):
                if self._announces:
                    forget_worker(self._source, self.name)

    def _declare_queues(self) -> bool:
        """Whether the journal knows what holds for them (rule 5)."""
        try:
            for name in self._names:
                self.app.declare_queue(name)
        except (NoSpace, ReadOnly) as error:
            _log.warning("the queues are not declared yet: %s", error)
            return False
        return True

    def stop(self) -> None:
        """Lease nothing more and end when the running jobs have ended."""
        super().stop()
        self._upkeep_woken.put(None)

    def info(self) -> WorkerInfo:
        """What is announced of this worker."""
        now = self.app.now()
        monotonic = time.monotonic()
        with self._mutex:
            hand = sorted(self._in_hand, key=lambda running: running.started or monotonic)
        running = [
            RunningJob(
                r.job.id.hex(), r.job.queue, _task_of(r.job),
                now - int((monotonic - r.started) * SECOND) if r.started else 0,
            )
            for r in hand[:100] if not r.settled
        ]  # fmt: skip
        counts = {field: getattr(self.counts, field) for field in WorkerCounts.__slots__}
        return WorkerInfo(
            self.name, socket.gethostname(), os.getpid(), self.mode, self._concurrency,
            self._names, sorted(self.app.tasks), self._started, now, counts, running,
            self._stopping,
        )  # fmt: skip

    def _upkeep(self) -> None:
        """Announce, and fire schedules, until the end."""
        declared = False
        while not self._stopping:
            pause = EVERY
            try:
                self._announce()
                if self._scheduler is not None and self.app.schedules:
                    if not declared:
                        self._scheduler.declare()
                        declared = True
                    coming = self._scheduler.fire_due()
                    if coming:
                        pause = min(pause, max(0.0, (coming - self.app.now()) / SECOND))
            except JournalError as error:
                _log.warning("upkeep is late: %s", error)
                pause = 1.0
            except Exception:
                _log.exception("upkeep failed, will try again")
            with contextlib.suppress(queue.Empty):
                self._upkeep_woken.get(timeout=max(0.01, min(pause, _LONGEST_SLEEP)))

    def _announce(self) -> None:
        if not self._announces:
            return
        try:
            # In memory is enough where a daemon answers for it; others read a directory's log.
            persist = not hasattr(self._source, "server_now")
            announce_worker(self._source, self.info(), persist=persist)
        except Unauthorized as error:
            _log.warning("this worker is not announced: %s", error)
            self._announces = False

    def _lease_some(self, room: int) -> list[LeasedJob]:
        if not self._rated:
            return super()._lease_some(room)
        jobs: list[LeasedJob] = []
        source: Any = self._source
        for name, rate in self._rated.items():
            if len(jobs) >= room or time.monotonic() < self._not_before.get(name, 0.0):
                continue
            granted, wait = take_tokens(source, name, rate, room - len(jobs), self.app.now())
            if not granted:
                self._not_before[name] = time.monotonic() + wait
                continue
            found = source.lease_many(
                granted, name, lease=self._lease, worker=self._name, schema=self._schema
            )
            if len(found) < granted:
                take_tokens(source, name, rate, len(found) - granted, self.app.now())
            jobs += found
        free = [name for name in self._names if name not in self._rated]
        if len(jobs) < room and free:
            jobs += source.lease_many(
                room - len(jobs), queues=free, wait=0 if jobs else min(self._wait, 0.1),
                lease=self._lease, worker=self._name, schema=self._schema,
            )  # fmt: skip
        elif not jobs:
            self._pause(min(self._wait, 0.1))
        return jobs

    def _limit_of(self, running: Running) -> float | None:
        return self._limits.get(running.job.id)

    def _run(self, job: LeasedJob) -> bytes | None:
        """Run a call in this thread, or in its process."""
        began = time.monotonic()
        limit = self._admit(job)
        if self.mode == "processes":
            ended = self._child().run(job.payload, about(job), limit)
        else:
            if limit is not None:
                self._limits[job.id] = limit
            try:
                ended = execute(self.app, job.payload, about(job))
            finally:
                self._limits.pop(job.id, None)
        self._took(time.monotonic() - began)
        return settle(ended)

    async def _arun(self, job: LeasedJob) -> bytes | None:
        """Run a call on the worker's loop."""
        began = time.monotonic()
        if self._has_rates:
            await asyncio.to_thread(self._admit, job)
        ended = await aexecute(self.app, job.payload, about(job))
        self._took(time.monotonic() - began)
        return settle(ended)

    def _admit(self, job: LeasedJob) -> float | None:
        """The time limit of a call; gives it back if its rate is used up."""
        try:
            task: Task[Any, Any] | None = self.app.tasks.get(open_envelope(job.payload).task)
        except BadArguments:
            return None  # the run tells it
        if task is None:
            return None
        options = task.options
        if options.rate is not None:
            bucket = f"{task.name}"
            if options.rate_key is not None:
                prepared = prepare(self.app, job.payload, about(job))
                given = getattr(prepared, "arguments", None)
                if given is not None:
                    bucket += f":{task.key_of(options.rate_key, given)}"
            granted, wait = take_tokens(self._source, bucket, options.rate, 1, self.app.now())
            if not granted:
                raise Retry(wait)
        return options.timeout

    def _took(self, seconds: float) -> None:
        if self._look_ahead is not None:
            self._ahead = self._look_ahead.note(seconds)

    def _child(self) -> Child:
        child: Child | None = getattr(self._own, "child", None)
        if child is None:
            child = self._own.child = Child(self._target, *self._recycle, self._place)
            self._children.append(child)
        return child


def _task_of(job: LeasedJob) -> str:
    try:
        return open_envelope(job.payload).task
    except BadArguments:
        return ""
