"""Jobs of a sender: taken in once, with the id of their place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.errors import AlreadyExists, BadRequest, OutOfRange, TooLarge
from fastjournal.journal.receiving import Receiver
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
