"""Time in tests: a clock and a ticker that move only when told, and waiting for what others do.

Rules:

1. A test waits for a condition, never for a length of time; the limit is only there so that a
   broken program fails the test instead of holding it up.
2. Where an event, a file descriptor or a clock that moves by hand can be waited for, that is better
   than asking again and again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from fastjournal.clock import SECOND

__all__ = ["ManualClock", "ManualTicker", "wait_until"]


class ManualClock:
    """A clock for tests: time stands still until `advance` or `step` moves it."""

    def __init__(self, now: int = 1_700_000_000 * SECOND) -> None:
        self._now = now
        self._monotonic = 0

    def now(self) -> int:
        """Wall clock, ns since 1970 UTC."""
        return self._now

    def monotonic(self) -> int:
        """Ns since this clock was made."""
        return self._monotonic

    def advance(self, seconds: float = 0.0, *, ns: int = 0) -> None:
        """Let time pass, on both clocks."""
        passed = round(seconds * SECOND) + ns
        if passed < 0:
            raise ValueError("time only passes forward; use step() for a jump of the wall clock")
        self._now += passed
        self._monotonic += passed

    def step(self, seconds: float) -> None:
        """Jump the wall clock, forward or back; no time passes."""
        self._now += round(seconds * SECOND)


class ManualTicker:
    """A ticker for tests: it ticks when told."""

    def __init__(self) -> None:
        self._tick: Callable[[], None] | None = None
        self.interval_ms = 0

    def start(self, tick: Callable[[], None], interval_ms: int) -> None:
        """Remember what to call."""
        self._tick = tick
        self.interval_ms = interval_ms

    def stop(self) -> None:
        """Forget it."""
        self._tick = None

    def fire(self) -> None:
        """Tick once, if started."""
        if self._tick is not None:
            self._tick()


_LONGEST = 0.02  # seconds between two looks


def wait_until(condition: Callable[[], object], *, seconds: float = 30.0, what: str = "") -> None:
    """Return once `condition` holds; `AssertionError` naming `what` if it does not in time."""
    give_up = time.monotonic() + seconds
    pause = 0.0005
    idle = threading.Event()
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {seconds:g} s: {what or condition}")
        idle.wait(pause)
        pause = min(pause * 2, _LONGEST)
