"""Schedules: their instants are cronsim's; each is fired once; missed ones by policy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from fastjournal import SettingError, Tasks
from fastjournal.clock import SECOND
from fastjournal.tasks import Schedule, known_schedules
from fastjournal.tasks.schedule import MAX_MISSED, TOLERANCE
from fastjournal.tasks.scheduler import Scheduler, instant_id
from fastjournal.testing import ManualClock
from fastjournal.testing.tasks import InlineTasks

HOUR = 3600
# Two changes of daylight saving lie in here, one of each kind, wherever the zone is.
BEGIN = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp())
END = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp())
MIDNIGHT = datetime(2026, 6, 1, tzinfo=UTC)


def ns(at: datetime) -> int:
    return int(at.timestamp()) * SECOND


def cron(expression: str, tz: str = "UTC", missed: Any = "one") -> Schedule:
    return Schedule.make("s", "t", expression, None, tz, missed)


fields = st.tuples(
    st.sampled_from(["*", "0", "*/5", "*/7", "30", "15,45", "59"]),
    st.sampled_from(["*", "0", "2", "1-3", "*/6", "23"]),
    st.sampled_from(["*", "1", "29", "*/2"]),
    st.sampled_from(["*", "*/3", "10", "3,11"]),
    st.sampled_from(["*", "SUN", "1-5", "6"]),
).map(" ".join)
zones = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])
moments = st.integers(BEGIN * SECOND, END * SECOND)


@given(fields, zones, moments)
def test_the_instants_of_a_schedule_are_those_of_cronsim(
    expression: str, tz: str, begin: int
) -> None:
    zone = ZoneInfo(tz)
    start = datetime.fromtimestamp(begin // SECOND, zone)
    expected: list[int] = []
    for at in CronSim(expression, start):
        instant = ns(at)
        if instant > max([begin, *expected[-1:]]):  # it may begin in the first of two equal hours
            expected.append(instant)
        if len(expected) == 12:
            break
    schedule = cron(expression, tz)
    found, at_instant = [], begin
    for _ in expected:
        at_instant = schedule.after(at_instant)
        found.append(at_instant)
    assert found == expected


@given(fields, zones, moments, st.integers(0, 40 * 24 * HOUR))
def test_whoever_looks_whenever_finds_the_same_newest_instant(
    expression: str, tz: str, last: int, passed: int
) -> None:
    schedule = cron(expression, tz)
    now = last + passed * SECOND
    newest, at = 0, schedule.after(last)
    while at <= now:
        newest, at = at, schedule.after(at)
    assert schedule.due(last, now) == ([newest] if newest else [], newest or last)


@given(moments, st.integers(1, 10**6), st.integers(0, 10**7))
def test_an_interval_has_its_multiples(begin: int, step: int, passed: int) -> None:
    schedule = Schedule.make("s", "t", "", step)
    now = begin + passed * SECOND
    newest = now // (step * SECOND) * step * SECOND
    assert schedule.after(begin) > begin
    assert schedule.after(begin) % (step * SECOND) == 0
    assert schedule.due(begin, now)[1] == max(begin, newest)


def test_missed_instants_are_skipped_fired_once_or_all() -> None:
    last = ns(MIDNIGHT)
    late = last + 3 * HOUR * SECOND + TOLERANCE + 1
    in_time = last + 3 * HOUR * SECOND + TOLERANCE
    hours = [last + n * HOUR * SECOND for n in (1, 2, 3)]
    assert cron("0 * * * *", missed="skip").due(last, late) == ([], hours[-1])
    assert cron("0 * * * *", missed="skip").due(last, in_time) == (hours[-1:], hours[-1])
    assert cron("0 * * * *", missed="one").due(last, late) == (hours[-1:], hours[-1])
    assert cron("0 * * * *", missed="all").due(last, late) == (hours, hours[-1])


@pytest.mark.parametrize(
    "schedule", [cron("* * * * *", missed="all"), Schedule.make("s", "t", "", 60, missed="all")]
)
def test_all_is_bounded(schedule: Schedule) -> None:
    last = ns(MIDNIGHT)
    fired, newest = schedule.due(last, last + 30 * 24 * HOUR * SECOND)
    assert len(fired) == MAX_MISSED
    assert fired[-1] == newest == last + 30 * 24 * HOUR * SECOND


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "61 * * * *"},
        {"cron": "every day"},
        {"cron": "* * * * *", "tz": "Mars/Olympus"},
        {"cron": "* * * * *", "every": 5},
        {},
        {"every": 0.5},
        {"cron": "* * * * *", "missed": "maybe"},
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(SettingError):
        Schedule.make("s", "t", **wrong)


def make_app(seen: list[Any], missed: Any = "one") -> Tasks:
    app = Tasks()

    @app.cron("*/5 * * * *", tz="Europe/Berlin", missed=missed, name="five", arguments={"x": 7})
    def work(x: int) -> None:
        seen.append((x, app.now()))

    return app


def test_a_cron_task_is_called_at_each_instant() -> None:
    seen: list[Any] = []
    app = make_app(seen)
    with InlineTasks(app, clock=ManualClock(ns(MIDNIGHT) + SECOND)) as inline:
        inline.advance(HOUR)
        assert len(seen) == 12
        assert all(x == 7 for x, _ in seen)
        assert [at // SECOND % 300 for _, at in seen] == [0] * 12
        (known,) = known_schedules(inline.journal)
        assert (known.name, known.cron, known.tz) == ("five", "*/5 * * * *", "Europe/Berlin")
        assert known.last == ns(MIDNIGHT + timedelta(hours=1))
        assert known.next == ns(MIDNIGHT + timedelta(hours=1, minutes=5))


def test_two_workers_fire_an_instant_once_also_after_its_call_has_ended() -> None:
    seen: list[Any] = []
    app = make_app(seen)
    with InlineTasks(app, inline=False, clock=ManualClock(ns(MIDNIGHT) + SECOND)) as inline:
        first, second = Scheduler(app), Scheduler(app)
        first.declare()
        inline.clock.advance(301)
        first.fire_due()
        second.fire_due()
        assert len(inline.journal.jobs()) == 1
        assert inline.run() == 1
        inline.journal.entries.delete("fastjournal.schedules.last/five")  # as if it had died before
        inline.journal.entries.set("fastjournal.schedules.last/five", ns(MIDNIGHT))
        second.fire_due()
        assert inline.run() == 0
        assert len(seen) == 1


def test_the_id_of_an_instant_is_its_own() -> None:
    ids = {instant_id(name, instant) for name in ("a", "b") for instant in range(1000)}
    assert len(ids) == 2000
    assert instant_id("a", 1) == instant_id("a", 1)
    assert all(one[6] >> 4 == 4 and one[8] >> 6 == 2 for one in ids)


@pytest.mark.parametrize(("missed", "calls"), [("skip", 0), ("one", 1), ("all", 12)])
def test_instants_missed_while_nobody_worked_follow_the_policy(missed: str, calls: int) -> None:
    seen: list[Any] = []
    app = make_app(seen, missed)
    with InlineTasks(app, inline=False, clock=ManualClock(ns(MIDNIGHT) + SECOND)) as inline:
        inline.clock.advance(HOUR + 120)  # nobody looks
        Scheduler(app).fire_due()
        inline.run()
        assert len(seen) == calls
        inline.advance(300)
        assert len(seen) == calls + 1


def test_a_schedule_that_says_something_else_begins_now() -> None:
    clock = ManualClock(ns(MIDNIGHT) + SECOND)
    seen: list[Any] = []
    app = make_app(seen)
    with InlineTasks(app, inline=False, clock=clock) as inline:
        other = Tasks(inline.journal, clock=clock)
        other.cron("* * * * *", missed="all", name="five")(lambda: seen.append("new"))
        clock.advance(HOUR)
        scheduler = Scheduler(other)
        scheduler.declare()
        scheduler.fire_due()
        assert scheduler.fired == 0
        clock.advance(61)
        scheduler.fire_due()
        assert scheduler.fired == 1


def test_an_interval_and_a_task_that_is_called_otherwise_too() -> None:
    app = Tasks()
    seen: list[str] = []

    @app.every(90, name="often", arguments={"who": "clock"})
    @app.task
    def work(who: str) -> None:
        seen.append(who)

    with InlineTasks(app, clock=ManualClock(90 * 10**7 * SECOND)) as inline:
        work.put("me")
        inline.advance(900)
    assert seen == ["me"] + ["clock"] * 10


def test_arguments_of_a_schedule_are_checked_where_it_is_defined() -> None:
    app = Tasks()
    with pytest.raises(TypeError, match="Missing required argument 'x'"):
        app.cron("* * * * *")(lambda x: None)
