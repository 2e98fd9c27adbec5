"""Token buckets: how many, how soon, shared, and bounded by their burst."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal import Journal
from fastjournal.clock import SECOND
from fastjournal.tasks.rates import Rate, take_tokens
from fastjournal.testing import ManualClock, MemoryFiles


def test_rates_are_read_as_people_write_them() -> None:
    assert Rate.parse("10/s") == Rate(10, 1.0, 10)
    assert Rate.parse(" 100 / m ") == Rate(100, 60.0, 100)
    assert Rate.parse("5/10s", burst=1) == Rate(5, 10.0, 1)


@given(
    st.integers(1, 5),
    st.integers(1, 20),
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), min_size=1, max_size=25),
)
def test_no_time_holds_more_runs_than_its_rate_and_one_burst(
    count: int, seconds: int, asks: list[tuple[int, int]]
) -> None:
    clock = ManualClock()
    rate = Rate(count, float(seconds), count)
    with Journal("/j", files=MemoryFiles(), clock=clock, background=False) as journal:
        granted: list[tuple[int, int]] = []
        for passed, wanted in asks:
            clock.advance(passed)
            given_, wait = take_tokens(journal, "q", rate, wanted, clock.now())
            assert 0 <= given_ <= wanted
            assert (wait > 0) == (given_ == 0)
            granted.append((clock.now(), given_))
            if wait:
                clock.advance(wait + 1e-6)
                assert take_tokens(journal, "q", rate, 1, clock.now())[0] == 1
                granted.append((clock.now(), 1))
    for n, (begin, _) in enumerate(granted):
        total = 0
        for end, got in granted[n:]:
            total += got
            assert total <= count + (end - begin) / SECOND * count / seconds + 1e-6


@pytest.mark.parametrize("text", ["10/s", "100/m", "5/10s", "3/7s", "2/h"])
def test_a_rate_is_shown_as_it_is_written(text: str) -> None:
    assert str(Rate.parse(text)) == text


def test_tokens_that_were_not_used_come_back_and_other_buckets_are_their_own() -> None:
    clock = ManualClock()
    rate = Rate.parse("4/h")
    with Journal("/j", files=MemoryFiles(), clock=clock, background=False) as journal:
        assert take_tokens(journal, "a", rate, 4, clock.now()) == (4, 0.0)
        assert take_tokens(journal, "a", rate, 1, clock.now()) == (0, pytest.approx(900))
        take_tokens(journal, "a", rate, -3, clock.now())
        assert take_tokens(journal, "a", rate, 9, clock.now())[0] == 3
        assert take_tokens(journal, "b", rate, 9, clock.now())[0] == 4
