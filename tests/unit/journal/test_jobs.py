"""Decisions about jobs: leases and tokens, failures, timers, endings, refusals."""

from __future__ import annotations

import pytest

from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    ClockSkew,
    LeaseLost,
    NotFound,
    OutOfRange,
    QueuePaused,
    RequestError,
    SettingError,
    TooLarge,
)
from fastjournal.journal.decide.ground import Limits, backoff
from fastjournal.journal.language import commands as k
from fastjournal.journal.state.row import put_of
from fastjournal.model import (
    DEFAULT_SETTINGS,
    MAX_INSTANT,
    Mode,
    NewJob,
    Outcome,
    Priority,
    QueueSettings,
    State,
    Where,
)
from stepped_core import MS, NOW, Core, S


def job(**fields: object) -> NewJob:
    return NewJob(**{"queue": b"q", **fields})  # type: ignore[arg-type]


def keyed(**fields: object) -> NewJob:
    return job(key=b"k", **fields)


class Half:
    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def test_jobs_of_equal_priority_come_in_the_order_of_arrival_fj_fifo_1() -> None:
    """FJ-LST-2, FJ-DYN-2."""
    core = Core()
    for n in range(20):
        core.put(job(value=b"%d" % n))
    assert [core.lease().job.value for _ in range(20)] == [b"%d" % n for n in range(20)]


def test_priority_goes_before_due_time_and_due_time_before_arrival_snap_col_3() -> None:
    """SNAP-PK-1, FJ-SORT-1."""
    core = Core()
    core.put(job(value=b"3", priority=9, due=NOW + 2 * S))
    core.put(job(value=b"2", priority=9, due=NOW + S))
    core.put(job(value=b"4", priority=10))
    core.put(job(value=b"1", priority=0, due=NOW + 3 * S))
    core.wait(5 * S)
    assert b"".join(core.lease().job.value for _ in range(4)) == b"1234"


def test_a_job_is_not_handed_out_before_it_is_due_fj_adv_3() -> None:
    """FJ-SORT-2."""
    core = Core()
    core.put(job(due=NOW + 5 * S))
    assert core.nothing() == NOW + 5 * S
    core.clock = NOW + 5 * S
    assert core.lease().token == 1


def test_the_end_of_a_lease_is_a_time_to_ask_again_fj_sort_3() -> None:
    core = Core()
    core.put(job())
    core.lease(length=7 * S)
    assert core.nothing() == core.clock + 7 * S
    assert core.nothing(b"q") == core.clock + 7 * S
    assert core.nothing(b"other") == 0
    assert core.nothing(prefix=b"q") == core.clock + 7 * S
    assert core.nothing(prefix=b"x") == 0


def test_the_token_is_the_number_of_the_attempt() -> None:
    core = Core()
    core.put(job())
    for attempt in range(1, 4):
        lease = core.lease(length=S)
        assert lease.token == attempt
        core.wait(S)
        core.timers()


@pytest.mark.parametrize("verb", ["touch", "complete", "fail", "release"])
def test_a_stale_token_changes_nothing(verb: str) -> None:
    core = Core()
    core.put(job())
    old = core.lease(length=S)
    core.wait(S)
    core.timers()
    core.lease(length=S)
    before = core.state.digest()
    with pytest.raises(LeaseLost):
        getattr(core.jobs, verb)(old.job.id, old.token, core.clock)
    with pytest.raises(LeaseLost):
        getattr(core.jobs, verb)(old.job.id, 99, core.clock)
    assert core.state.digest() == before


@pytest.mark.parametrize("verb", ["touch", "complete", "fail", "release"])
def test_the_token_of_a_lease_that_has_ended_changes_nothing(verb: str) -> None:
    """F51: also while nobody else has the job."""
    core = Core()
    core.put(job())
    old = core.lease(length=S)
    core.wait(S)
    core.timers()
    before = core.state.digest()
    with pytest.raises(LeaseLost):
        getattr(core.jobs, verb)(old.job.id, old.token, core.clock)
    assert core.state.digest() == before


def test_touch_keeps_the_lease_snap_col_9() -> None:
    core = Core()
    core.put(job(lease=10 * S))
    lease = core.lease()
    core.wait(9 * S)
    core.commit(core.jobs.touch(lease.job.id, lease.token, core.clock))
    core.wait(9 * S)
    assert core.timers() == []
    core.wait(S)
    assert core.timers() == [k.Timeout(lease.job.id)]


