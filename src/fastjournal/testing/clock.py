"""A clock and a ticker that move only when told."""

from __future__ import annotations

from collections.abc import Callable

from fastjournal.clock import SECOND

__all__ = ["ManualClock", "ManualTicker"]


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
