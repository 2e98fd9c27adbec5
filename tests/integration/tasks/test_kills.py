"""Workers, who fire the schedules too, are killed again and again: nothing is lost or fired twice.

Calls are delivered at least once: a worker that dies after its work and before its answer leaves a
call that runs again, with a higher attempt. An instant that was fired twice would run twice at its
first attempt.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

import task_app
from fastjournal import Tasks
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon
from forked_workers import ForkedWorkers

EACH = 25
WORKERS = 3


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def kill_rounds(rounds: int, tmp_path: Path, modes: list[str]) -> None:
    chance = random.Random(21)
    ticks, notes = tmp_path / "ticks", tmp_path / "notes"
    with LocalDaemon(tmp_path / "data") as daemon:
        app = Tasks(daemon.url)
        note = app.task(name="task_app.note")(lambda path, line: None)
        places = [str(Path(task_app.__file__).parent), os.environ.get("PYTHONPATH", "")]
        workers = ForkedWorkers(
            {"TASKS_TICK": str(ticks), "PYTHONPATH": os.pathsep.join(filter(None, places))}
        )
        options = ["task_app:app", "--url", daemon.url, "--concurrency", "2"]
        for number in range(WORKERS):
            workers.start(*options, "--mode", modes[number % len(modes)])
        try:
            for number in range(rounds):
                more = len(lines(notes)) + chance.randrange(EACH)
                note.put_many((str(notes), f"{number} {n}") for n in range(EACH))
                wait_until(lambda more=more: len(lines(notes)) >= more, seconds=300)
                workers.kill(chance.randrange(WORKERS))
                workers.start(*options, "--mode", modes[number % len(modes)])
            wanted = {f"{number} {n}" for number in range(rounds) for n in range(EACH)}
            wait_until(lambda: wanted <= set(lines(notes)), seconds=300, what="all calls have run")
            until = app.journal.entries["fastjournal.schedules.last/tick"]
            wait_until(lambda: any(at(line) >= until for line in lines(ticks)), seconds=300)
            wait_until(
                lambda: not _missing(ticks, until), seconds=300, what="every instant was fired"
            )
        finally:
            workers.close()
        assert set(lines(notes)) == wanted
        again = [line for line, count in Counter(lines(ticks)).items() if count > 1]
        assert again == [], "an instant was fired twice"
        instants = len({at(line) for line in lines(ticks)})
        assert instants >= rounds // 20
        runs = len(lines(notes))
        print(f"{rounds} kills: {len(wanted)} calls in {runs} runs, {instants} instants fired once")
        app.close()


def at(line: str) -> int:
    """The instant of a tick, ns since 1970."""
    return int(datetime.fromisoformat(line.split()[0]).timestamp()) * 10**9


def _missing(ticks: Path, until: int) -> set[int]:
    """Instants between the first that was fired and `until` that were not."""
    fired = {at(line) for line in lines(ticks)}
    return set(range(min(fired), until + 1, 10**9)) - fired


@pytest.mark.kill
@pytest.mark.timeout(300)
def test_workers_killed_a_few_times_lose_nothing_and_fire_each_instant_once(tmp_path: Path) -> None:
    kill_rounds(4, tmp_path, ["threads", "processes"])


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(3600)
def test_workers_killed_200_times_lose_nothing_and_fire_each_instant_once(tmp_path: Path) -> None:
    rounds = int(os.environ.get("FASTJOURNAL_KILL_ROUNDS", "200"))
    kill_rounds(rounds, tmp_path, ["threads", "asyncio"] * 4 + ["processes"])
