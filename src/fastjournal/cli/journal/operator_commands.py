"""The commands of operators that change: delete, redrive, steer queues, clean, snapshot.

Rules:

1. They want the journal for themselves, or a daemon to ask.
2. A command that finds nothing to do says so and ends with exit code 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from fastjournal.cli.arguments import (
    HERE,
    AnyId,
    Directory,
    Json,
    Key,
    KeyQueue,
    Queue,
    Url,
    as_bytes,
    one_of,
    seconds,
    yes_or_no,
)
from fastjournal.cli.journal.job_tables import setting_text, settings_values
from fastjournal.cli.journal.open_journal import OpenJournal, open_journal, open_view, whole_id
from fastjournal.cli.output import bytes_text, json_line, tell
from fastjournal.errors import NotFound

if TYPE_CHECKING:
    from fastjournal.model import QueueStatus
from fastjournal.model import State

__all__ = ["app"]

NOTHING = 1

app = typer.Typer(rich_markup_mode="markdown")


@app.command()
def delete(
    job: AnyId = None,
    key: Key = None,
    queue: KeyQueue = None,
    entry: Annotated[
        str | None, typer.Option(help="The key of an entry instead, as with unset.")
    ] = None,
    dead: Annotated[
        bool, typer.Option("--dead", help="All dead jobs instead, of --queue if it is given.")
    ] = False,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete a job by its id, the jobs of a key, all dead jobs, or an entry. It never comes back.

    Exit code **1** if there was none.

    Examples:

        fastjournal delete 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5

        fastjournal delete --key https://example.com/a

        fastjournal delete --entry greeting

        fastjournal delete --dead --queue mail
    """
    if dead:
        if job is not None or key is not None or entry is not None:
            raise typer.BadParameter("--dead is for all dead jobs: give no id, --key or --entry")
        _delete_dead(directory, url, as_bytes(queue), as_json)
        return
    if entry is not None:
        from fastjournal.cli.journal.entries import unset

        if job is not None or key is not None:
            raise typer.BadParameter("give an id, --key or --entry")
        unset(entry, False, directory, url, as_json)
        return
    one_of(job, key, "give an id, --key or --entry")
    with open_journal(directory, url) as journal:
        row_id = _deletable(journal, job)
        found = row_id != b"" and journal.delete(row_id, key=as_bytes(key), queue=as_bytes(queue))
    if not found:
        typer.echo("there was no such job", err=True)
        raise typer.Exit(NOTHING)
    tell(as_json, {"outcome": "deleted"}, "deleted")


def _deletable(journal: OpenJournal, digits: str | None) -> bytes | None:
    """The whole id; empty if no job begins so, for then there is nothing to delete."""
    if digits is None:
        return None
    try:
        return whole_id(journal, digits)
    except NotFound as error:
        if str(error).startswith("no job "):
            return b""
        raise


def _delete_dead(directory: Path, url: str | None, queue: bytes | None, as_json: bool) -> None:
    count = 0
    with open_journal(directory, url) as journal:
        while found := journal.jobs(queue, state=State.FAILED, limit=1000, values=False):
            count += sum(journal.delete(each.id) for each in found)
    tell(as_json, {"deleted": count}, f"{count} deleted")
    if not count:
        raise typer.Exit(NOTHING)


