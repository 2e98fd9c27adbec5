"""The fourth act of the demonstration: functions as tasks, and a schedule fired by two workers.

The app stands here too, for the workers import it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from fastjournal.cli.demo.players import Troupe, write_note
from fastjournal.cli.demo.stage import Stage
from fastjournal.tasks import BadArguments, Retries, Tasks, current_run

__all__ = ["TasksAct", "add", "app", "make_app", "stumble", "tick"]

TICKS = 3
PATIENCE = 30.0  # seconds


def add(x: int, y: int) -> int:
    """Runs in a worker."""
    return x + y


def stumble() -> int:
    """Fails at the first attempt; tells at which it ran through."""
    run = current_run()
    assert run is not None
    if run.attempt == 1:
        raise OSError("the network is away")
    return run.attempt


def tick() -> None:
    """Notes the instant that it was fired for."""
    run = current_run()
    assert run is not None
    write_note(f"tick {run.headers['instant']}")


def make_app(where: str | None = None) -> Tasks:
    """The tasks of this act; `where`: the journal, if not that of the worker."""
    made = Tasks(where)
    made.task(name="add")(add)
    made.task(name="stumble", retry=Retries(times=1, delay=0.1))(stumble)
    made.every(1, name="tick")(tick)
    return made


app = make_app()


class TasksAct:
    """Shows the app with two workers."""

    def __init__(self, stage: Stage, home: Path) -> None:
        self._stage = stage
        self._home = home

    def show(self) -> None:
        """Calls, a retry, a schedule."""
        stage = self._stage
        with Troupe(self._home) as troupe:
            stage.step("A daemon and two workers of an app start")
            daemon = troupe.daemon()
            workers = [troupe.task_worker(name, f"{__name__}:app") for name in ("tom", "una")]
            with closing(make_app(troupe.url)) as calls:
                began = time.monotonic()
                total = calls.tasks["add"].put(19, 23).result(wait=PATIENCE)
                took = time.monotonic() - began
                stage.claim(f"add.put(19, 23).result() is {total}, run by a worker", total == 42)
                stage.say(f"{took:.1f} s, the start of the workers included")
                try:
                    calls.tasks["add"].put("19", 23)
                    refused = ""
                except BadArguments as error:
                    refused = str(error)
                stage.claim(
                    f"a call with a wrong type is refused at once: {refused}", bool(refused)
                )
                attempt = calls.tasks["stumble"].put().result(wait=PATIENCE)
                stage.claim(f"a call that failed is tried again: attempt {attempt}", attempt == 2)
            stage.step("A schedule of every second, and two workers who both fire it")
            _wait(lambda: len(troupe.lines("*.notes")) >= TICKS)
            fired = Counter(words[1] for words in troupe.lines("*.notes") if words[0] == "tick")
            stage.claim(
                f"{len(fired)} instants were fired, each of them once",
                len(fired) >= TICKS and set(fired.values()) == {1},
            )
            stage.figure("instants of a schedule fired by two workers", f"{len(fired)}, each once")
            codes = [*troupe.end(*workers), *troupe.end(daemon)]  # they sign off at the daemon
            stage.claim("all of them stop when asked to", codes == [0] * len(codes))


def _wait(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened() and time.monotonic() < deadline:
        time.sleep(0.02)
