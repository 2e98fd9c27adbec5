"""The state at the edges of its numbers, and after the records of careless writers."""

from __future__ import annotations

import pytest

from fastjournal.errors import BadRequest
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.state.apply import JournalState
from fastjournal.model import QueueSettings, Where
from stepped_core import Core

ROW = bytes(range(16))
T = 1_700_000_000_000_000_000
LAST = 2**63 - 1


def put(queue: bytes = b"q", attempts: int = 0, timeouts: int = 0, fails: int = 0) -> k.Put:
    policy = k.DEFAULT_POLICY
    return k.Put(ROW, queue, b"", 0, T, T, T, 0, 1, b"v", policy, attempts, timeouts, fails)


def add(created: int = T, time: int = 0, ttr: int = 1000, ttl: int = 0) -> k.Add:
    return k.Add(ROW, b"q", ttr, ttl, 0, 0, 0, b"v", time, created)


def state_of(*commands: k.Command) -> JournalState:
    """What these records give; its images must give the same again."""
    state = JournalState()
    for number, command in enumerate(commands):
        state.apply(decode(encode(command)), T + number)
    again = JournalState()
    for line in state.lines():
        again.replay(line, T)
    assert list(again.lines()) == list(state.lines())
    return state


def test_a_row_that_is_dead_by_a_record_alone_has_an_image() -> None:
    row = state_of(put(), k.Dead(ROW, k.FAILED, T)).rows[ROW]
    assert (row.rare.reason, row.rare.fails, row.rare.when) == (k.FAILED, 0, T)


def test_a_tombstone_that_expires_has_an_image() -> None:
    state = state_of(put(), k.Tomb(ROW, b"q", b"", T), k.Touch(ROW, T + 5))
    assert state.expiry.next() == T + 5


@pytest.mark.parametrize("tries", [2**31 - 1, 2**31, 2**32 + 3, LAST])
def test_attempts_stay_at_the_most_a_row_can_count(tries: int) -> None:
    most = 2**31 - 1
    assert state_of(put(attempts=tries)).rows[ROW].attempts == most
    assert state_of(put(), k.Lease(ROW, T, T + 1, tries, b"")).rows[ROW].attempts == most
    assert state_of(put(attempts=tries), k.Start(ROW)).rows[ROW].attempts == most


def test_counters_stay_at_the_most_they_can_hold() -> None:
    full = put(timeouts=LAST, fails=LAST)
    assert state_of(full, k.Start(ROW), k.Timeout(ROW)).rows[ROW].rare.timeouts == LAST
    assert state_of(full, k.Fail(ROW)).rows[ROW].rare.fails == LAST


def test_lengths_that_reach_past_the_last_instant_end_there() -> None:
    assert state_of(add(ttr=LAST), k.Start(ROW)).rows[ROW].lease_until == LAST
    assert state_of(add(ttl=LAST)).rows[ROW].expires == LAST


def test_dead_rows_kept_past_the_last_instant_are_kept() -> None:
    rules = k.Queue(b"q", QueueSettings(dead_keep=LAST))
    state = state_of(rules, put(), k.Dead(ROW, k.TOO_MANY_ATTEMPTS, T))
    assert state.dead.next() == 0
    assert state.dead.first() is None


def test_a_job_made_before_1970_is_due() -> None:
    state = state_of(add(created=-5_000_000_000, ttl=1000), k.Start(ROW))
    assert (state.rows[ROW].due, state.rows[ROW].inserted) == (1, 1)
    assert state.rows[ROW].expires == 1_000_000_001


def test_a_lease_on_an_entry_wakes_no_consumer() -> None:
    state = JournalState()
    assert state.selection.next_wake(Where()) == 0
    state.apply(put(b""), T)
    state.apply(k.Lease(ROW, T, T + 9, 1, b""), T + 1)
    assert state.selection.next_wake(Where()) == 0


def test_a_workq_job_for_an_instant_no_record_can_hold_is_refused() -> None:
    core = Core()
    end = LAST // 10**9 * 10**9
    core.add(1, time=end - 1, ttl=1)  # goes through its bytes
    with pytest.raises(BadRequest, match="Invalid Time"):
        core.add(2, time=end)


def test_a_tombstone_of_an_id_alone_is_the_same_whether_the_end_of_its_job_was_cleaned_or_not() -> (
    None
):
    purge, tomb = k.Purge(ROW, b"q", b"", T), k.Tomb(ROW, b"", b"", T + 5)
    whole, cleaned = state_of(put(), purge, tomb), state_of(put(), tomb)
    assert list(cleaned.lines()) == list(whole.lines()) == list(state_of(tomb).lines())
    assert cleaned.queues[b"q"].total == 0
    assert cleaned.tombs.next() == T + 5
