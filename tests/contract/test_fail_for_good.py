"""A failure that is not to be tried again; the same in all forms of a journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastjournal.arguments import NEVER
from fastjournal.model import State
from journal_forms import LOOPS, journal_of


@pytest.fixture(params=LOOPS)
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    with journal_of(request.param, tmp_path / "j") as opened:
        yield opened


def test_a_failure_that_is_never_tried_again_is_the_end_of_the_job(journal: Any) -> None:
    receipt = journal.put(b"x", queue="q", max_fails=9)
    job = journal.lease("q")
    assert journal.fail(job.id, job.token, b"hopeless", NEVER) is State.FAILED
    assert journal.result(receipt.id) == (False, b"hopeless")
    assert journal.queue("q").dead == 1
    assert journal.redrive(queue="q") == 1
    assert journal.lease("q").id == receipt.id


def test_a_wait_of_a_hundred_years_is_a_wait(journal: Any) -> None:
    journal.put(b"x", queue="q", max_fails=9)
    job = journal.lease("q")
    assert journal.fail(job.id, job.token, b"later", 100 * 365 * 86_400) is State.WAITING
