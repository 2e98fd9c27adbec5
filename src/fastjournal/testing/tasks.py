"""Tasks in tests: run inline, on a journal in memory, by a clock that is moved by hand.

    with InlineTasks(app) as inline:
        assert add.put(1, 2).result() == 3          # run at once, in this thread
        remind.later(delay=3600).put("ada")
        inline.advance(3600)                        # what is due now runs; schedules fire

Rules:

1. The calls go through a real journal, with its keys, retries and dead jobs; nothing is simulated
   but the disk and the time.
2. A call that is due runs before `put` returns; one that is not waits for `advance`. With
   `inline=False` nothing runs before `run` or `advance` is called.
3. The app is what it was before when the block ends.
"""

from __future__ import annotations

from typing import Any, Self

from fastjournal.client.worker import Failure, Retry
from fastjournal.journal.journal import Journal
from fastjournal.tasks.app import Tasks
from fastjournal.tasks.call_codec import BadArguments, open_envelope
from fastjournal.tasks.execution import about, execute, settle
from fastjournal.tasks.scheduler import Scheduler
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.files import MemoryFiles

__all__ = ["InlineTasks"]


class InlineTasks:
    """Runs the tasks of an app in the test's own thread; use it with `with`."""

    def __init__(self, app: Tasks, *, inline: bool = True, clock: ManualClock | None = None):
        self.app = app
        self.clock = ManualClock() if clock is None else clock
        self.ran: list[str] = []
        """The names of the tasks that ran, in order."""
        self._inline = inline
        self._running = False
        self._before: Any = None
        self.journal: Journal = None  # type: ignore[assignment]

    def __enter__(self) -> Self:
        app = self.app
        self.journal = Journal(
            "/tasks", files=MemoryFiles(), clock=self.clock, background=False, clean_interval=0
        )
        self._before = app._where, app._spool_given, app._clock, app._on_put
        app.connect(self.journal)
        app._clock = self.clock
        app.waits = False
        app._on_put = self._was_put if self._inline else None
        self._scheduler = Scheduler(app)
        self._scheduler.declare()
        return self

    def __exit__(self, *_: object) -> None:
        where, spool, clock, on_put = self._before
        self.app.connect(where, spool=spool)
        self.app.waits = True
        self.app._clock, self.app._on_put = clock, on_put
        self.journal.close()

    def run(self) -> int:
        """Run all calls that are due, also those that they put; returns how many ran."""
        count = 0
        self._running = True
        try:
            self.journal.tick()
            while (job := self.journal.lease(fair=False)) is not None:
                self.ran.append(_name(job.payload))
                count += 1
                try:
                    job.done(settle(execute(self.app, job.payload, about(job))))
                except Retry as retry:
                    job.release(retry.delay)
                    if not retry.delay:
                        break  # else it would be tried again without end
                except Failure as failure:
                    job.fail(failure.reason, failure.delay)
        finally:
            self._running = False
        return count

    def advance(self, seconds: float) -> int:
        """Let time pass, from one thing that is due to the next; returns how many calls ran."""
        end = self.clock.now() + round(seconds * 1e9)
        count = self._step()
        while self.clock.now() < end:
            coming = [self._scheduler.fire_due()]
            coming += [queue.next_due for queue in self.journal.queues()]
            later = [instant for instant in coming if self.clock.now() < instant < end]
            self.clock.advance(ns=min(later, default=end) - self.clock.now())
            count += self._step()
        return count

    def _step(self) -> int:
        self._scheduler.fire_due()
        return self.run()

    def _was_put(self, _: object) -> None:
        if not self._running:
            self.run()


def _name(payload: bytes) -> str:
    try:
        return open_envelope(payload).task
    except BadArguments:
        return ""
