"""The commands for key/value entries: get, set, add, unset, scan, lock, watch.

Rules:

1. Those of `jobs`: each command opens the journal or asks a daemon, works, closes it, and says what
   it did only after it is on stable storage, or as safe as the daemon's sync policy promises.
2. `get` of a key that is not there ends with exit code 1 and prints nothing.
3. A value is text unless `--type` says otherwise; `get` prints it as it is, and nothing more.
4. `lock` runs its command only while it holds the lock: it is kept as long as the command runs, and
   a command whose lock was lost is told to end.
5. The command finds the key in `FASTJOURNAL_LOCK` and the fencing number in `FASTJOURNAL_FENCE`: a
   late write of it can be refused by whoever knows a larger number.
6. `watch` prints a line for each change. Where changes were missed it says so: everything may have
   changed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from fastjournal.cli.arguments import (
    HERE,
    Directory,
    Json,
    Url,
    as_bytes,
    moment,
    payload_given,
    seconds,
    yes_or_no,
)
from fastjournal.cli.journal.open_journal import open_journal
from fastjournal.cli.output import json_line, preview, show_list, show_outcome, text
from fastjournal.clock import instant_text
from fastjournal.entry_model import EntryChange, Watched, watched
from fastjournal.errors import BadRequest, LeaseLost, Locked, NotFound, Unavailable

__all__ = ["app", "directory_changes"]

NOTHING = 1
NO_LOCK = 75
"""Exit code, EX_TEMPFAIL: somebody else holds the lock, or took it over."""
KINDS = ("void", "buffer", "string", "integer", "float", "boolean")
_LOOK_AGAIN = 0.2  # seconds between two looks at a directory

app = typer.Typer(rich_markup_mode="markdown")
EntryKey = Annotated[str, typer.Argument(metavar="KEY", help="The entry's key.")]


@app.command(name="set")
def set_entry(
    key: EntryKey,
    value: Annotated[str, typer.Argument(help="The value; - reads it from standard input.")] = "",
    kind: Annotated[
        str,
        typer.Option("--type", help="string, buffer, integer, float, boolean or void."),
    ] = "string",
    ttl: Annotated[
        float | None, typer.Option(parser=seconds, metavar="LENGTH", help="Gone so long from now.")
    ] = None,
    expires: Annotated[
        Any, typer.Option(parser=moment, metavar="INSTANT", help="Gone after this instant.")
    ] = None,
    touch: Annotated[
        float | None,
        typer.Option(
            parser=seconds, metavar="LENGTH", help="Every reading keeps it about so long."
        ),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Refuse a key that is there.")] = False,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Store a value under a key; the journal is made if it is missing.

    Examples:

        fastjournal set greeting 'good morning' --ttl 1h

        fastjournal set visits 0 --type integer
    """
    typed = _value(kind, payload_given(value))
    with _entries_of(directory, url, create=True) as entries:
        entries.set(as_bytes(key), typed, ttl=ttl, expires=expires, touch=touch, overwrite=not new)
    show_outcome(as_json, {"key": key, "outcome": "set"}, f"{key} set")


@app.command(name="get")
def get_entry(
    key: EntryKey, directory: Directory = HERE, url: Url = None, as_json: Json = False
) -> None:
    """Print the value of a key as it is; with `--json` all that is known of it.

    Exit code **1** if there is none.

    Examples:

        fastjournal get greeting

        fastjournal get greeting --json
    """
    with _entries_of(directory, url) as entries:
        try:
            entry = entries.entry(as_bytes(key))
        except NotFound:
            raise typer.Exit(NOTHING) from None
    if as_json:
        json_line(_values(entry))
    elif entry.kind in (1, 2):
        sys.stdout.flush()
        sys.stdout.buffer.write(entry.data)
        sys.stdout.buffer.flush()
    else:
        typer.echo(_word(entry))