def test_lease_length_comes_from_the_request_then_the_job_then_the_queue() -> None:
    core = Core()
    core.set(b"q", lease=3 * S)
    core.put(job())
    core.put(job(lease=5 * S))
    core.put(job(lease=5 * S))
    lengths = [core.lease().until - core.clock, core.lease().until - core.clock]
    assert lengths == [3 * S, 5 * S]
    assert core.lease(length=7 * S).until - core.clock == 7 * S


def test_done_without_a_result_leaves_nothing_snap_col_7() -> None:
    core = Core()
    core.put(job())
    core.complete(core.lease())
    assert not core.state.rows


def test_a_result_is_kept_until_the_job_expires_or_for_result_ttl() -> None:
    core = Core()
    core.set(b"q", result_ttl=5 * S)
    forever = core.put(job()).id
    mortal = core.put(job(expires=NOW + 50 * S)).id
    core.complete(core.lease(), b"one")
    done = core.clock
    core.complete(core.lease(), b"two")
    assert core.job(forever).state is State.COMPLETED
    assert (core.job(forever).result, core.job(forever).expires) == (b"one", done + 5 * S)
    assert (core.job(mortal).result, core.job(mortal).expires) == (b"two", NOW + 50 * S)
    core.wait(5 * S + 1)
    assert core.timers() == [k.Expire(forever)]


def test_a_failed_job_is_tried_again_after_growing_waits_until_max_fails_d28() -> None:
    core = Core()
    core.set(b"q", max_fails=3, backoff_base=10 * S, backoff_factor=3.0, backoff_jitter=0.0)
    row_id = core.put(job()).id
    for wait in (10 * S, 30 * S):
        core.fail(core.lease(), b"why")
        assert core.job(row_id).state is State.WAITING
        assert core.job(row_id).note == b"why"
        assert core.nothing() == core.clock + wait
        core.wait(wait)
    core.fail(core.lease(), b"enough")
    dead = core.job(row_id)
    assert (dead.state, dead.result, dead.fails) == (State.FAILED, b"enough", 3)
    assert core.nothing() == 0


def test_the_wait_is_capped_and_jittered_both_ways() -> None:
    settings = QueueSettings(backoff_base=100, backoff_cap=1000, backoff_jitter=0.5)
    assert backoff(settings, 0, Half(0.5)) == 100
    assert backoff(settings, 2, Half(0.5)) == 400
    assert backoff(settings, 200, Half(0.5)) == 1000
    assert backoff(settings, 0, Half(0.0)) == 50
    assert backoff(settings, 0, Half(1.0)) == 150


def test_attempts_used_up_make_a_failure_final() -> None:
    core = Core()
    row_id = core.put(job(max_attempts=1, max_fails=9)).id
    core.fail(core.lease())
    assert core.job(row_id).state is State.FAILED


def test_a_released_job_is_ready_at_its_old_place_or_after_a_delay() -> None:
    core = Core()
    core.put(job(value=b"one"))
    core.put(job(value=b"two"))
    core.release(core.lease())
    assert core.lease().job.value == b"one"
    second = core.lease()
    core.release(second, 5 * S)
    assert core.nothing() == core.clock + 5 * S


def test_a_lost_lease_puts_the_row_back_at_its_old_place_and_counts_snap_col_10() -> None:
    """SNAP-IMM-3, SNAP-COL-11."""
    core = Core()
    first = core.put(job(value=b"one")).id
    core.put(job(value=b"two"))
    core.lease(length=S)
    core.wait(S)
    core.timers()
    assert core.job(first).timeouts == 1
    assert core.lease().job.value == b"one"


def test_too_many_lost_leases_make_the_row_dead_d12() -> None:
    """SNAP-COL-10, F19, F44."""
    core = Core()
    core.set(b"q", max_timeouts=2)
    row_id = core.put(job()).id
    for _ in range(2):
        core.lease(length=S)
        core.wait(S)
        (command,) = core.timers()
    assert command == k.Group((k.Timeout(row_id), k.Dead(row_id, 1, core.clock)))
    assert core.job(row_id).state is State.FAILED
    assert core.nothing() == 0


