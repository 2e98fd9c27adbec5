"""The life of a row, read from the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.archive.shipper import ArchiveOptions
from fastjournal.clock import SECOND
from fastjournal.journal.look.history import Life, life_of
from fastjournal.log.read.search import find_in_segments, segments_of
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.model import State
from fastjournal.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000 * SECOND)


@pytest.fixture
def journal(tmp_path: Path, clock: ManualClock) -> Journal:
    return Journal(tmp_path / "j", clock=clock, background=False, segment_size=4096)


def life(journal: Journal, row_id: bytes, **options: int) -> Life:
    return life_of(Stream(journal.path, WORKQ), row_id, **options)


def events(found: Life) -> list[str]:
    return [step.event for step in found.steps]


def test_a_life_is_told_from_the_first_put_to_the_end(journal: Journal, clock: ManualClock) -> None:
    row_id = journal.put(b"one", key="k", queue="q").id
    journal.put(b"other", key="x", queue="q", due=clock.now() / SECOND + 900)
    clock.advance(1)
    journal.put(b"two!", key="k", queue="q", priority=50)
    clock.advance(1)
    lease = journal.lease("q", worker="w1")
    assert lease is not None
    clock.advance(1)
    lease.touch(100)
    lease.fail(b"boom")
    clock.advance(10)
    lease = journal.lease("q", worker="w2")
    assert lease is not None
    lease.done(b"fine")

    found = life(journal, row_id)
    assert events(found) == [
        "put", "merged", "leased", "lease extended", "failed", "leased", "completed", "kept",
    ]  # fmt: skip
    assert (found.whole, found.complete) == (True, True)
    assert (found.queue, found.key) == (b"q", b"k")
    merged, leased, failed = found.steps[1], found.steps[2], found.steps[4]
    assert merged.text == "new value of 4 bytes, priority 100 → 50"
    assert leased.worker == b"w1"
    assert leased.until == leased.time + 60 * SECOND
    assert (failed.data, failed.text) == (b"boom", "failure 1")
    assert failed.until > failed.time
    assert found.steps[-2].after is State.COMPLETED
    assert found.steps[-2].data == b"fine"


def test_a_death_in_a_group_and_a_redrive_are_told(journal: Journal, clock: ManualClock) -> None:
    row_id = journal.put(b"v", key="k", queue="q", max_timeouts=2).id
    for _ in range(2):
        journal.lease("q")
        clock.advance(61)
        journal.tick()
    assert journal.job(row_id).state is State.FAILED
    journal.redrive(row_id)
    journal.delete(row_id)
    told = events(life(journal, row_id))
    assert told[:3] == ["put", "leased", "lease lost"]
    assert told[-4:] == ["lease lost", "dead", "redriven", "deleted"]


def test_a_row_is_found_over_many_segments_and_large_values(journal: Journal) -> None:
    row_id = journal.put(b"v" * 300_000, key="big", queue="q").id
    for number in range(200):
        journal.put(b"x" * 100, key=f"k{number}", queue="q")
    journal.put(b"w" * 200_000, key="big", queue="q")
    assert len(Stream(journal.path, WORKQ).segments()) > 5
    found = life(journal, row_id)
    assert events(found) == ["put", "merged"]
    assert found.complete


def test_older_segments_are_not_read_when_the_insertion_is_known(
    journal: Journal, clock: ManualClock
) -> None:
    for number in range(300):
        journal.put(b"x" * 100, key=f"k{number}", queue="q")
    clock.advance(60)
    row_id = journal.put(b"v", key="late", queue="q").id
    whole = life(journal, row_id)
    short = life(journal, row_id, since=journal.job(row_id).inserted)
    assert events(short) == events(whole) == ["put"]
    assert short.searched < whole.searched / 3


def test_limits_are_told(journal: Journal) -> None:
    row_id = journal.put(b"v", key="k", queue="q").id
    for number in range(200):
        journal.put(b"x%d" % number, key="k", queue="q")
    found = life(journal, row_id, limit=20)
    assert len(found.steps) == 20
    assert not found.complete
    assert not life(journal, row_id, max_bytes=1).complete


def test_an_unknown_row_and_an_id_inside_a_value_have_no_life(journal: Journal) -> None:
    nobody = bytes(range(16))
    journal.put(b"said " + nobody, key="k", queue="q")
    assert life(journal, nobody).steps == []
    assert len(find_in_segments(segments_of(Stream(journal.path, WORKQ)), nobody).records) == 1


def test_a_damaged_record_is_passed_over(journal: Journal) -> None:
    row_id = journal.put(b"v", key="k", queue="q").id
    journal.put(b"wwww", key="k", queue="q")
    journal.sync()
    path = Stream(journal.path, WORKQ).segment_path(0)
    if not path.exists():
        path = Stream(journal.path, WORKQ).segment_path(1)
    data = bytearray(path.read_bytes())
    data[data.index(b"wwww")] ^= 1
    path.write_bytes(bytes(data))
    assert events(life(journal, row_id)) == ["put"]


@pytest.mark.parametrize("compress", [False, True])
def test_a_life_is_told_from_the_archive_beside_the_journal(
    tmp_path: Path, clock: ManualClock, compress: bool
) -> None:
    options = ArchiveOptions(compress=compress)
    with Journal(
        tmp_path / "j", clock=clock, background=False, segment_size=4096, sync="always",
        archive=tmp_path / "j" / "archive", archive_options=options,
    ) as journal:  # fmt: skip
        row_id = journal.put(b"one", key="k", queue="q").id
        clock.advance(1)
        assert journal.lease("q", take=True) is not None
        for number in range(100):
            journal.put(bytes(100), queue="other", key=str(number))
        journal.rotate()
        journal.snapshot()
        assert not find_in_segments(segments_of(Stream(journal.path, WORKQ)), row_id).records
        found = life(journal, row_id)
        assert events(found) == ["put", "taken or deleted"] and found.whole
        journal.put(b"last", key="last", queue="q")
        journal.ship()  # some of it lies there in parts
        assert life(journal, row_id).steps == found.steps


def test_a_life_is_told_from_the_copies_that_0_1_0_made(
    journal: Journal, clock: ManualClock
) -> None:
    with journal:
        row_id = journal.put(b"one", key="k", queue="q").id
        journal.rotate()
        (journal.path / "archive").mkdir()
        name = "000000001.log"
        (journal.path / "archive" / name).write_bytes((journal.path / name).read_bytes())
        assert journal.lease("q", take=True) is not None
        for number in range(100):
            journal.put(bytes(100), queue="other", key=str(number))
        journal.snapshot()
        assert not find_in_segments(segments_of(Stream(journal.path, WORKQ)), row_id).records
        assert events(life(journal, row_id)) == ["put"]
