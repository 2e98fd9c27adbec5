"""The command `fastjournal`.

Rules:

1. Heavy modules are imported inside each command: `fastjournal --help` stays quick.
2. An error of ours, or of the operating system, is one line on standard error and exit code 2, or 3
   if it tells of damage; a trace means a bug.
3. Results go to standard output, everything else to standard error; `--json` prints JSON lines.
4. Only the command that was typed is made: Typer would make all of them with all their options each
   time, which takes longer than most commands run.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from copy import copy
from pathlib import Path
from shutil import get_terminal_size
from textwrap import shorten
from typing import Annotated

try:
    import typer
    from typer.models import CommandInfo, TyperInfo
except ImportError:
    raise SystemExit("the command line needs: pip install 'fastjournal[daemon]'") from None

from fastjournal.cli import archive, daemon, log, replica, spool, worker
from fastjournal.cli.arguments import Json
from fastjournal.cli.journal import entries, group, jobs, operator_commands
from fastjournal.cli.output import show_outcome
from fastjournal.cli.spark import commands as spark
from fastjournal.errors import JournalError, is_damage
from fastjournal.package import __version__

__all__ = ["app", "main", "only", "overview"]

FAULT, DAMAGE = 2, 3
_COMPLETE = "_FASTJOURNAL_COMPLETE"
"""Set by the shell's completion, which then asks what can be typed next."""

GROUPS = {
    "Jobs": "put lease done fail touch release list show delete redrive",
    "Queues": "queues status top pause drain resume configure apply",
    "Values under keys": "set get add unset scan lock watch",
    "Tasks": "worker tasks workers schedules",
    "Servers": "serve forward workq replica group ping listen token spool",
    "History": "log clean snapshot backup restore archive spark",
    "This program": "demo version",
}
"""The commands as `fastjournal --help` lists them; one that is in no group stands under Others."""

app = typer.Typer(
    name="fastjournal",
    help="A durable job journal: inspect, check and run it.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(jobs.app)
app.add_typer(operator_commands.app)
app.add_typer(entries.app)
app.add_typer(daemon.app)
app.add_typer(worker.app)
app.add_typer(daemon.tokens, name="token")
app.add_typer(log.app, name="log")
app.add_typer(archive.app, name="archive")
app.add_typer(replica.app, name="replica")
app.add_typer(group.app, name="group")
app.add_typer(spark.app, name="spark")
app.add_typer(spool.app, name="spool")
app.command(cls=daemon.ServeCommand)(daemon.serve)
app.command()(spool.forward)
app.command(cls=daemon.WorkqCommand)(daemon.workq)
app.command()(worker.worker)
app.command()(archive.backup)
app.command()(archive.restore)


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version, and which build of the core runs: compiled or pure.

    Examples:

        fastjournal version

        fastjournal version --json
    """
    from fastjournal.package.compiled import describe_core

    core = describe_core()
    show_outcome(as_json, {"version": __version__, "core": core}, f"{__version__} ({core} core)")


@app.command()
def demo(
    directory: Annotated[
        Path | None,
        typer.Argument(help="Where to keep its files; a temporary directory if not given."),
    ] = None,
    report: Annotated[
        Path, typer.Option(help="Where to leave the report that Spark makes.")
    ] = Path("fastjournal-report.html"),
    brief: Annotated[
        bool, typer.Option(help="Only the log and the journal: no daemon, no Spark.")
    ] = False,
) -> None:
    """Watch all of it at work, its processes killed, nothing lost.

    Ends with exit code 1 if any of its claims turns out false.

    Examples:

        fastjournal demo

        fastjournal demo ./look-inside --report report.html
    """
    from fastjournal.cli.demo import run

    raise typer.Exit(run(directory, report=report, brief=brief))


def main() -> None:
    """Run the command line; errors of ours become one line and an exit code."""
    words = sys.argv[1:]
    completing = _COMPLETE in os.environ  # what was typed stands in the environment
    if words in ([], ["-h"], ["--help"]) and not completing:
        sys.stdout.write(overview(app))
        return
    if words == ["--version"]:
        sys.argv[1:] = words = ["version"]
    try:
        (app if completing else only(app, *words[:1]))()
    except BrokenPipeError:
        # The reader of our output has gone; nothing is left to be said, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except (JournalError, OSError) as error:
        sys.stderr.write(f"error: {' '.join(str(error).split())}\n")
        raise SystemExit(DAMAGE if is_damage(error) else FAULT) from None


def only(app: typer.Typer, name: str = "") -> typer.Typer:
    """The command line with this command or group alone; the whole one if it is not among them."""
    for known, found in _commands(app):
        if known != name:
            continue
        part = copy(app)
        part.registered_commands, part.registered_groups = [], []
        if isinstance(found, TyperInfo):
            part.registered_groups.append(found)
        else:
            inner = typer.Typer()
            inner.registered_commands.append(found)
            part.add_typer(inner)  # not by itself: Typer leaves out the name of a lonely command
        return part
    return app


def overview(app: typer.Typer) -> str:
    """What `fastjournal --help` says: the commands, each with the first sentence of its help.

    Rich would lay out the options of all of them; `fastjournal COMMAND --help` is Typer's.
    """
    lines = {name: _sentence(found) for name, found in _commands(app)}
    width = max(map(len, lines))
    room = max(20, min(100, get_terminal_size().columns) - width - 4)
    groups = {title: names.split() for title, names in GROUPS.items()}
    grouped = {name for names in groups.values() for name in names}
    groups["Others"] = [name for name in lines if name not in grouped]
    listed = "\n\n".join(
        f"{title}:\n"
        + "\n".join(
            f"  {name:<{width}}  {shorten(lines[name], room, placeholder='…')}"
            for name in names
            if name in lines
        )
        for title, names in groups.items()
        if any(name in lines for name in names)
    )
    return (
        "Usage: fastjournal COMMAND [OPTIONS] [ARGS]...\n\n"
        f"  {app.info.help}\n\n"
        f"{listed}\n\n"
        "Options:\n"
        "  -h, --help            Show this message; behind a command, all about that command.\n"
        "  --version             Print the version, and which build of the core runs.\n"
        "  --install-completion  Install completion for the current shell.\n"
        "  --show-completion     Show completion for the current shell.\n"
    )


def _commands(app: typer.Typer) -> Iterator[tuple[str, CommandInfo | TyperInfo]]:
    """What can be typed behind `fastjournal`, and how it was registered; nothing that is hidden."""
    for command in app.registered_commands:
        if command.callback is not None and not command.hidden:
            yield command.name or command.callback.__name__.replace("_", "-"), command
    for below in app.registered_groups:
        if below.typer_instance is None or below.hidden is True:
            continue
        if isinstance(below.name, str) and below.name:
            yield below.name, below
        else:
            yield from _commands(below.typer_instance)


def _sentence(found: CommandInfo | TyperInfo) -> str:
    """The first sentence of a help."""
    inner = found.typer_instance if isinstance(found, TyperInfo) else None
    text = inner.info.help if inner else found.help or inspect.getdoc(found.callback) or ""
    words = " ".join(str(text or "").strip().partition("\n\n")[0].split())
    first, stop, rest = words.partition(". ")
    return f"{first}." if rest else first + stop


if __name__ == "__main__":
    main()
