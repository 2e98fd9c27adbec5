"""The merge rule, one line of its table at a time (SNAP-KEY-1..9, D-09, D-13)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.journal.decide.merge import bounded_due, later
from fastjournal.model import Mode, NewJob, Outcome
from stepped_core import NOW, Core, S


def job(**fields: object) -> NewJob:
    return NewJob(**{"queue": b"q", "key": b"k", "value": b"old", **fields})  # type: ignore[arg-type]


def merged(first: NewJob, second: NewJob, core: Core | None = None) -> dict[str, object]:
    core = core or Core()
    row_id = core.put(first).id
    core.wait(1)
    placed = core.put(second)
    assert placed.id == row_id
    assert len(core.state.rows) == 1
    return core.job(row_id)._asdict()


def test_insertion_date_is_kept_snap_key_2() -> None:
    assert merged(job(), job())["inserted"] == NOW


@pytest.mark.parametrize(
    ("one", "two", "kept"), [(50, 70, 70), (70, 50, 70), (0, 50, 0), (50, 0, 0), (0, 0, 0)]
)
def test_the_largest_expiry_is_kept_and_never_is_the_largest_snap_key_3(
    one: int, two: int, kept: int
) -> None:
    def instant(n: int) -> int:
        return NOW + n * S if n else 0

    got = merged(job(expires=instant(one)), job(expires=instant(two)))
    assert got["expires"] == instant(kept)


@pytest.mark.parametrize(("one", "two"), [(10, 200), (200, 10), (10, 10)])
def test_the_smallest_priority_is_kept_snap_key_4(one: int, two: int) -> None:
    assert merged(job(priority=one), job(priority=two))["priority"] == 10


@pytest.mark.parametrize(("one", "two"), [(5, 9), (9, 5)])
def test_the_largest_process_date_is_kept_snap_key_5(one: int, two: int) -> None:
    got = merged(job(due=NOW + one * S), job(due=NOW + two * S))
    assert got["due"] == NOW + 9 * S


def test_a_repeat_without_due_time_pushes_the_row_back_to_now_snap_kix_2() -> None:
    """SNAP-IMM-2."""
    assert merged(job(), job())["due"] == NOW + 1


def test_repeats_never_push_the_due_time_past_max_wait() -> None:
    core = Core()
    core.set(b"q", max_wait=10 * S)
    row_id = core.put(job(due=NOW + 5 * S)).id
    for n in range(1, 100):
        core.clock = NOW + n * S
        core.put(job(due=core.clock + 5 * S))
        assert core.job(row_id).due <= core.job(row_id).inserted + 10 * S
    assert core.job(row_id).due == core.job(row_id).inserted + 10 * S


def test_max_wait_bounds_the_first_put_too() -> None:
    core = Core()
    core.set(b"q", max_wait=10 * S)
    row = core.job(core.put(job(due=NOW + 60 * S)).id)
    assert row.due == row.inserted + 10 * S


def test_timeouts_are_reset_and_attempts_and_fails_are_kept_snap_key_8() -> None:
    core = Core()
    core.set(b"q", max_fails=9)
    row_id = core.put(job()).id
    core.fail(core.lease(length=S))
    core.wait(10 * S)
    core.lease(length=S)
    core.wait(2 * S)
    core.timers()
    assert (core.job(row_id).timeouts, core.job(row_id).fails) == (1, 1)
    core.put(job())
    row = core.job(row_id)
    assert (row.timeouts, row.fails, row.attempts) == (0, 1, 2)


def test_newer_data_replaces_the_old_snap_key_9() -> None:
    """SNAP-IMM-1."""
    got = merged(job(), job(value=b"new", kind=2, lease=7 * S, max_fails=4))
    assert (got["payload"], got["kind"]) == (b"new", 2)
    assert (got["lease"], got["max_fails"]) == (7 * S, 4)


def test_an_older_put_changes_nothing_d09() -> None:
    core = Core()
    core.put(job(value=b"newest", timestamp=NOW, priority=50))
    before = core.state.digest()
    core.wait(S)
    old = job(value=b"late", timestamp=NOW - 5, priority=3, due=NOW + 9 * S, expires=NOW + 99 * S)
    placed = core.put(old)
    assert (placed.outcome, placed.command) == (Outcome.STALE, None)
    assert core.state.digest() == before


def test_a_put_without_a_timestamp_is_newer_than_all_that_is_there_d09() -> None:
    core = Core()
    row_id = core.put(job(value=b"of a clock that is ahead", timestamp=NOW + 4 * S)).id
    assert core.put(job(value=b"newest")).outcome is Outcome.MERGED
    assert core.job(row_id).value == b"newest"


def test_the_same_message_sent_again_changes_nothing_d09() -> None:
    core = Core()
    core.put(job(timestamp=NOW))
    before = core.state.digest()
    core.wait(S)
    again = core.put(job(timestamp=NOW, value=b"other", priority=1))
    assert (again.outcome, again.command) == (Outcome.STALE, None)
    assert core.state.digest() == before


def test_two_puts_in_the_same_nanosecond_both_count() -> None:
    core = Core()
    one = core.put(job(value=b"one"))
    two = core.put(job(value=b"two"))
    assert two.outcome is Outcome.MERGED
    assert core.job(one.id).value == b"two"


def test_another_queue_or_key_is_not_merged() -> None:
    """FJ-URI-2."""
    core = Core()
    core.put(job())
    assert core.put(job(queue=b"r")).outcome is Outcome.NEW
    assert core.put(job(key=b"l")).outcome is Outcome.NEW
    assert core.put(job(key=b"", mode=Mode.PLAIN)).outcome is Outcome.NEW
    assert len(core.state.rows) == 4


def test_keep_versions_turns_merging_off() -> None:
    core = Core()
    core.set(b"q", keep_versions=True)
    outcomes = {core.put(job()).outcome for _ in range(3)}
    assert outcomes == {Outcome.NEW}
    assert [core.lease().job.key_bytes for _ in range(3)] == [b"k"] * 3


fields = st.fixed_dictionaries(
    {
        "priority": st.integers(0, 255),
        "due": st.integers(0, 50).map(lambda n: NOW + n * S if n else 0),
        "expires": st.integers(0, 50).map(lambda n: NOW + (100 + n) * S if n else 0),
        "timestamp": st.integers(1, 40).map(lambda n: NOW - n),
    }
)


@given(st.lists(fields, min_size=1, max_size=5, unique_by=lambda f: f["timestamp"]), st.randoms())
def test_the_newest_data_win_in_whatever_order_messages_arrive(repeats: list, chance) -> None:  # type: ignore[type-arg,no-untyped-def]
    def outcome(order: list) -> tuple[object, ...]:  # type: ignore[type-arg]
        core = Core()
        for repeat in order:
            core.put(
                job(
                    value=b"%d" % repeat["timestamp"], **{**repeat, "due": repeat["due"] or NOW + S}
                )
            )
        (row,) = core.state.rows.values()
        return (row.value, row.modified)

    shuffled = list(repeats)
    chance.shuffle(shuffled)
    assert outcome(repeats) == outcome(shuffled)


@given(st.integers(0, 99), st.integers(0, 99))
def test_later_is_symmetric_and_never_wins(one: int, two: int) -> None:
    assert later(one, two) == later(two, one)
    assert later(one, 0) == 0
    assert not one or not two or later(one, two) == max(one, two)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_a_bounded_due_time_lies_between_insertion_and_the_longest_wait(
    due: int, inserted: int, wait: int
) -> None:
    """SNAP-COL-6."""
    bounded = bounded_due(due, inserted, wait)
    assert bounded >= inserted
    assert not wait or bounded <= inserted + wait
