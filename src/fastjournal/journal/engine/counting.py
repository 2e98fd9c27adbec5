"""What a journal has done since it was opened, counted where it happens.

Rules:

1. Totals are always counted. What each queue did is counted only while somebody wants to know
   (`watch_queues`), for `MAX_WATCHED` queues at most between two takings.
2. A wait is the time from due to handed out; a run that from handed out to completed or failed.
"""

from typing import Final, final

from mypy_extensions import i64

from fastjournal.journal.language.commands import (
    TIMED_OUT,
    Command,
    Dead,
    Expire,
    Group,
    Retry,
    Timeout,
)
from fastjournal.journal.state.row import Row

__all__ = ["LATENCIES", "MAX_WATCHED", "JobCounts", "QueueCounts"]

MAX_WATCHED: Final = 1000
_MS: Final = 1_000_000
LATENCIES: Final[tuple[int, ...]] = tuple(
    [
        number * _MS
        for number in (
            1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 30_000, 60_000,
            120_000, 300_000, 600_000, 1_800_000, 3_600_000, 10_800_000, 43_200_000, 86_400_000,
        )
    ]
)  # fmt: skip
"""Bounds of the waits and runs that are counted, ns; whatever is longer stands behind the last."""


@final
class QueueCounts:
    """What one queue did since the last taking."""

    def __init__(self) -> None:
        self.leases: i64 = 0
        self.completions: i64 = 0
        self.failures: i64 = 0
        self.waits: list[int] = [0] * (len(LATENCIES) + 1)
        """How many waits were up to each of `LATENCIES`."""
        self.runs: list[int] = [0] * (len(LATENCIES) + 1)


@final
class JobCounts:
    """Running totals of one open journal."""

    def __init__(self) -> None:
        self.puts: i64 = 0
        """Jobs that were asked to be taken in and were not refused."""
        self.merges: i64 = 0
        """Of them, those merged into a waiting row."""
        self.stale: i64 = 0
        """Of them, those that changed nothing."""
        self.leases: i64 = 0
        self.touches: i64 = 0
        self.completions: i64 = 0
        self.failures: i64 = 0
        """Attempts that failed, whether tried again or not."""
        self.releases: i64 = 0
        self.timeouts: i64 = 0
        """Leases that ran out."""
        self.dead: i64 = 0
        """Rows given up."""
        self.expired: i64 = 0
        self.lease_lost: i64 = 0
        """Requests refused because their lease was no longer the newest."""
        self.queues: dict[bytes, QueueCounts] | None = None
        """By queue, while somebody watches."""

    def watch_queues(self) -> dict[bytes, QueueCounts]:
        """Begin to count by queue, or begin anew; returns what was counted so far."""
        counted = self.queues
        self.queues = {}
        return {} if counted is None else counted

    def handed_out(self, row: Row, now: i64) -> None:
        """A job has been leased."""
        self.leases += 1
        counts = self._queue(row.queue.name)
        if counts is not None:
            counts.leases += 1
            counts.waits[_slot(now - (row.due or row.inserted))] += 1

    def ended(self, queue: bytes, run: i64, completed: bool) -> None:
        """A job that was worked on for so long has been completed, or has failed."""
        counts = self._queue(queue)
        if counts is not None:
            if completed:
                counts.completions += 1
            else:
                counts.failures += 1
            counts.runs[_slot(run)] += 1

    def _queue(self, name: bytes) -> QueueCounts | None:
        queues = self.queues
        if queues is None:
            return None
        counts = queues.get(name)
        if counts is None and len(queues) < MAX_WATCHED:
            counts = queues[name] = QueueCounts()
        return counts

    def passed(self, command: Command) -> None:
        """Count what the clock did."""
        if isinstance(command, Group):
            for member in command.members:
                self.passed(member)
        elif isinstance(command, Expire):
            self.expired += 1
        elif isinstance(command, Dead):
            self.dead += 1
        elif isinstance(command, Timeout) or (
            isinstance(command, Retry) and command.reason == TIMED_OUT
        ):
            self.timeouts += 1


def _slot(length: i64) -> int:
    """Which of `LATENCIES` a length of time is up to; most are short."""
    number = 0
    for bound in LATENCIES:
        if length <= bound:
            break
        number += 1
    return number
