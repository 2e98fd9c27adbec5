"""Every block of Python and every console line of README and docs runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from command_line import invoke
from docblocks import ALL_BLOCKS, ALL_RUNS, LANGUAGES, WORDS, Block
from docrunner import Runner
from fastjournal.journal.journal import Journal
from fastjournal.testing.daemon import LocalDaemon

SHELL_PROGRAM = ("bash", "-euo", "pipefail", "-c")
BIN = Path(sys.executable).parent
SHELL = set("&|<>;$`*") | {"\n"}
"""With one of these a line is for a shell; without, the command is called in this process."""


def test_the_readme_and_most_pages_have_blocks_that_run() -> None:
    pages = {run[0].page.name for run in ALL_RUNS}
    assert "README.md" in pages
    assert len(pages) >= 15


@pytest.mark.parametrize("block", ALL_BLOCKS, ids=[block.place for block in ALL_BLOCKS])
def test_a_block_names_a_known_language_and_known_words(block: Block) -> None:
    assert block.language in {*LANGUAGES, "text", "toml", "json", "sql", "ini", "yaml", "sh"}, (
        "Python is `python`, what is typed is `console`, anything printed is `text`"
    )
    assert block.words <= WORDS
    if block.not_run:
        assert len(block.not_run.split()) >= 3, "say why in words"


@pytest.mark.parametrize("run", ALL_RUNS, ids=[run[0].place for run in ALL_RUNS])
def test_the_blocks_run_as_they_stand(
    run: list[Block], runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("FASTJOURNAL_")]:
        monkeypatch.delenv(name)
    with ExitStack() as stack:
        url = ""
        if any("daemon" in block.words for block in run):
            daemon = stack.enter_context(LocalDaemon(tmp_path / "daemon-data"))
            url = f"fj://127.0.0.1:{daemon.port}"
        for number, block in enumerate(run):
            code = block.code.replace("fj://127.0.0.1", url) if url else block.code
            if block.file:
                Path(block.file).write_text(code)
            elif block.language == "python":
                python(block, code, runner)
            else:
                if number == 0:
                    a_few_jobs()
                console(block, url)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    """What runs blocks of Python."""
    made = Runner()
    yield made
    made.close()


def python(block: Block, code: str, runner: Runner) -> None:
    """Run a program of its own."""
    result, said = runner.run(code, str(Path.cwd()))
    assert result == 0, f"{block.place}\n{said}"


def console(block: Block, url: str) -> None:
    """Type the lines of a block: commands of ours in this process, all others into a shell."""
    commands = [line.replace("fj://127.0.0.1", url) if url else line for line in block.commands()]
    assert commands, f"{block.place}: nothing is typed here"
    for line in commands:
        assert not endless(line), f"{block.place}: {line!r} never ends: `&`, or not-run"
    with ExitStack() as background:
        for line in commands:
            if line.endswith("&"):
                background.enter_context(beside(block, line))
            elif line.startswith("fastjournal ") and not set(bare(line)) & SHELL:
                done = invoke(shlex.split(line, comments=True)[1:])
                said = f"{done.output}\n{done.exception!r}"
                assert done.exit_code == 0, f"{block.place}\n$ {line}\n{said}"
            else:
                shell = subprocess.run(
                    [*SHELL_PROGRAM, line], env=environment(), capture_output=True, text=True,
                    check=False, timeout=100,
                )  # fmt: skip
                said = shell.stdout + shell.stderr
                assert shell.returncode == 0, f"{block.place}\n$ {line}\n{said}"


def endless(line: str) -> bool:
    """Whether a line would keep the console for itself until it is stopped."""
    words = line.split()
    return words[1:2] in (
        ["serve"],
        ["worker"],
        ["listen"],
        ["watch"],
        ["forward"],
        ["top"],
    ) and not {"&", "--once", "--limit"} & set(words)


def bare(line: str) -> str:
    """A line without what stands in quotes or behind a `#`."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", line).split(" #")[0]


def environment() -> dict[str, str]:
    """Our own commands first."""
    return os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def beside(block: Block, line: str) -> Iterator[None]:
    """Run a line while others are typed; it must be there until it is told to stop."""
    process = subprocess.Popen(
        [*SHELL_PROGRAM, f"exec {line[:-1]}"], env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=60)
    # Stopped in order, or while it was still starting; never ended before by itself.
    assert process.returncode in (0, -signal.SIGTERM), f"{block.place}\n$ {line}\n{said}"


def a_few_jobs() -> None:
    """What the console blocks find: a journal in ./jobs with jobs in some states."""
    with Journal("jobs", background=False) as journal:
        journal.put(b"a letter", queue="mail", max_fails=1)
        job = journal.lease("mail")
        assert job is not None
        job.fail("no such address")
        journal.put(b"another letter", queue="mail", key="user:42")
        journal.put(b"crawl this", key="https://example.com/a")
        journal.put(b"later", queue="reports", delay=3600)
