"""The commands of operators: look at jobs and queues, steer queues, keep the journal in order.

Rules:

1. list, show, queues, stat and top take no lock and change nothing: they work beside the process
   the journal belongs to. The others want the journal for themselves.
2. A command that finds nothing to do says so and ends with exit code 1.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fastjournal.cli.given import (
    Directory,
    Json,
    Key,
    Queue,
    Url,
    as_bytes,
    job_id,
    seconds,
)
from fastjournal.cli.render import bytes_text, instant, json_line, table
from fastjournal.cli.shapes import (
    JOB_COLUMNS,
    QUEUE_COLUMNS,
    QUEUE_NUMBERS,
    STATES,
    distance,
    job_row,
    job_values,
    queue_row,
    queue_values,
    setting_text,
    settings_values,
    status_values,
)
from fastjournal.cli.target import open_target, open_view
from fastjournal.clock import SYSTEM_CLOCK

__all__ = ["app"]

NOTHING = 1
_HERE = Path("jobs")

app = typer.Typer(rich_markup_mode="markdown")

AnyId = Annotated[
    Any, typer.Argument(metavar="[ID]", parser=job_id, help="The job's id.", show_default=False)
]


@app.command(name="list")
def list_(
    queue: Annotated[str | None, typer.Argument(help="Only of this queue.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only waiting, leased, completed or dead ones.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Pass over so many first.")] = 0,
    directory: Directory = _HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List jobs, oldest first within the page.

    Examples:

        fastjournal list

        fastjournal list example.com --state dead --json
    """
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"state is one of {', '.join(STATES)}, not {state!r}")
    with open_view(directory, url) as view:
        wanted = None if state is None else STATES[state]
        jobs = view.jobs(as_bytes(queue), state=wanted, offset=offset, limit=limit)
    if as_json:
        for job in jobs:
            json_line(job_values(job))
        return
    now = SYSTEM_CLOCK.now()
    table(JOB_COLUMNS, [job_row(job, now) for job in jobs], right=["priority", "attempts"])
    if len(jobs) == limit:
        typer.echo(f"\nonly {limit} are shown; see --limit and --offset", err=True)


@app.command()
def show(
    job: AnyId = None,
    key: Key = None,
    queue: Annotated[
        str | None, typer.Option(help="With --key: its queue, if not the key's domain.")
    ] = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Only the payload, byte for byte.")
    ] = False,
    result: Annotated[
        bool, typer.Option("--result", help="Only the result, byte for byte.")
    ] = False,
    directory: Directory = _HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show one job whole, by its id or its key.

    Examples:

        fastjournal show 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5

        fastjournal show --key https://example.com/a --payload > page.html
    """
    if (job is None) == (key is None):
        raise typer.BadParameter("give an id or --key")
    with open_view(directory, url) as view:
        found = view.job(job, key=as_bytes(key), queue=as_bytes(queue))
    if payload or result:
        sys.stdout.buffer.write(found.value if payload else found.result)
        sys.stdout.buffer.flush()
    elif as_json:
        json_line(job_values(found))
    else:
        _show(job_values(found))


@app.command()
def queues(directory: Directory = _HERE, url: Url = None, as_json: Json = False) -> None:
    """List the queues: how many jobs stand where, and when something happens next.

    Examples:

        fastjournal queues

        fastjournal queues --json | jq -r 'select(.dead > 0).queue'
    """
    with open_view(directory, url) as view:
        found = view.queues()
    if as_json:
        for queue in found:
            json_line(queue_values(queue))
        return
    now = SYSTEM_CLOCK.now()
    table(QUEUE_COLUMNS, [queue_row(queue, now) for queue in found], right=QUEUE_NUMBERS)


@app.command()
def stat(directory: Directory = _HERE, url: Url = None, as_json: Json = False) -> None:
    """Show the whole journal in figures.

    Examples:

        fastjournal stat

        fastjournal stat --json
    """
    with open_view(directory, url) as view:
        status = view.status()
    if as_json:
        json_line(status_values(status))
        return
    log = status.log
    figures = [f"{getattr(status, name):,} {name}" for name in QUEUE_NUMBERS]
    typer.echo(f"{status.rows:,} jobs in {status.queues} queues: {', '.join(figures)}")
    typer.echo(
        f"{bytes_text(log.counters.bytes)} of log, newest segment {log.active.name}, "
        f"last record {instant(log.written_time)} "
        f"({distance(log.written_time, SYSTEM_CLOCK.now())})"
    )
    typer.echo(
        f"{status.replayed_records:,} records replayed in {status.replay_seconds:.3f} s; "
        + ("closed in order" if status.clean_start else "in use, or not closed in order")
    )


@app.command()
def top(
    interval: Annotated[
        float, typer.Option(parser=seconds, metavar="LENGTH", help="Look again after so long.")
    ] = 1,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    directory: Directory = _HERE,
    url: Url = None,
) -> None:
    """Watch the queues of a journal at work; end it with Ctrl-C.

    Examples:

        fastjournal top

        fastjournal top --interval 5

        fastjournal top --once
    """
    from fastjournal.cli.top import watch

    with open_view(directory, url, follow=True) as view:
        watch(view, str(url or directory), interval, once=once)


@app.command()
def delete(
    job: AnyId = None,
    key: Key = None,
    queue: Annotated[
        str | None, typer.Option(help="With --key: its queue, if not the key's domain.")
    ] = None,
    directory: Directory = _HERE,
    url: Url = None,
) -> None:
    """Delete a job by its id, or the jobs of a key. It never comes back.

    Exit code **1** if there was none.

    Examples:

        fastjournal delete 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5

        fastjournal delete --key https://example.com/a
    """
    if (job is None) == (key is None):
        raise typer.BadParameter("give an id or --key")
    with open_target(directory, url) as journal:
        found = journal.delete(job, key=as_bytes(key), queue=as_bytes(queue))
    if not found:
        typer.echo("there was no such job", err=True)
        raise typer.Exit(NOTHING)
    typer.echo("deleted")


@app.command()
def redrive(
    job: AnyId = None,
    queue: Annotated[str | None, typer.Option(help="All dead jobs of this queue.")] = None,
    directory: Directory = _HERE,
    url: Url = None,
) -> None:
    """Let a dead job, or all dead jobs of a queue, wait again with their counters at 0.

    Exit code **1** if there was none.

    Examples:

        fastjournal redrive 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5

        fastjournal redrive --queue example.com
    """
    if (job is None) == (queue is None):
        raise typer.BadParameter("give an id or --queue")
    with open_target(directory, url) as journal:
        count = journal.redrive(job, queue=as_bytes(queue))
    typer.echo(f"{count} waiting again")
    if not count:
        raise typer.Exit(NOTHING)


@app.command()
def pause(queue: Queue, directory: Directory = _HERE, url: Url = None) -> None:
    """Hand nothing out of a queue until it is resumed.

    Examples:

        fastjournal pause example.com
    """
    with open_target(directory, url) as journal:
        journal.pause(as_bytes(queue) or b"")
    typer.echo(f"{queue} paused")


@app.command()
def drain(queue: Queue, directory: Directory = _HERE, url: Url = None) -> None:
    """Take nothing into a queue until it is resumed; what is there is handed out.

    Examples:

        fastjournal drain example.com
    """
    with open_target(directory, url) as journal:
        journal.drain(as_bytes(queue) or b"")
    typer.echo(f"{queue} draining")


@app.command()
def resume(queue: Queue, directory: Directory = _HERE, url: Url = None) -> None:
    """End a pause and a draining.

    Examples:

        fastjournal resume example.com
    """
    with open_target(directory, url) as journal:
        journal.resume(as_bytes(queue) or b"")
    typer.echo(f"{queue} resumed")


@app.command()
def configure(
    queue: Queue,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="What to change; nothing: only show."),
    ] = None,
    directory: Directory = _HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change settings of a queue, and show all of them.

    Examples:

        fastjournal configure example.com lease=5m max_wait=30s concurrency=2

        fastjournal configure example.com
    """
    changes = dict(_setting(pair) for pair in settings or [])
    with open_target(directory, url, create=bool(changes)) as journal:
        current = settings_values(journal.configure(as_bytes(queue) or b"", **changes))
    if as_json:
        json_line({"queue": queue, **current})
        return
    width = max(map(len, current))
    for name, value in current.items():
        typer.echo(f"{name:<{width}}  {setting_text(name, value)}")


