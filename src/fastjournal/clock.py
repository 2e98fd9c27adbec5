"""Time, asked for in one place.

Rules:

1. Instants are integer nanoseconds since 1970-01-01 UTC, lengths integer nanoseconds.
2. Nobody else calls `time` or `datetime.now`: whoever needs the time is given a `Clock`.
3. `monotonic` never steps; it measures lengths and drives timers. `now` may step.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["MICROSECOND", "MILLISECOND", "SECOND", "SYSTEM_CLOCK", "Clock", "SystemClock"]

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
