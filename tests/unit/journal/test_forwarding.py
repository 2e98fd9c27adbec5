"""Jobs of a sender: taken in once, with the id of their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.errors import AlreadyExists, BadRequest, OutOfRange, TooLarge
from fastjournal.journal.journal import Receiver
from fastjournal.model import Mode, NewJob
from fastjournal.spool.frames import sender_name, spool_tag
from fastjournal.testing import ManualClock, MemoryFiles

NOW = 1_700_000_000 * SECOND
NAME = sender_name(spool_tag(bytes(16)), 472_222)


@pytest.fixture
def journal() -> Iterator[Journal]:
    with Journal("/j", files=MemoryFiles(), clock=ManualClock(NOW), background=False) as journal:
        yield journal


def test_jobs_up_to_the_mark_are_not_looked_at(journal: Journal) -> None:
    put_from = Receiver(journal).put_from
    first = put_from(NAME, [(n, NewJob(b"q", b"%d" % n, b"", Mode.PLAIN)) for n in (8, 20, 31)])
    assert (first.mark, first.outcomes, first.repeated) == (31, (3, 0, 0, 0), 0)
    again = put_from(NAME, [(n, NewJob(b"q", b"%d" % n, b"", Mode.PLAIN)) for n in (20, 31, 40)])
    assert (again.mark, again.outcomes, again.repeated) == (40, (1, 0, 0, 0), 2)
    assert sorted(row.value for row in journal.engine.state.rows.values()) == [
        b"20", b"31", b"40", b"8",
    ]  # fmt: skip


@pytest.mark.parametrize("mark", [-1, 0, 1])
def test_a_job_below_the_first_mark_is_refused_and_not_taken_for_a_repeat(
    journal: Journal, mark: int
) -> None:
    with pytest.raises(BadRequest):
        Receiver(journal).put_from(NAME, [(mark, NewJob(b"q"))])
    Receiver(journal).put_from(NAME, [(8, NewJob(b"q"))])
    with pytest.raises(BadRequest):
        Receiver(journal).put_from(NAME, [(mark, NewJob(b"q"))])
    assert len(journal.engine.state.rows) == 1


def test_an_empty_request_tells_how_far_the_sender_has_come(journal: Journal) -> None:
    assert Receiver(journal).put_from(NAME, []).mark == 1
    Receiver(journal).put_from(NAME, [(77, NewJob(b"q", b"", b"k"))])
    assert Receiver(journal).put_from(NAME, []).mark == 77


def test_senders_do_not_touch_each_other(journal: Journal) -> None:
    for name in (NAME, b"host a", b"host b"):
        assert Receiver(journal).put_from(name, [(9, NewJob(b"q", name))]).outcomes[0] == 1
    assert len(journal.engine.state.rows) == 3


def test_refused_jobs_are_told_and_do_not_stop_the_rest(journal: Journal) -> None:
    journal.put(b"", queue="q", key="taken")
    taken = Receiver(journal).put_from(
        NAME,
        [
            (10, NewJob(b"q", b"a", b"", Mode.PLAIN)),
            (20, NewJob(b"", b"no queue", b"", Mode.PLAIN)),
            (30, NewJob(b"q", b"x" * (1 << 20) + b"x", b"", Mode.PLAIN)),
            (40, NewJob(b"q", b"", b"", Mode.PLAIN, 256)),
            (50, NewJob(b"q", b"", b"key", Mode.PLAIN)),
            (60, NewJob(b"q", b"", b"", Mode.UNIQUE)),
            (70, NewJob(b"q", b"", b"taken", Mode.UNIQUE)),
            (80, NewJob(b"q", b"", b"", Mode.PLAIN, expires=5)),
            (90, NewJob(b"q", b"b", b"", Mode.PLAIN)),
        ],
    )
    assert taken.mark == 90 and taken.outcomes == (2, 0, 0, 0)
    assert [(mark, type(error)) for mark, error in taken.refused] == [
        (20, TooLarge), (30, TooLarge), (40, OutOfRange), (50, BadRequest), (60, BadRequest),
        (70, AlreadyExists), (80, OutOfRange),
    ]  # fmt: skip
    again = Receiver(journal).put_from(NAME, [(70, NewJob(b"q")), (90, NewJob(b"q"))])
    assert again.repeated == 1
    assert [(mark, type(error)) for mark, error in again.refused] == [(70, AlreadyExists)]


@pytest.mark.parametrize("name", [b"", b"x" * 256])
def test_a_sender_has_a_name(journal: Journal, name: bytes) -> None:
    with pytest.raises(BadRequest):
        Receiver(journal).put_from(name, [])


@pytest.mark.parametrize("mark", [2**63, 2**70])
def test_a_mark_that_cannot_be_kept_is_refused(journal: Journal, mark: int) -> None:
    with pytest.raises(BadRequest):
        Receiver(journal).put_from(NAME, [(mark, NewJob(b"q"))])


def test_an_id_that_only_looks_like_a_place_makes_no_sender(journal: Journal) -> None:
    journal.put(b"", queue="q", id=NAME + b"\0\0\0\x09")
    assert journal.engine.state.senders == {}
    assert Receiver(journal).put_from(NAME, [(9, NewJob(b"q", b"other"))]).outcomes[0] == 1
    assert len(journal.engine.state.rows) == 2


def test_a_forgotten_sender_begins_anew(journal: Journal) -> None:
    Receiver(journal).put_from(NAME, [(9, NewJob(b"q"))])
    Receiver(journal).forget_sender(NAME)
    Receiver(journal).forget_sender(NAME)
    assert journal.engine.state.mark_of(NAME) == 0
    assert Receiver(journal).put_from(NAME, [(9, NewJob(b"q"))]).repeated == 0


FORGED = NAME + b"\xff\xff\xff\xfe"


def reopened(journal: Journal) -> Journal:
    """The same files, read anew."""
    assert isinstance(journal.engine.log.stream.files, MemoryFiles)
    files = journal.engine.log.stream.files
    journal.close()
    return Journal("/j", files=files, clock=ManualClock(NOW + SECOND), background=False)


def rewritten(journal: Journal, way: str) -> Journal:
    """The journal after its records have been moved about."""
    if way == "snapshot":
        journal.snapshot()
    elif way == "cleaned":
        journal.rotate()
        journal.put(b"", queue="later")
        assert journal.clean()
    return reopened(journal)


WAYS = pytest.mark.parametrize("way", ["replayed", "snapshot", "cleaned"])


def journal_of(files: MemoryFiles) -> Journal:
    return Journal("/j", files=files, clock=ManualClock(NOW), background=False)


def work_off(journal: Journal) -> None:
    """The jobs that tell the true mark go, and leave something to be cleaned."""
    journal.put(b"x" * 1000, queue="work")
    while held := journal.lease("work"):
        journal.complete(held.id, held.token)


def job(value: bytes, key: bytes = b"", **more: Any) -> NewJob:
    return NewJob(b"work", value, key, Mode.MERGE if key else Mode.PLAIN, **more)


@WAYS
@pytest.mark.parametrize("restated", [False, True])
def test_an_id_chosen_before_its_sender_was_met_does_not_move_its_mark(
    way: str, restated: bool
) -> None:
    journal = journal_of(MemoryFiles())
    journal.put(b"forged", queue="q", key="k", id=FORGED)
    Receiver(journal).put_from(NAME, [(8, job(b"a"))])
    if restated:
        journal.put(b"merged" * 100, queue="q", key="k")
        journal.delete(key="k", queue="q")
        journal.put(b"over the tombstone", queue="q", key="k")
    work_off(journal)
    assert journal.engine.state.mark_of(NAME) == 8
    with rewritten(journal, way) as journal:
        assert journal.engine.state.mark_of(NAME) == 8
        assert Receiver(journal).put_from(NAME, [(20, job(b"b"))]).outcomes[0] == 1


@WAYS
def test_an_id_in_the_spool_of_another_does_not_move_a_mark(way: str) -> None:
    other = sender_name(spool_tag(b"x" * 16), 472_222)
    journal = journal_of(MemoryFiles())
    Receiver(journal).put_from(NAME, [(8, job(b"a"))])
    Receiver(journal).put_from(other, [(8, job(b"b", id=FORGED)._replace(queue=b"q"))])
    own = job(b"c", id=NAME + b"\x7f\0\0\0")._replace(queue=b"q")
    Receiver(journal).put_from(NAME, [(20, own)])
    work_off(journal)
    assert journal.engine.state.mark_of(NAME) == 20
    with rewritten(journal, way) as journal:
        assert journal.engine.state.mark_of(NAME) == 20
        assert Receiver(journal).put_from(NAME, [(30, job(b"d"))]).outcomes[0] == 1


def test_cleaning_never_brings_back_the_mark_of_a_forgotten_sender() -> None:
    journal = journal_of(MemoryFiles())
    journal.put(b"x" * 5000, queue="stays")  # so the oldest segment is not worth rewriting
    Receiver(journal).put_from(NAME, [(500, job(b"a"))])
    journal.rotate()
    Receiver(journal).forget_sender(NAME)
    Receiver(journal).put_from(NAME, [(8, job(b"b"))])
    work_off(journal)
    journal.rotate()
    journal.put(b"", queue="later")
    assert [cleaned.segment for cleaned in journal.clean()] == [2]
    with reopened(journal) as journal:
        assert journal.engine.state.mark_of(NAME) == 8


@WAYS
def test_rows_of_a_sender_that_was_forgotten_do_not_tell_of_a_new_one_of_its_name(way: str) -> None:
    journal = journal_of(MemoryFiles())
    Receiver(journal).put_from(NAME, [(500, job(b"a", b"k")._replace(queue=b"q"))])
    Receiver(journal).forget_sender(NAME)
    Receiver(journal).put_from(NAME, [(8, job(b"b"))])
    for _ in range(3):
        journal.put(b"merged" * 100, queue="q", key="k")
    journal.put(b"merged", queue="q", key="k")
    work_off(journal)
    assert journal.engine.state.mark_of(NAME) == 8
    with rewritten(journal, way) as journal:
        assert journal.engine.state.mark_of(NAME) == 8
        assert Receiver(journal).put_from(NAME, [(9, job(b"c"))]).outcomes[0] == 1
