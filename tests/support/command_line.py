"""The command line, run in the test's own process."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from typer.testing import CliRunner, Result

from fastjournal.cli import app as cli


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        """What it printed, as lines of JSON."""
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """Runs the command line in this process, as `main` does; `directory`: that of the journal."""

    def __init__(
        self,
        capture: pytest.CaptureFixture[str],
        patch: pytest.MonkeyPatch,
        directory: Path | None = None,
    ) -> None:
        self._capture, self._patch = capture, patch
        if directory is not None:
            self.directory = directory
            patch.setenv("FASTJOURNAL_DIR", str(directory))

    def __call__(self, *arguments: str | Path, stdin: bytes = b"") -> Outcome:
        self._patch.setattr("sys.argv", ["fastjournal", *map(str, arguments)])
        self._patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        self._capture.readouterr()  # what was said before, by a daemon in this process too
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        return Outcome(code, *self._capture.readouterr())


def invoke(words: Sequence[str | Path], **options: Any) -> Result:
    """Run one command without `main` around it: what it raises stands in the result."""
    line = list(map(str, words))
    return CliRunner().invoke(cli.only(cli.app, *line[:1]), line, **options)


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
