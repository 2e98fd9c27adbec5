"""Which queue is asked next, and that nobody is looked at in vain."""

from __future__ import annotations

import pytest

from fastjournal.journal.state.selection import MAX_PREFIXES
from fastjournal.model import NewJob
from stepped_core import NOW, Core, S


def fill(core: Core, counts: dict[bytes, int], **fields: object) -> None:
    for queue, count in counts.items():
        for n in range(count):
            core.put(NewJob(queue, b"%s%d" % (queue, n), **fields))  # type: ignore[arg-type]


def values(core: Core, count: int, *names: bytes, **options: object) -> list[bytes]:
    return [core.lease(*names, **options).job.value for _ in range(count)]


def test_queues_take_turns_whatever_their_lengths() -> None:
    core = Core()
    fill(core, {b"a": 100, b"b": 2, b"c": 1})
    assert values(core, 6) == [b"a0", b"b0", b"c0", b"a1", b"b1", b"a2"]


def test_turns_hold_for_named_queues_and_prefixes_too() -> None:
    core = Core()
    fill(core, {b"xa": 5, b"xb": 5, b"y": 5})
    assert values(core, 4, b"xa", b"xb") == [b"xa0", b"xb0", b"xa1", b"xb1"]
    assert values(core, 4, prefix=b"x") == [b"xa2", b"xb2", b"xa3", b"xb3"]


def test_a_prefix_sees_queues_made_before_and_after_it_was_first_asked() -> None:
    core = Core()
    fill(core, {b"pa": 1, b"q": 1})
    assert values(core, 1, prefix=b"p") == [b"pa0"]
    assert core.nothing(prefix=b"p") > 0
    fill(core, {b"pb": 1, b"r": 1})
    assert values(core, 1, prefix=b"p") == [b"pb0"]


def test_strict_order_takes_the_first_row_of_all_queues() -> None:
    """SNAP-PK-4."""
    core = Core()
    core.put(NewJob(b"a", b"3", priority=30))
    core.put(NewJob(b"b", b"1", priority=10))
    core.put(NewJob(b"c", b"2", priority=20))
    core.put(NewJob(b"b", b"4", priority=40))
    assert values(core, 4, fair=False) == [b"1", b"2", b"3", b"4"]
    core.put(NewJob(b"z", b"6", priority=9))
    core.put(NewJob(b"y", b"5", priority=8))
    assert values(core, 2, b"y", b"z", fair=False) == [b"5", b"6"]


def test_strict_order_follows_rows_that_come_go_and_change() -> None:
    core = Core()
    fill(core, {b"a": 3, b"b": 3}, priority=50)
    first = core.lease(fair=False)
    assert first.job.value == b"a0"
    core.put(NewJob(b"b", b"urgent", priority=1))
    assert values(core, 1, fair=False) == [b"urgent"]
    core.release(first)
    assert values(core, 2, fair=False) == [b"a0", b"a1"]
    core.set(b"a", paused=True)
    assert values(core, 1, fair=False) == [b"b0"]
    core.set(b"a", paused=False)
    assert values(core, 1, fair=False) == [b"a2"]


@pytest.mark.parametrize("fair", [True, False])
def test_slow_rows_of_one_queue_wait_for_the_others_d11(fair: bool) -> None:
    core = Core()
    fill(core, {b"a": 2}, priority=200)
    fill(core, {b"b": 2}, priority=199)
    assert values(core, 2, fair=fair, consumer=b"c") == [b"b0", b"b1"]
    core.nothing(fair=fair, consumer=b"c")
    assert values(core, 2, fair=fair, consumer=b"c") == [b"a0", b"a1"]


def test_a_quick_row_brings_its_slow_queue_back_to_the_front() -> None:
    core = Core()
    fill(core, {b"a": 2}, priority=230)
    assert values(core, 1, consumer=b"c") == [b"a0"]
    fill(core, {b"b": 1}, priority=230)
    core.put(NewJob(b"a", b"quick", priority=5))
    assert values(core, 1, consumer=b"c") == [b"quick"]


def test_paused_and_full_queues_lose_their_turn_and_get_it_back() -> None:
    core = Core()
    fill(core, {b"a": 3, b"b": 3})
    core.set(b"a", concurrency=1)
    assert values(core, 1, b"a") == [b"a0"]
    core.nothing(b"a")
    assert values(core, 2) == [b"b0", b"b1"]
    core.set(b"a", concurrency=0)
    assert b"a1" in values(core, 2)


def test_many_prefixes_are_forgotten_and_remembered() -> None:
    core = Core()
    for n in range(MAX_PREFIXES + 10):
        core.put(NewJob(b"%03d" % n, b"v"))
    for n in range(MAX_PREFIXES + 10):
        assert core.lease(prefix=b"%03d" % n).job.queue_bytes == b"%03d" % n
    core.put(NewJob(b"000", b"again"))
    assert core.lease(prefix=b"000").job.value == b"again"
    groups = {group for lane in core.state.queues.values() for group in lane.prefixes}
    assert len(groups) <= MAX_PREFIXES + 1


def test_the_next_wake_up_is_that_of_the_queues_asked() -> None:
    """FJ-DYN-3."""
    core = Core()
    for n, queue in enumerate((b"pa", b"pb", b"q"), 1):
        core.put(NewJob(queue, due=NOW + n * 10 * S))
    assert core.nothing() == NOW + 10 * S
    assert core.nothing(b"pb", b"q") == NOW + 20 * S
    assert core.nothing(prefix=b"p") == NOW + 10 * S
    assert core.jobs.delete_key(b"pa", b"", core.clock).command is None
    core.commit(core.jobs.delete(next(iter(core.state.rows)), core.clock).command)
    assert core.nothing(prefix=b"p") == NOW + 20 * S
    core.put(NewJob(b"pc", due=NOW + 5 * S))
    assert core.nothing(prefix=b"p") == NOW + 5 * S
    assert core.nothing(prefix=b"pb") == NOW + 20 * S


def test_asking_does_not_look_at_queues_that_have_nothing() -> None:
    """SNAP-PK-3: Ten thousand queues with nothing ready cost a request nothing."""
    core = Core()
    for n in range(10_000):
        core.put(NewJob(b"idle%d" % n, due=NOW + 3600 * S))
    fill(core, {b"busy": 5})
    heads = core.state.selection
    for options in ({}, {"fair": False}, {"prefix": b"b"}, {"prefix": b"b", "fair": False}):
        core.lease(**options)
    groups = {group for lane in core.state.queues.values() for group in lane.prefixes}
    offered = [name for group in groups for name in (*group.quick, *group.slow)]
    assert set(offered) == {b"busy"}
    assert all(len(first) <= 2 for first in heads._firsts.values())
