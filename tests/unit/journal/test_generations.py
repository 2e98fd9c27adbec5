"""Short-lived queues: periods, and what becomes of their files (SNAP-SLT)."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.journal.disk.generations import Disposal, Generations, generation_of, shortest
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.manifest import MANIFEST
from fastjournal.log.segment import HEADER_SIZE, WORKQ
from fastjournal.log.stream import Stream
from fastjournal.model import QueueSettings
from fastjournal.testing import ManualClock, MemoryFiles, check_replay

HOME = Path("/jobs")
SECRET = b"the combination is 12345"


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND


class Place:
    """A journal in memory, a few seconds before an hour, a day and a month end."""

    def __init__(self, **settings: Any) -> None:
        self.files = MemoryFiles()
        self.files.make_directory(HOME.parent)
        self.clock = ManualClock(at("2026-01-31T23:59:50"))
        self.open()
        if settings:
            self.journal.configure("q", **settings)

    def open(self) -> None:
        self.journal = Journal(
            HOME, files=self.files, clock=self.clock, background=False, segment_size=4096
        )

    def segments(self) -> dict[str, int]:
        found = self.files.snapshot()
        return {p.name: len(c) for p, c in sorted(found.items()) if p.suffix == ".log"}

    def empty_out(self) -> None:
        """Fill segments, finish everything, and let a newer segment hold a record."""
        j = self.journal
        for _ in range(40):
            j.put(SECRET * 5, queue="q")
        j.complete_many([(job.id, job.token, None) for job in j.lease_many(40, "q")])
        j.rotate()
        j.put(b"newer", queue="other")
        j.sync()


def test_a_generation_is_named_by_its_period_in_utc() -> None:
    now = at("2026-03-04T05:06:07")
    assert generation_of(now, "hour") == (2026, 3, 4, 5)
    assert generation_of(now, "day") == (2026, 3, 4)
    assert generation_of(now, "month") == (2026, 3)


def test_the_shortest_period_counts() -> None:
    month, day = QueueSettings(period="month"), QueueSettings(period="day")
    assert shortest([month, day, QueueSettings()]) == "day"
    assert shortest([QueueSettings()]) == ""


@pytest.mark.parametrize(
    ("period", "seconds"), [("hour", 10), ("day", 10), ("month", 10), ("none", None)]
)
def test_the_time_to_the_next_boundary(period: str, seconds: int | None) -> None:
    place = Place(period=period)
    state = place.journal.engine.state
    assert Generations(state, 0).left(place.clock.now()) == seconds
    place.clock.advance(10)
    longer = {"hour": 3600, "day": 86_400, "month": 28 * 86_400, "none": None}
    assert Generations(state, 0).left(place.clock.now()) == longer[period]


@pytest.mark.parametrize("period", ["hour", "day", "month"])
def test_a_new_generation_gets_a_segment_of_its_own(period: str) -> None:
    """SNAP-SLT-1."""
    place = Place(period=period)
    j = place.journal
    j.put(b"old", queue="q")
    assert (j.tick(), j.status().upkeep.generations) == (0, 0)
    place.clock.advance(11)
    j.tick()
    j.put(b"new", queue="q")
    assert j.status().upkeep.generations == 1
    assert j.status().log.active.name == "000000002.log"
    place.clock.advance(1800)
    j.tick()
    assert j.status().upkeep.generations == 1
    place.clock.advance({"hour": 3600, "day": 86_400, "month": 31 * 86_400}[period])
    j.tick()
    assert j.status().upkeep.generations == 2
    check_replay(j)
    j.close()


def test_without_a_period_nothing_rotates() -> None:
    place = Place()
    place.journal.put(b"x", queue="q")
    place.clock.advance(86_400)
    place.journal.tick()
    assert place.journal.status().upkeep.generations == 0


def test_a_restart_after_the_boundary_begins_the_generation() -> None:
    place = Place(period="hour")
    place.journal.put(b"old", queue="q")
    place.journal.close()
    place.clock.advance(11)
    place.open()
    place.journal.clean()
    assert place.journal.status().upkeep.generations == 1


def test_emptied_segments_are_deleted_unless_told() -> None:
    """SNAP-SLT-2."""
    place = Place(period="hour")
    place.empty_out()
    before = place.segments()
    place.journal.clean()
    assert len(place.segments()) < len(before)
    assert min(place.segments().values()) >= HEADER_SIZE
    check_replay(place.journal)


@pytest.mark.parametrize("management", ["truncate", "keep"])
def test_emptied_segments_are_cut_to_their_header_then_removed(management: str) -> None:
    """SNAP-SLT-3, SNAP-SLT-4."""
    place = Place(period="hour", file_management=management)
    place.empty_out()
    place.journal.clean()
    cut = [name for name, size in place.segments().items() if size == HEADER_SIZE]
    assert len(cut) > 2
    check_replay(place.journal)
    place.empty_out()
    place.journal.clean()
    assert not set(cut[:-1]) & set(place.segments())
    check_replay(place.journal)
    place.journal.close()
    place.open()
    check_replay(place.journal)


def test_without_a_period_files_are_deleted_whatever_the_management() -> None:
    stream = Stream(HOME, WORKQ, files=MemoryFiles())
    assert not Disposal(stream, [QueueSettings(file_management="truncate")]).truncate


@pytest.mark.parametrize("way", ["clean", "snapshot"])
def test_secure_overwrites_what_goes(way: str) -> None:
    """SNAP-SLT-5: the bytes of removed and of rewritten segments, and of old snapshots."""
    place = Place(secure=True)
    j = place.journal
    j.put(b"stays", queue="stays")
    place.empty_out()
    if way == "snapshot":
        j.snapshot()
        j.put(b"more", queue="other")
    others = {HOME / "reserve", HOME / MANIFEST}  # no payload is in them
    handles = {path: place.files.open_read(path) for path in place.files.snapshot().keys() - others}
    j.clean()
    if way == "snapshot":
        j.snapshot()
    place.empty_out()
    j.clean()
    gone = [
        handle.read(0, handle.size())
        for path, handle in handles.items()
        if place.files.identity(path) != handle.identity()
    ]
    assert len(gone) > 2
    assert all(SECRET not in content and not any(content) for content in gone)
    check_replay(j)


def test_what_a_crash_left_of_a_file_that_was_to_go_goes_at_the_next_start() -> None:
    place = Place(secure=True)
    place.journal.close()
    place.files.put(HOME / "000000009.log.gone", SECRET)
    left = place.files.open_read(HOME / "000000009.log.gone")
    place.open()
    assert not place.files.exists(HOME / "000000009.log.gone")
    assert not any(left.read(0, left.size()))


def test_bookkeeping_looks_at_most_once_a_second() -> None:
    state = JournalState()
    generations = Generations(state, at("2026-01-01T00:00:00"))
    assert generations.begins(at("2026-01-01T05:00:00"), 0) is False
    state.queue(b"q").rules.change(QueueSettings(period="hour"), 1)
    assert generations.begins(at("2026-01-01T06:00:00"), SECOND // 2) is False
    assert generations.begins(at("2026-01-01T06:00:00"), SECOND) is True
