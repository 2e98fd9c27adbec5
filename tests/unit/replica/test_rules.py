"""The safety rules of replication, each by its table."""

from __future__ import annotations

import contextlib

import pytest

from fastjournal.clock import SECOND
from fastjournal.errors import ProtocolError
from fastjournal.replica.arbiter import ChangeSet, Look, Raise, Resign, Take, View
from fastjournal.replica.lease import NodeLease, Timing
from fastjournal.replica.messages import (
    Ack,
    Align,
    Append,
    AskCommit,
    AskStatus,
    Committed,
    Compare,
    Decoder,
    Fence,
    Offer,
    Part,
    Promised,
    Pull,
    PullPart,
    Resigned,
    Status,
    Tail,
    encode,
)
from fastjournal.replica.rules import OPEN_END, EpochStart, LogEnd, MemberSet, Promise, Rules
from memory_arbiter import MemoryArbiter

RULES = Rules()
ABC = MemberSet(("a", "b", "c"))


def test_a_majority_is_more_than_half_and_of_both_sets_while_they_change() -> None:
    assert RULES.has_majority(ABC, ["a", "b"])
    assert not RULES.has_majority(ABC, ["a"])
    assert not RULES.has_majority(MemberSet(("a", "b", "c", "d")), ["a", "b"])
    assert not RULES.has_majority(MemberSet(()), ["a"])
    moving = MemberSet(("a", "b", "c"), 2, ("b", "c", "d"))
    assert not RULES.has_majority(moving, ["a", "b"])
    assert RULES.has_majority(moving, ["b", "c"])
    assert moving.nodes == ("a", "b", "c", "d")


def test_a_promise_only_rises_and_binds_to_one_node() -> None:
    given = Promise(4, "a")
    assert RULES.may_promise(given, Promise(5, "b"))
    assert RULES.may_promise(given, Promise(4, "a"))
    assert not RULES.may_promise(given, Promise(4, "b"))
    assert not RULES.may_promise(given, Promise(3, "a"))
    assert RULES.may_promise(Promise(4, ""), Promise(4, "b"))
    assert not RULES.may_begin(given, 4)
    assert RULES.may_begin(given, 5)


def test_bytes_are_taken_of_the_promised_epoch_only() -> None:
    assert RULES.may_append(Promise(4, "a"), 4, "a")
    assert not RULES.may_append(Promise(4, "a"), 4, "b")
    assert not RULES.may_append(Promise(4, "a"), 3, "a")
    assert not RULES.may_append(Promise(4, "a"), 5, "a")


def test_bytes_are_taken_only_behind_the_newest_record() -> None:
    """F60: what is missing in between would never come."""
    assert RULES.follows(40, 40)
    assert not RULES.follows(40, 41)
    assert not RULES.follows(40, 39)


def test_records_are_whole_if_crcs_hold_and_time_rises() -> None:
    assert RULES.is_whole([5, 6, 9], 4, broken=False)
    assert not RULES.is_whole([5, 6, 9], 4, broken=True)
    assert not RULES.is_whole([5, 5], 4, broken=False)
    assert not RULES.is_whole([4, 5], 4, broken=False)


def test_the_highest_epoch_wins_before_the_highest_time() -> None:
    ends = {"a": LogEnd(3, 100), "b": LogEnd(4, 90), "c": LogEnd(4, 80)}
    assert RULES.best_end(ends, "a") == "b"
    assert RULES.best_end({"a": LogEnd(4, 90), "b": LogEnd(4, 90)}, "a") == "a"


def test_a_log_ends_in_the_newest_epoch_that_has_begun_in_it() -> None:
    history = (EpochStart(1, 10, 0), EpochStart(4, 50, 40))
    assert RULES.log_end(history, 45) == LogEnd(1, 45)
    assert RULES.log_end(history, 50) == LogEnd(4, 50)
    assert RULES.log_end((), 7) == LogEnd(0, 7)


ONE = EpochStart(1, 10, 0)


@pytest.mark.parametrize(
    ("own", "own_last", "other", "other_last", "common"),
    [
        ((ONE,), 30, (ONE, EpochStart(2, 40, 30)), OPEN_END, 30),  # only behind
        (
            (ONE,),
            35,
            (ONE, EpochStart(2, 40, 30)),
            OPEN_END,
            30,
        ),  # more than the other went on from
        ((ONE, EpochStart(2, 32, 30)), 60, (ONE, EpochStart(3, 40, 25)), OPEN_END, 25),
        ((ONE, EpochStart(2, 32, 20)), 60, (ONE, EpochStart(3, 40, 30)), OPEN_END, 20),
        ((ONE, EpochStart(3, 40, 30)), 90, (ONE, EpochStart(3, 40, 30)), OPEN_END, 90),
        ((EpochStart(1, 11, 0),), 30, (ONE,), OPEN_END, 0),  # nothing in common
        ((), 5, (EpochStart(1, 10, 5),), OPEN_END, 5),  # a log from before there were epochs
        ((ONE, EpochStart(2, 50, 30)), 30, (ONE,), 60, 30),  # an epoch announced, not begun
        ((), 0, (), 0, 0),
    ],
)
def test_two_logs_are_alike_up_to_where_one_leaves_their_newest_common_epoch(
    own: tuple[EpochStart, ...],
    own_last: int,
    other: tuple[EpochStart, ...],
    other_last: int,
    common: int,
) -> None:
    assert RULES.common_time(own, own_last, other, other_last) == common


