"""Looking at a journal from outside, closed or in use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal, State
from fastjournal.errors import Closed, NotFound
from fastjournal.journal.look.read_only import JournalView
from fastjournal.log.files import FileHandle
from fastjournal.testing import ManualClock, MemoryFiles

PLACE = Path("/jobs")


class House:
    """One disk, one clock, one journal in use."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.make_directory(PLACE.parent)
        self.clock = ManualClock()
        self.journal = Journal(PLACE, clock=self.clock, files=self.files, background=False)

    def view(self, *, follow: bool = False) -> JournalView:
        return JournalView(PLACE, follow=follow, clock=self.clock, files=self.files)


@pytest.fixture
def house() -> House:
    return House()


def test_a_view_shows_what_the_journal_in_use_holds(house: House) -> None:
    house.journal.put(b"one", key="site:a")
    house.journal.put(b"two", queue="q", delay=60)
    house.journal.lease("site")
    with house.view() as view:
        assert view.digest() == house.journal.digest()
        assert view.jobs() == house.journal.jobs()
        assert view.queues() == house.journal.queues()
        assert view.job(key="site:a").state is State.PROCESSING
        mine, theirs = view.status(), house.journal.status()
        assert mine[:8] == theirs[:8]
        assert mine.log.active == theirs.log.active
        assert mine.log.written_time == theirs.log.written_time


def test_looking_changes_no_byte(house: House) -> None:
    house.journal.put(b"one", queue="q")
    house.journal.lease("q")
    house.clock.advance(3600)
    segment = next(PLACE / name for name in house.files.names(PLACE) if name.endswith(".log"))

    def content() -> bytes:
        handle = house.files.open_read(segment)
        try:
            return handle.read(0, handle.size())
        finally:
            handle.close()

    before = content()
    house.view().close()
    assert content() == before
    assert house.journal.put(b"two", queue="q")


def test_leases_that_ended_since_are_shown_as_ended(house: House) -> None:
    house.journal.put(b"one", queue="q")
    house.journal.lease("q", lease=5)
    house.clock.advance(6)
    with house.view() as view:
        job = view.jobs()[0]
    assert (job.state, job.timeouts) == (State.WAITING, 1)


def test_a_follower_goes_on_with_the_log(house: House) -> None:
    house.journal.put(b"one", queue="q")
    with house.view(follow=True) as view:
        assert view.refresh() == 0
        house.journal.put(b"two", queue="q")
        house.journal.rotate()
        leased = house.journal.lease("q")
        assert leased is not None
        leased.done()
        assert view.refresh() == 3
        assert view.digest() == house.journal.digest()


def test_a_follower_begins_anew_at_a_snapshot_and_after_a_long_sleep(house: House) -> None:
    house.journal.put(b"one", queue="q")
    with house.view(follow=True) as view:
        house.journal.snapshot()
        house.journal.put(b"two", queue="q")
        view.refresh()
        assert view.replayed.snapshot is not None
        assert view.digest() == house.journal.digest()
        house.journal.put(b"three", queue="q")
        house.clock.advance(3600)
        assert view.refresh() >= 2
        assert view.digest() == house.journal.digest()


def test_a_follower_that_began_with_nothing_but_a_snapshot_misses_no_record(house: House) -> None:
    house.journal.put(b"one", queue="q")
    house.journal.snapshot()
    with house.view(follow=True) as view:
        house.journal.put(b"two", queue="q")
        assert view.refresh() == 1
        assert view.digest() == house.journal.digest()


def test_a_snapshot_that_makes_way_while_it_is_read_is_no_error(house: House) -> None:
    class Replaced(MemoryFiles):
        """While the first snapshot is opened, the journal takes another one."""

        def __init__(self, journal: Journal) -> None:
            self.journal: Journal | None = journal

        def __getattribute__(self, name: str) -> Any:
            mine = ("journal", "open_read", "__dict__")
            return object.__getattribute__(self if name in mine else house.files, name)

        def open_read(self, path: Path) -> FileHandle:
            if path.suffix == ".snapshot" and self.journal is not None:
                journal, self.journal = self.journal, None
                journal.snapshot()
            return house.files.open_read(path)

    house.journal.put(b"one", queue="q")
    house.journal.snapshot()
    files = Replaced(house.journal)
    with JournalView(PLACE, follow=True, clock=house.clock, files=files) as view:
        assert files.journal is None
        assert view.digest() == house.journal.digest()


def test_cleaning_goes_on_beside_a_follower(house: House) -> None:
    for number in range(50):
        house.journal.put(b"%d" % number, queue="q")
    with house.view(follow=True) as view:
        for job in house.journal.lease_many(50, "q"):
            job.done()
        house.journal.rotate()
        house.journal.put(b"last", queue="q")
        assert house.journal.clean()
        view.refresh()
        assert view.digest() == house.journal.digest()


def test_a_directory_without_a_journal_is_not_made(house: House) -> None:
    with pytest.raises(NotFound, match="no journal in /nowhere"):
        JournalView("/nowhere", files=house.files)
    assert not house.files.exists(Path("/nowhere"))


def test_a_closed_view_is_refreshed_no_more(house: House) -> None:
    house.journal.put(b"one", queue="q")
    view = house.view(follow=True)
    view.close()
    with pytest.raises(Closed):
        view.refresh()


def test_a_follower_shows_nothing_behind_a_time(house: House) -> None:
    """F58: the end of a replicated log may still be cut off."""
    house.journal.put(b"one", key="a", queue="q")
    first = house.journal.status().log.written_time
    house.journal.put(b"two", key="b", queue="q")
    second = house.journal.status().log.written_time
    house.journal.put(b"three", key="c", queue="q")
    with JournalView(PLACE, follow=True, until=first, clock=house.clock, files=house.files) as view:
        assert [job.key for job in view.jobs("q")] == ["a"]
        assert view.refresh(first) == 0
        assert view.refresh(second) == 1
        assert [job.key for job in view.jobs("q")] == ["a", "b"]
        assert view.job(key="b", queue="q").payload == b"two"
        house.journal.put(b"four", key="d", queue="q")
        assert view.refresh(second) == 0
        assert view.refresh() == 2
        assert view.digest() == house.journal.digest()