def test_too_many_attempts_make_the_row_dead() -> None:
    core = Core()
    row_id = core.put(job(max_attempts=1)).id
    core.lease(length=S)
    core.wait(S)
    assert core.timers() == [k.Group((k.Timeout(row_id), k.Dead(row_id, 2, core.clock)))]


def test_dead_rows_go_after_dead_keep_unless_they_expire_by_themselves() -> None:
    core = Core()
    core.set(b"q", max_fails=1, dead_keep=100 * S)
    core.put(job())
    mortal = core.put(job(expires=NOW + 500 * S)).id
    core.fail(core.lease())
    died = core.time
    core.fail(core.lease())
    assert core.jobs.next_deadline() == died + 100 * S
    core.wait(100 * S)
    core.timers()
    assert list(core.state.rows) == [mortal]


def test_a_redriven_row_waits_again_with_new_counters_and_new_tokens() -> None:
    core = Core()
    core.set(b"q", max_attempts=2, max_fails=9)
    row_id = core.put(job()).id
    for _ in range(2):
        core.lease(length=S)
        core.wait(S)
        core.timers()
    assert list(core.state.queues[b"q"].dead) == [row_id]
    for command in core.jobs.redrive_all(b"q", core.clock):
        core.commit(command)
    row = core.job(row_id)
    assert (row.state, row.timeouts, row.fails, row.max_attempts) == (State.WAITING, 0, 0, 4)
    assert core.lease(length=S).token == 3
    core.wait(S)
    core.timers()
    assert core.job(row_id).state is State.WAITING
    with pytest.raises(BadRequest):
        core.jobs.redrive(row_id, core.clock)


def test_a_dead_row_is_not_redriven_over_a_newer_one_of_its_key() -> None:
    core = Core()
    core.set(b"q", max_fails=1)
    row_id = core.put(keyed()).id
    core.fail(core.lease())
    core.put(keyed(value=b"newer"))
    with pytest.raises(AlreadyExists):
        core.jobs.redrive(row_id, core.clock)
    assert list(core.jobs.redrive_all(b"q", core.clock)) == []


def test_a_repeat_while_processing_waits_behind_the_running_one_d13() -> None:
    """FJ-KV-8."""
    core = Core()
    core.put(keyed(value=b"one"))
    lease = core.lease()
    twin = core.put(keyed(value=b"two"))
    assert twin.outcome is Outcome.TWIN
    assert core.job(twin.id).held
    assert core.nothing() == lease.until
    assert core.put(keyed(value=b"three")).outcome is Outcome.MERGED
    core.complete(lease)
    assert core.lease().job.value == b"three"


@pytest.mark.parametrize("end", ["timeout", "fail", "release"])
def test_a_row_whose_twin_waits_is_dropped_when_its_work_fails_d13(end: str) -> None:
    core = Core()
    core.put(keyed(value=b"one"))
    lease = core.lease(length=S)
    twin = core.put(keyed(value=b"two")).id
    if end == "timeout":
        core.wait(S)
        assert core.timers()[0] == k.Group(
            (k.Timeout(lease.job.id), k.Purge(lease.job.id, b"q", b"k", lease.job.modified))
        )
    elif end == "fail":
        core.fail(lease)
    else:
        core.release(lease)
    assert list(core.state.rows) == [twin]
    assert core.job(twin).timeouts == 0
    assert core.lease().job.value == b"two"


def test_a_twin_that_is_not_due_stays_so_when_the_first_ends() -> None:
    core = Core()
    core.put(keyed())
    lease = core.lease()
    core.put(keyed(due=NOW + 100 * S))
    core.complete(lease)
    assert core.nothing() == NOW + 100 * S


def test_unique_keys_are_refused_while_waiting_or_processing_and_free_afterwards() -> None:
    """FJ-URI-1."""
    core = Core()
    unique = keyed(mode=Mode.UNIQUE)
    core.put(unique)
    with pytest.raises(AlreadyExists):
        core.put(unique)
    lease = core.lease()
    with pytest.raises(AlreadyExists):
        core.put(unique)
    core.complete(lease)
    assert core.put(unique).outcome is Outcome.NEW


