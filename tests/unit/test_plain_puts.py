"""Many plain jobs at once have the effect of the ordinary way, and replay to the same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastjournal.errors import JournalError, QueuePaused
from fastjournal.journal import plain
from fastjournal.journal.commands import decode, encode
from fastjournal.journal.image import plain_head, plain_image
from fastjournal.journal.journal import Journal
from fastjournal.journal.kinds import End, Put
from fastjournal.model import Mode, NewJob, Outcome, Receipt, Where
from fastjournal.testing import ManualClock, MemoryFiles

NOW = 1_700_000_000_000_000_000


def job(
    number: int, queue: bytes = b"q", value: bytes = b"x", priority: int = 100, key: bytes = b""
) -> NewJob:
    mode = Mode.MERGE if key else Mode.PLAIN
    job_id = number.to_bytes(6, "big") + b"\x40\0\x80" + bytes(7)
    return NewJob(queue, value, key, mode, priority, id=job_id)


def journal(**options: Any) -> Journal:
    files = MemoryFiles()
    return Journal(
        Path("/j"), clock=ManualClock(NOW), files=files, background=False, sync="os", **options
    )


def put(j: Journal, jobs: list[NewJob], *, checked: bool) -> list[Receipt | JournalError]:
    with j.engine.lock, j.engine.batch():
        return j.operations.put_each(jobs, j.engine.clock.now(), checked=checked)


def pictures(j: Journal) -> list[tuple[object, ...]]:
    """All that does not depend on the nanosecond of arrival, in the order of arrival."""
    rows = sorted(j.engine.state.rows.values(), key=lambda row: row.inserted)
    return [
        (row.id, row.queue, row.key, row.value, row.rank, row.state, row.place, row.expires)
        for row in rows
    ]


def order(j: Journal) -> list[bytes]:
    found = []
    with j.engine.lock:
        while leases := j.operations.lease(Where(), 1).leases:
            found.append(leases[0].job.id)
    return found


JOBS = st.lists(
    st.builds(
        job,
        st.integers(0, 30),
        st.sampled_from([b"a", b"b", b"a much longer name of a queue" * 8]),
        st.binary(max_size=40) | st.just(b"v" * 3000),
        st.integers(0, 255),
        st.sampled_from([b"", b"", b"", b"", b"", b"key"]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(JOBS, max_size=4))
def test_the_short_way_for_many_has_the_effect_of_the_ordinary_one(
    batches: list[list[NewJob]],
) -> None:
    quick, ordinary = journal(), journal()
    for batch in batches:
        assert put(quick, batch, checked=True) == put(ordinary, batch, checked=False)
    assert pictures(quick) == pictures(ordinary)
    assert quick.status()._replace(log=None) == ordinary.status()._replace(log=None)  # type: ignore[arg-type]
    stamps = [row.inserted for row in quick.engine.state.rows.values()]
    assert len(set(stamps)) == len(stamps)
    assert order(quick) == order(ordinary)
    quick.close()
    ordinary.close()


def test_what_was_put_is_replayed_to_the_same_state() -> None:
    files = MemoryFiles()
    j = Journal(Path("/j"), clock=ManualClock(NOW), files=files, background=False)
    put(j, [job(n, b"q%d" % (n % 3), b"v" * n, n % 256) for n in range(600)], checked=True)
    before = j.engine.state.digest()
    j.close()
    with Journal(Path("/j"), clock=ManualClock(NOW), files=files, background=False) as again:
        assert again.engine.state.digest() == before
        assert again.status().ready == 600


def test_plain_jobs_do_take_the_short_way() -> None:
    j = journal()
    jobs = [job(n) for n in range(5)]
    with j.engine.lock, j.engine.batch():
        assert plain.put_plain(j.engine, jobs, NOW) is not None
        assert plain.put_plain(j.engine, jobs, NOW) is None  # they are there already
        assert plain.put_plain(j.engine, [job(9, key=b"k")], NOW) is None
        assert plain.put_plain(j.engine, [job(9), job(9)], NOW) is None
        assert plain.put_plain(j.engine, [job(9, value=bytes(600_000))], NOW) is None
    with j.engine.lock:
        assert plain.put_plain(j.engine, [job(9)], NOW) is None  # not in a batch
    assert j.status().ready == 5
    j.close()


def test_a_draining_queue_refuses_each_of_them_and_takes_the_others() -> None:
    j = journal()
    j.drain("closed")
    answers = put(j, [job(1), job(2, b"closed"), job(3)], checked=True)
    assert [type(answer) for answer in answers] == [Receipt, QueuePaused, Receipt]
    assert j.status().ready == 2
    j.close()


def test_sent_again_nothing_changes() -> None:
    j = journal()
    jobs = [job(n) for n in range(10)]
    put(j, jobs, checked=True)
    before = j.engine.state.digest()
    answers = put(j, jobs, checked=True)
    assert {answer.outcome for answer in answers if isinstance(answer, Receipt)} == {Outcome.STALE}
    assert j.engine.state.digest() == before
    j.close()


def test_a_waiting_consumer_is_woken() -> None:
    j = journal()
    woken = []
    with j.engine.lock:
        j.engine.wakeups.wait_for_row(Where((b"q",)), lambda: woken.append(True))
    put(j, [job(1), job(2)], checked=True)
    assert woken == [True]
    j.close()


@given(st.binary(min_size=1, max_size=255), st.binary(max_size=3000), st.integers(0, 255))
def test_the_image_is_that_of_a_put(queue: bytes, value: bytes, rank: int) -> None:
    row = bytes(range(16))
    payload = plain_image(row, plain_head(queue), rank, NOW, value)
    put = Put(row, queue, b"", rank, NOW, NOW, NOW, 0, 1, value)
    assert decode(payload) == put
    assert encode(put) == payload


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(JOBS, st.integers(0, 12), st.lists(st.integers(0, 2), max_size=12))
def test_completing_many_has_the_effect_of_completing_each(
    jobs: list[NewJob], leased: int, tokens: list[int]
) -> None:
    """`tokens`: 0 right, 1 wrong, 2 twice."""
    quick, ordinary = journal(), journal()
    ends: list[tuple[bytes, int | None, bytes | None]] = []
    for j in (quick, ordinary):
        put(j, jobs, checked=False)
        ends = []
        for number, lease in enumerate(j.lease_many(leased or 1)):
            wrong = tokens[number] if number < len(tokens) else 0
            end = (lease.id, lease.token + (wrong == 1), None)
            ends += [end, end] if wrong == 2 else [end]
    with quick.engine.lock, quick.engine.batch():
        outcomes = quick.operations.complete_many(ends)
    with ordinary.engine.lock:  # not in a batch: one by one
        assert ordinary.operations.complete_many(ends) == outcomes
    assert pictures(quick) == pictures(ordinary)
    for number in (quick, ordinary):
        assert number.engine.counts.completions == sum(outcomes)
    for job_id, _, _ in ends:
        told = quick.engine.state.endings.of_lease(job_id, 1)
        assert told == ordinary.engine.state.endings.of_lease(job_id, 1)
    assert quick.queues() == ordinary.queues()
    assert order(quick) == order(ordinary)
    quick.close()
    ordinary.close()


def test_completions_together_are_replayed_to_the_same_state() -> None:
    files = MemoryFiles()
    j = Journal(Path("/j"), clock=ManualClock(NOW), files=files, background=False)
    put(j, [job(n) for n in range(100)], checked=True)
    ends = [(lease.id, lease.token, None) for lease in j.lease_many(60)]
    assert all(j.complete_many(ends))
    before, told = j.engine.state.digest(), j.engine.state.endings.of_lease(ends[0][0], 1)
    j.close()
    with Journal(Path("/j"), clock=ManualClock(NOW), files=files, background=False) as again:
        assert again.engine.state.digest() == before
        assert again.status().ready == 40
        assert again.engine.state.endings.of_lease(ends[0][0], 1) is told is End.DONE


def test_who_waits_for_a_result_hears_of_a_completion_among_many() -> None:
    j = journal()
    put(j, [job(n) for n in range(3)], checked=True)
    leases = j.lease_many(3)
    ended = []
    with j.engine.lock:
        j.engine.wakeups.wait_for_end(leases[1].id, lambda: ended.append(True))
    assert all(j.complete_many([(lease.id, lease.token, None) for lease in leases]))
    assert ended == [True]
    j.close()
