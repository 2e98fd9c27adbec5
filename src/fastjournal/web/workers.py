"""Who works: the workers that announce themselves, and whoever else holds leases.

Rules:

1. What a worker runs is what the journal has handed to it, at this moment; what it is, it has
   announced itself, ten seconds ago at most.
2. At most `MOST` leases are looked at; the page says if there are more.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.tasks.announcing import WorkerInfo, known_workers

__all__ = ["MOST", "Busy", "Crew", "Worker", "crew_of"]

MOST = 2000


class Busy(NamedTuple):
    """A job that somebody works on."""

    id: str
    queue: bytes
    key: bytes
    task: str
    """Empty: it is not known."""
    since: int
    until: int
    attempts: int


class Worker(NamedTuple):
    """Somebody who works."""

    name: str
    info: WorkerInfo | None
    """What it has announced; None: it only leases."""
    jobs: list[Busy]
    """What it has in hand, the oldest first."""


class Crew(NamedTuple):
    """Everybody who works on a journal."""

    workers: list[Worker]
    cut: bool
    """There are more leases than were looked at."""

    @property
    def places(self) -> int:
        """How many jobs the workers that announce themselves can run at a time."""
        return sum(one.info.concurrency for one in self.workers if one.info is not None)

    @property
    def running(self) -> int:
        """How many jobs are being worked on."""
        return sum(len(one.jobs) for one in self.workers)


def crew_of(host: JournalLoop) -> Crew:
    """Everybody who works on this journal."""
    announced = {info.name: info for info in known_workers(host.journal)}
    tasks = {job.id: job.task for info in announced.values() for job in info.running}
    held: dict[str, list[Busy]] = {}
    with host.engine.lock:
        lanes = [lane for lane in host.state.queues.values() if lane.name]
        leased = (row for lane in lanes for row in lane.leases)
        rows = list(islice(leased, MOST + 1))
        for row in sorted(rows[:MOST], key=lambda row: row.rare.start):
            name = row.rare.worker.decode("utf-8", "backslashreplace")
            held.setdefault(name, []).append(
                Busy(
                    row.id.hex(),
                    row.queue.name,
                    row.key,
                    tasks.get(row.id.hex(), ""),
                    row.rare.start,
                    row.lease_until,
                    row.attempts,
                )
            )
    names = sorted({*announced, *held}, key=lambda name: (name not in announced, name))
    workers = [Worker(name, announced.get(name), held.get(name, [])) for name in names]
    return Crew(workers, len(rows) > MOST)
