"""`fastjournal tasks`, `schedules`, `workers`, and `worker` with an app."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import task_app
from command_line import invoke
from fastjournal import Journal, SettingError, Tasks, connect
from fastjournal.cli.output import instant
from fastjournal.cli.worker import load_function
from fastjournal.errors import LockTimeout
from fastjournal.tasks.scheduler import Scheduler
from fastjournal.testing import wait_until
from fastjournal.testing.daemon import LocalDaemon

HERE = str(Path(task_app.__file__).parent)


def run(*words: str) -> str:
    done = invoke(list(words), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_tasks_lists_those_of_a_program() -> None:
    text = run("tasks", "task_app:app")
    assert "task_app.hang" in text
    shown = {
        row["task"]: row
        for row in map(json.loads, run("tasks", "task_app:app", "--json").splitlines())
    }
    assert shown["task_app.hang"]["timeout"] == 0.3
    assert shown["task_app.add"]["parameters"] == ["x", "y"]


def test_a_task_is_no_function_of_leased_jobs() -> None:
    """Its function would get the job as its first argument."""
    with pytest.raises(SettingError, match="is a task: name the Tasks"):
        load_function("task_app:add")


def test_schedules_are_shown_beside_the_process_they_belong_to(tmp_path: Path) -> None:
    place = tmp_path / "jobs"
    made = Tasks(place)
    made.cron("*/5 * * * *", tz="Europe/Berlin", name="five")(lambda: None)
    scheduler = Scheduler(made)
    scheduler.declare()
    made.journal.sync()
    text = run("schedules", "--dir", str(place))  # the journal is still open here
    assert "*/5 * * * *" in text
    assert "Europe/Berlin" in text
    (row,) = map(json.loads, run("schedules", "--dir", str(place), "--json").splitlines())
    assert row["name"] == "five"
    assert row["next"] % (300 * 10**9) == 0
    assert row["next"] > row["last"] > 0
    made.close()
    assert f"{instant(row['next'])[:19]}Z" in text
    told = run("schedules", "--forget", "five", "--dir", str(place), "--json")
    assert json.loads(told) == {"schedule": "five", "outcome": "forgotten"}
    assert run("schedules", "--dir", str(place), "--json") == ""


def test_a_directory_in_use_is_told_with_what_to_do_instead(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(LockTimeout, match="fastjournal serve"):
        Tasks(tmp_path).journal.queues()


def start(*words: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fastjournal.cli.app", "worker", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": HERE} | environment,
    )  # fmt: skip


@pytest.mark.parametrize("form", ["dir", "url", "environment"])
def test_a_worker_of_an_app_runs_its_tasks_and_shows_itself(tmp_path: Path, form: str) -> None:
    with LocalDaemon(tmp_path / "data") as daemon:
        place = str(tmp_path / "jobs") if form == "dir" else daemon.url
        words = {"dir": ["--dir", place], "url": ["--url", place], "environment": []}[form]
        environment: Any = {"FASTJOURNAL_URL": place} if form == "environment" else {}
        if form == "dir":
            with connect(place) as journal:
                journal.put(b'{"task":"task_app.add","args":{"x":1,"y":2}}', queue="tasks")
        worker = start(
            "task_app:app", *words, "--name", "w1", "--grace", "5s", folder=tmp_path, **environment
        )
        shown: list[Any] = []
        where = ["--dir", place] if form == "dir" else ["--url", place]

        def announced() -> bool:
            try:
                shown[:] = map(json.loads, run("workers", *where, "--json").splitlines())
            except Exception:  # it is not there yet
                return False
            assert worker.poll() is None, worker.stderr and worker.stderr.read()
            return bool(shown)

        wait_until(announced, what="the worker shows itself")
        assert shown[0]["name"] == "w1"
        assert "w1" in run("workers", *where)
        if form != "dir":
            handle = Tasks(place).task(name="task_app.add")(lambda x, y: None).put(3, 4)
            assert handle.result(30) == 7
        worker.send_signal(signal.SIGTERM)
        out, errors = worker.communicate(timeout=30)
        assert worker.returncode == 0, errors
        assert json.loads(out)["completed"] == 1
        tasks = len(task_app.app.tasks)
        assert f"worker w1: {tasks} tasks, 0 schedules, threads; queues: tasks; journal: " in errors
        assert ("jobs" if form == "dir" else place.removeprefix("fj://")) in errors
        assert run("workers", *where, "--json") == ""


def test_a_worker_starts_anew_when_a_file_changes(tmp_path: Path) -> None:
    place = tmp_path / "jobs"
    program = tmp_path / "program.py"
    text = "from fastjournal import Tasks\napp = Tasks()\n@app.task\ndef work() -> int: return {}\n"
    program.write_text(text.format(1))
    with LocalDaemon(tmp_path / "data") as daemon:
        worker = start("program:app", "--reload", "--url", daemon.url, folder=tmp_path)
        task = Tasks(daemon.url).task(name="program.work")(lambda: None)
        assert task.put().result(60) == 1
        program.write_text(text.format(22))
        wait_until(lambda: task.put().result(60) == 22, seconds=60, what="the new program runs")
        worker.send_signal(signal.SIGTERM)
        _, errors = worker.communicate(timeout=30)
        assert "starting anew" in errors
    assert not place.exists()
