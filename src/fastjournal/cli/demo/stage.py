"""Where demonstrations are shown: steps, remarks, and claims that are counted when they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

__all__ = ["Stage", "killed_after"]


class Stage:
    """Prints what happens, and remembers what turned out false."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.failed = 0
        self.true = 0
        self._figures: list[tuple[str, str]] = []

    def act(self, text: str) -> None:
        """A new act begins."""
        self.console.print()
        self.console.print(Rule(f"[bold]{text}[/]", characters="═"))

    def step(self, text: str) -> None:
        """Something new is done."""
        self.console.print()
        self.console.print(Rule(f"[bold]{text}[/]", align="left"))

    def say(self, text: str) -> None:
        """A remark."""
        self.console.print(f"  {text}", markup=False, soft_wrap=True)

    def claim(self, text: str, holds: bool) -> None:
        """A claim, and whether it is true."""
        if holds:
            self.true += 1
            self.console.print(f"  [green]✓[/] {text}", soft_wrap=True)
        else:
            self.failed += 1
            self.console.print(f"  [bold red]✗ {text}[/]", soft_wrap=True)

    def keeps(self, text: str, check: Callable[[], None]) -> None:
        """A claim that is checked by code which raises when it is false."""
        try:
            check()
        except AssertionError as broken:
            self.claim(f"{text}: {broken}", False)
        else:
            self.claim(text, True)

    def figure(self, what: str, value: str) -> None:
        """Something for the summary."""
        self._figures.append((what, value))

    def verdict(self) -> int:
        """The summary, the last line, and the exit code."""
        self.console.print()
        if self._figures:
            self.console.print(Rule("[bold]What was shown[/]", characters="═"))
            grid = Table(box=None, show_header=False, padding=(0, 2))
            for row in self._figures:
                grid.add_row(*map(Text, row))
            self.console.print(grid)
            self.console.print()
        if self.failed:
            count = f"{self.failed} of {self.true + self.failed} claims"
            self.console.print(f"[bold red]{count} failed[/]")
            return 1
        self.console.print(f"[bold green]every claim held ({self.true} of {self.true})[/]")
        return 0


def killed_after(program: str, home: Path, count: int) -> list[bytes]:
    """What a child process reported: it is killed with SIGKILL at its line number `count`."""
    lines = []
    with _child(program, home) as child:
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line.rstrip())
            if len(lines) == count:
                os.kill(child.pid, signal.SIGKILL)
    return lines


@contextmanager
def _child(program: str, home: Path) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, "-c", program, str(home)], stdout=subprocess.PIPE)
    try:
        yield child
        child.wait()
    finally:
        assert child.stdout is not None
        child.stdout.close()
        if child.poll() is None:
            child.kill()
            child.wait()