def test_a_unique_put_sent_again_with_its_timestamp_is_answered_as_success() -> None:
    core = Core()
    one = core.put(keyed(mode=Mode.UNIQUE, timestamp=NOW))
    two = core.put(keyed(mode=Mode.UNIQUE, timestamp=NOW))
    assert (two.outcome, two.id) == (Outcome.STALE, one.id)


def test_a_message_resent_while_its_row_is_processed_makes_no_twin() -> None:
    core = Core()
    core.put(keyed(timestamp=NOW))
    core.lease()
    assert core.put(keyed(timestamp=NOW)).outcome is Outcome.STALE
    assert len(core.state.rows) == 1


def test_an_expired_job_is_never_handed_out_snap_exp_2() -> None:
    """SNAP-COL-2."""
    core = Core()
    row_id = core.put(job(expires=NOW + S)).id
    core.clock = NOW + S
    assert core.jobs.lease(Where(), core.clock)
    core.clock += 1
    assert core.nothing() == 0
    assert core.jobs.delete(row_id, core.clock).found == 0
    assert core.timers() == [k.Expire(row_id)]


def test_an_expired_key_is_free_for_a_new_row() -> None:
    core = Core()
    old = core.put(keyed(expires=NOW + S)).id
    core.wait(2 * S)
    placed = core.put(keyed())
    assert placed.outcome is Outcome.NEW
    assert isinstance(placed.command, k.Group)
    assert list(core.state.rows) == [placed.id] != [old]


def test_an_expired_twin_does_not_take_its_row_along() -> None:
    core = Core()
    row_id = core.put(keyed()).id
    lease = core.lease()
    core.put(keyed(expires=NOW + S))
    core.wait(2 * S)
    core.release(lease)
    assert list(core.state.rows) == [row_id]


def test_things_happen_in_the_order_of_their_instants() -> None:
    core = Core()
    one = core.put(job(expires=NOW + 5 * S)).id
    two = core.put(job()).id
    three = core.put(job(expires=NOW + 3 * S)).id
    core.lease(length=60 * S)
    core.lease(length=4 * S)
    core.wait(10 * S)
    assert core.timers() == [k.Expire(three), k.Timeout(two), k.Expire(one)]


def test_timers_insist_on_being_applied_one_by_one() -> None:
    core = Core()
    core.put(job(expires=NOW + S))
    core.wait(2 * S)
    commands = core.jobs.timers(core.clock)
    next(commands)
    with pytest.raises(RuntimeError):
        next(commands)


def test_timers_do_no_more_than_they_are_allowed_in_one_go() -> None:
    core = Core()
    for _ in range(5):
        core.put(job(expires=NOW + S))
    core.wait(2 * S)
    for command in core.jobs.timers(core.clock, 2):
        core.commit(command)
    assert len(core.state.rows) == 3


def test_the_next_deadline_is_the_first_of_all_instants() -> None:
    core = Core()
    assert core.jobs.next_deadline() == 0
    core.put(job(expires=NOW + 90 * S))
    assert core.jobs.next_deadline() == NOW + 90 * S + 1
    core.put(job(due=NOW + 80 * S))
    assert core.jobs.next_deadline() == NOW + 80 * S
    until = core.lease(length=5 * S).until
    assert core.jobs.next_deadline() == until


def test_take_and_delete_leaves_nothing_fj_m3_2() -> None:
    core = Core()
    core.put(job(value=b"v"))
    assert core.lease(take=True).job.value == b"v"
    assert not core.state.rows


def test_delete_by_id_and_by_key() -> None:
    core = Core()
    row_id = core.put(keyed()).id
    core.commit(core.jobs.delete(row_id, core.clock).command)
    assert core.job(row_id).state is State.DELETED
    assert core.jobs.delete(row_id, core.clock) == (None, 0, False)
    core.put(keyed())
    lease = core.lease()
    core.put(keyed())
    deleted = core.jobs.delete_key(b"q", b"k", core.clock)
    assert isinstance(deleted.command, k.Group)
    assert deleted.found == 2
    core.commit(deleted.command)
    (tomb,) = core.state.rows.values()
    assert tomb.state is State.DELETED
    assert not core.jobs.delete_key(b"q", b"k", core.clock)
    with pytest.raises(NotFound):
        core.complete(lease)
    core.wait(3601 * S)
    core.timers()
    assert not core.state.rows


