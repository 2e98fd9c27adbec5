"""One run of a task: read the call, run the function between middlewares, say what became of it.

Rules:

1. Whatever a function raises becomes an outcome; nothing it does ends the worker.
2. `Retry` gives the call back, `Discard` ends it for good, any other exception fails it: tried
   again as the task's retries say, or dead.
3. A call that no function here answers to fails like any other: a newer worker may know it. A
   payload that is no call, or whose arguments do not fit, is dead at once: it never will fit.
4. A scheduled call always leaves a result: while it is there, its instant cannot be fired again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Coroutine
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import msgspec

from fastjournal.arguments import NEVER, Length
from fastjournal.client.worker import Failure, Retry
from fastjournal.errors import failure_text
from fastjournal.handles import LeasedJob
from fastjournal.tasks.call_codec import BadArguments, open_envelope
from fastjournal.tasks.handle import App
from fastjournal.tasks.task import Task

__all__ = [
    "SCHEDULE",
    "About",
    "Discard",
    "Ended",
    "Prepared",
    "Run",
    "about",
    "aexecute",
    "current_run",
    "execute",
    "prepare",
    "settle",
]

_log = logging.getLogger("fastjournal.tasks")
SCHEDULE = "schedule"
"""The header that names the schedule of a call."""
_NEVER = -1.0


class Discard(Exception):
    """Raised by a task: the call is not worth another try; it is dead, and says why."""


class About(msgspec.Struct, array_like=True):
    """What is known of a job, as it goes to a process that runs it."""

    id: bytes
    queue: str
    key: str
    attempt: int
    fails: int


class Ended(msgspec.Struct, array_like=True):
    """What became of a run."""

    kind: str
    """`done`, `retry` or `failed`."""
    data: bytes | None = None
    """The result, or the text of the failure."""
    delay: float | None = None
    """Seconds until the next try; None: as the queue says; negative: never."""


class Run:
    """A call as its function and the middlewares see it."""

    def __init__(self, task: str, about: About, headers: dict[str, str], is_last: bool) -> None:
        self.task = task
        self.id = about.id
        """The job's 16 bytes: the same at every attempt."""
        self.queue = about.queue
        self.key = about.key
        self.attempt = about.attempt
        """How often the call was handed out, this time included."""
        self.fails = about.fails
        """How often it failed before."""
        self.headers = headers
        self.is_last = is_last
        """A failure will not be tried again."""
        self.state: dict[str, Any] = {}
        """For middlewares."""

    def __repr__(self) -> str:
        return f"<Run {self.task} {self.id.hex()} attempt {self.attempt}>"


class Prepared:
    """A call that can be run."""

    def __init__(self, app: App, task: Task[Any, Any], run: Run, arguments: dict[str, Any]):
        self.app = app
        self.task = task
        self.run = run
        self.arguments = arguments


_current: ContextVar[Run | None] = ContextVar("fastjournal_run", default=None)


def current_run() -> Run | None:
    """The run that this code is part of; None outside of tasks."""
    return _current.get()


def about(job: LeasedJob) -> About:
    """What is known of a leased job."""
    return About(job.id, job.queue, job.key, job.attempt, job.lease.job.fails)


def prepare(app: App, payload: bytes, about: About) -> Prepared | Ended:
    """Read a call, or say why it cannot be run."""
    try:
        envelope = open_envelope(payload)
        task = app.tasks.get(envelope.task)
        if task is None:
            known = ", ".join(sorted(app.tasks)) or "none"
            reason = f"no task {envelope.task!r} here; there are: {known}"
            return Ended("failed", reason.encode())
        arguments = task.codec.arguments(envelope.args)
    except BadArguments as error:
        return Ended("failed", str(error).encode("utf-8", "replace"), _NEVER)
    is_last = about.fails >= task.options.retry.times
    return Prepared(app, task, Run(task.name, about, envelope.headers, is_last), arguments)


def execute(app: App, payload: bytes, about: About) -> Ended:
    """Run a call in this thread; a coroutine function on a loop beside it."""
    prepared = prepare(app, payload, about)
    if isinstance(prepared, Ended):
        return prepared
    token = _current.set(prepared.run)
    try:
        result = None
        try:
            _before(prepared)
            result = prepared.task.function(**prepared.arguments)
            if prepared.task.is_async:
                result = app.loop.run(_limited(prepared, result))
        except BaseException as error:
            return _failed(prepared, error)
        return _done(prepared, result)
    finally:
        _current.reset(token)


async def aexecute(app: App, payload: bytes, about: About) -> Ended:
    """Run a call on this loop; a plain function in a thread."""
    prepared = prepare(app, payload, about)
    if isinstance(prepared, Ended):
        return prepared
    if not prepared.task.is_async:
        return await asyncio.to_thread(execute, app, payload, about)
    token = _current.set(prepared.run)
    try:
        try:
            _before(prepared)
            result = await _limited(prepared, prepared.task.function(**prepared.arguments))
        except asyncio.CancelledError:
            raise  # the worker stops: its lease ends by itself
        except BaseException as error:
            return _failed(prepared, error)
        return _done(prepared, result)
    finally:
        _current.reset(token)


def settle(ended: Ended) -> bytes | None:
    """What a worker's function returns or raises for this outcome."""
    if ended.kind == "done":
        return ended.data
    if ended.kind == "retry":
        raise Retry(ended.delay or 0.0)
    delay: Length | None = ended.delay
    if ended.delay is not None and ended.delay < 0:
        delay = NEVER
    raise Failure(ended.data or b"", delay)


async def _limited(prepared: Prepared, work: Any) -> Any:
    limit = prepared.task.options.timeout
    try:
        async with asyncio.timeout(limit) as scope:
            return await work
    except TimeoutError:
        if not scope.expired():
            raise
        raise TimeoutError(f"time limit of {limit:g} s") from None


def _before(prepared: Prepared) -> None:
    for middleware in prepared.app.middlewares:
        middleware.before(prepared.run)


def _done(prepared: Prepared, result: Any) -> Ended:
    for middleware in reversed(prepared.app.middlewares):
        with _logged(middleware, prepared.run):
            middleware.after(prepared.run, result)
    try:
        data = prepared.task.codec.encode_result(result)
    except BadArguments as error:
        # The work is done: it is not done again for the sake of its result.
        return Ended("failed", str(error).encode("utf-8", "replace"), _NEVER)
    if data is None and SCHEDULE in prepared.run.headers:
        data = b"null"
    return Ended("done", data)


def _failed(prepared: Prepared, error: BaseException) -> Ended:
    run = prepared.run
    if isinstance(error, Retry):
        for middleware in reversed(prepared.app.middlewares):
            with _logged(middleware, run):
                middleware.after(run, None)
        return Ended("retry", None, error.delay)
    wait = prepared.task.options.retry.wait_after(error, run.fails)
    if isinstance(error, Discard):
        wait = NEVER
    run.is_last = wait is NEVER
    for middleware in reversed(prepared.app.middlewares):
        with _logged(middleware, run):
            middleware.error(run, error)
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        error.__traceback__ = trace.tb_next  # our own frame tells nothing
    delay: Any = wait.total_seconds() if isinstance(wait, timedelta) else wait
    return Ended("failed", failure_text(error), _NEVER if wait is NEVER else delay)


@contextlib.contextmanager
def _logged(middleware: Any, run: Run) -> Any:
    try:
        yield
    except Exception:
        _log.exception("middleware %s raised after %r", type(middleware).__name__, run)


class LoopThread:
    """An event loop in a thread of its own, for coroutines that threads wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine gives."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="fastjournal-tasks-loop", daemon=True
                ).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
