"""The hours of a journal: what each queue did, in slots of five minutes, kept in the journal.

    fastjournal.hours/NNN     JSON: the number of the slot; for each queue its counts and latencies

Rules:

1. The entries are a ring: slot n lies under n modulo `SLOTS`, and goes a day after it was written.
   So there are never more of them, and a restart finds what was kept.
2. The running slot is written once a minute at most, and only if something happened: a crash costs
   the figures of a minute, and a journal at rest writes nothing.
3. Of each slot the `MOST` busiest queues are kept.
4. A log that takes nothing in holds nobody up: the figures go on in memory.
5. Latencies are counted by bounds (`LATENCIES`), so a percentile is told as the bound it is below.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from fastjournal.clock import SECOND
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.errors import JournalError
from fastjournal.journal.engine.counting import LATENCIES, QueueCounts

__all__ = ["MOST", "SLOT", "SLOTS", "Done", "Hours", "Latency"]

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
    told = {quote_from_bytes(name): one for name, one in queues.items()}
    return json.dumps({"slot": number, "queues": told}, separators=(",", ":"))


def _decoded(text: Any) -> tuple[int, dict[bytes, Done]]:
    told = json.loads(text)
    queues = {}
    for name, (leases, completions, failures, waits, runs) in told["queues"].items():
        queues[unquote_to_bytes(name)] = Done(
            int(leases), int(completions), int(failures), _numbers(waits), _numbers(runs)
        )
    return int(told["slot"]), queues


def _numbers(told: Any) -> dict[int, int]:
    return {int(number): int(count) for number, count in told.items()}