@app.command()
def clean(directory: Directory = _HERE, url: Url = None, as_json: Json = False) -> None:
    """Drop from sealed segments what no replay needs. An open journal does so by itself.

    Examples:

        fastjournal clean
    """
    with open_target(directory, url) as journal:
        cleaned = journal.clean()
    if as_json:
        for segment in cleaned:
            json_line(
                {
                    "segment": segment.segment,
                    "bytes_before": segment.bytes_before,
                    "bytes_after": segment.bytes_after,
                }
            )
        return
    freed = sum(segment.bytes_before - segment.bytes_after for segment in cleaned)
    typer.echo(f"{len(cleaned)} segments cleaned, {bytes_text(freed)} freed")


@app.command()
def snapshot(directory: Directory = _HERE, url: Url = None) -> None:
    """Write an image of the state: the next opening is quick, and the log below it goes.

    Examples:

        fastjournal snapshot
    """
    with open_target(directory, url) as journal:
        journal.snapshot()
        rows = journal.status().rows
    typer.echo(f"snapshot of {rows:,} jobs")


def _setting(pair: str) -> tuple[str, Any]:
    """NAME=VALUE as `Journal.configure` wants it."""
    from fastjournal.model import QueueSettings

    name, mark, value = pair.partition("=")
    default = getattr(QueueSettings(), name, None)
    if not mark or default is None:
        raise typer.BadParameter(f"not NAME=VALUE with the name of a setting: {pair!r}")
    if isinstance(default, bool):
        words = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
        if value.lower() not in words:
            raise typer.BadParameter(f"{name} is yes or no, not {value!r}")
        return name, words[value.lower()]
    if setting_text(name, 0) == "0s":
        return name, seconds(value)
    if isinstance(default, str):
        return name, value
    try:
        return name, type(default)(value)
    except ValueError:
        raise typer.BadParameter(f"{name} is a number, not {value!r}") from None


def _show(values: dict[str, Any]) -> None:
    now = SYSTEM_CLOCK.now()
    width = max(map(len, values))
    for name, value in values.items():
        if name in ("due", "inserted", "modified", "expires", "lease_start", "lease_until"):
            shown = f"{instant(value)} ({distance(value, now)})" if value else "-"
        elif name == "lease":
            shown = setting_text(name, value) if value else "as the queue says"
        else:
            shown = str(value)
        typer.echo(f"{name:<{width}}  {shown}")
