"""`fastjournal --help` is quick, and tells of every command."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

from fastjournal import __version__
from fastjournal.cli.app import app, overview


def commands() -> list[str]:
    """The lines of the commands, group by group."""
    text = overview(app).partition("Options:")[0]
    return [line for line in text.splitlines() if re.match(r"  [a-z-]+  ", line)]


def test_every_command_that_typer_knows_stands_in_one_group() -> None:
    known = typer.main.get_command(app)
    names = {
        name
        for name, command in known.commands.items()  # type: ignore[attr-defined]
        if not command.hidden
    }
    listed = [line.split()[0] for line in commands()]
    assert sorted(listed) == sorted(names)
    assert "Others:" not in overview(app)


def test_every_command_says_what_it_does_in_one_line() -> None:
    assert all(re.fullmatch(r"  [a-z-]+ +\S.*[.…]", line) for line in commands())


@pytest.mark.parametrize("start", [["-m", "fastjournal"], ["-m", "fastjournal.cli.app"]])
def test_the_version_is_told_by_an_option_too(start: list[str]) -> None:
    told = [
        subprocess.run(
            [sys.executable, *start, word], capture_output=True, text=True, check=True, timeout=60
        ).stdout
        for word in ("--version", "version")
    ]
    assert told[0] == told[1] and told[0].startswith(__version__)


def test_help_loads_neither_rich_nor_pydantic() -> None:
    """They would take longer than all the rest."""
    program = (
        "import sys\n"
        "sys.argv = ['fastjournal', '--help']\n"
        "from fastjournal.cli.app import main\n"
        "main()\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Jobs:" in done.stdout
    heavy = {"rich", "pydantic", "msgspec", "asyncio", "structlog", "pyspark", "numpy", "uvicorn"}
    assert not heavy & set(done.stderr.split())