def test_a_paused_queue_gives_nothing_and_a_draining_one_takes_nothing() -> None:
    core = Core()
    core.put(job())
    core.set(b"q", paused=True)
    assert core.nothing() == 0
    core.put(job())
    core.set(b"q", paused=False, draining=True)
    with pytest.raises(QueuePaused):
        core.put(job())
    assert core.lease().token == 1
    core.set(b"q", draining=False)
    core.put(job())


def test_a_queue_hands_out_no_more_than_its_concurrency_at_a_time() -> None:
    core = Core()
    core.set(b"q", concurrency=2)
    for _ in range(4):
        core.put(job())
    one, _ = core.lease(length=9 * S), core.lease(length=5 * S)
    assert core.nothing() == core.clock + 5 * S
    core.complete(one)
    assert core.lease().token == 1
    core.nothing()


def test_slow_jobs_wait_for_a_pass_without_other_work_d11() -> None:
    """SNAP-COL-5."""
    core = Core()
    core.put(job(value=b"slow", priority=Priority.SLOW))
    core.put(job(value=b"quick"))
    assert core.lease(consumer=b"me").job.value == b"quick"
    assert core.nothing(consumer=b"me") == core.state.now
    core.put(job(value=b"quick"))
    assert core.lease(consumer=b"me").job.value == b"quick"
    assert core.nothing(consumer=b"me") == core.state.now
    assert core.lease(consumer=b"me").job.value == b"slow"


def test_a_consumer_that_did_nothing_else_gets_slow_jobs_at_once() -> None:
    core = Core()
    core.put(job(priority=Priority.TIME_ALLOWS))
    assert core.lease(consumer=b"idle").token == 1


def test_slow_from_256_switches_the_slow_rule_off() -> None:
    core = Core()
    core.set(b"q", slow_from=256)
    core.put(job(priority=10))
    core.put(job(priority=255))
    core.lease(consumer=b"c")
    assert core.lease(consumer=b"c").job.priority == 255


def test_rows_with_a_ttl_live_on_while_they_are_used_d19() -> None:
    core = Core()
    row_id = core.put(job(ttl=100 * S, expires=NOW + 50 * S)).id
    lease = core.lease(length=1000 * S)
    assert core.job(row_id).expires == core.clock + 100 * S
    core.wait(5 * S)  # less than a tenth: not worth a record
    assert isinstance(core.jobs.touch(row_id, lease.token, core.clock), k.Renew)
    core.wait(5 * S)
    core.commit(core.jobs.touch(row_id, lease.token, core.clock))
    assert core.job(row_id).expires == core.clock + 100 * S


def test_a_row_touched_for_ever_is_restated_so_that_old_records_can_go() -> None:
    core = Core()
    row_id = core.put(keyed(value=b"v" * 100)).id
    lease = core.lease()
    restated = 0
    for _ in range(500):
        core.wait(S)
        command = core.commit(core.jobs.touch(row_id, lease.token, core.clock))
        restated += isinstance(command, k.Group)
    assert 2 <= restated <= 20
    assert core.job(row_id).lease_until == core.clock + 60 * S
    assert core.replayed().digest() == core.state.digest()


def test_a_row_given_back_for_ever_is_restated_too() -> None:
    core = Core()
    row_id = core.put(keyed()).id
    at = core.state.rows[row_id].at
    for _ in range(300):
        core.release(core.lease(), S)
        core.wait(S)
    assert core.state.rows[row_id].at > at
    assert core.lease().token == 301
    assert core.replayed().digest() == core.state.digest()


def test_workq_jobs_use_only_the_records_of_workq_d36() -> None:
    """WQ-GEN-3, WQ-CMD-10."""
    core = Core()
    one = core.add(1)
    core.add(2, time=NOW + 5 * S)
    core.add(3)
    core.lease()
    core.commit(core.jobs.complete(one, None, core.clock, b"r"))
    core.lease()
    core.wait(2 * S)
    core.timers()
    core.commit(core.jobs.fail(b"\3" * 6 + b"\x40\x00\x80" + bytes(7), None, core.clock, b"f"))
    core.commit(core.jobs.delete(b"\2" * 6 + b"\x40\x00\x80" + bytes(7), core.clock).command)
    core.wait(61 * S)
    core.timers()
    assert [payload[0] for _, payload in core.log] == [1, 2, 1, 7, 3, 7, 8, 4, 5, 6, 6]


