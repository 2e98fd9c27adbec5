"""A producer chooses the id of a put, so that it may send it again (F49)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.errors import BadRequest
from fastjournal.journal.journal import Journal
from fastjournal.model import NewJob, Outcome

ID = bytes(range(16))


def test_a_put_with_an_id_that_is_there_changes_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        assert journal.put(b"one", queue="q", id=ID) == (ID, Outcome.NEW)
        before = journal.digest()
        assert journal.put(b"two", queue="q", id=ID) == (ID, Outcome.STALE)
        assert journal.digest() == before
        assert journal.job(ID).value == b"one"


def test_a_repeated_id_is_stale_also_with_a_key_and_while_it_is_worked_on(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        assert journal.put(b"one", key="k", queue="q", id=ID).outcome is Outcome.NEW
        job = journal.lease("q")
        assert job is not None
        assert journal.put(b"one", key="k", queue="q", id=ID) == (ID, Outcome.STALE)
        job.done()
        assert journal.put(b"one", key="k", queue="q", id=ID) == (ID, Outcome.NEW)


def test_a_twin_takes_the_chosen_id_and_a_merge_keeps_the_old_one(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        first = journal.put(b"one", key="k", queue="q").id
        assert journal.put(b"two", key="k", queue="q", id=ID) == (first, Outcome.MERGED)
        assert journal.lease("q") is not None
        assert journal.put(b"three", key="k", queue="q", id=ID) == (ID, Outcome.TWIN)


def test_an_id_with_limits_of_its_own_survives_a_restart(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        journal.put(b"one", queue="q", id=ID, max_fails=7)
    with Journal(tmp_path / "j", background=False) as journal:
        assert journal.put(b"one", queue="q", id=ID, max_fails=7).outcome is Outcome.STALE
        assert journal.job(ID).max_fails == 7


@pytest.mark.parametrize("wrong", [b"short", bytes(16), "text"])
def test_an_id_has_16_bytes_that_are_not_all_zero(tmp_path: Path, wrong: bytes) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        with pytest.raises(BadRequest, match="16 bytes"):
            journal.put(b"", queue="q", id=wrong)
        with pytest.raises(BadRequest, match="16 bytes"):
            journal.put_many([NewJob(b"q", id=b"short")])
