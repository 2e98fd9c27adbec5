"""The judge of the kill test sees each kind of broken promise, and nothing where all were kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastjournal import Journal, LeasedJob
from fastjournal.clock import SECOND
from fastjournal.testing import ManualClock, MemoryFiles
from kill_history import History, Verdict

NOW = 1_700_000_000 * 10**9


@pytest.fixture
def journal() -> Iterator[Journal]:
    clock = ManualClock(NOW)
    with Journal("/j", files=MemoryFiles(), clock=clock, background=False) as j:
        clock.advance(1)
        yield j


def put(journal: Journal, history: History, *, told: bool = True) -> bytes:
    job_id = journal.put(b"x", queue="jobs").id
    if told:
        history.lives[job_id].put_at = NOW
    return job_id


def lease(journal: Journal, history: History, at: int) -> LeasedJob:
    journal.put(b"x", queue="jobs")
    job = journal.lease("jobs", lease=10)
    assert job is not None
    history.leased(job, at, at, at + 10 * SECOND)
    return job


def broken(verdict: Verdict) -> dict[str, int]:
    names = ("lost", "doubled", "resurrected", "miscounted", "mistold", "misled", "hung")
    return {name: getattr(verdict, name) for name in names if getattr(verdict, name)}


def test_kept_promises_are_no_fault(journal: Journal) -> None:
    history = History()
    job = lease(journal, history, NOW)
    put(journal, history)
    life = history.lives[job.id]
    job.done(b"r")
    life.put_at, life.ending, life.done, life.result = NOW, True, 1, b"r"
    history.sums["sum"] = [journal.entries.add("sum", 1)]
    journal.entries.set("entry", 3)
    history.set_told["entry"], history.set_asked["entry"] = 2, 3
    journal.put(b"7", queue="keyed", key="k")
    history.keyed_told["k"] = 7
    verdict = history.judge(journal)
    assert broken(verdict) == {}
    assert (verdict.jobs, verdict.done, verdict.broken) == (2, 1, 0)


def test_what_is_not_there_is_lost_unless_its_end_was_asked_for(journal: Journal) -> None:
    history = History()
    history.lives[b"a" * 16].put_at = NOW
    history.lives[b"b" * 16].put_at = NOW
    history.lives[b"b" * 16].ending = True
    history.lives[b"c" * 16].ending = True
    history.keyed_told["k"] = 3
    history.keyed_told["ended"] = 3
    history.keyed_ended["ended"] = 3
    history.set_told["entry"], history.set_asked["entry"] = 2, 3
    assert broken(history.judge(journal)) == {"lost": 3}


def test_a_result_that_is_another_one_is_lost(journal: Journal) -> None:
    history = History()
    job = lease(journal, history, NOW)
    job.done(b"r")
    life = history.lives[job.id]
    life.put_at, life.ending, life.done, life.result = NOW, True, 1, b"s"
    assert broken(history.judge(journal)) == {"lost": 1}


def test_a_job_told_done_twice_or_leased_twice_is_doubled(journal: Journal) -> None:
    history = History()
    job = lease(journal, history, NOW)
    job.done()
    history.lives[job.id].ending = True
    history.lives[job.id].done = 2
    other = lease(journal, history, NOW)
    history.leased(other, NOW + 60 * SECOND, NOW + 60 * SECOND, NOW + 70 * SECOND)
    assert broken(history.judge(journal)) == {"doubled": 2}


def test_a_lease_before_the_end_of_another_is_doubled(journal: Journal) -> None:
    history = History()
    job = lease(journal, history, NOW)
    later = history.leased(job, NOW + 5 * SECOND, NOW + 5 * SECOND, NOW + 15 * SECOND)
    later.token = 2
    assert broken(history.judge(journal)) == {"doubled": 1}
    history = History()
    history.leased(job, NOW, NOW, NOW + 10 * SECOND).given_back = True
    history.leased(job, NOW + 5 * SECOND, NOW + 5 * SECOND, NOW + 15 * SECOND).token = 2
    assert broken(history.judge(journal)) == {}


def test_two_leases_told_at_once_count_in_the_order_of_their_tokens(journal: Journal) -> None:
    """A slow sync answers both: who had the job first may be the last to write it down."""
    job = lease(journal, History(), NOW)
    for told_first, broken_promises in ((2, {}), (1, {}), (3, {"doubled": 1})):
        history = History()
        first = history.leased(job, NOW, NOW + 3 * SECOND + told_first, NOW + SECOND)
        second = history.leased(job, NOW + 2 * SECOND, NOW + 3 * SECOND + 2, NOW + 5 * SECOND)
        first.token, second.token = 7, 7 if told_first == 3 else 8
        third = history.leased(job, NOW + 9 * SECOND, NOW + 9 * SECOND, NOW + 10 * SECOND)
        third.token = 9
        assert broken(history.judge(journal)) == broken_promises
    third.token = 6  # asked for when the others had been told
    assert broken(history.judge(journal)) == {"doubled": 3}


def test_a_job_that_began_anew_is_not_taken_for_its_first_life(journal: Journal) -> None:
    history = History()
    job = lease(journal, history, NOW)
    history.lives.clear()
    old = history.leased(job, NOW, NOW + 2 * SECOND, NOW + 10 * SECOND)
    old.token, old.given_back = 5, True
    history.leased(job, NOW + SECOND, NOW + 3 * SECOND, NOW + 11 * SECOND)
    verdict = history.judge(journal)
    assert (broken(verdict), verdict.reborn) == ({}, 1)


def test_a_lease_that_ends_early_by_no_more_than_a_clock_may_drift_is_not(journal: Journal) -> None:
    history = History(drift=SECOND)
    job = lease(journal, history, NOW)
    later = history.leased(job, NOW + 9 * SECOND, NOW + 9 * SECOND, NOW + 20 * SECOND)
    later.token = 2
    assert broken(history.judge(journal)) == {}
    later.at -= 1
    assert broken(history.judge(journal)) == {"doubled": 1}


def test_a_job_that_was_done_and_waits_is_resurrected(journal: Journal) -> None:
    history = History()
    history.lives[put(journal, history)].done = 1
    assert broken(history.judge(journal)) == {"resurrected": 1}


def test_a_job_that_begins_again_is_resurrected_unless_its_put_was_answered_later(
    journal: Journal,
) -> None:
    history = History()
    job = lease(journal, history, NOW)
    history.lives[job.id].leases[0].given_back = True
    history.leased(job, NOW + 60 * SECOND, NOW + 60 * SECOND, NOW + 70 * SECOND)
    history.lives[job.id].put_at = NOW + 1
    assert history.judge(journal).reborn == 1
    assert broken(history.told) == {}
    history.lives[job.id].put_at = NOW - 1
    assert broken(history.judge(journal)) == {"resurrected": 1}


def test_sums_that_do_not_add_up_are_miscounted(journal: Journal) -> None:
    history = History()
    for _ in range(3):
        journal.entries.add("sum", 1)
    history.sums["sum"] = [1, 2]
    assert broken(history.judge(journal)) == {"miscounted": 1}
    history = History()
    history.sums["sum"], history.unsure["sum"] = [1, 2], 1
    assert broken(history.judge(journal)) == {}
    history.sums["sum"] = [1, 3, 3]
    assert broken(history.judge(journal)) == {"mistold": 1}


def test_an_end_that_was_refused_and_had_happened_is_misled(journal: Journal) -> None:
    history = History()
    job = lease(journal, history, NOW)
    job.done()
    history.lives[job.id].put_at = NOW
    history.lives[job.id].refused = 1
    assert broken(history.judge(journal)) == {"misled": 1}


def test_a_lock_whose_number_does_not_grow_is_doubled(journal: Journal) -> None:
    history = History()
    history.fences["k"] = [(1, 2, 7), (3, 9, 8), (4, 5, 9), (6, 8, 10)]
    assert broken(history.judge(journal)) == {}, "8 was asked for before 9 was told"
    history.fences["k"].append((10, 11, 10))
    assert broken(history.judge(journal)) == {"doubled": 1}


def test_two_holders_of_a_lock_who_wrote_the_same_are_doubled_and_a_write_that_is_gone_is_lost(
    journal: Journal,
) -> None:
    history = History()
    journal.entries.set("locked", 3)
    history.counted["locked"] = [1, 2, 3]
    assert broken(history.judge(journal)) == {}
    history.counted["locked"] = [1, 2, 2, 4]
    assert broken(history.judge(journal)) == {"doubled": 1, "lost": 1}


def test_a_spooled_job_that_became_none_is_lost_and_two_are_doubled(journal: Journal) -> None:
    history = History()
    history.spooled_told = {b"once", b"never", b"twice"}
    for payload in (b"once", b"twice", b"twice", b"of somebody else"):
        journal.put(payload, queue="spooled")
    assert broken(history.judge(journal)) == {"lost": 1, "doubled": 1}
