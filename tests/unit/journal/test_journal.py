"""The embedded journal from outside: what its methods do, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fastjournal import Journal, NewJob, Outcome, Priority, State
from fastjournal.archive.manifest import find_newest
from fastjournal.archive.restore import plan_restore, restore
from fastjournal.archive.store import DirectoryStore
from fastjournal.clock import SECOND
from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    ClockSkew,
    Closed,
    LeaseLost,
    Locked,
    LockTimeout,
    NotFound,
    OutOfRange,
    QueuePaused,
    RequestError,
    SettingError,
    TimedOut,
    TooLarge,
)
from fastjournal.testing import (
    Answers,
    ManualClock,
    MemoryFiles,
    PromiseBroken,
    check_max_wait,
    check_one_waiting_row,
    check_replay,
    check_stale_token,
)

HOME = Path("/jobs")


@pytest.fixture
def files() -> MemoryFiles:
    memory = MemoryFiles()
    memory.make_directory(HOME.parent)
    return memory


@pytest.fixture
def j(files: MemoryFiles, clock: ManualClock) -> Iterator[Journal]:
    journal = Journal(
        HOME, files=files, clock=clock, background=False, chance=Random(1), max_payload=1000
    )
    yield journal
    check_replay(journal)
    journal.close()


def test_a_job_goes_its_way(j: Journal) -> None:
    receipt = j.put(b"work", queue="q", priority=Priority.IMPORTANT)
    assert receipt.outcome is Outcome.NEW
    job = j.lease("q", worker="me")
    assert job is not None
    assert (job.id, job.payload, job.queue, job.key) == (receipt.id, b"work", "q", "")
    assert (job.priority, job.attempt, job.lease.job.worker) == (10, 1, b"me")
    assert job.until == datetime.fromtimestamp(1_700_000_060, UTC)
    assert j.job(job.id).state is State.PROCESSING
    job.done()
    with pytest.raises(NotFound):
        j.job(job.id)
    assert j.lease("q") is None


def test_a_repeated_key_is_merged_and_gets_a_twin_while_it_is_worked_on(j: Journal) -> None:
    """SNAP-KEY-1..9, D-13; the queue is the domain of the key unless told."""
    first = j.put(b"1", key="http://example.com/a")
    again = j.put(b"2", key="http://example.com/a", priority=5)
    assert (again.id, again.outcome) == (first.id, Outcome.MERGED)
    job = j.lease("example.com")
    assert job is not None
    assert (job.payload, job.priority, job.key) == (b"2", 5, "http://example.com/a")
    twin = j.put(b"3", key="http://example.com/a")
    assert twin.outcome is Outcome.TWIN
    assert j.lease() is None
    assert j.job(key="http://example.com/a").id == twin.id
    check_one_waiting_row(j)
    job.done()
    second = j.lease()
    assert second is not None
    assert second.payload == b"3"


def test_a_unique_key_is_refused_while_it_is_there(j: Journal) -> None:
    j.put(b"1", key="k", queue="q", mode="unique")
    with pytest.raises(AlreadyExists):
        j.put(b"2", key="k", queue="q", mode="unique")


def test_the_newest_timestamp_wins(j: Journal, clock: ManualClock) -> None:
    """D-09: an equal one counts as old, so sending again is harmless; one ahead is refused."""
    now = clock.now() / SECOND
    j.put(b"new", key="k", queue="q", timestamp=now)
    assert j.put(b"again", key="k", queue="q", timestamp=now).outcome is Outcome.STALE
    with pytest.raises(ClockSkew):
        j.put(b"x", key="k", queue="q", timestamp=now + 60)
    assert j.job(key="k", queue="q").value == b"new"


def test_a_put_with_a_chosen_id_may_be_sent_again(j: Journal) -> None:
    job_id = bytes(15) + b"\x01"
    assert j.put(b"1", queue="q", id=job_id).id == job_id
    again = j.put(b"1", queue="q", id=job_id)
    assert again.id == job_id
    assert j.status().rows == 1


def test_delays_instants_and_lifetimes(j: Journal, clock: ManualClock) -> None:
    later = datetime.fromtimestamp(clock.now() / SECOND, UTC) + timedelta(seconds=20)
    j.put(b"in ten", queue="q", delay=10, ttl=5)
    j.put(b"at twenty", queue="q", due=later, expires=later + timedelta(seconds=1))
    j.put(b"half a second", queue="q", delay=timedelta(milliseconds=500))
    assert j.lease("q") is None
    assert j.queue("q").future == 3
    clock.advance(0.5)
    job = j.lease("q")
    assert job is not None
    assert job.payload == b"half a second"
    clock.advance(10)
    assert [job.payload for job in j.lease_many(5, "q")] == [b"in ten"]
    clock.advance(9.5)
    assert [job.payload for job in j.lease_many(5, "q")] == [b"at twenty"]
    clock.advance(1.1)
    assert j.tick() == 1  # it has expired while it was worked on, as the other one had before
    assert [one.value for one in j.jobs()] == [b"half a second"]


def test_max_wait_bounds_how_far_repeats_push_a_key(j: Journal, clock: ManualClock) -> None:
    """F54: no key waits past insertion + max_wait."""
    j.configure("q", max_wait=60)
    j.put(b"0", key="k", queue="q", delay=30)
    for number in range(20):
        clock.advance(10)
        j.put(b"%d" % number, key="k", queue="q", delay=30)
        check_max_wait(j)
        if j.lease("q") is not None:
            assert number == 5  # a minute after it was first put
            return
    raise AssertionError("starved")


def test_failures_are_tried_again_after_growing_waits_then_dead_then_redriven(
    j: Journal, clock: ManualClock
) -> None:
    j.configure("q", max_fails=3, backoff_base=10, backoff_jitter=0)
    receipt = j.put(b"x", queue="q")
    for wait, outcome in ((10, State.WAITING), (20, State.WAITING), (0, State.FAILED)):
        job = j.lease("q")
        assert job is not None
        assert job.fail("reason") is outcome
        assert j.lease("q") is None
        clock.advance(wait + 1)
    assert j.result(receipt.id) == (False, b"reason")
    assert j.queue("q").dead == 1
    assert j.redrive(queue="q") == 1
    job = j.lease("q")
    assert job is not None
    assert job.lease.job.fails == 0
    assert job.fail(delay=3) is State.WAITING
    assert j.job(receipt.id).due // 1000 == (clock.now() + 3 * SECOND) // 1000
    assert j.redrive(queue="empty") == 0
    with pytest.raises(BadRequest):
        j.redrive(receipt.id)


def test_a_lease_ends_unless_it_is_touched(j: Journal, clock: ManualClock) -> None:
    """SNAP-COL-8."""
    j.put(b"x", queue="q", lease=10)
    first = j.lease("q")
    assert first is not None
    clock.advance(9)
    first.touch()
    assert first.lease.until == clock.now() + 10 * SECOND
    clock.advance(9)
    first.touch(1)
    assert j.lease("q") is None
    clock.advance(1)
    second = j.lease("q")
    assert second is not None
    assert second.attempt == 2
    check_stale_token(j, first.id, first.token)
    with pytest.raises(LeaseLost):
        first.done()
    second.done()


def test_the_clock_may_step_back_an_hour(
    j: Journal, files: MemoryFiles, clock: ManualClock
) -> None:
    """F45: a lease keeps its length, a due job stays due, also over a restart."""
    j.put(b"x", queue="q")
    job = j.lease("q", lease=60)
    assert job is not None
    clock.step(-3600)
    j.put(b"y", queue="q", delay=5)
    clock.advance(30)
    assert [one.payload for one in j.lease_many(5, "q")] == [b"y"]
    clock.advance(31)
    assert [one.payload for one in j.lease_many(5, "q")] == [b"x"]
    clock.step(-3600)
    with Journal(HOME, files=files.killed(), clock=clock, background=False) as again:
        again.put(b"z", queue="q", delay=5)
        clock.advance(6)
        found = again.lease("q")
        assert found is not None
        assert found.payload == b"z"
        check_replay(again)


@pytest.mark.parametrize("many", [1, 40])
def test_the_clock_may_step_forward_an_hour(
    j: Journal, files: MemoryFiles, clock: ManualClock, many: int
) -> None:
    """F45: leases and locks keep their length, also over a restart; due dates follow the clock."""
    for number in range(many):
        j.put(b"x", queue="q", key=str(number))
    held = j.lease_many(many, "q", lease=60)
    later = j.put(b"later", queue="later", delay=1800)
    lock = j.entries.lock("key", 60)
    j.entries.set("worked on", 1, persist=False)
    j.entries.entry("worked on", lease=60)
    clock.step(3600)
    for _ in range(5):
        clock.advance(1)
        j.tick()
    due = j.lease("later")
    assert due is not None
    assert due.id == later.id, "half an hour is over, by the wall clock"
    assert j.lease_many(many, "q") == []
    with pytest.raises(Locked):
        j.entries.set("key", 1)
    lock.free()
    with pytest.raises(NotFound):
        j.entries.entry("worked on", skip_worked_on=True)
    with Journal(HOME, files=files.killed(), clock=clock, background=False) as again:
        assert again.lease_many(many, "q") == []
        clock.advance(50)
        assert again.lease_many(many, "q") == []
        clock.advance(6)
        assert len(again.lease_many(many, "q")) == many
    held[0].touch(60)
    held[0].done()
    assert len(j.lease_many(many, "q")) == many - 1
    check_replay(j)


def test_a_step_of_the_clock_on_a_full_disk_waits(
    j: Journal, files: MemoryFiles, clock: ManualClock
) -> None:
    j.put(b"x", queue="q")
    held = j.lease("q", lease=60)
    assert held is not None
    j.engine.reserve.give_up()
    files.capacity = 0
    clock.step(3600)
    j.engine.clock.now()
    assert j.lease("q") is None
    assert j.lease("q") is None
    files.capacity = None
    assert j.lease("q") is None
    held.done()
    check_replay(j)


def test_bulk_forms(j: Journal) -> None:
    receipts = j.put_many(
        [NewJob(b"q", b"0"), {"payload": b"1", "queue": "q"}, {"queue": "q", "priority": 1}]
    )
    assert [r.outcome for r in receipts] == [Outcome.NEW] * 3
    held = j.lease_many(10, "q", take=False)
    assert [job.payload for job in held] == [b"", b"0", b"1"]
    ends = [(job.id, job.token, None) for job in held[:2]]
    assert j.complete_many([*ends, (bytes(16), 1, None), (held[2].id, 9, b"r")]) == [
        True,
        True,
        False,
        False,
    ]
    assert j.put_many([]) == []
    assert j.complete_many([]) == []


def test_a_batch_with_a_refused_job_takes_none_in(j: Journal) -> None:
    j.put(b"x", key="taken", queue="q")
    j.drain("drained")
    before = j.digest()
    good = {"payload": b"ok", "queue": "q"}
    refused: list[tuple[Any, type[RequestError]]] = [
        ({"queue": "q", "key": "taken", "mode": "unique"}, AlreadyExists),
        ({"queue": "drained"}, QueuePaused),
        ({"queue": "q", "payload": bytes(1001)}, TooLarge),
        ({"queue": "q", "pay": b""}, BadRequest),
        ({"queue": "q", "limit": 10**9}, BadRequest),
        ({"queue": "q", "expires": 1}, OutOfRange),
        ({"queue": "q", "timestamp": 1_700_000_100}, ClockSkew),
        (("q", b"x"), BadRequest),
        (NewJob(b"q", bytes(1001)), TooLarge),
        (NewJob(b"q", "text"), BadRequest),  # type: ignore[arg-type]
    ]
    for bad, error in refused:
        with pytest.raises(error):
            j.put_many([good, bad, good])
    with pytest.raises(AlreadyExists):
        j.put_many([{**good, "key": "new"}, {**good, "key": "new", "mode": "unique"}])
    assert j.digest() == before


def test_asking_some_queues_a_prefix_or_all(j: Journal) -> None:
    for queue in ("web.a", "web.b", "mail"):
        j.put(queue.encode(), queue=queue)
    assert [job.queue for job in j.lease_many(5, prefix="web.")] == ["web.a", "web.b"]
    assert [job.queue for job in j.lease_many(5, queues=["mail", "none"])] == ["mail"]
    assert j.lease() is None


def test_fair_takes_turns_and_strict_takes_the_most_urgent(j: Journal) -> None:
    for number in range(3):
        j.put(b"", queue="busy", priority=number)
    j.put(b"", queue="quiet", priority=50)
    fair = [job.queue for job in j.lease_many(2)]
    assert sorted(fair) == ["busy", "quiet"]
    assert j.lease(fair=False).queue == "busy"  # type: ignore[union-attr]


def test_take_hands_a_job_out_for_good(j: Journal) -> None:
    j.put(b"x", queue="q")
    job = j.lease("q", take=True)
    assert job is not None
    assert job.payload == b"x"
    assert j.status().rows == 0
    with pytest.raises(NotFound):
        job.done()


def test_slow_jobs_wait_for_a_pass_without_other_work(j: Journal) -> None:
    """D-11."""
    j.put(b"slow", queue="q", priority=Priority.SLOW)
    j.put(b"quick", queue="q")
    job = j.lease("q")
    assert job is not None
    assert job.payload == b"quick"
    assert j.lease("q") is None
    job = j.lease("q")
    assert job is not None
    assert job.payload == b"slow"


def test_a_waiting_consumer_gets_a_slow_job_in_its_second_pass(j: Journal) -> None:
    j.put(b"slow", queue="q", priority=Priority.SLOW)
    j.put(b"quick", queue="q")
    assert [j.lease("q", wait=5).payload for _ in range(2)] == [b"quick", b"slow"]  # type: ignore[union-attr]


def test_pausing_draining_and_limits_of_a_queue(j: Journal) -> None:
    j.put(b"x", queue="q")
    j.pause("q")
    assert j.lease("q") is None
    j.drain("q")
    with pytest.raises(QueuePaused):
        j.put(b"y", queue="q")
    j.resume("q")
    j.put(b"y", queue="q")
    assert j.configure("q", concurrency=1).concurrency == 1
    assert len(j.lease_many(5, "q")) == 1
    assert j.lease("q") is None


def test_results_are_kept_until_they_expire(j: Journal, clock: ManualClock) -> None:
    receipt = j.put(b"x", queue="q")
    with pytest.raises(TimedOut):
        j.result(receipt.id)
    j.configure("q", result_ttl=100)
    job = j.lease("q")
    assert job is not None
    job.done(b"answer")
    assert j.result(receipt.id) == (True, b"answer")
    clock.advance(101)
    with pytest.raises(NotFound):
        j.result(receipt.id)


def test_deleting_by_id_and_by_key(j: Journal) -> None:
    one = j.put(b"x", queue="q")
    j.put(b"y", key="http://a/b")
    j.lease("a")
    j.put(b"z", key="http://a/b")
    assert j.delete(one.id) is True
    assert j.delete(one.id) is False
    assert j.delete(key="http://a/b") is True
    assert j.delete(key="http://a/b") is False
    assert j.delete(key="k", queue="none") is False
    assert (j.status().jobs, j.queues(), j.jobs()) == (0, [], [])


def test_looking_at_a_journal(j: Journal, clock: ManualClock) -> None:
    for number in range(5):
        j.put(b"%d" % number, queue="q" if number < 3 else "r", delay=100 if number == 4 else None)
    j.lease("q")
    assert [job.value for job in j.jobs(limit=2)] == [b"0", b"1"]
    assert [job.value for job in j.jobs("q", state=State.WAITING)] == [b"1", b"2"]
    assert [job.value for job in j.jobs(offset=3)] == [b"3", b"4"]
    (q, r) = j.queues()
    assert (q.name, q.ready, q.leased, q.future) == ("q", 2, 1, 0)
    assert (r.ready, r.future, r.next_due) == (1, 1, clock.now() + 100 * SECOND)
    status = j.status()
    assert (status.rows, status.queues, status.ready, status.leased, status.future) == (
        5,
        2,
        3,
        1,
        1,
    )
    assert (status.sync, status.disk_full, status.clean_start) == ("interval", False, False)
    assert status.log.counters.writes == 6
    with pytest.raises(NotFound):
        j.queue("none")


def test_a_journal_opens_again_where_it_was_left(
    j: Journal, files: MemoryFiles, clock: ManualClock
) -> None:
    """WQ-GEN-1: by its log alone, whatever was done to that; F20: a clean end is known."""
    j.configure("q", lease=5)
    j.put(b"x", queue="q", key="k")
    j.lease("q")
    before = j.digest()
    for how in (lambda: None, j.rotate, j.snapshot, j.clean):
        how()
        image = files.killed()
        with Journal(HOME, files=image, clock=clock, background=False) as again:
            assert again.digest() == before
            assert again.queue("q").settings.lease == 5 * SECOND
            assert not again.replayed.clean
        with Journal(HOME, files=image, clock=clock, background=False) as again:
            assert again.status().clean_start


def test_the_old_name_of_an_archive_ships_to_the_directory_beside_the_log(
    files: MemoryFiles, clock: ManualClock
) -> None:
    with pytest.warns(DeprecationWarning, match="archive="):
        j = Journal(
            HOME, files=files, clock=clock, background=False, segment_size=4096, history="archive"
        )
    with j:
        for number in range(100):
            j.put(b"x" * 100, queue="q", key=str(number % 5))
        assert j.clean()
        j.snapshot()
        j.put(b"more", queue="q")
        j.rotate()
        j.clean()
        status = j.archive_status()
        assert status is not None and status.address == str(HOME / "archive")
        j.ship()
        digest = j.digest()
        manifest = find_newest(DirectoryStore(HOME / "archive", files))
        assert manifest is not None and len(manifest.segments) >= 5
    back = HOME.parent / "back"
    restore(DirectoryStore(HOME / "archive", files), plan_restore(manifest), back, files=files)
    with Journal(back, files=files, clock=clock, background=False) as again:
        assert again.digest() == digest


def test_the_same_directory_cannot_be_opened_twice(
    j: Journal, files: MemoryFiles, clock: ManualClock
) -> None:
    with pytest.raises(LockTimeout):
        Journal(HOME, files=files, clock=clock, background=False)


def test_a_closed_journal_says_so(files: MemoryFiles) -> None:
    with Journal(HOME, files=files, background=False) as j:
        receipt = j.put(b"x", queue="q")
    for attempt in (lambda: j.put(b"x", queue="q"), lambda: j.put_many([]), j.lease, j.tick):
        with pytest.raises(Closed):
            attempt()
    assert j.job(receipt.id).value == b"x"  # looking is still allowed


TOO_LONG = 10**12
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - that is the point
BAD: list[tuple[str, Callable[[Journal, Any], object], type[RequestError]]] = [
    ("negative delay", lambda j, _: j.put(b"", queue="q", delay=-1), BadRequest),
    ("delay NaN", lambda j, _: j.put(b"", queue="q", delay=math.nan), BadRequest),
    ("endless delay", lambda j, _: j.put(b"", queue="q", delay=math.inf), BadRequest),
    ("delay past 2262", lambda j, _: j.put(b"", queue="q", delay=TOO_LONG), OutOfRange),
    ("delay that is no length", lambda j, _: j.put(b"", queue="q", delay="soon"), BadRequest),
    ("delay of truth", lambda j, _: j.put(b"", queue="q", delay=True), BadRequest),
    ("delay and due", lambda j, _: j.put(b"", queue="q", delay=1, due=2), BadRequest),
    ("naive due", lambda j, _: j.put(b"", queue="q", due=NAIVE), BadRequest),
    ("due before 1970", lambda j, _: j.put(b"", queue="q", due=-5), BadRequest),
    ("ttl of nothing", lambda j, _: j.put(b"", queue="q", ttl=0), BadRequest),
    ("ttl and expires", lambda j, _: j.put(b"", queue="q", ttl=1, expires=2), BadRequest),
    ("expired already", lambda j, _: j.put(b"", queue="q", expires=5), OutOfRange),
    ("lease of nothing", lambda j, _: j.put(b"", queue="q", lease=0), BadRequest),
    ("priority 256", lambda j, _: j.put(b"", queue="q", priority=256), OutOfRange),
    ("priority -1", lambda j, _: j.put(b"", queue="q", priority=-1), OutOfRange),
    ("priority 1.5", lambda j, _: j.put(b"", queue="q", priority=1.5), BadRequest),
    ("priority text", lambda j, _: j.put(b"", queue="q", priority="high"), BadRequest),
    ("key of 65,536 bytes", lambda j, _: j.put(b"", key="k" * 65_536), TooLarge),
    ("empty key", lambda j, _: j.put(b"", key="", queue="q"), BadRequest),
    ("key number", lambda j, _: j.put(b"", key=5, queue="q"), BadRequest),
    ("key that is no text", lambda j, _: j.put(b"", key="\ud800", queue="q"), BadRequest),
    ("no queue, no key", lambda j, _: j.put(b""), BadRequest),
    ("empty queue", lambda j, _: j.put(b"", queue=""), BadRequest),
    ("queue of 256 bytes", lambda j, _: j.put(b"", queue="q" * 256), TooLarge),
    ("payload text", lambda j, _: j.put("text", queue="q"), BadRequest),
    ("payload None", lambda j, _: j.put(None, queue="q"), BadRequest),
    ("payload over the limit", lambda j, _: j.put(bytes(1001), queue="q"), TooLarge),
    ("mode unknown", lambda j, _: j.put(b"", queue="q", key="k", mode="often"), BadRequest),
    ("unique without key", lambda j, _: j.put(b"", queue="q", mode="unique"), BadRequest),
    ("plain with key", lambda j, _: j.put(b"", queue="q", key="k", mode="plain"), BadRequest),
    ("negative limit", lambda j, _: j.put(b"", queue="q", max_attempts=-1), OutOfRange),
    ("timeouts 256", lambda j, _: j.put(b"", queue="q", max_timeouts=256), OutOfRange),
    ("limit as text", lambda j, _: j.put(b"", queue="q", max_fails="3"), BadRequest),
    ("clock ahead", lambda j, _: j.put(b"", queue="q", timestamp=1_700_000_006), ClockSkew),
    ("short id", lambda j, _: j.put(b"", queue="q", id=b"short"), BadRequest),
    ("lease zero jobs", lambda j, _: j.lease_many(0), BadRequest),
    ("lease half a job", lambda j, _: j.lease_many(0.5), BadRequest),
    ("lease, negative wait", lambda j, _: j.lease(wait=-1), BadRequest),
    ("lease, wait NaN", lambda j, _: j.lease(wait=math.nan), BadRequest),
    ("lease, negative length", lambda j, _: j.lease(lease=-1), BadRequest),
    ("lease, two ways", lambda j, _: j.lease("q", prefix="q"), BadRequest),
    ("lease, queues as text", lambda j, _: j.lease(queues="q"), BadRequest),
    ("lease, no queues", lambda j, _: j.lease(queues=[]), BadRequest),
    ("lease, long worker", lambda j, _: j.lease(worker="w" * 256), TooLarge),
    ("lease, worker number", lambda j, _: j.lease(worker=7), BadRequest),
    ("lease, prefix number", lambda j, _: j.lease(prefix=7), BadRequest),
    ("wrong token", lambda j, job: j.complete(job.id, job.token + 1), LeaseLost),
    ("wrong token, touch", lambda j, job: j.touch(job.id, 0), LeaseLost),
    ("wrong token, fail", lambda j, job: j.fail(job.id, 99), LeaseLost),
    ("wrong token, release", lambda j, job: j.release(job.id, 99), LeaseLost),
    ("text token", lambda j, job: j.complete(job.id, "1"), LeaseLost),
    ("unknown job", lambda j, _: j.complete(bytes(16), 1), NotFound),
    ("id as text", lambda j, _: j.complete("abc", 1), BadRequest),
    ("short id, job", lambda j, _: j.job(b"abc"), BadRequest),
    ("short id, delete", lambda j, _: j.delete(b"abc"), BadRequest),
    ("short id, redrive", lambda j, _: j.redrive(b"abc"), BadRequest),
    ("short id, result", lambda j, _: j.result(b"abc"), BadRequest),
    ("short id, touch", lambda j, _: j.touch(b"abc", 1), BadRequest),
    ("short id, fail", lambda j, _: j.fail(b"abc", 1), BadRequest),
    ("short id, release", lambda j, _: j.release(b"abc", 1), BadRequest),
    ("short id, many", lambda j, _: j.complete_many([(b"abc", 1, None)]), BadRequest),
    ("result text", lambda j, job: j.complete(job.id, job.token, "done"), BadRequest),
    ("result too large", lambda j, job: j.complete(job.id, job.token, bytes(1001)), TooLarge),
    ("reason text", lambda j, job: j.fail(job.id, job.token, "no"), BadRequest),
    ("negative extension", lambda j, job: j.touch(job.id, job.token, -1), BadRequest),
    ("negative release", lambda j, job: j.release(job.id, job.token, -1), BadRequest),
    ("delete nothing named", lambda j, _: j.delete(), BadRequest),
    ("delete both named", lambda j, job: j.delete(job.id, key="k"), BadRequest),
    ("redrive nothing", lambda j, _: j.redrive(), BadRequest),
    ("redrive what lives", lambda j, job: j.redrive(job.id), BadRequest),
    ("unknown setting", lambda j, _: j.configure("q", colour="red"), SettingError),
    ("setting out of range", lambda j, _: j.configure("q", slow_from=300), SettingError),
    ("setting of a wrong type", lambda j, _: j.configure("q", paused=1), SettingError),
    ("setting, negative length", lambda j, _: j.configure("q", lease=-1), BadRequest),
    ("setting, factor NaN", lambda j, _: j.configure("q", backoff_factor=math.nan), SettingError),
    ("setting, odd period", lambda j, _: j.configure("q", period="week"), SettingError),
    ("negative offset", lambda j, _: j.jobs(offset=-1), BadRequest),
    ("negative limit of a page", lambda j, _: j.jobs(limit=-1), BadRequest),
    ("unknown event", lambda j, _: j.subscribe("noise"), BadRequest),
    ("no backlog", lambda j, _: j.subscribe(backlog=0), BadRequest),
    ("job without a name", lambda j, _: j.job(), BadRequest),
]


@pytest.mark.parametrize(("attempt", "error"), [case[1:] for case in BAD], ids=[c[0] for c in BAD])
def test_bad_input_is_a_typed_error_and_changes_nothing(
    j: Journal, attempt: Callable[[Journal, Any], object], error: type[RequestError]
) -> None:
    j.put(b"x", queue="q", key="held")
    held = j.lease("q")
    before, written = j.digest(), j.status().log.written_time
    with pytest.raises(error):
        attempt(j, held)
    assert j.digest() == before
    assert j.status().log.written_time == written
    assert len(j.engine.wakeups) == 0


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"sync": "sometimes"}, "sync"),
        ({"sync": "os", "sync_interval": 5}, "sync_interval"),
        ({"sync_interval": 0}, "sync_interval"),
        ({"segment_size": 8}, "segment_size"),
        ({"history": "keep"}, "history"),
        ({"max_payload": 0}, "max_payload"),
        ({"max_payload": 2**30}, "max_payload"),
        ({"snapshot_bytes": -1}, "snapshot_bytes"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"zone_bytes": "0101"}, "zone_bytes"),
    ],
)
def test_bad_settings_of_a_journal_are_named(
    files: MemoryFiles, settings: dict[str, Any], name: str
) -> None:
    """F42: refused before anything is written."""
    with pytest.raises(SettingError) as refused:
        Journal(HOME, files=files, background=False, **settings)
    assert refused.value.name == name
    Journal(HOME, files=files, background=False).close()


def test_the_checks_of_promises_find_what_is_broken(j: Journal, clock: ManualClock) -> None:
    """A check that never fails proves nothing: each is shown a state that breaks its promise."""
    receipt = j.put(b"x", queue="q", key="k")
    answers = Answers()
    answers.put(receipt)
    answers.check(j)
    job = j.lease("q")
    assert job is not None
    with pytest.raises(PromiseBroken, match="accepted"):
        check_stale_token(j, job.id, job.token)  # not stale at all
    j.put(b"y", queue="q", key="k")
    j.delete(job.id)
    with pytest.raises(PromiseBroken, match="lost"):
        answers.check(j)
    ended = Answers()
    ended.end(j.job(key="k", queue="q").id)
    with pytest.raises(PromiseBroken, match="back"):
        ended.check(j)
    state = j.engine.state
    row = state.rows[j.job(key="k", queue="q").id]
    row.value = b"changed behind the log's back"
    with pytest.raises(PromiseBroken, match="replays to"):
        check_replay(j)
    row.value = b"y"
    j.configure("q", max_wait=10)
    fresh = state.rows[j.put(b"z", queue="q").id]
    fresh.due += 60 * SECOND
    with pytest.raises(PromiseBroken, match="too long"):
        check_max_wait(j)
    fresh.due -= 60 * SECOND
    fresh.key = row.key
    with pytest.raises(PromiseBroken, match="2 rows"):
        check_one_waiting_row(j)
    fresh.key = b""
