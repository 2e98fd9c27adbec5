"""What workers and schedules tell whoever looks after the journal: entries with well-known keys.

    fastjournal.workers/NAME            JSON: who it is, what it runs; gone soon after its worker
    fastjournal.schedules/NAME          JSON: when, which task, what becomes of missed instants
    fastjournal.schedules.last/NAME     the newest instant that is dealt with, ns since 1970

Rules:

1. An announcement is information, never a lock: nothing depends on its being there.
2. A worker's announcement lives a little longer than the time between two of them.
3. What cannot be read is left out: another version may have written it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from fastjournal.errors import NotFound
from fastjournal.tasks.schedule import Schedule

__all__ = [
    "EVERY",
    "RunningJob",
    "ScheduleInfo",
    "WorkerInfo",
    "announce_worker",
    "forget_schedule",
    "forget_worker",
    "known_schedules",
    "known_workers",
    "last_key",
    "schedule_key",
]

WORKERS = "fastjournal.workers/"
SCHEDULES = "fastjournal.schedules/"
LAST = "fastjournal.schedules.last/"
EVERY = 10.0
"""Seconds between two announcements of a worker."""
_LASTS = 35


class RunningJob(msgspec.Struct):
    """A job that a worker has in hand."""

    id: str
    queue: str
    task: str
    since: int
    """Ns since 1970; 0: it waits for its turn."""


class WorkerInfo(msgspec.Struct):
    """A worker as it announces itself."""

    name: str
    host: str
    pid: int
    mode: str
    concurrency: int
    queues: list[str]
    tasks: list[str]
    started: int
    seen: int
    counts: dict[str, int]
    running: list[RunningJob]
    stopping: bool = False


class ScheduleInfo(msgspec.Struct):
    """A schedule as the journal knows it."""

    name: str
    task: str
    cron: str
    every: int
    tz: str
    missed: str
    last: int = 0
    """The newest instant that is dealt with, ns since 1970."""
    next: int = 0
    """The next instant after it."""


_workers = msgspec.json.Decoder(WorkerInfo)
_schedules = msgspec.json.Decoder(ScheduleInfo)


def schedule_key(name: str) -> str:
    """The key of a schedule's definition."""
    return SCHEDULES + name


def last_key(name: str) -> str:
    """The key of how far a schedule has come."""
    return LAST + name


def announce_worker(journal: Any, worker: WorkerInfo, *, persist: bool) -> None:
    """Tell of a worker."""
    text = msgspec.json.encode(worker).decode()
    journal.entries.set(WORKERS + worker.name, text, ttl=_LASTS, persist=persist)


def forget_worker(journal: Any, name: str) -> None:
    """A worker has ended."""
    journal.entries.delete(WORKERS + name, purge=True)


def known_workers(journal: Any) -> list[WorkerInfo]:
    """The workers that have announced themselves lately."""
    return [worker for _, worker in _read(journal, WORKERS, _workers)]


def known_schedules(journal: Any) -> list[ScheduleInfo]:
    """The schedules that workers have brought."""
    found = []
    for _, info in _read(journal, SCHEDULES, _schedules):
        info.last = journal.entries.get(last_key(info.name), 0)
        schedule = Schedule(
            info.name,
            info.task,
            info.cron,
            info.every,
            info.tz,
            info.missed,
        )
        info.next = schedule.after(info.last)
        found.append(info)
    return found


def forget_schedule(journal: Any, name: str) -> None:
    """A schedule is not in any program any more; `NotFound` if it is not known."""
    if not journal.entries.delete(schedule_key(name), purge=True):
        raise NotFound(f"no schedule {name!r}")
    journal.entries.delete(last_key(name), purge=True)


def _read(journal: Any, prefix: str, decoder: Any) -> Iterator[tuple[str, Any]]:
    for entry in journal.entries.range(prefix, prefix.encode() + b"\xff"):
        try:
            yield entry.key.decode(), decoder.decode(entry.value)
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError):
            continue
