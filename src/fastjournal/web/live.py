"""The pulse of a journal: its figures once a second, the same for everybody who looks.

Rules:

1. Figures are made once, however many look, and never take more than about a hundredth of the time:
   after a look that took long the next one waits longer. It costs by queues, not by jobs.
2. The journal's lock is held for some hundred queues at a time.
3. Of the queues at most `MAX_QUEUES` are shown, the fullest; viewers get those that changed since
   the look they know.
4. Rates are differences of counters over the time between two looks. `HISTORY` looks are kept, so
   that a page shows what came before it was opened.
5. A viewer that reads slowly misses looks and gets the newest.
6. At each look what queues have done goes into the running slot of the hours (`hours`).
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from fastjournal.clock import SECOND
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.journal.state.queue_rows import QueueRows
from fastjournal.journal.state.row import DEAD, DONE, FUTURE, HELD, LEASED, READY
from fastjournal.log.write.counters import Histogram
from fastjournal.web.formatting import quoted, span, text
from fastjournal.web.hours import Hours

if TYPE_CHECKING:
    from fastjournal.daemon.server import Server

__all__ = ["HISTORY", "MAX_QUEUES", "PLACES", "RATES", "Pulse", "QueueFigures", "rest_after"]

HISTORY = 600
MAX_QUEUES = 200
_AT_ONCE = 200  # queues under one hold of the lock
_SHARE = 100  # a look of 20 ms is followed by two seconds of rest
_LONGEST = 15.0  # seconds of rest, for figures that are older tell nothing
_QUIET = 15.0  # seconds after which a viewer is told that we are still there
_RECENT = 60  # looks that "lately" means
RATES = ("puts", "merges", "leases", "completions", "failures", "timeouts", "dead", "expired")
PLACES = ("ready", "future", "held", "leased", "completed", "dead")
_NUMBERS = (READY, FUTURE, HELD, LEASED, DONE, DEAD)


class QueueFigures(NamedTuple):
    """One queue at one look."""

    name: str
    url: str
    """Its name as a part of a URL."""
    counts: tuple[int, ...]
    """Jobs by place, in the order of `PLACES`."""
    first: int
    """Since when the first in line has been due; 0: nothing is ready."""
    next: int
    """When a job becomes due or a lease ends; 0: nothing in sight."""
    paused: bool
    draining: bool

    @property
    def total(self) -> int:
        """All its jobs."""
        return sum(self.counts)


class _Look(NamedTuple):
    at: int
    """ns since 1970"""
    counters: tuple[int, ...]
    totals: tuple[int, ...]
    bytes: int
    syncs: int
    sync_seconds: Histogram


class Pulse:
    """The figures of one journal."""

    def __init__(self, server: Server, host: JournalLoop) -> None:
        self._server = server
        self._host = host
        self._looks: deque[_Look] = deque(maxlen=HISTORY)
        self._next = asyncio.Event()
        self._rows: dict[bytes, tuple[QueueFigures, int]] = {}
        self._all = 0
        self.hours = Hours(host)
        """What queues did in the last hours."""
        self.number = 0
        """Of the newest look."""
        self.figures: dict[str, Any] = {}
        """The journal at the newest look."""
        self.closed = False

    @property
    def queues(self) -> list[QueueFigures]:
        """The queues that are shown, by name."""
        return [row for _, (row, _) in sorted(self._rows.items())]

    @property
    def left_out(self) -> int:
        """How many queues are not."""
        return self._all - len(self._rows)

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            await asyncio.sleep(rest_after(time.monotonic() - began))

    async def look(self) -> None:
        """Take one look and tell everybody."""
        totals, rows = await self._look_at_queues()
        self.hours.take()
        if self.hours.due:
            await asyncio.to_thread(self.hours.save)
        self.number += 1
        chosen = sorted(rows, key=lambda name: rows[name].total, reverse=True)[:MAX_QUEUES]
        kept: dict[bytes, tuple[QueueFigures, int]] = {}
        for name in chosen:
            before = self._rows.get(name)
            same = before is not None and before[0] == rows[name]
            kept[name] = before if same and before is not None else (rows[name], self.number)
        self._rows, self._all = kept, len(rows)
        status = self._host.engine.log.status()
        counts = self._host.engine.counts
        self._looks.append(
            _Look(
                self._host.engine.clock.now(),
                tuple(getattr(counts, name) for name in RATES),
                tuple(totals),
                status.counters.bytes,
                status.counters.syncs,
                status.counters.sync_seconds,
            )
        )
        self.figures = self._figures(status)
        self._wake()

    def close(self) -> None:
        """End all streams."""
        self.closed = True
        self._wake()

    def history(self) -> dict[str, list[Any]]:
        """The looks that are kept, as columns for a plot; rates a second."""
        looks = list(self._looks)
        out: dict[str, list[Any]] = {"at": [round(look.at / SECOND, 3) for look in looks[1:]]}
        for number, name in enumerate(RATES):
            out[name] = [
                _rate(b.counters[number] - a.counters[number], a, b) for a, b in pairwise(looks)
            ]
        for number, name in enumerate(PLACES):
            out[f"jobs_{name}"] = [look.totals[number] for look in looks[1:]]
        out["bytes"] = [_rate(b.bytes - a.bytes, a, b) for a, b in pairwise(looks)]
        out["syncs"] = [_rate(b.syncs - a.syncs, a, b) for a, b in pairwise(looks)]
        return out

    async def stream(self, may_stay: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Events for one viewer: a `pulse` for each look, as long as it may stay."""
        known = self.number
        yield b"retry: 2000\n\n"
        while not self.closed and may_stay():
            coming = self._next
            if self.number > known:
                yield b"event: pulse\ndata: " + self.changes_since(known) + b"\n\n"
                known = self.number
                continue
            try:
                async with asyncio.timeout(_QUIET):
                    await coming.wait()
            except TimeoutError:
                yield b": still here\n\n"

    def changes_since(self, known: int) -> bytes:
        """The newest figures, and the queues that changed since that look, as JSON."""
        changed = [row for row, number in self._rows.values() if number > known]
        changes = self.figures | {
            "queues": [row._asdict() for row in changed],
            "names": [row.url for row, _ in self._rows.values()],
        }
        return json.dumps(changes, separators=(",", ":")).encode()

    def _wake(self) -> None:
        coming, self._next = self._next, asyncio.Event()
        coming.set()

    async def _look_at_queues(self) -> tuple[list[int], dict[bytes, QueueFigures]]:
        host = self._host
        totals = [0] * len(PLACES)
        rows: dict[bytes, QueueFigures] = {}
        with host.engine.lock:
            lanes = list(host.state.queues.values())
        for at in range(0, len(lanes), _AT_ONCE):
            if at:
                await asyncio.sleep(0)
            with host.engine.lock:
                now = host.state.promote(host.engine.clock.now())
                for lane in lanes[at : at + _AT_ONCE]:
                    if lane.shown:
                        figures = _figures_of(lane, now)
                        rows[lane.name] = figures
                        totals = [a + b for a, b in zip(totals, figures.counts, strict=True)]
        return totals, rows

    def _figures(self, status: Any) -> dict[str, Any]:
        """What is shown at once, besides queues."""
        newest, before = self._looks[-1], self._looks[max(0, len(self._looks) - 6)]
        past = self._looks[max(0, len(self._looks) - 1 - _RECENT)]
        lately = [b - a for a, b in zip(past.counters, newest.counters, strict=True)]
        server, log = self._server, status
        p50, p99 = _quantiles(past.sync_seconds, newest.sync_seconds)
        return {
            "number": self.number,
            "at": newest.at,
            "jobs": dict(zip(PLACES, newest.totals, strict=True)),
            "rates": {
                name: _rate(newest.counters[n] - before.counters[n], before, newest)
                for n, name in enumerate(RATES)
            },
            "counts": dict(zip(RATES, newest.counters, strict=True)),
            "merged_lately": lately[1] / lately[0] if lately[0] else None,
            "merged": newest.counters[1] / newest.counters[0] if newest.counters[0] else None,
            "plot": self._newest_point(),
            "log": {
                "bytes": _rate(newest.bytes - before.bytes, before, newest),
                "syncs": _rate(newest.syncs - before.syncs, before, newest),
                "sync_p50": p50,
                "sync_p99": p99,
                "unsynced": max(0, log.written_time - log.synced_time),
                "waiting": log.queue_length,
                "failure": log.failure,
                "disk_full": not self._host.engine.reserve.held,
            },
            "server": {"connections": len(server.connections), "started": server.started},
            "left_out": self.left_out,
        }

    def _newest_point(self) -> dict[str, Any]:
        """The last entries of `history`."""
        if len(self._looks) < 2:
            return {}
        a, b = self._looks[-2], self._looks[-1]
        point: dict[str, Any] = {"at": round(b.at / SECOND, 3)}
        for n, name in enumerate(RATES):
            point[name] = _rate(b.counters[n] - a.counters[n], a, b)
        for n, name in enumerate(PLACES):
            point[f"jobs_{name}"] = b.totals[n]
        point["bytes"] = _rate(b.bytes - a.bytes, a, b)
        point["syncs"] = _rate(b.syncs - a.syncs, a, b)
        return point


