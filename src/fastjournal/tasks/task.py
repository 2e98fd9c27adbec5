"""A task: a function, the queue of its calls, and what is to become of them.

Rules:

1. Calling a task calls its function, here and at once. `put` leaves the call to a worker.
2. Keys are made from the arguments, and begin with the task's name: two tasks never meet in one.
3. Of repeats with a `merge` key that wait one is left, with the newest arguments; a repeat with a
   `unique` key is dropped, and its handle is that of the call which is there.
"""

from __future__ import annotations

import inspect
import random
import string
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, ParamSpec, Self, TypeVar

from fastjournal.arguments import NEVER, Instant, Length, length
from fastjournal.clock import SECOND
from fastjournal.errors import AlreadyExists, NotFound, SettingError
from fastjournal.model import DEFAULT_PRIORITY
from fastjournal.tasks.call_codec import CallCodec
from fastjournal.tasks.handle import App, AsyncHandle, Handle
from fastjournal.tasks.rates import Rate

__all__ = ["AsyncTask", "Options", "Retries", "Task"]

P = ParamSpec("P")
R = TypeVar("R")
KeyOf = str | Callable[..., str]


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a failed call is tried again, after which waits, and for which errors."""

    times: int = 3
    """After the first try."""
    delay: Length | None = None
    """The first wait; None: as the queue says."""
    factor: float = 2.0
    """How much longer each further wait is."""
    cap: Length = 3600
    only: tuple[type[BaseException], ...] = (Exception,)
    """Errors that are worth another try."""
    never: tuple[type[BaseException], ...] = ()
    """Errors that are not, though they are among those."""

    def wait_after(self, error: BaseException, fails: int) -> Length | None:
        """Until the next try, after so many failures before; None: as the queue says."""
        if isinstance(error, self.never) or not isinstance(error, self.only):
            return NEVER
        if fails >= self.times:
            return NEVER
        if self.delay is None:
            return None
        first, most = length(self.delay, "delay"), length(self.cap, "cap")
        wait = min(first * self.factor ** min(fails, 64), most) / SECOND
        return timedelta(seconds=wait * random.uniform(0.9, 1.1))


@dataclass(frozen=True, slots=True)
class Options:
    """What a task says of its calls."""

    queue: str
    retry: Retries
    priority: int = DEFAULT_PRIORITY
    merge: KeyOf | None = None
    unique: KeyOf | None = None
    debounce: Length | None = None
    delay: Length | None = None
    due: Instant | None = None
    timeout: float | None = None
    expires: Length | None = None
    rate: Rate | None = None
    rate_key: KeyOf | None = None

    def check(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Refuse what makes no sense."""
        if self.merge is not None and self.unique is not None:
            raise SettingError(f"{name}: give merge or unique", name="unique")
        if self.debounce is not None and self.merge is None:
            raise SettingError(f"{name}: a debounced task needs a merge key", name="debounce")
        if not isinstance(self.retry, Retries):
            raise SettingError(f"{name}: retry is a number or Retries(...)", name="retry")
        if not 0 <= self.priority <= 255:
            raise SettingError(f"{name}: priority is 0 to 255, smaller first", name="priority")
        if self.timeout is not None and self.timeout <= 0:
            raise SettingError(f"{name}: a timeout is longer than 0", name="timeout")
        for what, template in (
            ("merge", self.merge), ("unique", self.unique), ("rate_key", self.rate_key),
        ):  # fmt: skip
            if isinstance(template, str):
                for _, field, _, _ in string.Formatter().parse(template):
                    first = (field or "").partition(".")[0].partition("[")[0]
                    if field is not None and first not in parameters:
                        raise SettingError(
                            f"{name}: {what} names {field!r}, which is no parameter", name=what
                        )


