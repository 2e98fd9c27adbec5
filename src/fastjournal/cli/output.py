"""Results for people and for programs.

Rules:

1. People get tables, programs JSON lines: one object a line, times as integers of ns since 1970.
2. What is printed for programs is a superset of what is printed for people.
3. Progress and remarks go to standard error, and only to a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from fastjournal.clock import instant_text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Advance",
    "bytes_text",
    "console",
    "instant",
    "json_line",
    "preview",
    "progress",
    "table",
    "tell",
]


class Advance(Protocol):
    """Told how much more is done."""

    def __call__(self, amount: int, /) -> None: ...


def instant(time: int) -> str:
    """Ns since 1970 as ISO 8601 with nine decimals; a dash for 0, which means no time."""
    return instant_text(time)


def bytes_text(size: int) -> str:
    """A size as people read it: 512 B, 1.5 KiB, 64.0 MiB."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            break
    return f"{value:.1f} {unit}"


def preview(payload: bytes, width: int) -> str:
    """The beginning of a payload in one line: text if it is text, else hex."""
    head = payload[: width * 4]
    text = head.decode("utf-8", "ignore")
    shown = text if text and text.isprintable() and b"\x00" not in head else head.hex(" ")
    if len(shown) > width or len(head) < len(payload):
        return shown[: width - 1] + "…"
    return shown


def json_line(values: Mapping[str, Any]) -> None:
    """Print one JSON object on one line."""
    sys.stdout.write(json.dumps(values, separators=(",", ":"), default=str) + "\n")


def tell(as_json: bool, values: Mapping[str, Any], words: str) -> None:
    """Say what was done: a JSON object for programs, words for people."""
    if as_json:
        json_line(values)
    else:
        sys.stdout.write(words + "\n")


def console(*, error: bool = False) -> Console:
    """Where tables go; plain text when it is not a terminal."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    # A pipe or file has no width: do not fold columns that a program may read.
    width = None if stream.isatty() else 200
    return Console(stderr=error, width=width, highlight=False, soft_wrap=False)


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    """Print a table; the columns named in `right` are set flush right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        grid.add_column(
            column, justify="right" if column in right else "left", overflow="fold", no_wrap=False
        )
    for row in rows:
        grid.add_row(*(Text(cell) for cell in row))
    console().print(grid)


@contextmanager
def progress(label: str, total: int) -> Iterator[Advance]:
    """A progress bar over `total` bytes, shown only on a terminal."""
    if not sys.stderr.isatty() or not total:
        yield lambda _amount: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(error=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda amount: bar.advance(task, amount)