def rest_after(spent: float) -> float:
    """How many seconds to wait after a look that took so long; see rule 1."""
    return max(1.0 - spent, min(_SHARE * spent, _LONGEST))


def _figures_of(lane: QueueRows, now: int) -> QueueFigures:
    counts = lane.counts
    first = lane.head(now) if counts[READY] else None
    return QueueFigures(
        text(lane.name),
        quoted(lane.name),
        tuple(counts[number] for number in _NUMBERS),
        0 if first is None else first.due,
        lane.next_wake(),
        lane.settings.paused,
        lane.settings.draining,
    )


def _rate(count: int, before: _Look, after: _Look) -> float:
    seconds = (after.at - before.at) / SECOND
    return round(count / seconds, 2) if seconds > 0 else 0.0


def _quantiles(before: Histogram, after: Histogram) -> tuple[str, str]:
    """How long half, and all but a hundredth, of the syncs in between took at most, in words."""
    counts = [b - a for a, b in zip(before.counts, after.counts, strict=True)]
    total = sum(counts)
    if total <= 0:
        counts, total = after.counts, sum(after.counts)
    if not total:
        return "–", "–"

    def bound(share: float) -> str:
        reached = 0
        for upper, count in zip(after.bounds, counts, strict=False):
            reached += count
            if reached >= share * total:
                return f"≤ {span(round(upper * SECOND))}"
        return f"> {span(round(after.bounds[-1] * SECOND))}"

    return bound(0.5), bound(0.99)
