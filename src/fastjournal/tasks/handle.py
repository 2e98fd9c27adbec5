"""What is left in the hands of whoever put a call: ask for it, wait for it, call it off.

Rules:

1. A handle is an id and a way to the journal: it may be made again from the id, in any process.
2. `result` raises what went wrong as `TaskFailed`, with the traceback as the worker saw it.
3. What was put into a spool may not have arrived yet: it is waited for, and not taken for gone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Generic, Literal, Protocol, TypeVar

from fastjournal.arguments import Instant, Length, last_words, length
from fastjournal.clock import SECOND
from fastjournal.errors import NotFound, RequestError, SettingError, TimedOut
from fastjournal.model import Outcome, State
from fastjournal.tasks.call_codec import CallCodec

__all__ = ["App", "AsyncHandle", "Handle", "TaskFailed", "TaskState"]

R = TypeVar("R")
TaskState = Literal["waiting", "running", "done", "failed", "gone"]
_LOOK_AGAIN = 0.05  # seconds between two looks for a call that is still in a spool


class App(Protocol):
    """What tasks, handles and runs need of the app they belong to: `Tasks` has it."""

    tasks: dict[str, Any]
    schedules: dict[str, Any]
    schedule_arguments: dict[str, Mapping[str, Any]]
    middlewares: list[Any]
    rates: dict[str, Any]
    loop: Any
    waits: bool

    @property
    def journal(self) -> Any:
        """The journal."""

    async def ajournal(self) -> Any:
        """The journal for the running loop."""

    @property
    def spool(self) -> Any:
        """The spool."""

    @property
    def is_spool(self) -> bool:
        """There is nothing but a spool."""

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks."""

    def now(self) -> int:
        """The journal's time, ns since 1970."""

    def own_time(self, instant: int) -> int:
        """An instant of the journal by the clock that our timestamps are told in."""

    def instant_in(self, delay: Length) -> Instant:
        """The instant so far from now."""

    def declare_queue(self, name: str) -> None:
        """Tell the journal once what holds for a queue."""

    async def adeclare_queue(self, name: str) -> None:
        """Tell the journal once what holds for a queue."""

    def was_put(self, handle: Handle[R]) -> Handle[R]:
        """A call was put."""

    def new_id(self) -> bytes:
        """An id for a job."""


class TaskFailed(RequestError):
    """The task failed and will not be tried again."""

    def __init__(self, text: str) -> None:
        super().__init__(last_words(text.encode(), 300) or "the task failed")
        self.traceback = text
        """The traceback as the worker saw it."""


class _Call(Generic[R]):
    """What both twins have."""

    def __init__(
        self,
        app: App,
        job_id: bytes,
        codec: CallCodec,
        outcome: Outcome | None,
        *,
        spooled: bool = False,
    ) -> None:
        self._app = app
        self._codec = codec
        self._spooled = spooled
        self.id = job_id
        """The job's 16 bytes."""
        self.is_new = outcome in (Outcome.NEW, Outcome.TWIN) or spooled
        """False: it was merged into a call that waits, or is that call."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._codec.name} {self.id.hex()}>"

    def _value(self, found: tuple[bool, bytes]) -> R:
        done, data = found
        if not done:
            raise TaskFailed(data.decode("utf-8", "replace"))
        value: R = self._codec.decode_result(data)
        return value

    def _reachable(self) -> None:
        if self._app.is_spool:
            raise SettingError(
                "a spool answers nothing: give Tasks the journal too, as Tasks(url, spool=...)",
                name="spool",
            )


class Handle(_Call[R]):
    """A call that was put."""

    @property
    def state(self) -> TaskState:
        """Where it stands now; `gone`: cancelled, expired, or forgotten."""
        self._reachable()
        journal = self._app.journal
        try:
            return "done" if journal.result(self.id)[0] else "failed"
        except TimedOut:
            return _state_of(journal, self.id)
        except NotFound:
            return "waiting" if self._spooled else "gone"

    def wait(self, wait: Length = 3600) -> bool:
        """Until it has ended; whether it was done. `TimedOut` if it takes longer."""
        return self._found(wait)[0]

    def result(self, wait: Length = 3600) -> R:
        """What the function returned; `TaskFailed` if it failed for good."""
        return self._value(self._found(wait))

    def cancel(self) -> bool:
        """Call it off; False if it had ended. The result of a run under way is dropped."""
        self._reachable()
        if self.state in ("done", "failed"):
            return False
        return bool(self._app.journal.delete(self.id))

    def _found(self, wait: Length) -> tuple[bool, bytes]:
        self._reachable()
        give_up = time.monotonic_ns() + (length(wait, "wait") if self._app.waits else 0)
        while True:
            left = max(0, give_up - time.monotonic_ns()) / SECOND
            try:
                found: tuple[bool, bytes] = self._app.journal.result(self.id, left)
                return found
            except NotFound:
                if not self._spooled:
                    raise
            if not left:
                raise TimedOut("the call has not arrived yet")
            time.sleep(min(left, _LOOK_AGAIN))


class AsyncHandle(_Call[R]):
    """A call that was put, for asyncio."""

    async def state(self) -> TaskState:
        """Where it stands now; `gone`: cancelled, expired, or forgotten."""
        self._reachable()
        journal = await self._app.ajournal()
        try:
            return "done" if (await journal.result(self.id))[0] else "failed"
        except TimedOut:
            pass
        except NotFound:
            return "waiting" if self._spooled else "gone"
        try:
            job = await journal.job(self.id)
        except NotFound:
            return "gone"
        return "running" if job.state is State.PROCESSING else "waiting"

    async def wait(self, wait: Length = 3600) -> bool:
        """Until it has ended; whether it was done. `TimedOut` if it takes longer."""
        return (await self._found(wait))[0]

    async def result(self, wait: Length = 3600) -> R:
        """What the function returned; `TaskFailed` if it failed for good."""
        return self._value(await self._found(wait))

    async def cancel(self) -> bool:
        """Call it off; False if it had ended. The result of a run under way is dropped."""
        self._reachable()
        if await self.state() in ("done", "failed"):
            return False
        return bool(await (await self._app.ajournal()).delete(self.id))

    async def _found(self, wait: Length) -> tuple[bool, bytes]:
        self._reachable()
        give_up = time.monotonic_ns() + (length(wait, "wait") if self._app.waits else 0)
        journal = await self._app.ajournal()
        while True:
            left = max(0, give_up - time.monotonic_ns()) / SECOND
            try:
                found: tuple[bool, bytes] = await journal.result(self.id, left)
                return found
            except NotFound:
                if not self._spooled:
                    raise
            if not left:
                raise TimedOut("the call has not arrived yet")
            await asyncio.sleep(min(left, _LOOK_AGAIN))


def _state_of(journal: Any, job_id: bytes) -> TaskState:
    try:
        job = journal.job(job_id)
    except NotFound:
        return "gone"
    return "running" if job.state is State.PROCESSING else "waiting"
