"""Commands about tasks: `tasks`, `schedules`, `workers`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from fastjournal.cli.arguments import HERE, Directory, Json, Url
from fastjournal.cli.journal.open_journal import open_journal, open_view
from fastjournal.cli.output import instant, json_line, table
from fastjournal.errors import SettingError

__all__ = ["app", "restart_on_change"]

app = typer.Typer()
_SECOND = 1_000_000_000


@app.command()
def tasks(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the app is.")],
    json: Json = False,
) -> None:
    """List the tasks of a program: queue, retries, keys, limits.

    Examples:

        fastjournal tasks shop.tasks:app
    """
    from fastjournal.tasks.app import Tasks
    from fastjournal.tasks.processes import load_named

    found = load_named(target)
    if not isinstance(found, Tasks):
        raise SettingError(f"{target} is no Tasks", name="app")
    rows = [_task_row(task) for _, task in sorted(found.tasks.items())]
    if json:
        for row in rows:
            json_line(row)
        return
    columns = ("task", "queue", "priority", "retries", "timeout", "key", "rate")
    table(columns, [[str(row[column] or "") for column in columns] for row in rows])


def _task_row(task: Any) -> dict[str, Any]:
    options = task.options
    key = options.merge or options.unique
    rate = options.rate
    return {
        "task": task.name,
        "queue": options.queue,
        "priority": options.priority,
        "retries": options.retry.times,
        "timeout": options.timeout,
        "key": key if isinstance(key, str) or key is None else getattr(key, "__name__", "function"),
        "rate": None if rate is None else f"{rate.count}/{rate.seconds:g}s",
        "async": task.is_async,
        "parameters": list(task.codec.names),
    }


@app.command()
def workers(directory: Directory = HERE, url: Url = None, json: Json = False) -> None:
    """List the workers that are at work: who, where, and what they run since when.

    Examples:

        fastjournal workers --url fj://queue.example.com
    """
    import msgspec

    from fastjournal.tasks.announcing import known_workers

    with open_view(directory, url) as journal:
        found = known_workers(journal)
    if json:
        for worker in found:
            json_line(msgspec.to_builtins(worker))
        return
    rows = []
    for worker in found:
        running = [job for job in worker.running if job.since]
        oldest = min((job.since for job in running), default=0)
        rows.append(
            [
                worker.name,
                worker.mode + (", stopping" if worker.stopping else ""),
                " ".join(worker.queues),
                f"{len(running)}/{worker.concurrency}",
                ", ".join(sorted({job.task or "?" for job in running})),
                f"{(worker.seen - oldest) / _SECOND:.0f} s" if oldest else "",
                str(worker.counts.get("completed", 0)),
                str(worker.counts.get("failed", 0)),
            ]
        )
    columns = ("worker", "mode", "queues", "runs", "tasks", "oldest", "done", "failed")
    table(columns, rows, right=("runs", "oldest", "done", "failed"))


@app.command()
def schedules(
    directory: Directory = HERE,
    url: Url = None,
    forget: Annotated[
        str | None, typer.Option(metavar="NAME", help="Drop a schedule that no program has.")
    ] = None,
    json: Json = False,
) -> None:
    """List the schedules that workers have brought: when, which task, last and next instant.

    Examples:

        fastjournal schedules --json

        fastjournal schedules --forget shop.nightly
    """
    import msgspec

    from fastjournal.tasks.announcing import forget_schedule, known_schedules

    if forget is not None:
        with open_journal(directory, url) as journal:
            forget_schedule(journal, forget)
        return
    with open_view(directory, url) as journal:
        found = known_schedules(journal)
    if json:
        for schedule in found:
            json_line(msgspec.to_builtins(schedule))
        return
    rows = [
        [
            schedule.name,
            schedule.task,
            schedule.cron or f"every {schedule.every / _SECOND:g} s",
            schedule.tz,
            schedule.missed,
            instant(schedule.last)[:19],
            instant(schedule.next)[:19],
        ]
        for schedule in found
    ]
    table(("schedule", "task", "when", "zone", "missed", "last", "next"), rows)


def restart_on_change(arguments: list[str]) -> int:
    """Run a command again whenever a Python file below the current directory changes."""
    import signal
    import subprocess

    from fastjournal.cli.stop_signal import Stop

    stop = Stop()
    stop.listen()
    while True:
        seen = _python_files()
        child = subprocess.Popen(arguments)
        while not stop.wait(0.5) and _python_files() == seen:
            pass
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        code = child.wait()
        if stop.is_set():
            return code
        typer.echo("a file has changed: starting anew", err=True)


def _python_files() -> dict[str, int]:
    found: dict[str, int] = {}
    for folder, folders, files in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        for name in files:
            if name.endswith(".py"):
                path = Path(folder, name)
                try:
                    found[str(path)] = path.stat().st_mtime_ns
                except OSError:
                    continue
    return found
