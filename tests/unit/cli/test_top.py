"""`fastjournal top`: what it shows of a journal at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from fastjournal import Journal
from fastjournal.cli.journal.operator_commands import Top, show_again
from fastjournal.journal.look.read_only import JournalView
from fastjournal.testing import ManualClock, MemoryFiles

PLACE = Path("/jobs")


class House:
    def __init__(self) -> None:
        self.files, self.clock = MemoryFiles(), ManualClock()
        self.files.make_directory(PLACE.parent)
        self.journal = Journal(PLACE, clock=self.clock, files=self.files, background=False)
        self.view = JournalView(PLACE, follow=True, clock=self.clock, files=self.files)
        self.top = Top(self.view, "jobs", self.clock)

    def look(self, height: int | None = None) -> str:
        console = Console(width=120)
        with console.capture() as captured:
            console.print(self.top.look(height))
        return captured.get()


@pytest.fixture
def house() -> House:
    return House()


def test_rates_are_what_happened_since_the_look_before(house: House) -> None:
    assert "/s" not in house.look()
    for number in range(20):
        house.journal.put(b"%d" % number, queue="q")
    for job in house.journal.lease_many(10):
        job.done()
    house.clock.advance(2)
    assert "10 puts/s, 5 leases/s, 5 ends/s" in house.look()
    house.clock.advance(1)
    assert "0 puts/s, 0 leases/s, 0 ends/s" in house.look()


def test_the_busiest_queues_come_first_and_the_rest_is_counted(house: House) -> None:
    for number in range(12):
        house.journal.put(b"", queue=f"queue{number:02}")
    house.journal.put(b"", queue="queue05")
    house.journal.lease("queue07")
    shown = house.look(height=12)
    lines = [line.split()[0] for line in shown.splitlines() if line.startswith("queue")][1:]
    assert lines == ["queue07", "queue05", "queue00", "queue01"]
    assert "8 more queues" in shown
    assert "all 12" in shown


def test_a_name_that_looks_like_markup_is_shown_as_it_is(house: House) -> None:
    house.journal.put(b"", queue="[red]x[/]")
    assert "[red]x[/]" in house.look()


def test_watch_looks_again_until_it_is_interrupted(
    house: House, capsys: pytest.CaptureFixture[str]
) -> None:
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        house.journal.put(b"", queue="late")
        if len(naps) == 3:
            raise KeyboardInterrupt

    show_again(house.view, "jobs", 0.5, sleep=sleep)
    assert naps == [0.5, 0.5, 0.5]
    assert "late" in capsys.readouterr().out
