"""Every command and option of the command line stands in docs/cli.md, and nothing else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from command_line import COMMON, commands
from docblocks import ALL_BLOCKS
from fastjournal.cli.app import app

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "cli.md").read_text()

COMMANDS = dict(commands())


def section(command: str) -> str:
    """What docs/cli.md says under the command's own heading."""
    found = re.search(rf"^##+ {re.escape(command)}$(.*?)(?=^##|\Z)", DOCS, re.MULTILINE | re.DOTALL)
    assert found, f"docs/cli.md has no heading for `{command}`"
    return found[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_has_its_heading_and_usage_line(command: str) -> None:
    assert f"\n`{command}" in section(command)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_the_command_is_documented(command: str) -> None:
    missing = [option for option in COMMANDS[command] if option not in section(command)]
    assert not missing


def test_the_common_options_are_explained_before_the_job_commands() -> None:
    common = re.search(r"^## Jobs$(.*?)^### ", DOCS, re.MULTILINE | re.DOTALL)
    assert common
    assert "--dir" in common[1]
    assert "FASTJOURNAL_DIR" in common[1]


def test_no_heading_names_a_command_that_does_not_exist() -> None:
    headings = re.findall(r"^##+ (fastjournal[\w -]*)$", DOCS, re.MULTILINE)
    unknown = [
        heading
        for heading in headings
        if heading not in COMMANDS and not any(c.startswith(f"{heading} ") for c in COMMANDS)
    ]
    assert headings
    assert not unknown
    assert len(headings) == len(set(headings)), "a command has two sections"


def typed() -> list[tuple[str, str]]:
    """Every `$ fastjournal ...` of the README and the docs, also if it is not run."""
    return [
        (block.page.name, line)
        for block in ALL_BLOCKS
        if block.language == "console"
        for line in block.commands()
        if line.startswith("fastjournal ")
    ]


TYPED = typed()


@pytest.mark.parametrize(("page", "line"), TYPED, ids=[f"{page}: {line}" for page, line in TYPED])
def test_a_command_shown_in_the_docs_exists_with_its_options(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    named = max(
        (c for c in COMMANDS if words[: c.count(" ") + 1] == c.split()), key=len, default=""
    )
    assert named, f"{page} names no command: {line}"
    known = {*COMMANDS[named], *COMMON, "--help"}
    own = words[: words.index("--")] if "--" in words else words
    options = [word.partition("=")[0] for word in own if word.startswith("--")]
    assert not [option for option in options if option not in known]


def test_the_help_of_every_command_has_an_example() -> None:
    def walk(command: Any, path: str) -> Iterator[tuple[str, str]]:
        children = getattr(command, "commands", None)
        if children is None:
            yield path, command.help
        else:
            for name, child in children.items():
                yield from walk(child, f"{path} {name}")

    bare = [
        path
        for path, text in walk(typer.main.get_command(app), "fastjournal")
        if f"    {path}" not in text and path != "fastjournal version"
    ]
    assert not bare
