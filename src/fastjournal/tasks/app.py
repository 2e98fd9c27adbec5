"""`Tasks`: the tasks and schedules of a program, and the journal in which their calls are.

Rules:

1. Defining tasks opens nothing: the journal is opened when it is first needed, in each process for
   itself, also after a fork.
2. What queues are told (`max_wait`, `concurrency`, ...) is said in the program, and told to the
   journal by whoever uses the queue first. Two tasks that say different things of one queue are an
   error where the second is defined.
3. Without a place of its own an app uses `FASTJOURNAL_URL`, or else `./jobs`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from fastjournal.arguments import Instant, Length, as_datetime, id_bytes, length
from fastjournal.client.urls import parse_url
from fastjournal.clock import SYSTEM_CLOCK, Clock
from fastjournal.errors import SettingError, Unauthorized
from fastjournal.model import DEFAULT_PRIORITY
from fastjournal.tasks.execution import LoopThread
from fastjournal.tasks.middleware import Middleware
from fastjournal.tasks.rates import Rate
from fastjournal.tasks.schedule import Missed, Schedule
from fastjournal.tasks.task import AsyncTask, KeyOf, Options, Retries, Task, is_async

if TYPE_CHECKING:
    from fastjournal.client import Client
    from fastjournal.journal.journal import Journal
    from fastjournal.spool.writer import Spool
    from fastjournal.tasks.handle import Handle
    from fastjournal.tasks.worker import TaskWorker

__all__ = ["Tasks"]

P = ParamSpec("P")
R = TypeVar("R")
_ENVIRONMENT, _HERE = "FASTJOURNAL_URL", "./jobs"


class Tasks:
    """The tasks of a program."""

    def __init__(
        self,
        where: str | Path | Journal | Client | Spool | None = None,
        *,
        spool: str | Path | Spool | None = None,
        queue: str = "tasks",
        middlewares: Iterable[Middleware] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`where`: a directory, a URL, or something open; `spool`: where `Task.spool` puts.

        `queue`: of tasks that name none. `clock`: that of an embedded journal with a clock of its
        own.
        """
        self.tasks: dict[str, Task[Any, Any]] = {}
        self.schedules: dict[str, Schedule] = {}
        self.schedule_arguments: dict[str, Mapping[str, Any]] = {}
        self.middlewares: list[Middleware] = list(middlewares)
        self.queue_settings: dict[str, dict[str, Any]] = {}
        self.rates: dict[str, Rate] = {}
        self.loop = LoopThread()
        """Runs coroutine functions for threads."""
        self.waits = True
        """Whether handles wait for what has not ended; not in a test whose clock stands still."""
        self._queue = queue
        self._clock = clock
        self._lock = threading.Lock()
        self._on_put: Callable[[Handle[Any]], None] | None = None
        self.connect(where, spool=spool)

    def connect(
        self,
        where: str | Path | Journal | Client | Spool | None = None,
        *,
        spool: str | Path | Spool | None = None,
    ) -> None:
        """Say where the journal is, if that is not known where the tasks are defined."""
        self._where = where
        self._spool_given = spool
        self._opened: Any = None
        self._opened_by = 0
        self._ajournals: dict[int, tuple[Any, Any]] = {}
        self._spool: Any = None
        self._declared: set[str] = set()

    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: int | Retries = ...,
        priority: int = ...,
        merge: KeyOf | None = None,
        unique: KeyOf | None = None,
        debounce: Length | None = None,
        max_wait: Length | None = None,
        timeout: Length | None = None,
        expires: Length | None = None,
        rate: str | Rate | None = None,
        rate_key: KeyOf | None = None,
    ) -> _Decorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str | None = None,
        retry: int | Retries = 3,
        priority: int = DEFAULT_PRIORITY,
        merge: KeyOf | None = None,
        unique: KeyOf | None = None,
        debounce: Length | None = None,
        max_wait: Length | None = None,
        timeout: Length | None = None,
        expires: Length | None = None,
        rate: str | Rate | None = None,
        rate_key: KeyOf | None = None,
    ) -> Any:
        """Make a function a task; as a decorator, with or without options.

        `retry`: how often a failed call is tried again, or `Retries`. `merge`, `unique`: a key made
        from the arguments, as a template (`"user:{user}"`) or a function of them. `debounce`: a
        call waits so long for repeats of its key, which begin the wait anew, but never longer than
        `max_wait` (of its queue) in all. `timeout`: a run that takes longer fails. `expires`: a
        call that was not run by then is gone. `rate`: at most so many runs (`"10/s"`), of each
        `rate_key` if there is one.
        """
        where = queue or self._queue
        if max_wait is not None:
            self.queue(where, max_wait=max_wait)
        options = Options(
            queue=where,
            retry=Retries(times=retry) if isinstance(retry, int) else retry,
            priority=priority,
            merge=merge,
            unique=unique,
            debounce=debounce,
            timeout=None if timeout is None else length(timeout, "timeout") / 1e9,
            expires=expires,
            rate=None if rate is None else Rate.parse(rate),
            rate_key=rate_key,
        )

        def make(function: Callable[..., Any]) -> Task[Any, Any]:
            called = name or _name_of(function)
            if called in self.tasks:
                raise SettingError(f"there is a task {called!r} already", name=called)
            kind: Any = AsyncTask if is_async(function) else Task
            made: Task[Any, Any] = kind(self, function, called, options)
            self.tasks[called] = made
            return made

        return make if function is None else make(function)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        missed: Missed = "one",
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        """Call a task, or a function that becomes one, at the instants of a cron expression."""
        return self._scheduled(
            lambda called, task: Schedule.make(called, task, expression, None, tz, missed),
            name, arguments, options,
        )  # fmt: skip

    def every(
        self,
        interval: Length,
        *,
        missed: Missed = "one",
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Callable[[Callable[P, R] | Task[P, R]], Task[P, R]]:
        """Call a task, or a function that becomes one, again and again."""
        return self._scheduled(
            lambda called, task: Schedule.make(called, task, "", interval, "UTC", missed),
            name, arguments, options,
        )  # fmt: skip

    def _scheduled(
        self,
        make: Callable[[str, str], Schedule],
        name: str | None,
        arguments: Mapping[str, Any] | None,
        options: dict[str, Any],
    ) -> Callable[[Any], Task[Any, Any]]:
        def decorate(function: Any) -> Task[Any, Any]:
            if isinstance(function, Task):
                if options:
                    raise SettingError("options stand where the task is defined", name="options")
                task = function
            else:
                task = self.task(**options)(function)
            schedule = make(name or task.name, task.name)
            if schedule.name in self.schedules:
                raise SettingError(f"there is a schedule {schedule.name!r} already", name="name")
            given = dict(arguments or {})
            task.codec.encode((), given, {})
            self.schedules[schedule.name] = schedule
            self.schedule_arguments[schedule.name] = given
            return task

        return decorate

    def queue(self, name: str, *, rate: str | Rate | None = None, **settings: Any) -> None:
        """Say what holds for a queue: `concurrency`, `max_wait`, `lease`, ... or a `rate`."""
        known = self.queue_settings.setdefault(name, {})
        for setting, value in settings.items():
            if known.get(setting, value) != value:
                raise SettingError(
                    f"queue {name!r} has {setting}={known[setting]!r} already", name=setting
                )
        known.update(settings)
        if rate is not None:
            self.rates[name] = Rate.parse(rate)

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks."""
        return sorted({task.options.queue for task in self.tasks.values()} | {*self.queue_settings})

    @property
    def is_spool(self) -> bool:
        """There is nothing but a spool: calls go out, and no answer comes back."""
        where = self.place
        return (isinstance(where, str) and where.startswith("spool:")) or _is_spool(where)

    @property
    def journal(self) -> Any:
        """The journal, opened when it is first asked for."""
        if self._opened is None or self._opened_by != os.getpid():
            with self._lock:
                if self._opened is None or self._opened_by != os.getpid():
                    self._opened = self._open()
                    self._opened_by = os.getpid()
        return self._opened

    def _open(self) -> Any:
        from fastjournal.connect_url import connect

        where = self.place
        if self.is_spool:
            raise SettingError("nothing but putting can be done with a spool", name="where")
        return connect(where) if isinstance(where, (str, Path)) else where

    async def ajournal(self) -> Any:
        """The journal for the running loop; the methods of `AsyncClient`."""
        loop = asyncio.get_running_loop()
        found = self._ajournals.get(id(loop))
        if found is not None and found[0] is loop:
            return found[1]
        self._ajournals = {k: v for k, v in self._ajournals.items() if not v[0].is_closed()}
        where = self.place
        opened: Any
        if isinstance(where, (str, Path)) and not isinstance(parse_url(str(where)), Path):
            from fastjournal.connect_url import aconnect

            opened = await aconnect(str(where))
        else:
            opened = _InThreads(self.journal)
        self._ajournals[id(loop)] = (loop, opened)
        return opened

    @property
    def spool(self) -> Any:
        """The spool, opened when it is first asked for."""
        if self._spool is None:
            given: Any = self.place if self.is_spool else self._spool_given
            if given is None:
                raise SettingError("this app has no spool: Tasks(where, spool=...)", name="spool")
            if isinstance(given, (str, Path)):
                from fastjournal.spool.writer import Spool

                given = Spool(str(given).removeprefix("spool:"))
            self._spool = given
        return self._spool

    def close(self) -> None:
        """Close what was opened here."""
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None and isinstance(self.place, (str, Path)):
                opened.close()

    async def aclose(self) -> None:
        """Close what was opened for the running loop."""
        found = self._ajournals.pop(id(asyncio.get_running_loop()), None)
        if found is not None and not isinstance(found[1], _InThreads):
            await found[1].close()

    def now(self) -> int:
        """The journal's time, ns since 1970."""
        server_now = getattr(self.journal, "server_now", None)
        return int(self._clock.now() if server_now is None else server_now())

    def own_time(self, instant: int) -> int:
        """An instant of the journal by the clock that our timestamps are told in."""
        caller = getattr(self.journal, "caller", None)
        return instant if caller is None else instant + caller.number_now() - caller.server_now()

    def instant_in(self, delay: Length) -> Instant:
        """The instant so far from now."""
        clock = self._clock.now() if self.is_spool or self._opened is None else self.now()
        at = as_datetime(clock + length(delay, "expires"))
        assert at is not None
        return at

    def declare_queue(self, name: str) -> None:
        """Tell the journal once what holds for a queue."""
        if name in self._declared:
            return
        settings = self.queue_settings.get(name)
        if settings:
            with contextlib.suppress(Unauthorized):  # a producer may not; a worker will
                self.journal.configure(name, **settings)
        self._declared.add(name)

    async def adeclare_queue(self, name: str) -> None:
        """Tell the journal once what holds for a queue."""
        if name not in self._declared:
            if self.queue_settings.get(name):
                await asyncio.to_thread(self.declare_queue, name)
            self._declared.add(name)

    def handle(self, job_id: bytes | str, task: Task[Any, R] | None = None) -> Handle[R]:
        """The handle of a call that was put elsewhere; `task` tells the type of its result."""
        from fastjournal.tasks.call_codec import CallCodec
        from fastjournal.tasks.handle import Handle

        raw = id_bytes(job_id)
        codec = CallCodec("task", lambda: None) if task is None else task.codec
        return Handle(self, raw, codec, None)

    def worker(self, **options: Any) -> TaskWorker:
        """A worker of this app; the options of `TaskWorker`."""
        from fastjournal.tasks.worker import TaskWorker

        return TaskWorker(self, **options)

    def new_id(self) -> bytes:
        """An id for a job."""
        import uuid

        return uuid.uuid4().bytes

    def was_put(self, handle: Handle[R]) -> Handle[R]:
        """A call was put: whoever runs tasks inline is told."""
        if self._on_put is not None:
            self._on_put(handle)
        return handle

    @property
    def place(self) -> Any:
        """Where its journal is."""
        return os.environ.get(_ENVIRONMENT, _HERE) if self._where is None else self._where


class _Decorator(Protocol):
    """For the type checker: what `task` with options gives."""

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class _InThreads:
    """A blocking journal for asyncio: each call in a thread."""

    def __init__(self, journal: Any) -> None:
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._journal, name)

        async def call(*given: Any, **named: Any) -> Any:
            return await asyncio.to_thread(method, *given, **named)

        return call


def _is_spool(where: object) -> bool:
    return type(where).__name__ == "Spool" and not hasattr(where, "lease")


def _name_of(function: Callable[..., Any]) -> str:
    """`module.function`; of a program that is run, its file is the module."""
    module = function.__module__
    if module in ("__main__", "__mp_main__"):
        file = getattr(sys.modules[module], "__file__", None)
        module = Path(file).stem if file else "main"
    return f"{module}.{function.__qualname__}".replace(".<locals>", "")
