"""What a task, its handles and its workers need of the program they belong to.

`app.Tasks` is such a program. It knows all of them; they know only this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from fastjournal.arguments import Instant, Length
from fastjournal.tasks.rates import Rate
from fastjournal.tasks.schedule import Schedule

__all__ = ["Program"]


class Program(Protocol):
    """The tasks and schedules of a program, and its way to the journal."""

    tasks: dict[str, Any]
    """Of type `task.Task`."""
    schedules: dict[str, Schedule]
    schedule_arguments: dict[str, Mapping[str, Any]]
    middlewares: list[Any]
    rates: dict[str, Rate]
    loop: Any
    """Runs coroutine functions for threads."""
    waits: bool
    """Whether handles wait for what has not ended."""

    @property
    def queues(self) -> list[str]:
        """The queues of all tasks."""

    @property
    def is_spool(self) -> bool:
        """There is nothing but a spool."""

    @property
    def journal(self) -> Any:
        """The journal, opened when it is first asked for."""

    @property
    def spool(self) -> Any:
        """The spool, opened when it is first asked for."""

    async def ajournal(self) -> Any:
        """The journal for the running loop."""

    def now(self) -> int:
        """The journal's time, ns since 1970."""

    def instant_in(self, delay: Length) -> Instant:
        """The instant so far from now."""

    def declare_queue(self, name: str) -> None:
        """Tell the journal once what holds for a queue."""

    async def adeclare_queue(self, name: str) -> None:
        """Tell the journal once what holds for a queue."""

    def new_id(self) -> bytes:
        """An id for a job."""

    def was_put(self, handle: Any) -> object:
        """A call was put: whoever runs tasks inline is told."""
