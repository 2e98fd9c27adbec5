"""A day in the life of a journal, in a second: merges, retries, time-outs, dead rows, by hand-moved
time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fastjournal.errors import LeaseLost, NotFound
from fastjournal.journal.journal import Journal
from fastjournal.testing import ManualClock

SECOND = 1_000_000_000
NOON = 1_769_860_800 * SECOND


@dataclass
class _Queue:
    name: str
    share: float
    keys: int
    run: float
    """Seconds an attempt takes, on average."""
    fail: float
    lose: float
    workers: int


QUEUES = (
    _Queue("crawl", 0.5, 120, 8.0, 0.02, 0.01, 5),
    _Queue("mail", 0.25, 0, 2.0, 0.03, 0.0, 2),
    _Queue("thumbs", 0.17, 0, 25.0, 0.02, 0.06, 6),
    _Queue("invoices", 0.08, 60, 12.0, 0.3, 0.02, 2),
)


@dataclass
class Told:
    """What was asked of the journal and what it answered."""

    puts: int = 0
    merged: int = 0
    leases: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    abandoned: int = 0
    touches: int = 0
    by_queue: dict[str, int] = field(default_factory=dict)


def traffic(
    path: Path, *, puts: int = 3000, hours: float = 3.0, seed: int = 7, **options: Any
) -> Told:
    """Let producers and consumers work for some hours, and leave a journal with its whole log."""
    random = Random(seed)
    clock = ManualClock(NOON)
    options = {"sync": "os", "segment_size": 262_144, "snapshot_bytes": 0, **options}
    journal = Journal(path, clock=clock, background=False, chance=Random(seed), **options)
    told = Told()
    with journal:
        journal.configure("thumbs", lease=40, max_timeouts=3)
        journal.configure("invoices", max_fails=2, backoff_base=30)
        journal.configure("crawl", lease=60)
        step = 5.0
        steps = int(hours * 3600 / step)
        running: list[tuple[float, str, str, Any]] = []
        for n in range(steps):
            clock.advance(step)
            now = n * step
            journal.tick()
            # Quiet at both ends, a burst in the middle that consumers cannot follow.
            level = 2.4 if 0.45 < n / steps < 0.6 else 0.75
            _produce(journal, random, told, puts / steps * level)
            running = _settle(journal, random, told, running, now)
            _consume(journal, random, told, running, now)
    return told


def _produce(journal: Journal, random: Random, told: Told, mean: float) -> None:
    count = int(mean) + (random.random() < mean % 1)
    for _ in range(count):
        queue = random.choices(QUEUES, [one.share for one in QUEUES])[0]
        key = None
        if queue.keys:
            rank = int(queue.keys * random.random() ** 3)
            site = ("news.example", "shop.example", "blog.example")[rank % 3]
            key = f"https://{site}/page/{rank}"
        delay = 60 if random.random() < 0.05 else None
        receipt = journal.put(
            random.randbytes(random.randrange(40, 200)), queue=queue.name, key=key, delay=delay
        )
        told.puts += 1
        told.merged += receipt.outcome.name == "MERGED"
        told.by_queue[queue.name] = told.by_queue.get(queue.name, 0) + 1


def _consume(journal: Journal, random: Random, told: Told, running: list[Any], now: float) -> None:
    for queue in QUEUES:
        busy = sum(1 for _, name, _, _ in running if name == queue.name)
        for _ in range(queue.workers - busy):
            job = journal.lease(queue.name, worker=f"{queue.name}-{random.randrange(3)}")
            if job is None:
                break
            told.leases += 1
            roll = random.random()
            what = "done"
            if roll < queue.fail:
                what = "fail"
            elif roll < queue.fail + queue.lose:
                what = "lose"
            elif roll > 0.99:
                what = "release"
            end = now + random.expovariate(1 / queue.run) if what != "lose" else now + 100
            running.append((end, queue.name, what, job))


def _settle(
    journal: Journal, random: Random, told: Told, running: list[Any], now: float
) -> list[Any]:
    left = []
    for end, name, what, job in running:
        if end > now:
            if what != "lose" and end - now > 20 and random.random() < 0.3:
                try:
                    job.touch()
                    told.touches += 1
                except (LeaseLost, NotFound):
                    continue
            left.append((end, name, what, job))
            continue
        try:
            if what == "done":
                job.done(b"ok" if random.random() < 0.2 else None)
                told.done += 1
            elif what == "fail":
                text = random.choice((b"HTTP 503 from upstream", b"connection reset by peer"))
                told.dead += job.fail(text).name == "FAILED"
                told.failed += 1
            elif what == "release":
                job.release()
            else:
                told.abandoned += 1
        except (LeaseLost, NotFound):
            continue
    return left
