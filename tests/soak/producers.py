"""Who works beside the clients of the crowd: a spool with its forwarder, an app of tasks."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections import Counter
from datetime import datetime
from pathlib import Path

import task_app
from fastjournal import Spool, Tasks
from fastjournal.clock import SECOND
from fastjournal.errors import JournalError
from fastjournal.testing import wait_until
from forked_workers import ForkedWorkers
from kill_history import History, Verdict

__all__ = ["SpoolProducer", "TaskCaller"]

WORKERS = 2


class SpoolProducer(threading.Thread):
    """Puts numbered jobs into a spool; a forwarder that may be killed carries them on."""

    def __init__(self, home: Path, url: str, history: History) -> None:
        super().__init__(daemon=True)
        self._spool, self._url, self._history = home / "spool", url, history
        self._over = threading.Event()
        self._forwarder = self._forward()

    def run(self) -> None:
        """Put one job after another."""
        number = 0
        with Spool(self._spool) as spool:
            while not self._over.wait(0.02):
                number += 1
                payload = b"spooled %d" % number
                self._history.spooled_told.add(payload)  # before a consumer can have it
                spool.put(payload, queue="spooled")
                self._history.count("acknowledged")

    def kill_forwarder(self) -> None:
        """As a crash does it; another one goes on."""
        self._forwarder.kill()
        self._forwarder.wait()
        self._forwarder = self._forward()

    def finish(self) -> None:
        """Stop, and let everything arrive."""
        self.close()
        self.join()
        assert self._forward("--once").wait(120) == 0, "the spool was not emptied"

    def close(self) -> None:
        """Stop."""
        self._over.set()
        self._forwarder.kill()
        self._forwarder.wait()

    def _forward(self, *more: str) -> subprocess.Popen[bytes]:
        self._spool.mkdir(exist_ok=True)
        words = ["forward", "--spool", str(self._spool), "--to", self._url, *more]
        return subprocess.Popen(
            [sys.executable, "-m", "fastjournal.cli.app", *words],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


class TaskCaller(threading.Thread):
    """Calls a task that notes a line; its workers, who also fire a schedule, may be killed.

    `every`: seconds between two instants of the schedule.
    """

    def __init__(self, home: Path, url: str, history: History, every: int) -> None:
        super().__init__(daemon=True)
        self._history, self._every = history, every
        self._notes, self._ticks = home / "notes", home / "ticks"
        self._app = Tasks(url)
        self._told: list[str] = []
        self._over = threading.Event()
        self._modes = itertools.cycle(["asyncio", "threads"])
        places = [str(Path(task_app.__file__).parent), os.environ.get("PYTHONPATH", "")]
        self._workers = ForkedWorkers(
            {
                "TASKS_TICK": str(self._ticks),
                "TASKS_EVERY": str(every),
                "PYTHONPATH": os.pathsep.join(filter(None, places)),
            },
            home / "workers.stderr",
        )
        self._options = ["task_app:app", "--url", url, "--concurrency", "2", "--mode"]
        for _ in range(WORKERS):
            self._workers.start(*self._options, "threads")

    def run(self) -> None:
        """Call again and again."""
        note = self._app.task(name="task_app.note")(lambda path, line: None)
        number = 0
        while not self._over.wait(0.1):
            number += 1
            lines = [f"{number} {n}" for n in range(3)]
            try:
                note.put_many((str(self._notes), line) for line in lines)
            except JournalError:
                self._history.count("unknown")
            else:
                self._told += lines
                self._history.count("acknowledged")

    def kill_worker(self) -> None:
        """As a crash does it; another one goes on."""
        self._revive()
        self._workers.kill(0)  # the older one
        self._workers.start(*self._options, next(self._modes))

    def _revive(self) -> None:
        """One that finds a journal it cannot write to when it starts says so and ends."""
        for _ in range(self._workers.drop_ended()):
            self._workers.start(*self._options, next(self._modes))

    def finish(self, verdict: Verdict) -> None:
        """Stop, let everything run, and judge: each call ran, each instant was fired once."""
        self._over.set()
        self.join()
        self._revive()
        try:
            until = self._app.journal.entries["fastjournal.schedules.last/tick"]
            wait_until(
                lambda: not self._missing_calls() and not self._missing_instants(until),
                seconds=120,
                what="calls and instants were run",
            )
        except (AssertionError, TimeoutError):
            for line in sorted(self._missing_calls()):
                verdict.blame("lost", f"the call of task {line}")
            for instant in sorted(self._missing_instants(until)):
                verdict.blame("lost", f"the instant {instant} of a schedule")
        for tick, times in Counter(_lines(self._ticks)).items():
            if times > 1:
                verdict.blame("doubled", f"instant and attempt {tick} ran {times} times")

    def close(self) -> None:
        """Stop."""
        self._over.set()
        self._workers.drop_ended()
        self._workers.close()
        self._app.close()

    def _missing_calls(self) -> set[str]:
        return set(self._told) - set(_lines(self._notes))

    def _missing_instants(self, until: int) -> set[int]:
        fired = {_instant(line) for line in _lines(self._ticks)}
        begin, step = min(fired, default=until), self._every * SECOND
        return set(range(begin, until + 1, step)) - fired


def _instant(line: str) -> int:
    return int(datetime.fromisoformat(line.split()[0]).timestamp()) * SECOND


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
