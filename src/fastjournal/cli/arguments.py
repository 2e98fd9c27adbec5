"""What people type: places, ids, lengths of time, instants, payloads.

Rules:

1. A length is a number of seconds or has a unit: 250ms, 5s, 10m, 2h, 7d.
2. An instant is ISO 8601, in UTC unless it names a zone.
3. Keys, queues and payloads are the bytes that were typed, whatever they mean as text.
4. What cannot be read is an error of usage: one message, exit code 2.
5. A journal that is typed wins over one that the environment names. Two that are typed, or two in
   the environment and none typed, are an error: no command guesses which journal is meant.
6. A URL may be that of a directory, as in Python: `FASTJOURNAL_URL=./jobs` is for both.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "HERE",
    "AnyId",
    "Directory",
    "JobId",
    "Json",
    "Key",
    "KeyQueue",
    "Payload",
    "Queue",
    "Schema",
    "Token",
    "Url",
    "as_bytes",
    "job_id",
    "moment",
    "one_of",
    "one_target",
    "payload_given",
    "seconds",
    "yes_or_no",
]

_TRUTH = {"yes": True, "true": True, "on": True, "1": True} | {
    "no": False, "false": False, "off": False, "0": False,
}  # fmt: skip


def seconds(text: str | float) -> float:
    """Seconds of `90`, `1.5`, `250ms`, `5s`, `10m`, `2h`, `7d`."""
    from fastjournal.arguments import seconds_of  # whoever types no length does not pay for it

    found = seconds_of(str(text))
    if found is None:
        raise typer.BadParameter(f"not a length of time: {text!r} (seconds, or 250ms 5s 10m 2h 7d)")
    return found


def moment(text: str) -> datetime:
    """An instant of ISO 8601."""
    try:
        when = datetime.fromisoformat(text.strip())
    except ValueError:
        raise typer.BadParameter(
            f"not an instant: {text!r} (for example 2026-01-31T12:00)"
        ) from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def yes_or_no(text: str) -> bool:
    """The truth of yes, true, on, 1; no, false, off, 0."""
    try:
        return _TRUTH[text.strip().lower()]
    except KeyError:
        raise typer.BadParameter(f"not yes or no: {text!r}") from None


def job_id(text: str) -> str:
    """The digits of an id as it is printed, whole or its beginning; dashes do not matter."""
    digits = text.strip().rstrip("….").replace("-", "").lower()
    if not SHORTEST <= len(digits) <= 32 or set(digits) - set("0123456789abcdef"):
        raise typer.BadParameter(
            f"not the id of a job: {text!r} (32 hexadecimal digits, or the first {SHORTEST})"
        )
    return digits


def as_bytes(text: str | None) -> bytes | None:
    """The bytes that were typed."""
    return None if text is None else os.fsencode(text)


def payload_given(text: str) -> bytes:
    """The bytes that were typed, or those of standard input for `-`."""
    return sys.stdin.buffer.read() if text == "-" else os.fsencode(text)


def one_of(first: object, second: object, message: str) -> None:
    """Refuse a command that was given both of two options, or neither."""
    if (first is None) == (second is None):
        raise typer.BadParameter(message)


SHORTEST = 8
"""Digits of an id that are enough if no other job's begins so."""
HERE = Path("jobs")
"""The journal's directory where none is named."""


def one_target(context: typer.Context, url: str | None) -> str | None:
    """The URL if a daemon is meant, None if a directory is; see rules 5 and 6."""
    sources = [context.get_parameter_source(name) for name in ("directory", "url")]
    words = [source.name if source is not None else "" for source in sources]
    if url is None or words[0] not in ("COMMANDLINE", "ENVIRONMENT"):
        return _daemon_of(context, url)
    if words[0] != words[1]:
        return None if words[0] == "COMMANDLINE" else _daemon_of(context, url)
    if words[0] == "COMMANDLINE":
        raise typer.BadParameter("--dir and --url name two journals: give one of them")
    raise typer.BadParameter(
        "FASTJOURNAL_DIR and FASTJOURNAL_URL are both set: give --dir or --url"
    )


def _daemon_of(context: typer.Context, url: str | None) -> str | None:
    """The URL of a daemon; that of a directory takes the place of `--dir`."""
    if url is None or url.startswith("spool:"):  # whose error is that of the command
        return url
    from fastjournal.client.urls import parse_url

    target = parse_url(url)
    if not isinstance(target, Path):
        return url
    context.params["directory"] = target
    return None


Directory = Annotated[
    Path,
    typer.Option(
        "--dir",
        "-d",
        envvar="FASTJOURNAL_DIR",
        is_eager=True,  # before --url, which asks where it comes from
        metavar="DIRECTORY",
        help="The journal's directory.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="FASTJOURNAL_URL",
        show_envvar=False,
        callback=one_target,
        help="A daemon (fj://host:port/journal) instead, or a directory.",
    ),
]
Schema = Annotated[
    int | None,
    typer.Option(min=0, max=15, help="Only jobs with payloads of this version of their queue's."),
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines instead of a table.")]
Payload = Annotated[
    str, typer.Argument(help="What to hand to the consumer; - reads it from standard input.")
]
JobId = Annotated[
    str, typer.Argument(metavar="ID", parser=job_id, help="The job's id, or its beginning.")
]
AnyId = Annotated[
    Any,
    typer.Argument(
        metavar="ID", parser=job_id, help="The job's id, or its beginning.", show_default=False
    ),
]
Token = Annotated[
    int, typer.Argument(metavar="TOKEN", min=1, help="The token that came with the lease.")
]
Queue = Annotated[str, typer.Argument(help="The queue's name.")]
Key = Annotated[str | None, typer.Option(help="The job's key instead of its id.")]
KeyQueue = Annotated[
    str | None, typer.Option(help="With --key: its queue, if not the key's domain.")
]
