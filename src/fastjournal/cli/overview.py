"""What `fastjournal --help` says, from the list of commands alone.

Typer would make every command with all its options first, and rich would lay them out: three times
the time for the same lines. `fastjournal COMMAND --help` is Typer's.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from shutil import get_terminal_size
from textwrap import shorten

import typer

__all__ = ["overview"]


def overview(app: typer.Typer) -> str:
    """The commands, each with the first sentence of its help."""
    lines = list(_commands(app))
    width = max(len(name) for name, _ in lines)
    room = max(20, min(100, get_terminal_size().columns) - width - 4)
    listed = "\n".join(
        f"  {name:<{width}}  {shorten(text, room, placeholder='…')}" for name, text in lines
    )
    return (
        "Usage: fastjournal COMMAND [OPTIONS] [ARGS]...\n\n"
        f"  {app.info.help}\n\n"
        f"Commands:\n{listed}\n\n"
        "Options:\n"
        "  -h, --help            Show this message; behind a command, all about that command.\n"
        "  --install-completion  Install completion for the current shell.\n"
        "  --show-completion     Show completion for the current shell.\n"
    )


def _commands(app: typer.Typer) -> Iterator[tuple[str, str]]:
    for command in app.registered_commands:
        if command.hidden or command.callback is None:
            continue
        name = command.name or command.callback.__name__.replace("_", "-")
        yield name, _sentence(command.help or inspect.getdoc(command.callback) or "")
    for group in app.registered_groups:
        inner = group.typer_instance
        if inner is None or group.hidden is True:
            continue
        if group.name and isinstance(group.name, str):
            yield group.name, _sentence(str(inner.info.help or ""))
        else:
            yield from _commands(inner)


def _sentence(text: str) -> str:
    words = " ".join(text.strip().partition("\n\n")[0].split())
    first, stop, rest = words.partition(". ")
    return f"{first}." if rest else first + stop
