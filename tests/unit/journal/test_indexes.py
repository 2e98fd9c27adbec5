"""Keys, instants and heaps: found without searching, bounded in size."""

from __future__ import annotations

from fastjournal.journal.state.row import FUTURE, LEASED, READY
from fastjournal.model import NewJob, Where
from stepped_core import NOW, Core, S


def keyed(queue: bytes = b"q", key: bytes = b"k", **fields: object) -> NewJob:
    return NewJob(queue, key=key, **fields)  # type: ignore[arg-type]


def test_a_key_is_found_in_its_queue_only() -> None:
    """FJ-URI-3, FJ-SQL-2, SNAP-KIX-1."""
    core = Core()
    for queue in (b"b", b"a", b"c"):
        core.put(keyed(queue))
    keys = core.state.keys
    assert [row.queue.name for row in keys.find(b"a", b"k")] == [b"a"]
    assert list(keys.find(b"x", b"k")) == []
    assert list(keys.find(b"a", b"other")) == []
    assert keys.queues(b"k") == [b"a", b"b", b"c"]
    assert keys.queues(b"other") == []


def test_a_twin_is_found_from_either_side() -> None:
    core = Core()
    core.put(keyed())
    lease = core.lease()
    twin = core.put(keyed()).id
    rows = core.state.rows
    assert [row.id for row in core.state.keys.twin(rows[twin])] == [lease.job.id]
    assert [row.id for row in core.state.keys.twin(rows[lease.job.id])] == [twin]
    core.complete(lease)
    assert list(core.state.keys.twin(rows[twin])) == []
    assert core.state.keys.alone(rows[twin])


def test_the_index_forgets_keys_whose_rows_are_gone() -> None:
    core = Core()
    for n in range(100):
        core.put(keyed(key=b"%d" % (n % 10), queue=b"q%d" % (n % 3)))
    while core.state.rows:
        core.complete(core.lease())
    assert len(core.state.keys) == 0
    assert b"1" not in core.state.keys


def test_completed_and_dead_rows_have_no_key_any_more() -> None:
    core = Core()
    core.set(b"q", max_fails=1)
    core.put(keyed())
    core.complete(core.lease(), b"r")
    assert core.put(keyed()).outcome.name == "NEW"
    core.fail(core.lease())
    assert core.put(keyed()).outcome.name == "NEW"
    assert len(core.state.rows) == 3


def test_a_row_merged_for_ever_does_not_make_the_ready_heap_grow() -> None:
    core = Core()
    for n in range(5000):
        core.wait(S)
        core.put(keyed(value=b"%d" % n))
    lane = core.state.queues[b"q"]
    assert lane.counts[READY] == 1
    assert len(lane.ready) < 200
    assert core.lease().job.value == b"4999"


def test_a_row_pushed_back_for_ever_does_not_make_the_future_heap_grow() -> None:
    core = Core()
    for _ in range(5000):
        core.wait(S)
        core.put(keyed(due=core.clock + 60 * S))
    lane = core.state.queues[b"q"]
    assert lane.counts[FUTURE] == 1
    assert len(lane.future) < 200
    assert core.nothing() == core.clock + 60 * S


def test_a_lease_touched_for_ever_does_not_make_the_lease_heap_grow() -> None:
    core = Core()
    core.put(keyed())
    lease = core.lease()
    for _ in range(5000):
        core.wait(S)
        core.commit(core.jobs.touch(lease.job.id, lease.token, core.clock))
    lane = core.state.queues[b"q"]
    assert lane.counts[LEASED] == 1
    assert len(lane.leases) < 200
    assert core.state.leases.next() == core.clock + 60 * S


def test_jobs_that_come_and_go_do_not_make_the_expiry_heap_grow() -> None:
    core = Core()
    for _ in range(5000):
        core.put(keyed(expires=NOW + 86400 * S))
        core.complete(core.lease())
    assert len(core.state.expiry) < 200
    assert core.state.expiry.next() == 0


def test_the_heap_of_a_long_queue_holds_one_entry_for_each_row() -> None:
    core = Core()
    for n in range(3000):
        core.put(keyed(key=b"%d" % n))
    assert len(core.state.queues[b"q"].ready) == 3000


def test_rows_fall_due_in_time_over_many_queues() -> None:
    """FJ-DYN-1."""
    core = Core()
    for n in range(200):
        core.put(keyed(queue=b"q%d" % (n % 7), key=b"%d" % n, due=NOW + (n * 37 % 200) * S))
    for second in range(200):
        core.clock = NOW + second * S + 10_000
        core.state.promote(core.clock)
        ready = sum(lane.counts[READY] for lane in core.state.queues.values())
        assert ready == second + 1


def test_a_row_stated_anew_in_another_queue_moves_there() -> None:
    from fastjournal.journal.state.row import put_of

    core = Core()
    row_id = core.put(keyed()).id
    put = put_of(core.state.rows[row_id], b"")
    put.queue = b"r"
    core.commit(put)
    assert core.nothing(b"q") == 0
    assert core.lease(b"r").job.id == row_id
    assert core.jobs.lease(Where(), core.clock).next_due > 0  # type: ignore[union-attr]


def test_queues_that_come_and_go_leave_nothing_behind() -> None:
    core = Core()
    core.put(keyed(queue=b"here", due=NOW + 10**6 * S))
    core.nothing(prefix=b"q")
    core.nothing(fair=False)
    for n in range(5000):
        queue = b"q%d" % n
        core.put(keyed(queue=queue, due=NOW + 10**6 * S))
        core.commit(core.jobs.delete_key(queue, b"k", core.clock, purge=True).command)
    state = core.state
    assert len(state.queues) <= 1001
    assert len(state.future) <= 3 * len(state.queues)
    assert core.nothing() == NOW + 10**6 * S
