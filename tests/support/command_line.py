"""The command line, run in the test's own process."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import typer.main

from fastjournal.cli import app as cli


class Command:
    """Runs the command line in this process on one directory."""

    def __init__(self, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.capfd, self.patch = capfd, patch

    def __call__(self, *arguments: str, stdin: bytes = b"") -> tuple[int, str, str]:
        self.patch.setattr("sys.argv", ["fastjournal", *arguments])
        self.patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        out, err = self.capfd.readouterr()
        return code, out, err


COMMON = ("--dir", "--url")
"""Options of all job commands, explained once before the first of them."""


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command as it is typed, with its long options."""

    def walk(command: object, path: str) -> Iterator[tuple[str, list[str]]]:
        children = getattr(command, "commands", None)
        if children is not None:
            for name, child in children.items():
                if not child.hidden:
                    yield from walk(child, f"{path} {name}")
            return
        options = [
            option
            for parameter in getattr(command, "params", [])
            for option in parameter.opts
            if option.startswith("--") and not getattr(parameter, "hidden", False)
            if option not in ("--help", *COMMON)
        ]
        yield path, options

    yield from walk(typer.main.get_command(cli.app), "fastjournal")
