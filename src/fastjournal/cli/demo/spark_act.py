"""The sixth act of the demonstration: the daemon's log as a table in Spark.

Rules:

1. The state that Spark finds is compared with the rows that the daemon itself gave out, field by
   field, not with the log read a second time.
2. The report is the one file that stays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.cli.demo.stage import Stage
from fastjournal.cli.spark.session import LOCAL, spark_session

if TYPE_CHECKING:
    from fastjournal.model import Job
    from fastjournal.spark.table import JournalTable

__all__ = ["SparkAct"]

# Column of Spark: field of the daemon's row. Names as bytes, instants in ns.
_FIELDS = {
    "id": "id", "queue_bytes": "queue_bytes", "key_bytes": "key_bytes", "payload": "payload",
    "rank": "rank",
    "due_ns": "due", "inserted_ns": "inserted", "modified_ns": "modified",
    "attempts": "attempts", "fails": "fails", "timeouts": "timeouts", "note_bytes": "note",
}  # fmt: skip


class SparkAct:
    """Shows the pipeline over the journal in `directory`."""

    def __init__(self, stage: Stage, directory: Path, report: Path) -> None:
        self._stage = stage
        self._directory = directory
        self._report = report

    def show(self, rows: Sequence[Job], asked: int) -> None:
        """All steps; `rows` are what the daemon said it had, `asked` is how often a job was put."""
        stage = self._stage
        stage.step("Spark starts and reads the segments that the daemon wrote")
        start = time.monotonic()
        with spark_session(LOCAL, None, [self._directory]) as spark:
            from fastjournal.spark.audit.run import exit_code
            from fastjournal.spark.report.write import report
            from fastjournal.spark.table import JournalTable

            stage.say(f"Spark {spark.version}, ready after {time.monotonic() - start:.1f} s")
            table = JournalTable.for_path(spark, self._directory)
            counts: dict[str, int] = dict(table.records().groupBy("command").count().collect())
            stage.say(f"{sum(counts.values()):,} records: " + _words(counts))
            stage.figure("records audited by Spark", f"{sum(counts.values()):,}")
            stage.figure("rows, the daemon's and Spark's", f"{len(rows)}, equal in every field")
            stage.claim(
                f"its replay gives the very {len(rows)} rows that the daemon had",
                _found(table) == _given(rows),
            )
            stage.claim("its audit finds nothing", exit_code(table.audit()) == 0)
            made = report(spark, self._directory)
            self._report.parent.mkdir(parents=True, exist_ok=True)
            self._report.write_text(made.html())
            stage.say(f"report: {self._report}")
            stage.figure("report of the whole journal", str(self._report))
            stage.claim(
                f"it counts the {asked:,} jobs that were asked for, and the dead one",
                (made.figures["totals"]["asked"], made.figures["totals"]["dead"]) == (asked, 1),
            )


def _found(table: JournalTable) -> set[tuple[object, ...]]:
    """The rows of the replay."""
    rows = table.jobs(columns=["state", *_FIELDS]).collect()
    return {(row["state"].lower(), *(_plain(row[column]) for column in _FIELDS)) for row in rows}


def _given(rows: Sequence[Job]) -> set[tuple[object, ...]]:
    """The rows of the daemon."""
    return {
        (row.state.name.lower(), *(getattr(row, field) for field in _FIELDS.values()))
        for row in rows
    }


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, bytearray) else value


def _words(counts: dict[str, int]) -> str:
    often = sorted(counts.items(), key=lambda one: -one[1])
    return ", ".join(f"{count:,} {command}" for command, count in often)
