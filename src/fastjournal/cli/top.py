"""`fastjournal top`: the queues of a journal, looked at again and again.

Rules:

1. It only looks, so it may run beside whoever owns the journal.
2. Rates are what happened since the look before; the first look has none.
3. The busiest queues come first; what does not fit on the screen is counted in the last line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fastjournal.cli.job_tables import QUEUE_COLUMNS, QUEUE_NUMBERS, queue_row
from fastjournal.cli.open_journal import View
from fastjournal.cli.output import bytes_text, console, instant
from fastjournal.clock import SECOND, SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rich.console import Group

    from fastjournal.model import QueueStatus

__all__ = ["Top", "watch"]

_RATES = {
    "puts": ("put", "add", "schedule"),
    "leases": ("lease", "start"),
    "ends": ("purge", "complete", "fail", "dead", "delete", "expire"),
}
"""What is shown for each second, and the kinds of commands that make it up."""
_OTHER_LINES = 8  # of the screen, besides queues


class Top:
    """What is shown, made anew at each look; rates come from the look before."""

    def __init__(self, view: View, name: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._view = view
        self._name = name
        self._clock = clock
        self._before: tuple[int, dict[str, int]] | None = None

    def look(self, height: int | None = None) -> Group:
        """The journal now; at most `height` lines."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        refresh = getattr(self._view, "refresh", None)
        if refresh is not None:
            refresh()
        status, queues = self._view.status(), self._view.queues()
        now = self._clock.now()
        log = status.log.counters
        head = Text.assemble(
            (self._name, "bold"),
            f"  {instant(now)[:19]}Z  {status.jobs:,} jobs, {bytes_text(log.bytes)} of log",
            self._rates(now, log.writes),
        )
        room = len(queues) if height is None else max(1, height - _OTHER_LINES)
        shown = sorted(queues, key=_busy)[:room]
        grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in QUEUE_COLUMNS:
            grid.add_column(column, justify="right" if column in QUEUE_NUMBERS else "left")
        for queue in shown:
            style = "red" if queue.dead else "dim" if queue.settings.paused else ""
            grid.add_row(*(Text(cell) for cell in queue_row(queue, now)), style=style)
        grid.add_section()
        total = [f"{getattr(status, name):,}" for name in QUEUE_NUMBERS]
        grid.add_row(Text(f"all {len(queues)}"), *map(Text, total), "", "", style="bold")
        left = len(queues) - len(shown)
        more = [Text(f"{left} more queues")] if left else []
        return Group(head, Text(), grid, *more)

    def _rates(self, now: int, records: int) -> str:
        """What happened since the look before, by the second."""
        seen: Mapping[str, int] | None = getattr(self._view, "seen", None)
        counts = {"records": records}
        if seen is not None:
            counts = {
                word: sum(seen.get(kind, 0) for kind in kinds) for word, kinds in _RATES.items()
            }
        before, self._before = self._before, (now, counts)
        if before is None or now <= before[0]:
            return ""
        passed = (now - before[0]) / SECOND
        rates = (
            f"{max(0, count - before[1][word]) / passed:,.0f} {word}/s"
            for word, count in counts.items()
        )
        return ", " + ", ".join(rates)


def watch(
    view: View,
    name: str,
    interval: float,
    *,
    once: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show the journal until interrupted, or once."""
    top = Top(view, name)
    screen = console()
    if once:
        screen.print(top.look())
        return
    from rich.live import Live

    try:
        with Live(top.look(screen.height), console=screen, screen=screen.is_terminal) as live:
            while True:
                sleep(interval)
                live.update(top.look(screen.height), refresh=True)
    except KeyboardInterrupt:
        return


def _busy(queue: QueueStatus) -> tuple[int, int, bytes]:
    return (-queue.leased, -(queue.ready + queue.future + queue.held), queue.name)