class Task(Generic[P, R]):
    """A function whose calls are put into a queue."""

    is_async = False

    def __init__(self, app: App, function: Callable[..., Any], name: str, options: Options) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.options = options
        self.codec = CallCodec(name, function)
        options.check(name, dict.fromkeys(self.codec.names))
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", name)
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of queue {self.options.queue!r}>"

    def __call__(self, *given: P.args, **named: P.kwargs) -> R:
        """Call the function, here and at once."""
        result: R = self.function(*given, **named)
        return result

    def later(
        self,
        delay: Length | None = None,
        *,
        due: Instant | None = None,
        priority: int | None = None,
        queue: str | None = None,
    ) -> Self:
        """The same task whose calls wait: `task.later(delay=60).put(...)`."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        mine = self.options
        other.options = replace(
            mine,
            delay=delay,
            due=due,
            priority=mine.priority if priority is None else priority,
            queue=mine.queue if queue is None else queue,
        )
        return other

    def put(self, *given: P.args, **named: P.kwargs) -> Handle[R]:
        """Leave a call to a worker."""
        if self.app.is_spool:
            return self.spool(*given, **named)
        how = self._how(given, named)
        journal = self.app.journal
        self.app.declare_queue(self.options.queue)
        if self.options.unique is None:
            receipt = journal.put(**how)
            return self.app.was_put(Handle(self.app, receipt.id, self.codec, receipt.outcome))
        while True:
            try:
                receipt = journal.put(**how)
                return self.app.was_put(Handle(self.app, receipt.id, self.codec, receipt.outcome))
            except AlreadyExists:
                try:
                    found = journal.job(key=how["key"], queue=how["queue"])
                except NotFound:
                    continue  # it ended just now
                return Handle(self.app, found.id, self.codec, None)

    async def aput(self, *given: P.args, **named: P.kwargs) -> AsyncHandle[R]:
        """Leave a call to a worker, from asyncio."""
        if self.app.is_spool:
            handle = self.spool(*given, **named)  # one append to a file: nothing to wait for
            return AsyncHandle(self.app, handle.id, self.codec, None, spooled=True)
        how = self._how(given, named)
        journal = await self.app.ajournal()
        await self.app.adeclare_queue(self.options.queue)
        while True:
            try:
                receipt = await journal.put(**how)
                handle = Handle[R](self.app, receipt.id, self.codec, receipt.outcome)
                self.app.was_put(handle)
                return AsyncHandle(self.app, receipt.id, self.codec, receipt.outcome)
            except AlreadyExists:
                if self.options.unique is None:
                    raise
                try:
                    found = await journal.job(key=how["key"], queue=how["queue"])
                except NotFound:
                    continue
                return AsyncHandle(self.app, found.id, self.codec, None)

    def spool(self, *given: P.args, **named: P.kwargs) -> Handle[R]:
        """Leave a call in the local spool: one append to a file, whether or not a daemon is up."""
        how = self._how(given, named)
        job_id = self.app.new_id()
        self.app.spool.put(**how, id=job_id)
        return Handle(self.app, job_id, self.codec, None, spooled=True)

    def put_many(self, calls: Any) -> list[Handle[R]]:
        """Leave many calls with few messages; each is a tuple of arguments or a dict of them."""
        jobs = [
            self._how((), call) if isinstance(call, Mapping) else self._how(tuple(call), {})
            for call in calls
        ]
        self.app.declare_queue(self.options.queue)
        receipts = self.app.journal.put_many(jobs)
        return [
            self.app.was_put(Handle(self.app, receipt.id, self.codec, receipt.outcome))
            for receipt in receipts
        ]

    def _how(self, given: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        """What `put` of a journal is told."""
        mine = self.options
        headers: dict[str, str] = {}
        for middleware in self.app.middlewares:
            middleware.before_put(self, headers)
        payload, call = self.codec.encode(given, named, headers)
        how: dict[str, Any] = {
            "payload": payload,
            "queue": mine.queue,
            "priority": mine.priority,
            "max_fails": mine.retry.times + 1,
        }
        if mine.delay is not None:
            how["delay"] = mine.delay
        elif mine.due is not None:
            how["due"] = mine.due
        elif mine.debounce is not None:
            how["delay"] = mine.debounce
        if mine.expires is not None:
            how["expires"] = self.app.instant_in(mine.expires)
        template = mine.unique if mine.merge is None else mine.merge
        if template is not None:
            how["key"] = f"{self.name}:{self.key_of(template, self.codec.given(call))}"
            how["mode"] = "merge" if mine.unique is None else "unique"
        return how

    def key_of(self, template: KeyOf, given: Mapping[str, Any]) -> str:
        """A key made from arguments."""
        arguments = {**self.codec.defaults, **given}
        return template.format(**arguments) if isinstance(template, str) else template(**arguments)


class AsyncTask(Task[P, R]):
    """A coroutine function whose calls are put into a queue."""

    is_async = True

    def __call__(  # type: ignore[override]
        self, *given: P.args, **named: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        """Call the function: a coroutine."""
        made: Coroutine[Any, Any, R] = self.function(*given, **named)
        return made


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calls of it are awaited."""
    return inspect.iscoroutinefunction(function)