@app.command()
def add(
    key: EntryKey,
    number: Annotated[str, typer.Argument(help="What to add; may be negative.")] = "1",
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Add to a number and print the sum; a key that is not there counts as 0.

    Examples:

        fastjournal add visits

        fastjournal add balance -- -2.5
    """
    try:
        amount = float(number) if set(number) & set(".eE") else int(number)
    except ValueError:
        raise typer.BadParameter(f"not a number: {number!r}") from None
    with _entries_of(directory, url, create=True) as entries:
        total = entries.add(as_bytes(key), amount)
    show_outcome(as_json, {"key": key, "value": total}, str(total))


@app.command()
def unset(
    key: EntryKey,
    purge: Annotated[
        bool, typer.Option("--purge", help="Leave no tombstone against older writes.")
    ] = False,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Delete an entry under all its keys. Exit code **1** if there is none.

    Examples:

        fastjournal unset greeting
    """
    with _entries_of(directory, url) as entries:
        found = entries.delete(as_bytes(key), purge=purge)
    if not found:
        raise typer.Exit(NOTHING)
    show_outcome(as_json, {"key": key, "outcome": "deleted"}, f"{key} deleted")


@app.command()
def scan(
    lower: Annotated[str, typer.Argument(help="From this key on.")] = "",
    upper: Annotated[str, typer.Argument(help="Up to this key, itself included.")] = "",
    match: Annotated[
        str | None, typer.Option(help="Only keys that hold this regular expression (RE2).")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="So many at most.")] = 100,
    directory: Directory = HERE,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """List entries in the order of their keys.

    Examples:

        fastjournal scan user: 'user:~'

        fastjournal scan --match '^user:[0-9]+$' --json
    """
    if match is not None and (lower or upper):
        raise typer.BadParameter("give a range or --match, not both")
    with _entries_of(directory, url) as entries:
        matching = (
            entries.range(as_bytes(lower), as_bytes(upper))
            if match is None
            else entries.match(as_bytes(match))
        )
        found = list(islice(matching, limit))
    show_list(as_json, found, _values, ["key", "type", "expires", "value"], _row)


def _row(entry: Any) -> list[str]:
    kind = KINDS[entry.kind] if entry.kind < len(KINDS) else str(entry.kind)
    return [text(entry.key), kind, instant_text(entry.expires), _word(entry)]


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
    as_json: Json = False,
) -> None:
    """Run a command while holding a lock on a key.

    The lock is kept while the command runs and freed when it ends. The command finds the fencing
    number in **FASTJOURNAL_FENCE**. Exit code: that of the command; **75** if the lock is not to be
    had, or was lost, in which case the command is told to end. `--json` tells key, fencing number
    and exit code once it has ended, behind what the command itself prints.

    Examples:

        fastjournal lock nightly --url fj://127.0.0.1 -- ./backup.sh

        fastjournal lock --wait 1m deploy -- make deploy
    """
    with _entries_of(directory, url, create=True) as entries:
        try:
            lock = entries.lock(as_bytes(key), length, wait=wait)
        except Locked:
            typer.echo(f"{key} is locked", err=True)
            raise typer.Exit(NO_LOCK) from None
        with lock:
            code = _run(lock, key, command, length)
            if as_json:
                json_line({"key": key, "fence": lock.fence, "code": code})
    raise typer.Exit(code)


def _run(lock: Any, key: str, command: list[str], length: float) -> int:
    environment = os.environ | {"FASTJOURNAL_LOCK": key, "FASTJOURNAL_FENCE": str(lock.fence)}
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
                lock.keep(length)
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
        str | None, typer.Argument(metavar="KEY", help="The entry's key; all if not given.")
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
            typer.echo(f"{instant_text(change.at)} {what} {text(change.key)} {kind}".rstrip())
        if number == limit:
            return


def _changes_of(url: str, keys: Watched) -> Iterator[Any]:
    with _entries_of(HERE, url) as entries:
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


@contextmanager
def _entries_of(directory: Path, url: str | None, *, create: bool = False) -> Iterator[Any]:
    """The entries of a journal in a directory, or behind a daemon."""
    with open_journal(directory, url, create=create) as journal:
        yield cast(Any, journal).entries


def _value(kind: str, data: bytes) -> Any:
    """What was typed as a value of this type."""
    word = os.fsdecode(data)
    try:
        if kind == "string":
            return word
        if kind == "buffer":
            return data
        if kind == "void":
            return None
        if kind == "integer":
            return int(word)
        if kind == "float":
            return float(word)
        if kind == "boolean":
            return yes_or_no(word)
    except ValueError:
        raise BadRequest(f"{word!r} is no {kind}") from None
    raise BadRequest(f"the type is one of {', '.join(KINDS)}, not {kind!r}")


def _word(entry: Any) -> str:
    """The value for people."""
    if entry.kind in (1, 2):
        return str(preview(entry.data, 60))
    value = entry.value
    return "" if value is None else str(value).lower() if entry.kind == 5 else str(value)


def _values(entry: Any) -> dict[str, Any]:
    """The entry for programs."""
    shown: dict[str, Any] = {"key": text(entry.key), "type": KINDS[entry.kind]}
    value = entry.value
    if isinstance(value, bytes) or (isinstance(value, str) and not value.isprintable()):
        shown["value_hex"] = entry.data.hex()
    else:
        shown["value"] = value
    shown |= {
        "created": entry.created, "modified": entry.modified, "expires": entry.expires,
        "touch": entry.ttl, "keys": [text(key) for key in entry.keys],
    }  # fmt: skip
    return shown
