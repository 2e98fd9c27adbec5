"""The clock of a journal: it follows the wall clock gently, and lengths stay lengths."""

from __future__ import annotations

import pytest

from fastjournal.clock import SECOND, SteadyClock
from fastjournal.testing import ManualClock

HOUR = 3600 * SECOND


def test_it_goes_with_the_wall_clock_and_follows_drift_at_once() -> None:
    wall = ManualClock()
    steady = SteadyClock(wall, hold_steps=True)
    for _ in range(10):
        wall.advance(7)
        wall.step(0.9)
        assert steady.now() == wall.now()
        assert not steady.stepped


def test_a_step_forward_is_held_until_it_is_taken(caplog: pytest.LogCaptureFixture) -> None:
    wall = ManualClock()
    steady = SteadyClock(wall, hold_steps=True)
    begin = steady.now()
    wall.step(3600)
    for passed in range(5):
        assert steady.now() == begin + passed * SECOND
        assert steady.stepped
        wall.advance(1)
    assert steady.step() == HOUR
    steady.take_step(HOUR)
    assert steady.now() == wall.now() == begin + HOUR + 5 * SECOND
    assert not steady.stepped and steady.step() == 0
    assert caplog.text.count("stepped forward by 3600.0 s") == 1


def test_a_step_that_was_undone_meanwhile_is_none() -> None:
    wall = ManualClock()
    steady = SteadyClock(wall, hold_steps=True)
    wall.step(3600)
    steady.now()
    wall.step(-3600)
    assert steady.stepped
    assert steady.step() == 0
    assert not steady.stepped
    assert steady.now() == wall.now()


def test_without_holding_a_step_forward_is_followed_at_once() -> None:
    wall = ManualClock()
    steady = SteadyClock(wall)
    wall.step(3600)
    assert steady.now() == wall.now()


def test_after_a_step_back_it_goes_on_a_little_slower_until_the_wall_clock_has_caught_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wall = ManualClock()
    steady = SteadyClock(wall, hold_steps=True)
    begin = last = steady.now()
    wall.step(-60)
    for _ in range(5900):
        wall.advance(1)
        now = steady.now()
        assert 0.98 * SECOND < now - last < SECOND
        last = now
    assert 0 < last - wall.now() < 2 * SECOND
    wall.advance(300)
    assert steady.now() == wall.now()
    assert wall.now() - begin < 6200 * SECOND
    assert caplog.text.count("behind what was written") == 1
    assert caplog.text.count("has caught up") == 2


def test_looked_at_often_or_seldom_it_never_goes_back() -> None:
    wall = ManualClock()
    steady = SteadyClock(wall, hold_steps=True)
    last = steady.now()
    for number in range(3000):
        wall.advance(ns=(number * 7919) % (3 * SECOND) if number % 3 else 17)
        if number % 100 == 0:
            wall.step((-30, 20, -5)[number // 100 % 3])
        now = steady.now()
        assert now >= last
        last = now
        if steady.stepped and number % 2:
            steady.take_step(steady.step())


def test_a_pause_between_reading_the_two_clocks_is_no_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Paused(ManualClock):
        pause = 0

        def now(self) -> int:
            now = super().now()
            self.advance(self.pause)
            self.pause = 0
            return now

    wall = Paused()
    steady = SteadyClock(wall, hold_steps=True)
    wall.pause = 100
    assert steady.now() == wall.now()
    assert not caplog.text
