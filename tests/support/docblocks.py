"""The fenced blocks of README.md and docs/, and how the tests run them.

The words behind the language of a block say what it needs:

    ```python                       run in a directory of its own
    ```python continued             in the directory of the block before it on its page
    ```python daemon                with a daemon; `fj://127.0.0.1` in the block means that one
    ```python file=tasks.py         not run: written into the directory, for the blocks that follow
    ```python spark                 left to tests/spark, which has a session
    ```console                      every `$ ` line is run; `./jobs` holds a few jobs
    ```console not-run="why"        not run, for a reason that readers are spared

Rules:

1. Every block of Python or console is run, or says why not.
2. A console line that ends in `&` goes on in the background; it is stopped by SIGTERM at the end of
   its block, and must not have ended before. Lines without `$ ` are output, and not compared.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILT = ("map.md",)
"""Written when the pages are built."""
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in BUILT),
]
LANGUAGES = ("python", "console")
WORDS = {"continued", "daemon", "spark"}

_BLOCK = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    words: frozenset[str]
    file: str
    not_run: str
    code: str

    @property
    def place(self) -> str:
        """Page and line, as editors know them."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[str]:
        """The lines typed into a console; a backslash at the end joins the next one."""
        joined = self.code.replace("\\\n", " ")
        return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page that name a language, in order."""
    text = page.read_text()
    for found in _BLOCK.finditer(text):
        info = found[1].strip()
        if not info or info.startswith("{"):
            continue
        language, *rest = shlex.split(info)
        words, given = set(), {}
        for word in rest:
            name, equals, value = word.partition("=")
            if equals:
                given[name] = value
            else:
                words.add(name)
        yield Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            language,
            frozenset(words),
            given.pop("file", ""),
            given.pop("not-run", ""),
            found[2],
        )
        assert not given, f"{page.name}: what does {info!r} mean?"


def runs(page: Path) -> Iterator[list[Block]]:
    """Blocks that share a directory, together."""
    run: list[Block] = []
    for block in blocks(page):
        if block.language not in LANGUAGES or block.not_run or "spark" in block.words:
            continue
        if run and "continued" not in block.words:
            yield run
            run = []
        run.append(block)
    if run:
        yield run


ALL_BLOCKS = [block for page in PAGES for block in blocks(page)]
ALL_RUNS = [run for page in PAGES for run in runs(page)]
