"""Tasks: Python functions that a worker runs, whoever called them, wherever and whenever.

    app = Tasks("./jobs")                 # or fj://host, or a Spool

    @app.task
    def add(x: int, y: int) -> int: ...

    add.put(1, 2).result(wait=10)         # while `fastjournal worker module:app` runs

From the top down:

app            `Tasks`: what a program defines, and where its jobs are
worker         leases jobs and runs them: threads, asyncio, `processes`; announces itself
scheduler      fires schedules, each instant once for all workers
execution      one run: arguments, middlewares, what becomes of it
task, handle   what a caller has: a task to put, a handle to wait for
schedule       which instants a schedule has, and what becomes of missed ones; no I/O
call_codec     a call as bytes: JSON by msgspec, checked against the annotations; never pickle
rates          token buckets kept in the journal
announcing     what workers and schedules tell the operator: entries of the journal

It stands on the client and on the public face of the journal.
"""

from __future__ import annotations

from fastjournal.package.lazy_names import names_from

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastjournal.client.worker import Retry
    from fastjournal.tasks.announcing import known_schedules, known_workers
    from fastjournal.tasks.app import Tasks
    from fastjournal.tasks.call_codec import BadArguments
    from fastjournal.tasks.execution import Discard, Run, current_run
    from fastjournal.tasks.handle import AsyncHandle, Handle, TaskFailed
    from fastjournal.tasks.middleware import Middleware
    from fastjournal.tasks.schedule import Schedule
    from fastjournal.tasks.task import Retries, Task
    from fastjournal.tasks.worker import TaskWorker

__all__ = [
    "AsyncHandle",
    "BadArguments",
    "Discard",
    "Handle",
    "Middleware",
    "Retries",
    "Retry",
    "Run",
    "Schedule",
    "Task",
    "TaskFailed",
    "TaskWorker",
    "Tasks",
    "current_run",
    "known_schedules",
    "known_workers",
]

__getattr__ = names_from(
    __name__,
    {
        "AsyncHandle": "handle",
        "BadArguments": "call_codec",
        "Discard": "execution",
        "Handle": "handle",
        "Middleware": "middleware",
        "Retries": "task",
        "Retry": "execution",
        "Run": "execution",
        "Schedule": "schedule",
        "Task": "task",
        "TaskFailed": "handle",
        "TaskWorker": "worker",
        "Tasks": "app",
        "current_run": "execution",
        "known_schedules": "announcing",
        "known_workers": "announcing",
    },
)
