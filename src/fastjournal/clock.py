"""Time, asked for in one place.

Rules:

1. Instants are integer nanoseconds since 1970-01-01 UTC, lengths integer nanoseconds.
2. Nobody else calls `time` or `datetime.now`: whoever needs the time is given a `Clock`.
3. `monotonic` never steps; it measures lengths and drives timers. `now` may step.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = [
    "MICROSECOND",
    "MILLISECOND",
    "SECOND",
    "SYSTEM_CLOCK",
    "Clock",
    "SteadyClock",
    "SystemClock",
]

MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> int:
        """Wall clock, ns since 1970 UTC."""

    def monotonic(self) -> int:
        """Ns since some fixed moment; never goes back."""


class SystemClock:
    """The machine's own clocks."""

    now = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic_ns)


SYSTEM_CLOCK = SystemClock()


class SteadyClock:
    """A wall clock that never goes back: when the other one does, this one goes on evenly.

    So a lease keeps its length when an operator sets the clock back an hour. A jump forward is
    followed at once. Many threads may ask: wall clock and monotonic clock are kept as one value.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = clock.now(), clock.monotonic()

    def now(self) -> int:
        """Wall clock, ns since 1970 UTC; at least what it was plus what has passed."""
        clock = self._clock
        before, then = self._last
        wall, at = clock.now(), clock.monotonic()
        steady = before + at - then
        if wall >= steady:
            self._last = wall, at
            return wall
        return steady

    def go_on_from(self, instant: int) -> None:
        """Never say less than this: what was written by then has happened."""
        if self.now() < instant:
            self._last = instant, self._clock.monotonic()

    def of_wall(self, instant: int, slack: int) -> int:
        """An instant of the wall clock by this one; the same if they differ by at most `slack`.

        A clock that once was ahead and was set right leaves this one ahead.
        """
        ahead = self.now() - self._clock.now()
        return instant + ahead if instant and ahead > slack else instant

    def monotonic(self) -> int:
        """Ns since some fixed moment; never goes back."""
        return self._clock.monotonic()
