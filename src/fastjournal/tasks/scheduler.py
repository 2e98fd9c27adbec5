"""Fires schedules: each instant once, however many workers there are and whenever they die.

Rules:

1. The call of an instant has an id made from the schedule's name and the instant, and a put whose
   id is there already changes nothing. So two workers that fire the same instant, or one that does
   it again after a crash, put one call.
2. How far a schedule has come is an entry that only moves forward. It moves after the put: a worker
   that dies in between leaves the instant to the next one, who puts the same call again.
3. A scheduled call leaves a result when it ends, so its id is known for as long as its queue keeps
   results (a day unless told). Only a worker that stood still for longer than that between looking
   and putting could fire an instant again.
4. Time is that of the journal: workers whose clocks differ agree.
5. A schedule that is new, or says something else than before, begins now.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import msgspec

from fastjournal.arguments import as_datetime
from fastjournal.errors import AlreadyExists, JournalError
from fastjournal.tasks.announcing import ScheduleInfo, last_key, schedule_key
from fastjournal.tasks.execution import SCHEDULE
from fastjournal.tasks.handle import App
from fastjournal.tasks.schedule import Schedule

__all__ = ["Scheduler", "instant_id"]

_log = logging.getLogger("fastjournal.tasks")


def instant_id(schedule: str, instant: int) -> bytes:
    """The id of the call of an instant: the same for whoever fires it."""
    digest = bytearray(
        blake2b(f"{schedule}@{instant}".encode(), digest_size=16, person=b"schedule").digest()
    )
    digest[6] = digest[6] & 0x0F | 0x40  # an id like any other, never that of a forwarder
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


class Scheduler:
    """The schedules of an app, over its journal."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.fired = 0
        """Instants that were put by this one, again or for the first time."""

    @property
    def schedules(self) -> Iterable[Schedule]:
        """What is to be fired."""
        return self._app.schedules.values()

    def declare(self) -> None:
        """Make the schedules known to the journal."""
        entries: Any = self._app.journal.entries
        for schedule in self.schedules:
            info = ScheduleInfo(
                schedule.name, schedule.task, schedule.cron, schedule.every, schedule.tz,
                schedule.missed,
            )  # fmt: skip
            text = msgspec.json.encode(info).decode()
            if entries.get(schedule_key(schedule.name)) != text:
                self._begin(schedule.name)
                entries.set(schedule_key(schedule.name), text)

    def _begin(self, name: str) -> int:
        """Nothing before now counts."""
        now = self._app.now()
        self._set_last(name, now)
        return now

    def _set_last(self, name: str, instant: int) -> None:
        """The latest instant that was fired; an earlier one never takes its place."""
        stamp = as_datetime(self._app.own_time(instant))
        self._app.journal.entries.set(last_key(name), instant, timestamp=stamp)

    def fire_due(self) -> int:
        """Put the calls of all instants that are due; returns the next instant, 0 if none is."""
        coming = []
        for schedule in self.schedules:
            try:
                coming.append(self._fire(schedule))
            except JournalError as error:
                _log.warning("schedule %s was not fired, will try again: %s", schedule.name, error)
                coming.append(self._app.now())
        return min((instant for instant in coming if instant), default=0)

    def _fire(self, schedule: Schedule) -> int:
        app = self._app
        entries: Any = app.journal.entries
        last = entries.get(last_key(schedule.name))
        now = app.now()
        if type(last) is not int:
            last = self._begin(schedule.name)
        instants, newest = schedule.due(last, now)
        for instant in instants:
            self._put(schedule, instant)
        if newest > last:
            self._set_last(schedule.name, newest)
        return schedule.after(max(newest, last))

    def _put(self, schedule: Schedule, instant: int) -> None:
        task = self._app.tasks[schedule.task]
        when = as_datetime(instant)
        assert when is not None
        headers = {SCHEDULE: schedule.name, "instant": when.isoformat()}
        payload, _ = task.codec.encode((), self._app.schedule_arguments[schedule.name], headers)
        self._app.declare_queue(task.options.queue)
        try:
            self._app.journal.put(
                payload,
                queue=task.options.queue,
                key=f"{schedule.name}@{when:%Y-%m-%dT%H:%M:%SZ}",
                priority=task.options.priority,
                max_fails=task.options.retry.times + 1,
                id=instant_id(schedule.name, instant),
            )
        except AlreadyExists:
            return
        self.fired += 1
