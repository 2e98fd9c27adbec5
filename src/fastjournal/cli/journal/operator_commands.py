"""The commands of operators: to look at jobs and queues, and to delete, redrive, steer and clean.

Rules of those that look:

1. They take no lock and change nothing: they work beside the process the journal belongs to.
2. Rates of `top` are what happened since the look before; the first look has none. The busiest
   queues come first; what does not fit on the screen is counted in the last line.

Rules of those that change:

3. They want the journal for themselves, or a daemon to ask.
4. A command that finds nothing to do says so and ends with exit code 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
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
from fastjournal.cli.journal.open_journal import (
    OpenJournal,
    View,
    check_one_log,
    open_journal,
    open_view,
    whole_id,
)
from fastjournal.cli.output import (
    QUEUE_COLUMNS,
    STATES,
    bytes_text,
    console,
    distance,
    job_lines,
    job_values,
    json_line,
    queue_row,
    queue_values,
    setting_text,
    settings_values,
    show_list,
    show_outcome,
    status_values,
    table,
)
from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock, instant_text
from fastjournal.errors import NotFound, TimedOut
from fastjournal.model import PLACES, State

if TYPE_CHECKING:
    from rich.console import Group

    from fastjournal.journal.look.inspection import JournalStatus
    from fastjournal.model import QueueStatus

__all__ = ["Top", "app", "show_again"]


_RATES = {
    "puts": ("put", "add", "schedule"),
    "leases": ("lease", "start"),
    "ends": ("purge", "complete", "fail", "dead", "delete", "expire"),
}
"""What is shown for each second, and the kinds of commands that make it up."""
_OTHER_LINES = 8  # of the screen, besides queues

app = typer.Typer(rich_markup_mode="markdown")


@app.command(name="list")
def list_(
    queue: Annotated[str | None, typer.Argument(help="Only of this queue.")] = None,
    state: Annotated[
        str | None, typer.Option(help="Only waiting, leased, completed or dead ones.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Pass over so many first.")] = 0,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List jobs, oldest first within the page; of those that failed the last line of the reason.

    Ids are shortened, and taken so by all commands; `--json` has all of everything.

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
    width = get_terminal_size().columns  # 80 where there is none
    for line in job_lines(jobs, now, width):
        typer.echo(line)
    if len(jobs) == limit:
        typer.echo(f"\nonly {limit} are shown; see --limit and --offset", err=True)


@app.command()
def show(
    job: AnyId = None,
    key: Key = None,
    queue: KeyQueue = None,
    payload: Annotated[
        bool, typer.Option("--payload", help="Only the payload, byte for byte.")
    ] = False,
    result: Annotated[
        bool, typer.Option("--result", help="Only the result, byte for byte.")
    ] = False,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Show one job whole, by its id or its key.

    Examples:

        fastjournal show 3c0f9d3e8a7b4c25a8f3f0b1c2d3e4f5

        fastjournal show --key https://example.com/a --payload > page.html
    """
    one_of(job, key, "give an id or --key")
    with open_view(directory, url) as view:
        if job is not None and result and not payload:
            with suppress(TimedOut):  # else there is none yet
                sys.stdout.buffer.write(view.result(whole_id(view, job))[1])
                sys.stdout.buffer.flush()
            return
        row_id = None if job is None else whole_id(view, job)
        found = view.job(row_id, key=as_bytes(key), queue=as_bytes(queue))
    if payload or result:
        sys.stdout.buffer.write(found.payload if payload else found.result)
        sys.stdout.buffer.flush()
    elif as_json:
        json_line(job_values(found))
    else:
        _show(job_values(found))


@app.command()
def queues(directory: Directory = HERE, url: Url = None, as_json: Json = False) -> None:
    """List the queues: how many jobs stand where, and when something happens next.

    Examples:

        fastjournal queues

        fastjournal queues --json | jq -r 'select(.dead > 0).queue'
    """
    with open_view(directory, url) as view:
        found = view.queues()
    row = partial(queue_row, now=SYSTEM_CLOCK.now())
    show_list(as_json, found, queue_values, QUEUE_COLUMNS, row, right=PLACES)


@app.command()
def status(directory: Directory = HERE, url: Url = None, as_json: Json = False) -> None:
    """Show the whole journal in figures; of a daemon also what it says of itself.

    Examples:

        fastjournal status

        fastjournal status --url fj://127.0.0.1/mail --json
    """
    _show_status(directory, url, as_json)


@app.command(hidden=True)
def stat(directory: Directory = HERE, url: Url = None, as_json: Json = False) -> None:
    """Another name of `status`.

    Examples:

        fastjournal stat
    """
    typer.echo("warning: stat is deprecated; say status", err=True)
    _show_status(directory, url, as_json)