def test_workq_priorities_are_larger_first_d10() -> None:
    core = Core()
    core.add(1, priority=-5)
    core.add(2, priority=7)
    core.add(3)
    assert [core.lease().job.priority for _ in range(3)] == [7, 0, -5]


def test_a_workq_lease_ends_ttr_after_its_record_d30() -> None:
    core = Core()
    core.add(1, ttr=1500)
    assert core.lease().until == core.time + 1500 * MS


def test_a_workq_job_out_of_attempts_fails_with_an_empty_result() -> None:
    core = Core()
    row_id = core.add(1, max_attempts=1)
    core.lease()
    core.wait(2 * S)
    assert core.timers() == [k.Timeout(row_id)]
    assert (core.job(row_id).state, core.job(row_id).result) == (State.FAILED, b"")


def test_the_first_result_of_a_workq_job_wins_d29() -> None:
    core = Core()
    row_id = core.add(1)
    core.commit(core.jobs.complete(row_id, None, core.clock, b"one"))
    with pytest.raises(AlreadyExists):
        core.jobs.fail(row_id, None, core.clock, b"two")
    assert core.job(row_id).result == b"one"


def test_a_workq_id_is_refused_while_it_lives_and_free_when_it_has_expired() -> None:
    core = Core()
    core.add(1, ttl=1000)
    with pytest.raises(AlreadyExists):
        core.add(1)
    core.wait(2 * S)
    core.add(1, payload=b"again")
    assert [row.value for row in core.state.rows.values()] == [b"again"]


@pytest.mark.parametrize(
    "fields",
    [
        {"ttr": 0},
        {"ttr": 86_400_001},
        {"ttl": 0},
        {"priority": 2**31},
        {"max_attempts": 256},
        {"max_fails": -1},
        {"name": b""},
        {"name": b"a b"},
        {"name": b"x" * 256},
        {"payload": b"x" * (2**20 + 1)},
        {"time": NOW - 3600 * S},
    ],
)
def test_workq_jobs_out_of_range_are_refused_wq_cmd_2_to_8(fields: dict[str, object]) -> None:
    core = Core()
    with pytest.raises(BadRequest):
        core.add(1, **fields)
    assert not core.log


def test_ids_that_are_not_version_4_are_refused_wq_cmd_1() -> None:
    core = Core()
    with pytest.raises(BadRequest, match="ID"):
        core.jobs.add(k.Add(bytes(16), b"q", 1, 1, 0, 0, 0, b"", 0, 0), NOW)


def test_our_own_ids_are_version_4() -> None:
    core = Core()
    ids = [core.put(job()).id for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(i[6] >> 4 == 4 and i[8] >> 6 == 2 for i in ids)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"queue": b""}, TooLarge),
        ({"queue": b"x" * 256}, TooLarge),
        ({"queue": "q"}, BadRequest),
        ({"key": "k"}, BadRequest),
        ({"value": "v"}, BadRequest),
        ({"key": b"x" * 65_536}, TooLarge),
        ({"value": b"x" * (2**20 + 1)}, TooLarge),
        ({"priority": 256}, OutOfRange),
        ({"priority": -1}, OutOfRange),
        ({"priority": 1.0}, BadRequest),
        ({"priority": True}, BadRequest),
        ({"due": -1}, OutOfRange),
        ({"due": float("nan")}, BadRequest),
        ({"due": MAX_INSTANT + 1}, OutOfRange),
        ({"expires": 1.5}, BadRequest),
        ({"expires": NOW - 1}, OutOfRange),
        ({"timestamp": NOW + 6 * S}, ClockSkew),
        ({"timestamp": -1}, OutOfRange),
        ({"lease": -1}, OutOfRange),
        ({"max_fails": 2**31}, OutOfRange),
        ({"kind": 256}, OutOfRange),
        ({"ttl": "1"}, BadRequest),
        ({"mode": Mode.UNIQUE}, BadRequest),
        ({"mode": Mode.PLAIN, "key": b"k"}, BadRequest),
        ({"mode": 9, "key": b"k"}, BadRequest),
    ],
)
def test_bad_jobs_are_refused_and_change_nothing(
    fields: dict[str, object], error: type[RequestError]
) -> None:
    core = Core()
    core.put(job(key=b"k1"))
    before = core.state.digest()
    with pytest.raises(error):
        core.put(job(**fields))
    assert core.state.digest() == before
    assert len(core.log) == 1


