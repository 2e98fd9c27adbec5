"""Schedules: which instants they have, and which of them are to be fired.

Rules:

1. An instant follows from the schedule alone, never from when somebody looked: all workers find the
   same ones. Those of an interval are the multiples of its length since 1970.
2. Cron expressions are those of Debian, daylight saving included (cronsim). Times are those of the
   schedule's zone.
3. An instant is missed if nobody fired it within a minute. `skip`: it is left out. `one`: of all
   that are due the newest is fired. `all`: each is fired, the newest 1000 at most.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fastjournal.arguments import Length, length
from fastjournal.clock import SECOND
from fastjournal.errors import SettingError

__all__ = ["MAX_MISSED", "TOLERANCE", "Missed", "Schedule"]

Missed = Literal["skip", "one", "all"]
TOLERANCE = 60 * SECOND
"""How late an instant may be fired and not count as missed."""
MAX_MISSED = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Schedule(NamedTuple):
    """When a task is to be called."""

    name: str
    task: str
    cron: str = ""
    """A cron expression; empty: `every` tells."""
    every: int = 0
    """The length of an interval, ns."""
    tz: str = "UTC"
    missed: Missed = "one"
    payload: bytes = b""
    """The call to be put."""

    @classmethod
    def make(
        cls,
        name: str,
        task: str,
        cron: str = "",
        every: Length | None = None,
        tz: str = "UTC",
        missed: Missed = "one",
    ) -> Schedule:
        """A schedule whose parts make sense; else `SettingError`."""
        if bool(cron) == (every is not None):
            raise SettingError("a schedule has a cron expression or an interval", name="cron")
        if missed not in ("skip", "one", "all"):
            raise SettingError(f"missed is skip, one or all, not {missed!r}", name="missed")
        step = 0 if every is None else length(every, "every")
        if not cron and step < SECOND:
            raise SettingError("an interval is a second at least", name="every")
        made = cls(name, task, cron, step, tz, missed)
        made.after(0)
        return made

    def after(self, instant: int) -> int:
        """The first instant of this schedule after `instant`, ns; 0: there is none."""
        if self.every:
            return (instant // self.every + 1) * self.every
        return next(self._instants(instant), 0)

    def due(self, last: int, now: int) -> tuple[list[int], int]:
        """The instants to fire of those after `last` up to `now`, and the newest that is past."""
        newest = self._newest(last, now)
        if not newest:
            return [], last
        if self.missed == "skip":
            return ([newest] if now - newest <= TOLERANCE else []), newest
        if self.missed == "one":
            return [newest], newest
        begin = last
        if self.every:
            begin = max(last, newest - MAX_MISSED * self.every)
        instants = self._between(begin, now)
        return instants[-MAX_MISSED:], newest

    def _newest(self, last: int, now: int) -> int:
        """The newest instant after `last` up to `now`; 0: none."""
        back = 2 * TOLERANCE
        while True:
            begin = max(last, now - back)
            found = self._between(begin, now)
            if found:
                return found[-1]
            if begin == last:
                return 0
            back *= 8

    def _between(self, begin: int, end: int) -> list[int]:
        """All instants after `begin` up to `end`."""
        if self.every:
            return list(range(self.after(begin), end + 1, self.every))
        return list(itertools.takewhile(lambda instant: instant <= end, self._instants(begin)))

    def _instants(self, begin: int) -> Iterator[int]:
        """The instants of a cron expression after `begin`, in order."""
        start = (_EPOCH + timedelta(microseconds=begin // 1000)).astimezone(_zone(self.tz))
        for at in _cron(self.cron, start):
            # In the hour that a zone lives through twice cronsim begins with the first of the two.
            instant = (at.astimezone(UTC) - _EPOCH) // timedelta(seconds=1) * SECOND
            if instant > begin:
                yield instant
                begin = instant

    def words(self) -> str:
        """When, for people."""
        if self.cron:
            return self.cron if self.tz == "UTC" else f"{self.cron} {self.tz}"
        return f"every {self.every / SECOND:g} s"


@functools.cache
def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise SettingError(f"no time zone {name!r}", name="tz") from None


def _cron(expression: str, start: datetime) -> Any:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise ImportError("schedules need: pip install 'fastjournal[tasks]'") from None

    try:
        return CronSim(expression, start)
    except CronSimError as error:
        raise SettingError(f"{expression!r} is no cron expression: {error}", name="cron") from None
