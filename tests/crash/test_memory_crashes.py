"""A journal with hardly any memory, stopped anywhere: its values are found again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.errors import CorruptRecord
from fastjournal.testing import Crash, ManualClock, MemoryFiles, check_replay
from lives import WHOLE, Life, check

HOME = Path("/journal")
TINY = {"memory_limit": 1024}


@pytest.mark.parametrize("part", range(4))
def test_a_crash_at_any_file_operation_keeps_the_promises_with_hardly_any_memory(part: int) -> None:
    """Every operation of a life with cleanings and snapshots; the states are as without limit."""
    whole = Life("always", options=TINY)
    assert whole.finished
    assert whole.digests == WHOLE["always"].digests
    crashes = 0
    for number in range(1 + part, len(whole.files.operations), 12):
        life = Life("always", crash_at=number, options=TINY)
        assert not life.finished
        crashes += 1
        check(life, life.files.killed(), len(life.digests), whole=whole)
        for image in life.files.images(samples=2, seed=number):
            check(life, image, life.safe, go_on=number % 4 == 0, whole=whole)
    assert crashes > 5


class Renamed(MemoryFiles):
    """Tells when a file has taken the place of another."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.after: Any = None

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        if self.after is not None and target.suffix == ".log" and source.suffix == ".rw":
            self.after(target)

    def remove(self, path: Path) -> None:
        super().remove(path)
        if self.after is not None and path.suffix in (".log", ".snapshot"):
            self.after(path)


def value(number: int) -> bytes:
    return b"%d " % number * 100


def opened(files: MemoryFiles) -> Journal:
    return Journal(
        HOME, files=files, clock=ManualClock(), background=False, segment_size=4096, sync="always",
        **TINY,
    )  # fmt: skip


def half_spent() -> tuple[Journal, Renamed]:
    files = Renamed()
    files.make_directory(HOME.parent)
    journal = opened(files)
    for number in range(80):
        journal.entries[f"k{number}"] = value(number)
    for number in range(0, 80, 2):
        journal.entries[f"k{number}"] = value(number + 1000)
    return journal, files


def check_values(journal: Journal) -> None:
    for number in range(80):
        assert journal.entries[f"k{number}"] == value(number + 1000 * (number % 2 == 0))


@pytest.mark.parametrize("work", ["clean", "snapshot"])
def test_between_the_renaming_of_a_file_and_the_noting_of_its_places_all_values_are_found(
    work: str,
) -> None:
    journal, files = half_spent()
    looks = []

    def look(path: Path) -> None:
        looks.append(path.name)
        check_values(journal)

    files.after = look
    getattr(journal, work)()
    assert len(looks) > 3
    files.after = None
    check_values(journal)
    check_replay(journal)
    journal.close()


@pytest.mark.parametrize("work", ["clean", "snapshot"])
def test_a_kill_between_the_renaming_and_the_noting_loses_no_value(work: str) -> None:
    journal, files = half_spent()
    images = []
    files.after = lambda path: images.append(files.killed())
    getattr(journal, work)()
    files.after = None
    journal.close()
    assert len(images) > 3
    for image in images:
        with opened(image) as again:
            check_values(again)
            check_replay(again)
            getattr(again, work)()
            check_values(again)


def test_a_crash_in_upkeep_leaves_a_journal_that_reads_on() -> None:
    """The thread of upkeep dies; whoever reads goes on until the process ends."""
    journal, files = half_spent()

    def die(path: Path) -> None:
        raise Crash

    files.after = die
    with pytest.raises(Crash):
        journal.clean()
    files.after = None
    check_values(journal)
    journal.close()


def test_a_damaged_value_found_by_a_restart_is_refused_and_one_found_later_concerns_itself() -> (
    None
):
    """Replay reads every record and refuses damage; afterwards a value is checked when it is read,
    and a snapshot does not drop what it could not read.
    """
    journal, files = half_spent()
    row = next(journal.engine.state.keys.find(b"", b"k1"))
    assert row.value is None
    path = HOME / f"{row.segment:09d}.log"
    data = bytearray(files.content(path))
    data[row.offset + 100] ^= 1
    files.put(path, bytes(data))
    for work in (lambda: journal.entries["k1"], journal.snapshot, journal.clean):
        with pytest.raises(CorruptRecord) as caught:
            work()
        assert (caught.value.path, caught.value.offset) == (path, row.offset)
    before = sorted(p.name for p in files.snapshot() if p.suffix == ".log")
    for number in range(80):
        if number != 1:
            assert journal.entries[f"k{number}"] == value(number + 1000 * (number % 2 == 0))
    assert path.name in before
    journal.close()
    with pytest.raises(CorruptRecord):
        opened(files)
