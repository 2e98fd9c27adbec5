"""A spooled job is as old as its put: it was inserted then, and waits from then on."""

from __future__ import annotations

from pathlib import Path

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.spool.forwarder import ForwardedSpool, Forwarder
from fastjournal.spool.writer import Spool
from fastjournal.testing import ManualClock
from spooling import NOW, JournalDestination, drain, rows

NIGHT = 8 * 3600


def forward(path: Path, clock: ManualClock, journal: Journal) -> None:
    drain(Forwarder(ForwardedSpool(path), clock=clock), JournalDestination(journal))


def test_a_job_spooled_overnight_was_inserted_when_it_was_put(
    tmp_path: Path, clock: ManualClock, journal: Journal
) -> None:
    """SNAP-COL-1, SNAP-COL-6: so it goes before those of the morning."""
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"night", queue="q")
    clock.advance(NIGHT)
    journal.put(b"morning", queue="q")
    forward(tmp_path, clock, journal)
    (night,) = [row for row in rows(journal) if row.value == b"night"]
    assert (night.inserted, night.due) == (NOW, NOW)
    job = journal.lease("q")
    assert job is not None
    assert job.payload == b"night"


def test_the_longest_wait_counts_from_the_put(
    tmp_path: Path, clock: ManualClock, journal: Journal
) -> None:
    """SNAP-COL-1: repeats push a key no further than insertion + max_wait."""
    journal.configure("q", max_wait=NIGHT + 60)
    with Spool(tmp_path, clock=clock) as spool:
        spool.put(b"1", queue="q", key="k")
    clock.advance(NIGHT)
    forward(tmp_path, clock, journal)
    journal.put(b"2", queue="q", key="k", delay=3600)
    (row,) = rows(journal)
    assert row.due == NOW + (NIGHT + 60) * SECOND


def test_a_producer_whose_clock_is_ahead_makes_no_job_of_the_future(
    tmp_path: Path, clock: ManualClock, journal: Journal
) -> None:
    """SNAP-COL-1: nothing is inserted later than it arrives."""
    with Spool(tmp_path, clock=ManualClock(NOW + 3600 * SECOND)) as spool:
        spool.put(b"x", queue="q")
    clock.advance(1)
    forward(tmp_path, clock, journal)
    (row,) = rows(journal)
    assert NOW + SECOND <= row.inserted < NOW + 2 * SECOND


def test_jobs_never_expire_unless_told(journal: Journal) -> None:
    """FJ-LST-4."""
    assert journal.job(journal.put(b"x", queue="q").id).expires == 0
