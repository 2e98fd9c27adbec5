"""Time, asked for in one place.

Rules:

1. Instants are integer nanoseconds since 1970-01-01 UTC, lengths integer nanoseconds.
2. Nobody else calls `time` or `datetime.now`: whoever needs the time is given a `Clock`.
3. `monotonic` never steps; it measures lengths and drives timers. `now` may step.
4. Deadlines are instants (a restart moves none), but a lease was promised for a length. So a
   journal asks a `SteadyClock`, which follows the wall clock gently, and lets running leases keep
   their length when the wall clock is stepped.
"""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, final

from mypy_extensions import mypyc_attr

__all__ = [
    "MILLISECOND",
    "SECOND",
    "SYSTEM_CLOCK",
    "Clock",
    "SteadyClock",
    "SystemClock",
    "as_datetime",
    "instant_text",
]

MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
_STEP: Final = SECOND  # what more the wall clock is ahead of the monotonic one counts as a step
_SLOWER: Final = 100  # time goes on slower by one part of so many while the wall clock is behind

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger(__name__)


def as_datetime(ns: int) -> datetime | None:
    """An instant as a date in UTC, to the microsecond; None for 0 (not set)."""
    return _EPOCH + timedelta(microseconds=ns // 1000) if ns else None


def instant_text(instant: int) -> str:
    """Ns since 1970 as ISO 8601 with nine decimals; a dash for 0, which means no time."""
    if not instant:
        return "-"
    seconds, ns = divmod(instant, SECOND)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ns:09d}Z"


class Clock(Protocol):
    """Where the time comes from."""

    def now(self) -> int:
        """Wall clock, ns since 1970 UTC."""

    def monotonic(self) -> int:
        """Ns since some fixed moment; never goes back."""


@mypyc_attr(native_class=False)
class SystemClock:
    """The machine's own clocks."""

    now = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic_ns)


SYSTEM_CLOCK = SystemClock()


@final
class SteadyClock:
    """A wall clock that never goes back and never leaps under running leases.

    Rules:

    1. Between two looks it goes on with the monotonic clock. Drift, up to a second forward and a
       millisecond back, is followed at once.
    2. The wall clock was stepped forward, or the machine slept: with `hold_steps` the time goes on
       evenly, and `stepped` says so, until `take_step` is called by whoever has seen to it that
       what runs by length (leases, locks) keeps its length; the journal does so at its next
       request, so due dates follow within a second. Without `hold_steps`: at once.
    3. The wall clock was stepped back: the time goes on a hundredth slower until the wall clock has
       caught up. So lengths grow by a hundredth, never shrink, and due dates come back to the wall
       clock: an hour is made up in 100 hours.
    4. Each step of more than a second is logged once.

    Many threads may ask: wall clock and monotonic clock are kept as one value.
    """

    def __init__(self, clock: Clock, *, hold_steps: bool = False) -> None:
        self._wall: Callable[[], int] = clock.now
        self._beat: Callable[[], int] = clock.monotonic
        self._holds = hold_steps
        self._last: tuple[int, int] = (clock.now(), clock.monotonic())
        self._behind = False
        """Rule 3 is at work, and that was told."""
        self.stepped = False
        """A step forward waits for `take_step`."""

    def now(self) -> int:
        """Wall clock, ns since 1970 UTC, by the rules above."""
        before, then = self._last
        wall = self._wall()
        at = self._beat()
        steady = before + at - then
        if wall < steady:
            return steady if steady - wall < MILLISECOND else self._wait_for_wall()
        if wall - steady > _STEP and self._holds:
            self.stepped = True
            return steady
        return self._follow(wall, at)

    def step(self) -> int:
        """The step forward that waits to be taken; 0 if there is none."""
        before, then = self._last
        wall = self._wall()
        at = self._beat()
        ahead = wall - (before + at - then)
        self.stepped = ahead > _STEP
        return ahead if self.stepped else 0

    def take_step(self, step: int) -> None:
        """Go forward by `step`, of which `step` has told."""
        before, then = self._last
        self._last = before + step, then
        self.stepped = False
        _log.warning("the wall clock was stepped forward by %.1f s", step / SECOND)

    def go_on_from(self, instant: int) -> None:
        """Never say less than this: what was written by then has happened."""
        if self.now() < instant:
            self._last = (instant, self.monotonic())

    def of_wall(self, instant: int, slack: int) -> int:
        """An instant of the wall clock by this one; the same if they differ by at most `slack`.

        A clock that once was ahead and was set right leaves this one ahead.
        """
        wall = self._wall()
        ahead = self.now() - wall
        return instant + ahead if instant and ahead > slack else instant

    def monotonic(self) -> int:
        """Ns since some fixed moment; never goes back."""
        return self._beat()

    def _follow(self, wall: int, at: int) -> int:
        if self._behind:
            self._behind = False
            _log.warning("the wall clock has caught up")
        self._last = wall, at
        return wall

    def _wait_for_wall(self) -> int:
        """Rule 3. Looks once more: a pause between reading the two clocks looks like a step."""
        before, then = self._last
        wall = self._wall()
        at = self._beat()
        passed = at - then
        slow = before + passed - passed // _SLOWER
        if wall >= slow:
            return self._follow(wall, at)
        if passed >= SECOND:
            self._last = slow, at
        if slow - wall > _STEP and not self._behind:
            self._behind = True
            _log.warning(
                "the wall clock is %.1f s behind what was written: time goes on slower until it"
                " has caught up",
                (slow - wall) / SECOND,
            )
        return slow
