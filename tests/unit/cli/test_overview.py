"""`fastjournal --help` is quick, and tells of every command."""

from __future__ import annotations

import re
import subprocess
import sys

import typer

from fastjournal.cli.app import app, overview


def test_the_overview_lists_the_commands_that_typer_knows_in_its_order() -> None:
    listed = re.findall(r"^  ([a-z-]+)  ", overview(app).partition("Options:")[0], re.MULTILINE)
    known = typer.main.get_command(app)
    names = [
        name
        for name, command in known.commands.items()  # type: ignore[attr-defined]
        if not command.hidden
    ]
    assert listed == names


def test_every_command_says_what_it_does_in_one_line() -> None:
    lines = overview(app).partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert all(re.fullmatch(r"  [a-z-]+ +\S.*[.…]", line) for line in lines)


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
    assert "Commands:" in done.stdout
    heavy = {"rich", "pydantic", "msgspec", "asyncio", "structlog", "pyspark", "numpy", "uvicorn"}
    assert not heavy & set(done.stderr.split())