def test_results_have_a_limit() -> None:
    core = Core(Limits(max_value=10))
    core.put(job())
    lease = core.lease()
    with pytest.raises(TooLarge):
        core.complete(lease, b"x" * 11)
    with pytest.raises(TooLarge):
        core.fail(lease, b"x" * 11)


def test_unknown_or_wrong_settings_are_refused_by_name() -> None:
    core = Core()
    with pytest.raises(SettingError, match="colour") as caught:
        core.set(b"q", colour="red")
    assert caught.value.name == "colour"
    with pytest.raises(SettingError) as caught:
        core.set(b"q", max_timeouts=-1)
    assert caught.value.name == "max_timeouts"
    with pytest.raises(BadRequest):
        core.set(b"", paused=True)
    assert core.jobs.set_queue(b"q", {"paused": False}) is None


def test_the_clock_stepping_back_moves_nothing() -> None:
    core = Core()
    core.put(job(due=NOW + 10 * S))
    core.wait(10 * S)
    lease = core.lease(length=60 * S)
    core.wait(-3600 * S)
    core.put(job(value=b"later"))
    assert core.lease().job.value == b"later"
    assert core.timers() == []
    core.commit(core.jobs.touch(lease.job.id, lease.token, core.clock, 60 * S))
    assert core.job(lease.job.id).lease_until >= lease.until


def test_a_tombstone_keeps_older_writes_away_and_gives_its_slot_to_newer_ones() -> None:
    core = Core()
    row_id = core.put(keyed(timestamp=NOW)).id
    core.lease()
    core.commit(k.Tomb(row_id, b"q", b"k", NOW + 5))
    assert core.job(row_id).state is State.DELETED
    assert core.put(keyed(timestamp=NOW + 5)).outcome is Outcome.STALE
    placed = core.put(keyed(timestamp=NOW + 6, max_attempts=3))
    assert placed.id == row_id
    assert (core.job(row_id).attempts, core.job(row_id).max_attempts) == (1, 4)
    assert core.lease().token == 2


def test_a_tombstone_of_an_unknown_key_is_collected_after_gc_grace() -> None:
    core = Core(Limits(gc_grace=100 * S))
    core.commit(k.Tomb(b"t" * 16, b"q", b"k", NOW))
    assert core.put(keyed(timestamp=NOW - 1)).outcome is Outcome.STALE
    assert core.jobs.next_deadline() == NOW + 100 * S
    core.wait(100 * S)
    core.timers()
    assert not core.state.rows
    assert core.put(keyed(timestamp=NOW - 1)).outcome is Outcome.NEW


def test_queues_without_rows_and_settings_are_forgotten() -> None:
    core = Core()
    for n in range(3000):
        core.put(job(queue=b"q%d" % n))
        core.complete(core.lease())
    assert len(core.state.queues) <= 1001
    core.set(b"kept", paused=True)
    core.set(b"kept", paused=False)
    assert core.state.queues[b"kept"].settings == DEFAULT_SETTINGS


def test_an_image_restates_a_row_with_its_counters() -> None:
    core = Core()
    row_id = core.put(keyed(max_fails=9)).id
    core.fail(core.lease())
    put = put_of(core.state.rows[row_id], b"")
    assert (put.attempts, put.fails, put.policy.max_fails) == (1, 1, 9)


def test_a_lease_and_a_life_that_end_together_both_end() -> None:
    core = Core()
    row_id = core.put(job(expires=NOW + 10 * S)).id
    lease = core.lease(length=NOW + 10 * S - core.clock)
    core.commit(core.jobs.touch(row_id, lease.token, core.clock, NOW + 10 * S - core.state.now))
    assert core.job(row_id).lease_until == core.job(row_id).expires
    core.clock = NOW + 11 * S
    assert core.timers() == [k.Timeout(row_id), k.Expire(row_id)]
