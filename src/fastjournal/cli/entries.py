"""The commands for key/value entries: get, set, add, unset, scan.

Rules:

1. Those of `jobs`: each command opens the journal or asks a daemon, works, closes it, and says what
   it did only after it is on stable storage, or as safe as the daemon's sync policy promises.
2. `get` of a key that is not there ends with exit code 1 and prints nothing.
3. A value is text unless `--type` says otherwise; `get` prints it as it is, and nothing more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
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
)
from fastjournal.cli.job_tables import text
from fastjournal.cli.open_journal import open_target
from fastjournal.cli.output import instant, json_line, preview, table
from fastjournal.errors import BadRequest, NotFound

__all__ = ["KINDS", "app", "entries_of"]

NOTHING = 1
KINDS = ("void", "buffer", "string", "integer", "float", "boolean")
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

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
) -> None:
    """Store a value under a key; the journal is made if it is missing.

    Examples:

        fastjournal set greeting 'good morning' --ttl 1h

        fastjournal set visits 0 --type integer
    """
    typed = _value(kind, payload_given(value))
    with entries_of(directory, url, create=True) as entries:
        entries.set(as_bytes(key), typed, ttl=ttl, expires=expires, touch=touch, overwrite=not new)
    typer.echo(f"{key} set")


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
    with entries_of(directory, url) as entries:
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
    with entries_of(directory, url, create=True) as entries:
        total = entries.add(as_bytes(key), amount)
    typer.echo(total)


@app.command()
def unset(
    key: EntryKey,
    purge: Annotated[
        bool, typer.Option("--purge", help="Leave no tombstone against older writes.")
    ] = False,
    directory: Directory = HERE,
    url: Url = None,
) -> None:
    """Delete an entry under all its keys. Exit code **1** if there is none.

    Examples:

        fastjournal unset greeting
    """
    with entries_of(directory, url) as entries:
        found = entries.delete(as_bytes(key), purge=purge)
    if not found:
        raise typer.Exit(NOTHING)
    typer.echo(f"{key} deleted")


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
    with entries_of(directory, url) as entries:
        if match is None:
            scanned = entries.range(as_bytes(lower), as_bytes(upper))
        else:
            scanned = entries.match(as_bytes(match))
        found = list(islice(scanned, limit))
    if as_json:
        for entry in found:
            json_line(_values(entry))
        return
    rows = [
        [text(e.key), KINDS[e.kind] if e.kind < 6 else str(e.kind), instant(e.expires), _word(e)]
        for e in found
    ]
    table(["key", "type", "expires", "value"], rows)


@contextmanager
def entries_of(directory: Path, url: str | None, *, create: bool = False) -> Iterator[Any]:
    """The entries of a journal in a directory, or behind a daemon."""
    with open_target(directory, url, create=create) as journal:
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
            return _TRUTH[word.strip().lower()]
    except (ValueError, KeyError):
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
