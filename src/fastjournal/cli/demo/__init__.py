"""The demonstration: what this is, shown at work, in six acts.

Rules:

1. Every claim is checked by the code that an operator would use; one that fails makes the exit
   code 1.
2. Processes are real and are killed with SIGKILL. Nothing is left running, whatever happens.
3. Its files live in a temporary directory unless one is named; only the report stays.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from fastjournal.cli.demo.jobs_act import JobsAct
from fastjournal.cli.demo.log_act import LogAct
from fastjournal.cli.demo.stage import Stage
from fastjournal.errors import SettingError

__all__ = ["run"]


def run(
    directory: Path | None,
    *,
    report: Path = Path("fastjournal-report.html"),
    brief: bool = False,
    write: Callable[[Path], int] | None = None,
    work: Callable[[Path], list[bytes]] | None = None,
) -> int:
    """Show it; returns the exit code.

    `brief`: only the acts of one process, the log and the journal. `write` and `work` replace the
    processes that these kill, for tests.
    """
    with tempfile.TemporaryDirectory(prefix="fastjournal-demo-") as temporary:
        home = directory if directory is not None else Path(temporary, "demo")
        if home.exists() and any(home.iterdir()):
            raise SettingError(f"{home} is not empty: the demo wants a directory of its own")
        home.mkdir(parents=True, exist_ok=True)
        stage = Stage()
        stage.act("First act: the log")
        LogAct(stage, home / "log", write).show()
        stage.act("Second act: the journal")
        JobsAct(stage, home / "jobs", work).show()
        if not brief:
            _whole_story(stage, home, report)
        return stage.verdict()


def _whole_story(stage: Stage, home: Path, report: Path) -> None:
    from fastjournal.cli.demo.loss_act import LossAct
    from fastjournal.cli.demo.service_act import ServiceAct
    from fastjournal.cli.demo.spark_act import SparkAct
    from fastjournal.cli.demo.tasks_act import TasksAct

    stage.act("Third act: producers, spool, forwarder, daemon, workers")
    service = ServiceAct(stage, home / "service")
    rows = service.show()
    stage.act("Fourth act: functions as tasks, and a schedule")
    TasksAct(stage, home / "tasks").show()
    stage.act("Fifth act: a directory is lost, and a primary")
    LossAct(stage, home / "loss").show()
    stage.act("Sixth act: the log of the third act in Spark")
    SparkAct(stage, home / "service" / "data" / "default", report).show(rows, service.asked)
