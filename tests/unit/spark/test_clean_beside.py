"""Cleaning as Spark does it, beside a live journal that is larger than its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastjournal import Journal
from fastjournal.clock import SYSTEM_CLOCK
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.maintain.clean import clean_journal
from fastjournal.spark.tasks import Task
from fastjournal.testing import check_replay


def here(tasks: Sequence[Task]) -> list[Any]:
    """Run tasks in this process."""
    return [answer for task in tasks for answer in task()]


def value(number: int) -> bytes:
    return b"%d " % number * 500


def test_values_that_spark_has_moved_are_found_by_their_time(tmp_path: Path) -> None:
    """The owner is told nothing: segments are rewritten under its feet, twice, and a snapshot."""
    with Journal(
        tmp_path / "j", memory_limit=16_384, segment_size=16_384, background=False, sync="os"
    ) as journal:
        for turn in range(3):
            for again in range(1 + turn):  # behind a snapshot only what was written twice can go
                for number in range(80):
                    if not turn or number % 3 == 0:
                        journal.entries[f"k{number}"] = value(number + 1000 * turn + again)
            journal.sync()
            stream = Stream(tmp_path / "j", WORKQ)
            report = clean_journal(here, stream, now=SYSTEM_CLOCK.now())
            assert bool(report.segments) is (turn > 0)
            for number in range(80):
                expected = value(number + 1001 * turn * (number % 3 == 0))
                assert journal.entries[f"k{number}"] == expected
            values = journal.engine.values
            assert values.bytes <= 16_384
            if turn == 1:
                journal.snapshot()
        check_replay(journal)
