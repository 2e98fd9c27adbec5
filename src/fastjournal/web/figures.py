"""The figures of a journal: of the moment, once a second, and of a day, kept in the journal itself.

    fastjournal.hours/NNN     JSON: the number of a slot of five minutes; for each queue its counts
                              and latencies

Rules of the moment:

1. Figures are made once, however many look, and never take more than about a hundredth of the time:
   after a look that took long the next one waits longer. It costs by queues, not by jobs.
2. The journal's lock is held for some hundred queues at a time.
3. Of the queues at most `MAX_QUEUES` are shown, the fullest; viewers get those that changed since
   the look they know.
4. Rates are differences of counters over the time between two looks. `HISTORY` looks are kept, so
   that a page shows what came before it was opened.
5. A viewer that reads slowly misses looks and gets the newest.
6. At each look what queues have done goes into the running slot of the hours.

Rules of the day:

7. The entries are a ring: slot n lies under n modulo `SLOTS`, and goes a day after it was written.
   So there are never more of them, and a restart finds what was kept.
8. The running slot is written once a minute at most, and only if something happened: a crash costs
   the figures of a minute, and a journal at rest writes nothing.
9. Of each slot the `MOST` busiest queues are kept.
10. A log that takes nothing in holds nobody up: the figures go on in memory.
11. Latencies are counted by bounds (`LATENCIES`), so a percentile is told as the bound it is below.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from fastjournal.clock import SECOND
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.errors import JournalError
from fastjournal.journal.engine.counting import LATENCIES, QueueCounts
from fastjournal.journal.state.queue_rows import QueueRows
from fastjournal.journal.state.row import READY
from fastjournal.log.write.counters import Histogram
from fastjournal.model import PLACES
from fastjournal.web.formatting import quoted, span, text

if TYPE_CHECKING:
    from fastjournal.daemon.server import Server

__all__ = [
    "HISTORY",
    "MAX_QUEUES",
    "MOST",
    "RATES",
    "SLOT",
    "SLOTS",
    "Done",
    "Hours",
    "Latency",
    "Pulse",
    "QueueFigures",
    "rest_after",
]


SLOT = 300 * SECOND
SLOTS = 288
"""A day of slots."""
MOST = 100
_PREFIX = "fastjournal.hours/"
_SAVED_EVERY = 60.0  # seconds
_DAY = SLOT * SLOTS // SECOND


class Done(NamedTuple):
    """What one queue did in a stretch of time."""

    leases: int = 0
    completions: int = 0
    failures: int = 0
    waits: Mapping[int, int] = {}
    """Number of a bound in `LATENCIES`: how many waits were up to it."""
    runs: Mapping[int, int] = {}

    @property
    def ended(self) -> int:
        """Completed or failed."""
        return self.completions + self.failures


class Latency(NamedTuple):
    """Half, 95 and 99 of a hundred took no longer, in ns; 0: there were none; -1: off the scale."""

    p50: int = 0
    p95: int = 0
    p99: int = 0

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Latency:
        """The percentiles of lengths that were counted by bounds."""
        total = sum(counts.values())
        if not total:
            return cls()
        return cls(*[_bound(counts, total * share / 100) for share in (50, 95, 99)])


class Hours:
    """The slots of one journal; `take` on the loop, `load` and `save` in a thread."""

    def __init__(self, host: JournalLoop) -> None:
        self._host = host
        self._slots: dict[int, dict[bytes, Done]] = {}
        self._unsaved: set[int] = set()
        self._saved_at = time.monotonic()
        self.fault = ""
        """Why the newest slot could not be kept."""

    def load(self) -> None:
        """Take up what the journal keeps, and begin to count."""
        newest = self._now() // SLOT
        for entry in self._host.journal.entries.range(_PREFIX, _PREFIX[:-1] + "0"):
            try:
                number, queues = _decoded(entry.value)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue  # another version wrote it
            if newest - SLOTS < number <= newest:
                self._slots[number] = queues
        with self._host.engine.lock:
            self._host.engine.counts.watch_queues()

    def take(self) -> None:
        """Add what was counted since the last time to the running slot."""
        host = self._host
        with host.engine.lock:
            counted = host.engine.counts.watch_queues()
            number = host.engine.clock.now() // SLOT
        for old in [old for old in self._slots if old <= number - SLOTS]:
            del self._slots[old]
        if not counted:
            return
        queues = dict(self._slots.get(number, {}))
        for name, counts in counted.items():
            queues[name] = _sum([queues.get(name, Done()), _done(counts)])
        busiest = sorted(queues, key=lambda name: queues[name].leases + queues[name].ended)
        self._slots[number] = {name: queues[name] for name in sorted(busiest[-MOST:])}
        self._unsaved.add(number)

    @property
    def due(self) -> bool:
        """Whether there is something to be written by now; see rule 2."""
        return bool(self._unsaved) and time.monotonic() - self._saved_at >= _SAVED_EVERY

    def save(self) -> None:
        """Keep what has changed in the journal."""
        self._saved_at = time.monotonic()
        unsaved, self._unsaved = self._unsaved, set()
        for number in sorted(unsaved & self._slots.keys()):
            text = _encoded(number, self._slots[number])
            try:
                self._host.journal.entries.set(f"{_PREFIX}{number % SLOTS:03d}", text, ttl=_DAY)
                self.fault = ""
            except JournalError as error:
                self.fault = str(error)
                self._unsaved.add(number)

    def end(self) -> None:
        """Keep the rest; nobody watches any more."""
        self.take()
        self.save()
        with self._host.engine.lock:
            self._host.engine.counts.queues = None

    def done(self, slots: int, queue: bytes | None = None) -> Done:
        """What a queue, or all of them, did in the newest slots."""
        newest = self._now() // SLOT
        return _sum(
            one
            for number in range(newest - slots + 1, newest + 1)
            for one in self._of(number, queue)
        )

    def busy(self, slots: int) -> dict[bytes, Done]:
        """What each queue did in the newest slots."""
        newest = self._now() // SLOT
        found: dict[bytes, list[Done]] = {}
        for number in range(newest - slots + 1, newest + 1):
            for name, one in self._slots.get(number, {}).items():
                found.setdefault(name, []).append(one)
        return {name: _sum(some) for name, some in found.items()}

    def columns(self, queue: bytes | None = None) -> dict[str, list[Any]]:
        """All slots as columns for a plot: jobs a minute, latencies in seconds (null: none)."""
        newest = self._now() // SLOT
        numbers = range(newest - SLOTS + 1, newest + 1)
        minutes = SLOT // (60 * SECOND)
        out: dict[str, list[Any]] = {
            name: []
            for name in ("at", "done", "failed", "wait_p50", "wait_p99", "run_p50", "run_p99")
        }
        for number in numbers:
            one = _sum(self._of(number, queue))
            wait, run = Latency.of(one.waits), Latency.of(one.runs)
            out["at"].append(number * SLOT // SECOND)
            out["done"].append(round(one.completions / minutes, 2))
            out["failed"].append(round(one.failures / minutes, 2))
            for name, length in (
                ("wait_p50", wait.p50), ("wait_p99", wait.p99),
                ("run_p50", run.p50), ("run_p99", run.p99),
            ):  # fmt: skip
                longest = LATENCIES[-1]
                out[name].append((longest if length < 0 else length) / SECOND if length else None)
        return out

    def _of(self, number: int, queue: bytes | None) -> Iterable[Done]:
        queues = self._slots.get(number, {})
        if queue is None:
            return queues.values()
        return [queues[queue]] if queue in queues else []

    def _now(self) -> int:
        return self._host.engine.clock.now()


def _done(counts: QueueCounts) -> Done:
    return Done(
        counts.leases,
        counts.completions,
        counts.failures,
        {number: count for number, count in enumerate(counts.waits) if count},
        {number: count for number, count in enumerate(counts.runs) if count},
    )


def _sum(some: Iterable[Done]) -> Done:
    leases = completions = failures = 0
    waits: dict[int, int] = {}
    runs: dict[int, int] = {}
    for one in some:
        leases += one.leases
        completions += one.completions
        failures += one.failures
        for total, part in ((waits, one.waits), (runs, one.runs)):
            for number, count in part.items():
                total[number] = total.get(number, 0) + count
    return Done(leases, completions, failures, waits, runs)


def _bound(counts: Mapping[int, int], wanted: float) -> int:
    reached = 0
    for number in sorted(counts):
        reached += counts[number]
        if reached >= wanted:
            return LATENCIES[number] if number < len(LATENCIES) else -1
    return -1


def _encoded(number: int, queues: Mapping[bytes, Done]) -> str:
    named = {quote_from_bytes(name): one for name, one in queues.items()}
    return json.dumps({"slot": number, "queues": named}, separators=(",", ":"))


def _decoded(text: Any) -> tuple[int, dict[bytes, Done]]:
    slot = json.loads(text)
    queues = {}
    for name, (leases, completions, failures, waits, runs) in slot["queues"].items():
        queues[unquote_to_bytes(name)] = Done(
            int(leases), int(completions), int(failures), _numbers(waits), _numbers(runs)
        )
    return int(slot["slot"]), queues


def _numbers(counts: Any) -> dict[int, int]:
    return {int(number): int(count) for number, count in counts.items()}


HISTORY = 600
MAX_QUEUES = 200
_AT_ONCE = 200  # queues under one hold of the lock
_SHARE = 100  # a look of 20 ms is followed by two seconds of rest
_LONGEST = 15.0  # seconds of rest, for figures that are older tell nothing
_QUIET = 15.0  # seconds after which a viewer is told that we are still there
_RECENT = 60  # looks that "lately" means
RATES = ("puts", "merges", "leases", "completions", "failures", "timeouts", "dead", "expired")


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
        points = [_point(before, after) for before, after in pairwise(list(self._looks))]
        return {name: [point[name] for point in points] for name in _POINT}

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
            "plot": _point(self._looks[-2], newest) if len(self._looks) > 1 else {},
            "log": {
                "bytes": _rate(newest.bytes - before.bytes, before, newest),
                "syncs": _rate(newest.syncs - before.syncs, before, newest),
                "sync_p50": p50,
                "sync_p99": p99,
                "unsynced": max(0, log.written_time - log.synced_time),
                "waiting": log.queue_length,
                "failure": log.failure,
                "disk_full": not self._host.engine.reserve.is_kept,
            },
            "server": {"connections": len(server.connections), "started": server.started},
            "left_out": self.left_out,
        }


def rest_after(spent: float) -> float:
    """How many seconds to wait after a look that took so long; see rule 1."""
    return max(1.0 - spent, min(_SHARE * spent, _LONGEST))


def _figures_of(lane: QueueRows, now: int) -> QueueFigures:
    counts = lane.counts
    first = lane.head(now) if counts[READY] else None
    return QueueFigures(
        text(lane.name),
        quoted(lane.name),
        tuple(counts[: len(PLACES)]),
        0 if first is None else first.due,
        lane.next_wake(),
        lane.settings.paused,
        lane.settings.draining,
    )


def _rate(count: int, before: _Look, after: _Look) -> float:
    seconds = (after.at - before.at) / SECOND
    return round(count / seconds, 2) if seconds > 0 else 0.0


_POINT = ("at", *RATES, *(f"jobs_{name}" for name in PLACES), "bytes", "syncs")


def _point(before: _Look, after: _Look) -> dict[str, Any]:
    """What a plot shows of a look: rates since the look before, and how many jobs stand where."""
    counts = zip((*before.counters, before.bytes, before.syncs),
                 (*after.counters, after.bytes, after.syncs), strict=True)  # fmt: skip
    *rates, written, synced = [_rate(b - a, before, after) for a, b in counts]
    values = (round(after.at / SECOND, 3), *rates, *after.totals, written, synced)
    return dict(zip(_POINT, values, strict=True))


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