def _show_status(directory: Path, url: str | None, as_json: bool) -> None:
    with open_view(directory, url) as view:
        check_one_log(view)
        status = view.status()
        about = getattr(view, "about", None)
    given: dict[str, Any] = {} if about is None else status._asdict()
    if as_json:
        json_line(status_values(status) | given | ({} if about is None else {"about": about}))
        return
    log = status.log
    figures = [f"{getattr(status, name):,} {name}" for name in PLACES]
    typer.echo(f"{status.jobs:,} jobs in {status.queues} queues: {', '.join(figures)}")
    typer.echo(f"{status.entries:,} entries" + _memory(status))
    typer.echo(
        f"{bytes_text(log.counters.bytes)} of log, newest segment {Path(log.active).name}, "
        f"last record {instant_text(log.written_time)} "
        f"({distance(log.written_time, SYSTEM_CLOCK.now())})"
    )
    typer.echo(
        f"{status.replayed_records:,} records replayed in {status.replay_seconds:.3f} s; "
        + ("closed in order" if status.clean_start else "in use, or not closed in order")
    )
    if about is not None:
        known = status_values(status)
        rows = [(name, str(value)) for name, value in given.items() if name not in known]
        for part in ("archive", "server"):
            named = given.get(part) or {}
            rows += [(f"{part}.{name}", str(value)) for name, value in named.items()]
        table(("daemon", "value"), [row for row in rows if not isinstance(given.get(row[0]), dict)])


