"""An app of tasks for tests that run it in other processes; its journal is FASTJOURNAL_URL."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from fastjournal import Tasks
from fastjournal.tasks import current_run

app = Tasks()


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def pass_on(line: str) -> str:
    """Calls another task, which goes to the journal that this process knows."""
    return echo.put(line).id.hex()


@app.task
def echo(line: str) -> str:
    return line


@app.task
def pid() -> int:
    return os.getpid()


@app.task(retry=1)
def die(once: bool = False) -> str:
    run = current_run()
    if not once or (run is not None and run.attempt == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return "alive"


@app.task(timeout=0.3, retry=0)
def hang() -> None:
    while True:  # nothing but a kill ends it
        time.sleep(60)


@app.task
def grow(size: int) -> int:
    kept.append(b"x" * size)
    return os.getpid()


@app.task
def note(path: str, line: str) -> None:
    """One append, so that lines of several processes do not mix."""
    with Path(path).open("ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


@app.task
def stay(path: str) -> None:
    """Notes that it runs, and never ends."""
    note(path, "here")
    while True:
        time.sleep(60)


if "TASKS_TICK" in os.environ:

    @app.every(int(os.environ.get("TASKS_EVERY", "1")), missed="all", name="tick")
    def tick() -> None:
        run = current_run()
        assert run is not None
        note(os.environ["TASKS_TICK"], f"{run.headers['instant']} {run.attempt}")

    # Who was killed is missed soon, and however often that befalls a call, it is run.
    app.queue("tasks", lease=2, max_timeouts=0)


kept: list[bytes] = []
