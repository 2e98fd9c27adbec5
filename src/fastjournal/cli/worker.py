"""`fastjournal worker` works off queues with a function of yours; `tasks` and others tell of it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastjournal.arguments import length_text
from fastjournal.cli.arguments import HERE, Directory, Json, Schema, Url, one_target, seconds
from fastjournal.cli.journal.open_journal import open_journal, open_view
from fastjournal.cli.output import json_line, show_list, show_outcome, table
from fastjournal.clock import instant_text
from fastjournal.errors import Loading, SettingError, Unavailable

if TYPE_CHECKING:
    from fastjournal.cli.stop_signal import Stop
    from fastjournal.tasks.announcing import ScheduleInfo, WorkerInfo

__all__ = ["app", "restart_on_change", "worker"]


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
    for row in rows:
        row["timeout"] = row["timeout"] and length_text(round(row["timeout"] * _SECOND))
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
        "rate": None if rate is None else str(rate),
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
    columns = ("worker", "mode", "queues", "runs", "tasks", "oldest", "done", "failed")
    right = ("runs", "oldest", "done", "failed")
    show_list(json, found, msgspec.to_builtins, columns, _worker_row, right=right)


def _worker_row(worker: WorkerInfo) -> list[str]:
    running = [job for job in worker.running if job.since]
    oldest = min((job.since for job in running), default=0)
    return [
        worker.name,
        worker.mode + (", stopping" if worker.stopping else ""),
        " ".join(worker.queues),
        f"{len(running)}/{worker.concurrency}",
        ", ".join(sorted({job.task or "?" for job in running})),
        f"{(worker.seen - oldest) / _SECOND:.0f} s" if oldest else "",
        str(worker.counts.get("completed", 0)),
        str(worker.counts.get("failed", 0)),
    ]


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
        show_outcome(json, {"schedule": forget, "outcome": "forgotten"}, f"{forget} forgotten")
        return
    with open_view(directory, url) as journal:
        found = known_schedules(journal)
    columns = ("schedule", "task", "when", "zone", "missed", "last", "next")
    show_list(json, found, msgspec.to_builtins, columns, _schedule_row)


def _schedule_row(schedule: ScheduleInfo) -> list[str]:
    when = schedule.cron or f"every {length_text(schedule.every)}"
    return [
        schedule.name, schedule.task, when, schedule.tz, schedule.missed,
        _utc(schedule.last), _utc(schedule.next),
    ]  # fmt: skip


def _utc(time: int) -> str:
    return f"{instant_text(time)[:19]}Z" if time else "-"


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


_DEFAULT = "fj://127.0.0.1"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 15.0  # seconds between two tries to reach the daemon


def worker(
    function: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME", help="A Tasks, or a function that gets a leased job."
        ),
    ],
    queue: Annotated[
        list[str] | None, typer.Option(help="Queue to work off; several times. Else all.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="All queues that begin so; not with a Tasks.")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(help="Jobs at a time. [1; with a Tasks one for each processor]", min=1),
    ] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(
            help="Jobs leased ahead. [as many as concurrency; with a Tasks by their length]", min=0
        ),
    ] = None,
    lease: Annotated[float | None, typer.Option(parser=seconds, help="Length of a lease.")] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(parser=seconds, help="A job that takes longer fails; a task says it itself."),
    ] = None,
    grace: Annotated[
        float, typer.Option(parser=seconds, help="How long running jobs may go on after a stop.")
    ] = 30.0,
    mode: Annotated[
        str | None, typer.Option(help="threads, asyncio or processes, with a Tasks.")
    ] = None,
    recycle_jobs: Annotated[
        int, typer.Option(help="Replace a process after so many jobs; 0: never.", min=0)
    ] = 0,
    recycle_memory: Annotated[
        int, typer.Option(help="Replace a process above so many MiB; 0: never.", min=0)
    ] = 0,
    schedules: Annotated[
        bool, typer.Option("--schedules/--no-schedules", help="Fire the schedules of a Tasks.")
    ] = True,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start anew when a Python file changes, to develop.")
    ] = False,
    schema: Schema = None,
    name: Annotated[str | None, typer.Option(help="Shown as the worker of its leases.")] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            "-d",
            envvar="FASTJOURNAL_DIR",
            is_eager=True,
            metavar="DIRECTORY",
            help="The journal's directory.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            envvar="FASTJOURNAL_URL",
            show_envvar=False,
            callback=one_target,
            help="Daemon (fj://host:port/journal) or directory of a journal. "
            "[that of the Tasks, or fj://127.0.0.1]",
        ),
    ] = None,
) -> None:
    """Work off queues with the tasks of a program, or with one function, until SIGTERM or Ctrl-C.

    A function gets one leased job; what it returns (bytes or nothing) is the result, an
    exception fails the job. An `async def` runs on an event loop, anything else in threads. A
    daemon that is not up yet is waited for.

    Examples:

        fastjournal worker shop.tasks:app

        fastjournal worker shop.tasks:app --mode processes --recycle-jobs 1000

        fastjournal worker thumbs:resize --queue thumbs --concurrency 8

        fastjournal worker thumbs:resize_v2 --queue thumbs --schema 2
    """
    import os
    import socket

    from fastjournal.cli.stop_signal import Stop
    from fastjournal.client.worker import Worker, check_result

    if reload:
        arguments = [word for word in sys.argv[1:] if word != "--reload"]
        command = [sys.executable, "-m", "fastjournal.cli.app", *arguments]
        raise typer.Exit(restart_on_change(command))
    logging.basicConfig(
        stream=sys.stderr, level="INFO", format="%(asctime)s [%(levelname)s] %(message)s"
    )
    work = load_function(function)
    given = url or ("" if directory is None else str(directory))
    called = name or f"{socket.gethostname()}:{os.getpid()}"
    stop = Stop()
    stop.listen()
    running: Worker
    if hasattr(work, "queue_settings"):
        from fastjournal.tasks.app import Tasks
        from fastjournal.tasks.worker import TaskWorker

        assert isinstance(work, Tasks)
        if prefix is not None or time_limit is not None:
            raise SettingError("a Tasks has its own queues and time limits", name="prefix")
        url = given or str(work.place)
        source = _connected(url, stop)
        if source is None:
            return
        work.connect(source)
        running = TaskWorker(
            work, queues=queue or None, mode=mode, concurrency=concurrency,  # type: ignore[arg-type]
            prefetch=prefetch, target=function, recycle_jobs=recycle_jobs,
            recycle_memory=recycle_memory << 20, place=url, lease=lease, grace=grace, name=called,
            schedules=schedules, schema=schema,
        )  # fmt: skip
        what = f"{len(work.tasks)} tasks, {len(work.schedules)} schedules, {running.mode}"
        queues = ", ".join(queue or work.queues)
        for unknown in sorted({*queue} - {*work.queues} if queue else ()):
            logging.warning(
                "no task is of queue %s; there are: %s", unknown, ", ".join(work.queues)
            )
    else:
        if mode is not None or recycle_jobs or recycle_memory:
            raise SettingError("processes are for a Tasks", name="mode")
        check_result(work)
        source = _connected(given or _DEFAULT, stop)
        if source is None:
            return
        running = Worker(
            source, work, queues=queue or None, prefix=prefix, concurrency=concurrency or 1,
            prefetch=prefetch, lease=lease, time_limit=time_limit, grace=grace, name=called,
            schema=schema,
        )  # fmt: skip
        what = function
        queues = ", ".join(queue or []) or (f"{prefix}*" if prefix else "all")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    if stop.asked:  # just before
        running.stop()
    logging.info("worker %s: %s; queues: %s; journal: %r", called, what, queues, source)
    counts = running.run()
    source.close()
    shown = {field: getattr(counts, field) for field in counts.__slots__}
    sys.stdout.write(json.dumps(shown) + "\n")


def _connected(url: str, stop: Stop) -> Any:
    """What to lease from, once it is there; None if we were asked to stop before."""
    from fastjournal.connect_url import connect

    if url.startswith("spool:"):
        raise SettingError("nothing can be leased from a spool", name="url")
    pause = _FIRST_PAUSE
    while not stop.asked:
        try:
            return connect(url)
        except (Loading, Unavailable) as error:
            logging.warning("%s; again in %.1f s", error, pause)
        stop.wait(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
    return None


def load_function(name: str) -> Any:
    """The function `module:name`, also of a module in the current directory."""
    from fastjournal.tasks.processes import load_named

    found = load_named(name, "function")
    if not callable(found) and not hasattr(found, "queue_settings"):
        raise SettingError(f"{name} cannot be called", name="function")
    if hasattr(found, "app") and hasattr(found, "codec"):
        raise SettingError(
            f"{name} is a task: name the Tasks it belongs to, and --queue {found.options.queue}",
            name="function",
        )
    return found