@app.command()
def top(
    interval: Annotated[
        float, typer.Option(parser=seconds, metavar="LENGTH", help="Look again after so long.")
    ] = 1,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Watch the queues of a journal at work; end it with Ctrl-C.

    With `--json` each look is an object: the journal's figures and its queues.

    Examples:

        fastjournal top

        fastjournal top --interval 5

        fastjournal top --once
    """
    with open_view(directory, url, follow=True) as view:
        check_one_log(view)
        show_again(view, str(url or directory), interval, once=once, as_json=as_json)


def _memory(status: JournalStatus) -> str:
    """How much of its memory a bounded journal uses."""
    if status.memory_limit is None:
        return ""
    used = status.value_bytes + status.unlogged_bytes
    return f"; {bytes_text(used)} of values in memory, limit {bytes_text(status.memory_limit)}"


def _show(values: dict[str, Any]) -> None:
    now = SYSTEM_CLOCK.now()
    width = max(map(len, values))
    for name, value in values.items():
        if name in ("due", "inserted", "modified", "expires", "lease_start", "lease_until"):
            shown = f"{instant_text(value)} ({distance(value, now)})" if value else "-"
        elif name == "lease":
            shown = setting_text(name, value) if value else "as the queue says"
        else:
            shown = str(value)
        typer.echo(f"{name:<{width}}  {shown}")


class Top:
    """What is shown, made anew at each look; rates come from the look before."""

    def __init__(self, view: View, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._view = view
        self._name = name
        self._clock = clock
        self._before: tuple[int, dict[str, int]] | None = None

    def values(self) -> dict[str, Any]:
        """The journal now, for programs."""
        self._refresh()
        queues = [queue_values(queue) for queue in self._view.queues()]
        return {"at": self._clock.now()} | status_values(self._view.status()) | {"queues": queues}

    def look(self, height: int | None = None) -> Group:
        """The journal now; at most `height` lines."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        self._refresh()
        status, queues = self._view.status(), self._view.queues()
        now = self._clock.now()
        log = status.log.counters
        head = Text.assemble(
            (self._name, "bold"),
            f"  {instant_text(now)[:19]}Z  {status.jobs:,} jobs, {bytes_text(log.bytes)} of log",
            self._rates(now, log.writes),
        )
        room = len(queues) if height is None else max(1, height - _OTHER_LINES)
        shown = sorted(queues, key=_busy)[:room]
        grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in QUEUE_COLUMNS:
            grid.add_column(column, justify="right" if column in PLACES else "left")
        for queue in shown:
            style = "red" if queue.dead else "dim" if queue.settings.paused else ""
            grid.add_row(*(Text(cell) for cell in queue_row(queue, now)), style=style)
        grid.add_section()
        total = [f"{getattr(status, name):,}" for name in PLACES]
        grid.add_row(Text(f"all {len(queues)}"), *map(Text, total), "", "", style="bold")
        left = len(queues) - len(shown)
        more = [Text(f"{left} more queues")] if left else []
        return Group(head, Text(), grid, *more)

    def _refresh(self) -> None:
        refresh = getattr(self._view, "refresh", None)
        if refresh is not None:  # a daemon is asked anew each time
            refresh()

    def _rates(self, now: int, records: int) -> str:
        """What happened since the look before, by the second."""
        seen: Mapping[str, int] | None = getattr(self._view, "seen", None)
        counts = {"records": records}
        if seen is not None:
            counts = {
                word: sum(seen.get(kind, 0) for kind in kinds) for word, kinds in _RATES.items()
            }
        before, self._before = self._before, (now, counts)
        if before is None or now <= before[0]:
            return ""
        passed = (now - before[0]) / SECOND
        rates = (
            f"{max(0, count - before[1][word]) / passed:,.0f} {word}/s"
            for word, count in counts.items()
        )
        return ", " + ", ".join(rates)


def show_again(
    view: View,
    name: str,
    interval: float,
    *,
    once: bool = False,
    as_json: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the journal until interrupted, or once."""
    top = Top(view, name)
    if as_json:
        with suppress(KeyboardInterrupt):
            while True:
                json_line(top.values())
                sys.stdout.flush()
                if once:
                    return
                sleep(interval)
        return
    screen = console()
    if once:
        screen.print(top.look())
        return
    from rich.live import Live

    try:
        with Live(top.look(screen.height), console=screen, screen=screen.is_terminal) as live:
            while True:
                sleep(interval)
                live.update(top.look(screen.height), refresh=True)
    except KeyboardInterrupt:
        return


def _busy(queue: QueueStatus) -> tuple[int, int, bytes]:
    return (-queue.leased, -(queue.ready + queue.future + queue.held), queue.name_bytes)


NOTHING = 1


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
    show_outcome(as_json, {"outcome": "deleted"}, "deleted")


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
    show_outcome(as_json, {"deleted": count}, f"{count} deleted")
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
    show_outcome(as_json, {"redriven": count}, f"{count} waiting again")
    if not count:
        raise typer.Exit(NOTHING)


def _add_steering(verb: str, done: str, what: str) -> None:
    """A command that calls one method of a journal with a queue, and says so."""

    @app.command(name=verb, help=f"{what}\n\nExamples:\n\n    fastjournal {verb} example.com\n")
    def steer(
        queue: Queue, directory: Directory = HERE, url: Url = None, as_json: Json = False
    ) -> None:
        name = as_bytes(queue) or b""
        with open_journal(directory, url) as journal:
            journal.queue(name)  # a name that was mistyped makes no queue; `configure` would
            getattr(journal, verb)(name)
        show_outcome(as_json, {"queue": queue, "outcome": done}, f"{queue} {done}")


_add_steering("pause", "paused", "Hand nothing out of a queue until it is resumed.")
_add_steering(
    "drain",
    "draining",
    "Take nothing into a queue until it is resumed; what is there is handed out.",
)
_add_steering("resume", "resumed", "End a pause and a draining.")


@app.command()
def configure(
    queue: Queue,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME=VALUE", help="What to change; nothing: only show."),
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
        home, address = _journal_of(directory, url, journal)
        if dry_run:
            try:
                with open_view(home, address) as view:
                    found += [(journal, one) for one in changes(view, queues)]
            except NotFound:
                found += [(journal, one) for one in changes(NOWHERE, queues)]
        else:
            with open_journal(home, address, create=True) as target:
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
    base, question, options = url.partition("?")
    if base.startswith("unix:"):
        return directory, f"{url}{'&' if question else '?'}journal={quote(journal)}"
    scheme, _, rest = base.partition("://")
    return directory, f"{scheme}://{rest.partition('/')[0]}/{quote(journal)}{question}{options}"


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
    show_outcome(as_json, {"rows": rows}, f"snapshot of {rows:,} jobs")


def _setting(pair: str) -> tuple[str, Any]:
    """NAME=VALUE as `Journal.configure` wants it."""
    from fastjournal.model import SETTING_LENGTHS, SETTING_NAMES, QueueSettings

    name, equals, value = pair.partition("=")
    if not equals:
        raise typer.BadParameter(f"not NAME=VALUE: {pair!r}")
    if name not in SETTING_NAMES:
        known = ", ".join(SETTING_NAMES)
        raise typer.BadParameter(f"unknown queue setting {name!r}; there are: {known}")
    default = getattr(QueueSettings(), name)
    if isinstance(default, bool):
        return name, yes_or_no(value)
    if name in SETTING_LENGTHS:
        return name, seconds(value)
    if isinstance(default, str):
        return name, value
    try:
        return name, type(default)(value)
    except ValueError:
        raise typer.BadParameter(f"{name} is a number, not {value!r}") from None