def test_committed_is_what_a_majority_has_once_the_mark_is_among_it() -> None:
    assert RULES.commit_time(ABC, {"a": 90, "b": 70, "c": 20}, 60) == 70
    assert RULES.commit_time(ABC, {"a": 90, "b": 50, "c": 50}, 60) == 0
    assert RULES.commit_time(ABC, {"a": 90}, 60) == 0


def test_each_level_waits_for_its_nodes_and_all_never_shrinks() -> None:
    stored = {"a": 90, "b": 70}
    assert RULES.acknowledged_time("one", ABC, stored, "a", 70) == 90
    assert RULES.acknowledged_time("quorum", ABC, stored, "a", 70) == 70
    assert RULES.acknowledged_time("all", ABC, stored, "a", 70) == 0
    assert RULES.acknowledged_time("all", ABC, stored | {"c": 65}, "a", 70) == 65


def test_a_candidate_ahead_of_the_median_declines_and_one_behind_does_not() -> None:
    assert RULES.clock_fits(10 * SECOND, [9 * SECOND, 10 * SECOND])
    assert not RULES.clock_fits(7210 * SECOND, [10 * SECOND, 11 * SECOND])
    assert RULES.clock_fits(0, [7200 * SECOND])
    assert RULES.clock_fits(7210 * SECOND, [10 * SECOND, 7210 * SECOND, 7210 * SECOND])
    assert RULES.time_fits(60 * SECOND, 0)
    assert not RULES.time_fits(61 * SECOND, 0)


def test_a_lease_ends_here_before_it_ends_at_the_arbiter() -> None:
    lease = NodeLease(Timing(ttl=10, margin=2), RULES)
    assert not lease.is_held(0)
    lease.renewed(5, 100)
    assert lease.is_held(107) and not lease.is_held(108)
    lease.renewed(5, 90)  # an answer that came late
    assert lease.is_held(107)
    lease.renewed(6, 95)  # another lease
    assert lease.is_held(102) and not lease.is_held(103)
    lease.lost()
    assert not lease.is_held(0)


def test_the_arbiter_gives_leader_and_epoch_in_one_step() -> None:
    arbiter = MemoryArbiter(ttl=10)
    arbiter.create("j", ABC)
    one, two = arbiter.grant(), arbiter.grant()
    assert arbiter.ask("j", "a", Take(0, 1, one)) is True
    assert arbiter.ask("j", "b", Take(1, 1, two)) is False
    assert arbiter.ask("j", "b", Look()) == View(ABC, 1, "a", 1)
    arbiter.now = 9
    assert arbiter.keep_alive(two)
    arbiter.now = 10
    assert not arbiter.keep_alive(one)
    assert arbiter.ask("j", "b", Take(0, 1, two)) is False  # not the epoch that it has seen
    assert arbiter.ask("j", "b", Take(1, 2, two)) is False  # nor the set
    assert arbiter.ask("j", "b", Take(1, 1, one)) is False  # nor under a lease that has ended
    assert arbiter.ask("j", "b", Take(1, 1, two)) is True
    assert arbiter.ask("j", "a", Resign(1)) is False
    moved = MemberSet(("a", "b", "d"), 2)
    assert arbiter.ask("j", "b", ChangeSet(1, moved)) is False
    assert arbiter.ask("j", "b", ChangeSet(2, moved)) is True
    assert arbiter.ask("j", "b", ChangeSet(2, moved)) is True  # its answer was lost
    assert arbiter.ask("j", "c", Raise(9)) is True
    assert arbiter.ask("j", "c", Raise(5)) is True
    assert arbiter.ask("j", "b", Resign(2)) is True
    assert arbiter.ask("j", "b", Look()) == View(moved, 9, "", 0)


MESSAGES = [
    AskStatus(),
    Status(LogEnd(3, 1_700_000_000_000_000_001), True, 0),
    Fence(7),
    Promised(7, 7, True, (EpochStart(7, 9, 5),), LogEnd(7, 9), False, 5, 6, 4, 1),
    Offer(7, 12, 5, 100, 1 << 31, "00ff", True),
    PullPart(7, 5, 0),
    Part(7, 5, 0, b"bytes"),
    Compare(7, 1, 5, 100, 1 << 31),
    Align(7, 12, (EpochStart(1, 2, 0),), 99, False),
    Append(7, 5, 4, 3, True, b"\0raw\xff" * 100),
    Append(7, 5, 4, 3, True, b""),
    Ack(7, 12, 99, 3, "gap", 5),
    Pull(7, 5),
    Tail(7, 5, False, b"bytes"),
    AskCommit(7, 12, 5),
    Committed(7, 12, 5, 99),
    Resigned(7),
]  # fmt: skip


def test_messages_come_back_as_they_were_however_they_are_cut() -> None:
    whole = b"".join(map(encode, MESSAGES))
    assert Decoder().feed(whole) == MESSAGES
    decoder, found = Decoder(), []
    for byte in whole:
        found += decoder.feed(bytes([byte]))
    assert found == MESSAGES


@pytest.mark.parametrize("message", MESSAGES, ids=lambda one: type(one).__name__)
def test_a_changed_byte_is_refused_or_waited_for_never_taken(message: object) -> None:
    whole = encode(message)  # type: ignore[arg-type]
    for at in range(len(whole)):
        bad = bytearray(whole)
        bad[at] ^= 0x11
        with contextlib.suppress(ProtocolError):
            assert Decoder().feed(bytes(bad)) == []