@app.command()
def redrive(
    job: AnyId = None,
    queue: Annotated[str | None, typer.Option(help="All dead jobs of this queue.")] = None,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Let a dead job, or all dead jobs of a queue, wait again with their counters at 0.

    Exit code **1** if there was none.

    Examples:

        fastjournal redrive 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5

        fastjournal redrive --queue example.com
    """
    one_of(job, queue, "give an id or --queue")
    with open_journal(directory, url) as journal:
        row_id = None if job is None else whole_id(journal, job)
        count = journal.redrive(row_id, queue=as_bytes(queue))
    tell(as_json, {"redriven": count}, f"{count} waiting again")
    if not count:
        raise typer.Exit(NOTHING)


@app.command()
def pause(
    queue: Queue, directory: Directory = HERE, url: Url = None, as_json: Json = False
) -> None:
    """Hand nothing out of a queue until it is resumed.

    Examples:

        fastjournal pause example.com
    """
    _tell(directory, url, "pause", queue, "paused", as_json)


@app.command()
def drain(
    queue: Queue, directory: Directory = HERE, url: Url = None, as_json: Json = False
) -> None:
    """Take nothing into a queue until it is resumed; what is there is handed out.

    Examples:

        fastjournal drain example.com
    """
    _tell(directory, url, "drain", queue, "draining", as_json)


@app.command()
def resume(
    queue: Queue, directory: Directory = HERE, url: Url = None, as_json: Json = False
) -> None:
    """End a pause and a draining.

    Examples:

        fastjournal resume example.com
    """
    _tell(directory, url, "resume", queue, "resumed", as_json)


@app.command()
def configure(
    queue: Queue,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="What to change; nothing: only show."),
    ] = None,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Change settings of a queue, and show all of them.

    Examples:

        fastjournal configure example.com lease=5m max_wait=30s concurrency=2

        fastjournal configure example.com
    """
    changes = dict(_setting(pair) for pair in settings or [])
    with open_journal(directory, url, create=bool(changes)) as journal:
        current = settings_values(journal.configure(as_bytes(queue) or b"", **changes))
    if as_json:
        json_line({"queue": queue, **current})
        return
    width = max(map(len, current))
    for name, value in current.items():
        typer.echo(f"{name:<{width}}  {setting_text(name, value)}")


@app.command()
def apply(
    tables: Annotated[
        Path, typer.Argument(help="What is declared, TOML or INI; see docs/queues.md.")
    ],
    directory: Directory = HERE,
    url: Url = None,
    dry_run: Annotated[bool, typer.Option(help="Only show what would change.")] = False,
    as_json: Json = False,
) -> None:
    """Make queues what a file declares, and show what was not so before.

    Applied again it changes nothing. What the file does not name stays as it is.

    Examples:

        fastjournal apply tables.toml --dry-run

        fastjournal apply tables.toml
    """
    from fastjournal.tables import apply_tables, changes, read_tables

    declared = read_tables(tables)
    parts = [("", declared.queues)] + [(n, one.queues) for n, one in declared.journals.items()]
    found = []
    for journal, queues in parts:
        if not queues:
            continue
        place, address = _journal_of(directory, url, journal)
        if dry_run:
            try:
                with open_view(place, address) as view:
                    found += [(journal, one) for one in changes(view, queues)]
            except NotFound:
                found += [(journal, one) for one in changes(NOWHERE, queues)]
        else:
            with open_journal(place, address, create=True) as target:
                found += [(journal, one) for one in apply_tables(target, queues)]
    for journal, one in found:
        if as_json:
            json_line({"journal": journal} | one._asdict())
        else:
            was, becomes = (
                setting_text(one.setting, one.was),
                setting_text(one.setting, one.becomes),
            )
            where = f"{journal}/{one.queue}" if journal else one.queue
            typer.echo(f"{where}  {one.setting}  {was} -> {becomes}")
    if not found and not as_json:
        typer.echo("nothing differs from what is declared")
    kept = sorted(name for name, one in declared.journals.items() if one.settings)
    if kept:
        typer.echo(
            f"how {', '.join(kept)} is kept holds when a daemon is started with these tables",
            err=True,
        )


def _journal_of(directory: Path, url: str | None, journal: str) -> tuple[Path, str | None]:
    """Where a journal of a daemon is: behind its address, or below its directory."""
    if not journal or url is None:
        return (directory / journal if journal else directory), url
    base, mark, options = url.partition("?")
    if base.startswith("unix:"):
        return directory, f"{url}{'&' if mark else '?'}journal={quote(journal)}"
    scheme, _, rest = base.partition("://")
    return directory, f"{scheme}://{rest.partition('/')[0]}/{quote(journal)}{mark}{options}"


class _Nowhere:
    """A journal that is not there yet."""

    def queue(self, name: str) -> QueueStatus:
        raise NotFound(name)


NOWHERE = _Nowhere()


@app.command()
def clean(directory: Directory = HERE, url: Url = None, as_json: Json = False) -> None:
    """Drop from sealed segments what no replay needs. An open journal does so by itself.

    A daemon does not tell what it dropped.

    Examples:

        fastjournal clean
    """
    with open_journal(directory, url) as journal:
        cleaned = journal.clean()
    if cleaned is None:
        typer.echo("the daemon has cleaned", err=as_json)
        return
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
def snapshot(directory: Directory = HERE, url: Url = None, as_json: Json = False) -> None:
    """Write an image of the state: the next opening is quick, and the log below it goes.

    Examples:

        fastjournal snapshot
    """
    with open_journal(directory, url) as journal:
        journal.snapshot()
        rows = journal.status().rows
    tell(as_json, {"rows": rows}, f"snapshot of {rows:,} jobs")


def _tell(
    directory: Path, url: str | None, verb: str, queue: str, done: str, as_json: bool
) -> None:
    """Steer one queue and say so."""
    name = as_bytes(queue) or b""
    with open_journal(directory, url) as journal:
        journal.queue(name)  # a name that was mistyped makes no queue; `configure` would
        getattr(journal, verb)(name)
    tell(as_json, {"queue": queue, "outcome": done}, f"{queue} {done}")


def _setting(pair: str) -> tuple[str, Any]:
    """NAME=VALUE as `Journal.configure` wants it."""
    from fastjournal.model import SETTING_NAMES, QueueSettings

    name, mark, value = pair.partition("=")
    if not mark:
        raise typer.BadParameter(f"not NAME=VALUE: {pair!r}")
    if name not in SETTING_NAMES:
        known = ", ".join(SETTING_NAMES)
        raise typer.BadParameter(f"unknown queue setting {name!r}; there are: {known}")
    default = getattr(QueueSettings(), name)
    if isinstance(default, bool):
        return name, yes_or_no(value)
    if setting_text(name, 0) == "0s":
        return name, seconds(value)
    if isinstance(default, str):
        return name, value
    try:
        return name, type(default)(value)
    except ValueError:
        raise typer.BadParameter(f"{name} is a number, not {value!r}") from None
