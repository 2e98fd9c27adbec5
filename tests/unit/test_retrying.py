"""One rule for both clients: what is tried again, and when it is over."""

from __future__ import annotations

import pytest

from fastjournal.client.retry import Attempts
from fastjournal.errors import Closed, JournalError, Loading, NotFound, Unavailable


def again(attempts: Attempts, error: JournalError, now: float = 0.0, *, out: bool = True) -> bool:
    attempts.out = out
    try:
        attempts.failed(error, now)
    except type(error):
        return False
    return True


def test_what_may_have_happened_is_sent_again_only_if_it_may_be() -> None:
    assert again(Attempts(True, 10, 0), Unavailable("lost"))
    assert not again(Attempts(False, 10, 0), Unavailable("lost"))


def test_what_never_went_out_may_always_be_tried_again() -> None:
    attempts = Attempts(False, 10, 0)
    assert again(attempts, Unavailable("nobody there"), out=False)
    assert not attempts.repeated
    assert not again(attempts, Unavailable("lost"))


@pytest.mark.parametrize("may", [True, False])
def test_a_daemon_that_loads_has_done_nothing_yet(may: bool) -> None:
    attempts = Attempts(may, 10, 0)
    assert again(attempts, Loading("loading"))
    assert not attempts.repeated


def test_a_call_that_was_lost_once_stays_one_that_may_have_happened() -> None:
    attempts = Attempts(True, 10, 0)
    assert again(attempts, Unavailable("lost"))
    assert again(attempts, Loading("loading"))
    assert attempts.repeated


def test_other_errors_and_the_end_of_the_time_are_told_at_once() -> None:
    assert not again(Attempts(True, 10, 0), NotFound("none"))
    assert not again(Attempts(True, 10, 0), Closed("closed"))
    assert not again(Attempts(True, 10, 0), Unavailable("lost"), now=10.0)


def test_pauses_grow_up_to_a_limit() -> None:
    attempts = Attempts(True, 1000, 0)
    pauses = [attempts.failed(Unavailable("lost"), 0) for _ in range(20)]
    assert pauses[0] <= 0.03
    assert 1.0 <= max(pauses) <= 3.0
