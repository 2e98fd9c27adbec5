"""The commands that stay: `lock` while a command runs, `watch` until it is stopped.

Rules:

1. `lock` runs its command only while it holds the lock: it is kept as long as the command runs, and
   a command whose lock was lost is told to end.
2. The command finds the key in `FASTJOURNAL_LOCK` and the fencing number in `FASTJOURNAL_FENCE`: a
   late write of it can be refused by whoever knows a larger number.
3. `watch` prints a line for each change. Where changes were missed it says so: everything may have
   changed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fastjournal.cli.arguments import HERE, Directory, Json, Url, as_bytes, seconds
from fastjournal.cli.entries import KINDS, entries_of
from fastjournal.cli.job_tables import text
from fastjournal.cli.output import instant, json_line
from fastjournal.entry import EntryChange, Watched, watched
from fastjournal.errors import LeaseLost, Locked, Unavailable

__all__ = ["app", "directory_changes"]

NO_LOCK = 75
"""Exit code, EX_TEMPFAIL: somebody else holds the lock, or took it over."""
_LOOK_AGAIN = 0.2  # seconds between two looks at a directory

app = typer.Typer(rich_markup_mode="markdown")


@app.command()
def lock(
    key: Annotated[str, typer.Argument(metavar="KEY", help="What to lock; no entry is needed.")],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What to run while it is held.")
    ],
    length: Annotated[
        float,
        typer.Option(
            parser=seconds, metavar="LENGTH", help="Ends so long after we are gone, up to 1h."
        ),
    ] = 30,
    wait: Annotated[
        float, typer.Option(parser=seconds, metavar="LENGTH", help="Wait so long for the lock.")
    ] = 0,
    directory: Directory = HERE,
    url: Url = None,
) -> None:
    """Run a command while holding a lock on a key.

    The lock is kept while the command runs and freed when it ends. The command finds the fencing
    number in **FASTJOURNAL_FENCE**. Exit code: that of the command; **75** if the lock is not to be
    had, or was lost, in which case the command is told to end.

    Examples:

        fastjournal lock nightly --url fj://127.0.0.1 -- ./backup.sh

        fastjournal lock --wait 1m deploy -- make deploy
    """
    with entries_of(directory, url, create=True) as entries:
        try:
            held = entries.lock(as_bytes(key), length, wait=wait)
        except Locked:
            typer.echo(f"{key} is locked", err=True)
            raise typer.Exit(NO_LOCK) from None
        with held:
            code = _run(held, key, command, length)
    raise typer.Exit(code)


def _run(held: Any, key: str, command: list[str], length: float) -> int:
    environment = os.environ | {"FASTJOURNAL_LOCK": key, "FASTJOURNAL_FENCE": str(held.fence)}
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        typer.echo(f"{command[0]}: {error.strerror}", err=True)
        return 127
    before = signal.signal(signal.SIGTERM, lambda number, _: process.send_signal(number))
    ends = time.monotonic() + length
    try:
        while True:
            try:
                code = process.wait(min(length / 3, max(0.01, ends - time.monotonic())))
                return code if code >= 0 else 128 - code
            except subprocess.TimeoutExpired:
                pass
            except KeyboardInterrupt:  # the command got it too
                continue
            try:
                held.keep(length)
                ends = time.monotonic() + length
            except LeaseLost:
                break
            except Unavailable:
                if time.monotonic() >= ends:
                    break
        typer.echo(f"the lock on {key} was lost", err=True)
        process.terminate()
        process.wait()
        return NO_LOCK
    finally:
        signal.signal(signal.SIGTERM, before)


@app.command()
def watch(
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="The entry's key; all if not given.")
    ] = None,
    prefix: Annotated[str, typer.Option(help="All keys that begin so.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="Stop after so many changes; 0: never.")] = 0,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print a line whenever an entry is written or goes.

    A directory may be in use by another process meanwhile; it is looked at several times a second,
    so changes that follow each other quickly are one.

    Examples:

        fastjournal watch greeting --url fj://127.0.0.1

        fastjournal watch --prefix user: --json
    """
    keys = watched(as_bytes(key), as_bytes(prefix) or b"")
    changes = directory_changes(directory, keys) if url is None else _changes_of(url, keys)
    for number, change in enumerate(changes, 1):
        what = "lost" if change.lost else "gone" if change.gone else "set"
        kind = KINDS[change.kind] if what == "set" and change.kind < len(KINDS) else ""
        if as_json:
            shown = {"change": what, "key": text(change.key), "type": kind, "at": change.at}
            json_line(shown)
        else:
            typer.echo(f"{instant(change.at)} {what} {text(change.key)} {kind}".rstrip())
        if number == limit:
            return


def _changes_of(url: str, keys: Watched) -> Iterator[Any]:
    with entries_of(HERE, url) as entries:
        lower, upper, prefix = keys
        only = lower if upper is None else None
        with entries.watch(only, prefix=prefix) as changes:
            yield from changes


def directory_changes(
    directory: Path, keys: Watched, pause: Callable[[float], None] = time.sleep
) -> Generator[EntryChange, None, None]:
    """What differs between two looks at a directory that may belong to another process."""
    from fastjournal.journal.look.read_only import JournalView

    with JournalView(directory, follow=True) as view:
        known = dict(_standing(view, keys))
        while True:
            pause(_LOOK_AGAIN)
            if not view.refresh():
                continue
            now = dict(_standing(view, keys))
            for name in sorted(known.keys() | now.keys()):
                if known.get(name) != now.get(name):
                    at, kind = now.get(name, (time.time_ns(), 0))
                    yield EntryChange(name, kind, name not in now, at)
            known = now


def _standing(view: Any, keys: Watched) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """The watched keys that have an entry: when it was written, and its type."""
    from fastjournal.model import State

    state = view._state
    for name in state.entry_keys.walk(keys.lower, after=False):
        if not keys.holds(name):
            if keys.upper is None or name > keys.upper:
                return
            continue
        row = state.keys.entry(name)
        if row is not None and row.state is not State.DELETED:
            yield name, (row.modified, row.kind)
