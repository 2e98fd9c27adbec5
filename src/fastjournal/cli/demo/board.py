"""The live view of the third act: who runs, what waits where, what has happened.

Rules:

1. It looks ten times a second from a thread of its own, by the means of any operator: a client of
   the daemon, and the files of the spool. A daemon that does not answer is shown as down.
2. On a terminal the view stays in one place; elsewhere nothing but the last look is printed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fastjournal.cli.output import bytes_text
from fastjournal.errors import JournalError
from fastjournal.spool.spool_dir import used

if TYPE_CHECKING:
    from rich.console import Console

    from fastjournal.model import QueueStatus

__all__ = ["Board"]

_LOOKS = 10  # a second


class Board:
    """What is shown; `settled` tells whether nothing is left to do."""

    def __init__(self, url: str, spool: Path, done: Callable[[], int]) -> None:
        self._url = url
        self._spool = spool
        self._done = done
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._queues: list[QueueStatus] | None = None
        self._backlog = 0

    @contextmanager
    def shown(self, console: Console) -> Iterator[None]:
        """Look and show until the end of the block."""
        looker = threading.Thread(target=self._look, daemon=True)
        looker.start()
        live = Live(
            get_renderable=self._picture, console=console, refresh_per_second=8, transient=True
        )
        try:
            with live:
                yield
        finally:
            self._over.set()
            looker.join()

    def _look(self) -> None:
        from fastjournal.connect_url import connect

        with connect(f"{self._url}?timeout=1&connect_timeout=1") as client:
            while not self._over.wait(1 / _LOOKS):
                try:
                    queues = client.queues()
                except JournalError:
                    queues = None
                backlog = used(str(self._spool)) if self._spool.is_dir() else 0
                with self._lock:
                    self._queues, self._backlog = queues, backlog

    def _picture(self) -> Table:
        with self._lock:
            queues, backlog = self._queues, self._backlog
        head = Text.assemble(
            f"spool {bytes_text(backlog)}   daemon ",
            ("down", "bold red") if queues is None else ("up", "green"),
            f"   done by the workers {self._done():,}",
        )
        grid = Table(title=head, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        grid.add_column("queue", min_width=12)
        for column in ("ready", "not yet due", "leased", "dead"):
            grid.add_column(column, justify="right", min_width=8)
        for one in queues or []:
            numbers = (one.ready + one.held, one.future, one.leased, one.dead)
            grid.add_row(one.name, *(f"{number:,}" for number in numbers))
        return grid
