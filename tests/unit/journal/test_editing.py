"""A waiting job changed by an operator: what it keeps, what the log says, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal import Journal
from fastjournal.arguments import as_datetime
from fastjournal.clock import SECOND
from fastjournal.errors import BadRequest, NotFound, OutOfRange, TooLarge
from fastjournal.journal.engine.counting import LATENCIES, MAX_WATCHED
from fastjournal.model import State
from fastjournal.testing.clock import ManualClock
from fastjournal.testing.files import MemoryFiles

HOME = Path("/home/jobs")


@pytest.fixture
def files() -> MemoryFiles:
    made = MemoryFiles()
    made.make_directory(HOME.parent)
    return made


@pytest.fixture
def journal(clock: ManualClock, files: MemoryFiles) -> Journal:
    return opened(clock, files)


def opened(clock: ManualClock, files: MemoryFiles) -> Journal:
    return Journal(HOME, background=False, clock=clock, files=files)


def test_priority_due_and_payload_change_and_the_rest_stays(
    journal: Journal, clock: ManualClock, files: MemoryFiles
) -> None:
    job_id = journal.put(b"old", queue="mail", key="a", delay=3600, max_fails=7).id
    before = journal.job(job_id)
    clock.advance(5)
    journal.operations.edit(job_id, value=b"new", priority=3, due=clock.now())
    after = journal.job(job_id)
    assert (after.value, after.priority, after.due) == (b"new", 3, clock.now())
    assert after.modified > before.modified
    assert (after.inserted, after.key, after.max_fails) == (before.inserted, "a", 7)
    leased = journal.lease("mail")
    assert leased is not None and leased.id == job_id
    leased.release()
    picture = journal.job(job_id)
    journal.close()
    with opened(clock, files) as again:
        assert again.job(job_id) == picture


def test_an_edit_keeps_counters_and_the_reason_of_the_last_failure(
    journal: Journal, clock: ManualClock, files: MemoryFiles
) -> None:
    job_id = journal.put(b"x", queue="mail", max_fails=3).id
    leased = journal.lease("mail")
    assert leased is not None
    leased.fail("boom")
    journal.operations.edit(job_id, due=clock.now())
    job = journal.job(job_id)
    assert (job.attempts, job.fails, job.note, job.due) == (1, 1, b"boom", clock.now())
    digest = journal.digest()
    journal.close()
    with opened(clock, files) as again:
        assert again.digest() == digest


def test_a_put_written_before_a_change_of_priority_still_merges(
    journal: Journal, clock: ManualClock
) -> None:
    job_id = journal.put(b"first", queue="mail", key="a").id
    written = clock.now() + SECOND
    clock.advance(10)
    journal.operations.edit(job_id, priority=1)
    journal.put(b"second", queue="mail", key="a", timestamp=as_datetime(written))
    job = journal.job(job_id)
    assert (job.value, job.priority) == (b"second", 1)


def test_the_longest_wait_holds_for_operators_too(journal: Journal, clock: ManualClock) -> None:
    journal.configure("mail", max_wait=60)
    job_id = journal.put(b"x", queue="mail", key="a").id
    journal.operations.edit(job_id, due=clock.now() + 3600 * SECOND)
    job = journal.job(job_id)
    assert job.due == job.inserted + 60 * SECOND


def test_what_cannot_be_edited_is_refused_and_stays(journal: Journal) -> None:
    edit = journal.operations.edit
    job_id = journal.put(b"x", queue="mail", max_fails=1).id
    with pytest.raises(OutOfRange, match="0 to 255"):
        edit(job_id, priority=256)
    with pytest.raises(TooLarge):
        edit(job_id, value=bytes(journal.max_payload + 1))
    with pytest.raises(NotFound):
        edit(bytes(16), priority=1)
    journal.entries.set("entry", "x")
    (entry,) = [row.id for row in journal.engine.state.rows.values() if not row.queue.name]
    with pytest.raises(NotFound):
        edit(entry, priority=1)
    leased = journal.lease("mail")
    assert leased is not None
    with pytest.raises(BadRequest, match="waits"):
        edit(job_id, priority=1)
    leased.fail("boom")
    with pytest.raises(BadRequest, match="waits"):
        edit(job_id, priority=1)
    assert journal.job(job_id).state is State.FAILED


def test_queues_are_counted_while_somebody_watches(journal: Journal, clock: ManualClock) -> None:
    counts = journal.engine.counts
    journal.put(b"x", queue="mail")
    leased = journal.lease("mail")
    assert leased is not None
    leased.done()
    assert counts.watch_queues() == {}  # nobody watched so far
    for outcome in ("done", "fail"):
        journal.put(b"x", queue="mail", max_fails=1)
        clock.advance(3)
        leased = journal.lease("mail", lease=60)
        assert leased is not None
        clock.advance(0.25)
        if outcome == "done":
            leased.done()
        else:
            leased.fail("boom")
    (name, queue), *others = counts.watch_queues().items()
    assert (name, others) == (b"mail", [])
    assert (queue.leases, queue.completions, queue.failures) == (2, 1, 1)
    assert queue.waits[LATENCIES.index(5 * SECOND)] == 2
    assert queue.runs[LATENCIES.index(SECOND // 2)] == 2
    assert counts.watch_queues() == {}


def test_so_many_queues_are_watched_at_most(journal: Journal) -> None:
    counts = journal.engine.counts
    counts.watch_queues()
    journal.put_many({"payload": b"x", "queue": f"q{n}"} for n in range(MAX_WATCHED + 5))
    while journal.lease(prefix="q") is not None:
        pass
    assert counts.leases == MAX_WATCHED + 5
    assert len(counts.watch_queues()) == MAX_WATCHED
