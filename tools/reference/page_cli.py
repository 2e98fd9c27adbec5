"""docs/cli-options.md: every command of the command line with every argument and option."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from page_tables import said, table

from fastjournal.cli.app import app

__all__ = ["commands", "made"]

_INTRO = """# Every command and option

What `--help` says, made from the code by `tools/reference`; do not edit. The same with more words:
[the command line](cli.md).

Options that many commands share: `--dir DIRECTORY` (`-d`, `FASTJOURNAL_DIR`, `./jobs`) is the
journal's directory; commands on jobs also take `--url URL` (`FASTJOURNAL_URL`) for the journal of a
daemon. `--help` (`-h`) explains any command.

"""
_SHARED = ("--dir", "--help")


def commands() -> Iterator[tuple[str, Any]]:
    """Each command as it is typed, in the order of their names."""

    def walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        children = getattr(command, "commands", None)
        if children is None:
            yield path, command
        else:
            for name, child in children.items():
                if not child.hidden:
                    yield from walk(child, f"{path} {name}")

    yield from sorted(walk(typer.main.get_command(app), "fastjournal"), key=lambda each: each[0])


def section(path: str, command: Any) -> str:
    """All about one command."""
    parts = [f"## {path}", prose(said(command.help, path) and command.help)]
    rows = []
    for parameter in command.params:
        if parameter.hidden or parameter.opts[0] in _SHARED:
            continue
        about = said(parameter.help, f"{path} {parameter.opts[0]}")
        rows.append((_shown(parameter), about + _default(parameter)))
    if rows:
        parts.append(table(("argument or option", "meaning"), rows))
    return "\n\n".join(parts)


def prose(text: str) -> str:
    """The help of a command; indented examples become a block."""
    found: list[str] = []
    examples: list[str] = []
    for paragraph in textwrap.dedent(text).strip().split("\n\n"):
        if paragraph.startswith("    "):
            examples += [line.strip() for line in paragraph.splitlines()]
        elif paragraph.strip() not in ("Example:", "Examples:"):
            found.append(" ".join(paragraph.split()))
    if examples:
        found.append("\n".join(["```text", *examples, "```"]))
    return "\n\n".join(found)


def _shown(parameter: Any) -> str:
    names = [*parameter.opts, *parameter.secondary_opts]
    if not parameter.opts[0].startswith("-"):
        name = (parameter.metavar or parameter.name).strip("{}[].").upper()
        return f"`{name}{'...' if parameter.multiple or parameter.nargs == -1 else ''}`"
    if parameter.metavar:
        names[-1] += f" {parameter.metavar}"
    shown = ", ".join(f"`{name}`" for name in names)
    return f"{shown}, several times" if parameter.multiple else shown


def _default(parameter: Any) -> str:
    """Only a default that says something, and that the text does not tell already."""
    if parameter.required:
        return " Required."
    value = parameter.default
    if value in (None, "", False, [], ()) or callable(value) or isinstance(value, bool):
        return ""
    return f" Default: `{getattr(value, 'value', value)}`."


def made(_docs: Path) -> dict[str, str]:
    """The whole page."""
    sections = [section(path, command) for path, command in commands()]
    return {"cli-options.md": _INTRO + "\n\n".join(sections) + "\n"}
