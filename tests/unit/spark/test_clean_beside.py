"""Cleaning and long reads as Spark does them, beside a live journal that cleans itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.clock import SECOND, SYSTEM_CLOCK
from fastjournal.errors import Unavailable
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.lake.exporter import export
from fastjournal.spark.maintain.clean import clean_journal
from fastjournal.spark.report.write import report
from fastjournal.spark.storage import segments
from fastjournal.spark.tasks import Task
from fastjournal.testing import ManualClock, check_replay


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


def in_use(path: Path, clock: ManualClock) -> Journal:
    """A journal whose beginning is gone behind a snapshot, with much that cleaning would take."""
    journal = Journal(path, clock=clock, segment_size=16_384, background=False, sync="os")
    journal.upkeep.lock_wait = 0
    for turn in range(2):
        for number in range(300):
            clock.advance(0.001)
            journal.put(value(turn), queue="q", key=f"k{number % 40}")
            job = journal.lease(queues=["q"]) if number % 3 == 0 else None
            if job is not None:
                job.done()
        if not turn:
            journal.snapshot()
    journal.sync()
    return journal


class Meanwhile:
    """Carries tasks out here; before each the journal works on, takes a snapshot and cleans."""

    def __init__(self, journal: Journal, clock: ManualClock) -> None:
        self._journal, self._clock = journal, clock

    def __call__(self, tasks: Sequence[Task]) -> list[Any]:
        found: list[Any] = []
        for task in tasks:
            self._clock.advance(0.001)
            self._journal.put(b"meanwhile", queue="q", key="k1")
            self._journal.snapshot()
            assert self._journal.clean() == []
            found += task()
        return found


@pytest.mark.parametrize("read", ["export", "report", "clean"])
def test_a_journal_that_cleans_itself_takes_nothing_from_a_long_read(
    tmp_path: Path, read: str
) -> None:
    """No lock is held for the length of the job: appending, snapshots and cleaning go on."""
    outcomes = []
    for name in ("quiet", "busy"):
        path = tmp_path / name
        clock = ManualClock(1_700_000_000 * SECOND)
        with in_use(path, clock) as journal:
            run = here if name == "quiet" else Meanwhile(journal, clock)
            if read == "export":
                told = export(run, path, tmp_path / f"lake-{name}", shares=2)
                outcomes.append((told.records, told.rows, told.upto))
            elif read == "report":
                figures = report(run, path, shares=2, cleaning=False).figures
                outcomes.append((figures["totals"], figures["queues"]))
            else:
                done = clean_journal(run, Stream(path, WORKQ), now=clock.now(), dry_run=True)
                outcomes.append((done.live_rows, done.bytes_before, len(done.segments)))
            assert not list(path.glob("pin-*"))
            journal.clean()
            check_replay(journal)
    if read == "clean":  # the snapshot that came meanwhile tells of one row more, or of the same
        assert outcomes[0][2] and outcomes[1][2] <= outcomes[0][2]
    else:
        assert outcomes[0] == outcomes[1]


def test_a_reader_whose_pin_has_ended_says_so_in_one_error(tmp_path: Path) -> None:
    with in_use(tmp_path / "j", ManualClock(1_700_000_000 * SECOND)) as journal:

        def slow(tasks: Sequence[Task]) -> list[Any]:
            for pin in (tmp_path / "j").glob("pin-*"):
                pin.unlink()  # as a cleaner does once its time is over
            assert journal.clean()
            return here(tasks)

        with pytest.raises(Unavailable, match=r"the pin of this reader ended at .*: read again"):
            report(slow, tmp_path / "j", cleaning=False)


def test_where_nothing_may_be_written_the_lock_is_held_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_use(tmp_path / "j", ManualClock(1_700_000_000 * SECOND)) as journal:

        def refused(directory: Path) -> None:
            raise PermissionError(13, "read only", str(directory))

        def look(tasks: Sequence[Task]) -> list[Any]:
            assert journal.clean() == [] and not list((tmp_path / "j").glob("pin-*"))
            return here(tasks)

        journal.clean()  # from now on there is a lock to be shared
        skipped = journal.status().upkeep.skipped
        monkeypatch.setattr(segments, "Pin", refused)
        report(look, tmp_path / "j", cleaning=False)
        assert journal.status().upkeep.skipped == skipped + 1
