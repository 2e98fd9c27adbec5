"""`fastjournal --help` is quick, and tells of every command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from fastjournal import __version__
from fastjournal.cli.app import app, only, overview


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


def shape(command: Any) -> tuple[Any, ...]:
    """What a command is made of, and those below it."""
    options = [(one.name, one.opts, one.required, one.envvar) for one in command.params]
    below = {name: shape(child) for name, child in getattr(command, "commands", {}).items()}
    return type(command), command.name, command.help, command.hidden, options, below


def test_the_command_that_is_typed_is_made_alone_and_is_the_same() -> None:
    whole = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in whole.items():
        part = typer.main.get_command(only(app, name)).commands  # type: ignore[attr-defined]
        assert list(part) == [name] or command.hidden
        assert shape(part[name]) == shape(command)
    assert only(app) is only(app, "lsit") is app


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("fastjournal lis", {"list", "listen"}), ("fastjournal log st", {"stat"})],
)
def test_a_shell_can_ask_how_a_line_goes_on(typed: str, offered: set[str]) -> None:
    asking = {
        "_FASTJOURNAL_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv[:] = ['fastjournal']\n"
         "from fastjournal.cli.app import main; main()"],
        env=os.environ | asking, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert set(done.stdout.split()) == offered, done.stderr


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
