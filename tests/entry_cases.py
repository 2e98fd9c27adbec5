"""Key/value entries, requirement by requirement: one table of cases, for whatever driver."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from entry_driver import Driver, S
from fastjournal.entry import BOOLEAN, BUFFER, FLOAT, INTEGER, STRING, VOID
from fastjournal.errors import (
    AlreadyExists,
    BadCursor,
    BadPattern,
    BadRequest,
    ClockSkew,
    LeaseLost,
    Locked,
    NotFound,
    OutOfRange,
    TooLarge,
    WrongType,
)
from fastjournal.journal.entry_locks import Writer

Case = Callable[[Driver], None]
TICK = 1000
"""ns: what the wire can tell apart."""
CASES: list[tuple[str, Case]] = []


def case(requirement: str) -> Callable[[Case], Case]:
    def add(function: Case) -> Case:
        CASES.append((f"{requirement}-{function.__name__}", function))
        return function

    return add


def integer(number: int, size: int = 8) -> bytes:
    return number.to_bytes(size, "big", signed=True)


def keys(page: object) -> list[bytes]:
    return [entry.key for entry in page.entries]  # type: ignore[attr-defined]


@case("FJ-TYP-0..5")
def every_type_comes_back_as_it_was_stored(d: Driver) -> None:
    values = {
        VOID: b"", BUFFER: b"\0\xff", STRING: b"hi", INTEGER: integer(-5),
        FLOAT: struct.pack(">d", 1.5), BOOLEAN: b"\1",
    }  # fmt: skip
    for kind, data in values.items():
        d.set(b"k%d" % kind, kind, data)
    d.restart()
    for kind, data in values.items():
        entry = d.get(b"k%d" % kind)
        assert (entry.kind, entry.data) == (kind, data)


@case("FJ-TYP-0..5")
def a_value_is_not_looked_into_when_it_is_stored(d: Driver) -> None:
    d.set(b"k", INTEGER, b"three")
    assert d.get(b"k").data == b"three"
    with pytest.raises(WrongType):
        d.add(b"k", INTEGER, integer(1))


@case("FJ-KV-3")
def an_entry_tells_all_its_fields(d: Driver) -> None:
    d.set(b"k", STRING, b"v", expires=d.now + 90 * S, ttl=30 * S, timestamp=d.now - S)
    entry = d.get(b"k", data=False)
    assert entry.modified < entry.created <= d.now
    assert (entry.expires, entry.ttl, entry.persist) == (d.now + 90 * S, 30 * S, True)
    assert (entry.keys, entry.locked, entry.lease_until) == ((b"k",), False, 0)


@case("FJ-SET-1")
def an_expiry_is_an_instant_after_which_the_entry_is_gone(d: Driver) -> None:
    d.set(b"k", VOID, b"", expires=d.now + 10 * S)
    d.wait(10 * S)
    assert d.get(b"k").kind == VOID
    d.wait(1)
    with pytest.raises(NotFound):
        d.get(b"k")


@case("FJ-SET-1")
def what_has_expired_already_is_not_stored(d: Driver) -> None:
    with pytest.raises(OutOfRange):
        d.set(b"k", VOID, b"", expires=d.now - TICK)


@case("FJ-SET-1")
def without_exact_the_later_expiry_stays(d: Driver) -> None:
    late, early = d.now + 90 * S, d.now + 10 * S
    d.set(b"k", VOID, b"", expires=late)
    d.set(b"k", VOID, b"", expires=early, exact=False)
    assert d.get(b"k").expires == late
    d.set(b"k", VOID, b"", expires=early)
    assert d.get(b"k").expires == early
    d.set(b"k", VOID, b"")
    d.set(b"k", VOID, b"", expires=early, exact=False)
    assert d.get(b"k").expires == 0


@case("FJ-SET-2")
def without_overwrite_a_key_that_is_there_is_refused(d: Driver) -> None:
    d.set(b"k", STRING, b"one", timestamp=d.now)
    with pytest.raises(AlreadyExists):
        d.set(b"k", STRING, b"two", overwrite=False)
    assert d.set(b"k", STRING, b"one", overwrite=False, timestamp=d.get(b"k").modified).stale
    assert d.get(b"k").data == b"one"


@case("FJ-SET-2")
def a_deleted_or_expired_key_counts_as_absent(d: Driver) -> None:
    d.set(b"a", VOID, b"")
    d.delete(b"a")
    d.set(b"b", VOID, b"", expires=d.now + S)
    d.wait(2 * S)
    assert d.set(b"a", STRING, b"1", overwrite=False).found == 0
    assert d.set(b"b", STRING, b"1", overwrite=False).found == 0
    assert d.get(b"a").data == d.get(b"b").data == b"1"


@case("FJ-SET-4")
def what_is_not_to_persist_is_lost_by_a_restart(d: Driver) -> None:
    d.set(b"m", STRING, b"1", persist=False)
    d.set(b"d", STRING, b"1")
    assert not d.get(b"m").persist
    d.restart()
    assert d.get(b"d").data == b"1"
    with pytest.raises(NotFound):
        d.get(b"m")


@case("FJ-SET-4")
def a_kept_entry_that_becomes_one_of_memory_does_not_come_back(d: Driver) -> None:
    d.set(b"k", STRING, b"old")
    d.set(b"k", STRING, b"new", persist=False)
    assert d.get(b"k").data == b"new"
    d.set(b"m", STRING, b"old", persist=False)
    d.set(b"m", STRING, b"new")
    d.restart()
    assert d.get(b"m").data == b"new"
    with pytest.raises(NotFound):
        d.get(b"k")


@case("FJ-TS-1")
def the_newest_timestamp_wins_whatever_the_order(d: Driver) -> None:
    t = d.now
    assert not d.set(b"k", STRING, b"2", timestamp=t - TICK).stale
    assert d.set(b"k", STRING, b"1", timestamp=t - 2 * TICK).stale
    assert d.set(b"k", STRING, b"same", timestamp=t - TICK).stale
    assert d.get(b"k").data == b"2"
    assert not d.delete(b"k", timestamp=t).stale
    assert d.set(b"k", STRING, b"late", timestamp=t - TICK).stale
    assert d.delete(b"k", timestamp=t - TICK).stale
    with pytest.raises(NotFound):
        d.get(b"k")
    assert not d.set(b"k", STRING, b"3", timestamp=t + TICK).stale


@case("D-09")
def a_write_without_a_timestamp_is_the_newest(d: Driver) -> None:
    d.set(b"k", STRING, b"ahead", timestamp=d.now + 4 * S)
    assert not d.set(b"k", STRING, b"ours").stale
    assert d.get(b"k").data == b"ours"


@case("D-09")
def a_clock_too_far_ahead_is_refused(d: Driver) -> None:
    for ask in (d.set, d.add):
        with pytest.raises(ClockSkew):
            ask(b"k", INTEGER, integer(1), timestamp=d.now + 6 * S)
    with pytest.raises(ClockSkew):
        d.delete(b"k", timestamp=d.now + 6 * S)


@case("FJ-GET-1")
def a_key_that_is_not_there_is_not_found(d: Driver) -> None:
    with pytest.raises(NotFound, match="zz"):
        d.get(b"zz")


@case("FJ-GET-2")
def a_range_holds_both_ends_in_the_order_of_bytes(d: Driver) -> None:
    for key in (b"b", b"a", b"ab", b"\xff", b"c", b"a\0"):
        d.set(key, VOID, b"")
    assert keys(d.range(b"a", b"b")) == [b"a", b"a\0", b"ab", b"b"]
    assert keys(d.range(b"b", b"")) == [b"b", b"c", b"\xff"]
    assert keys(d.range(b"", b"")) == [b"a", b"a\0", b"ab", b"b", b"c", b"\xff"]
    assert keys(d.range(b"c", b"c")) == [b"c"]
    assert d.range(b"c", b"b") == ([], b"")


@case("FJ-GET-3")
def a_pattern_is_searched_for_in_keys(d: Driver) -> None:
    for key in (b"one", b"two", b"three", b"t\xff"):
        d.set(key, VOID, b"")
    assert keys(d.match(b"^t")) == [b"three", b"two", b"t\xff"]
    assert keys(d.match(b"e$")) == [b"one", b"three"]
    assert keys(d.match(b".*")) == [b"one", b"three", b"two", b"t\xff"]
    assert keys(d.match(rb"t.$")) == [b"t\xff"]


@case("D-25")
def adversarial_patterns_are_refused_or_cost_little(d: Driver) -> None:
    d.set(b"a" * 30_000, VOID, b"")
    assert keys(d.match(b"(a+)+$")) == [b"a" * 30_000]
    assert keys(d.match(b"(a|a)*b")) == []
    assert keys(d.match(b"(x+x+)+y")) == []
    for bad in (b"(", b"[", b"*", rb"(a)\1", b"(?=a)", b"a{100000}", b"(((a{100}){100}){100}){10}"):
        with pytest.raises(BadPattern):
            d.match(bad)
    with pytest.raises(BadPattern):
        d.match(b"a" * 1025)


@case("FJ-GET-4")
def a_cursor_goes_on_after_the_last_key_also_over_a_restart(d: Driver) -> None:
    for number in range(10):
        d.set(b"%d" % number, VOID, b"")
    page = d.range(b"2", b"8", 3)
    assert keys(page) == [b"2", b"3", b"4"]
    d.delete(b"4")
    d.delete(b"6")
    d.set(b"45", VOID, b"")
    d.restart()
    page = d.resume(page.cursor)
    assert keys(page) == [b"45", b"5", b"7"]
    assert d.resume(page.cursor) == d.range(b"8", b"8")


@case("D-26")
def a_damaged_cursor_is_refused(d: Driver) -> None:
    for number in range(3):
        d.set(b"%d" % number, VOID, b"")
    cursor = d.range(b"", b"", 1).cursor
    for at in range(len(cursor)):
        with pytest.raises(BadCursor):
            d.resume(cursor[:at] + bytes((cursor[at] ^ 1,)) + cursor[at + 1 :])
        with pytest.raises(BadCursor):
            d.resume(cursor[:at] or b"?")


@case("FJ-GET-5")
def update_timeout_moves_the_expiry_ahead_never_back(d: Driver) -> None:
    t = d.now
    d.set(b"k", VOID, b"", expires=t + 30 * S)
    assert d.get(b"k", expires=t + 60 * S).expires == t + 60 * S
    assert d.get(b"k", expires=t + 40 * S).expires == t + 60 * S
    d.set(b"n", VOID, b"")
    assert d.get(b"n", expires=t + 40 * S).expires == 0


@case("FJ-GET-6")
def a_lease_marks_as_worked_on_until_its_end(d: Driver) -> None:
    d.set(b"k", VOID, b"")
    until = d.now + 10 * S
    entry = d.get(b"k", lease=until, worker=b"me")
    assert (entry.lease_until, entry.worker, entry.token) == (until, b"me", 1)
    with pytest.raises(NotFound):
        d.get(b"k", skip=True)
    assert keys(d.range(b"", b"", skip=True)) == []
    other = d.get(b"k", lease=until + S, worker=b"you")
    assert (other.lease_until, other.worker) == (until, b"me")
    assert d.get(b"k", lease=until + S, worker=b"me").lease_until == until + S
    d.restart()
    assert keys(d.range(b"", b"")) == [b"k"]
    d.wait(12 * S)
    assert d.get(b"k", skip=True).lease_until == 0
    assert d.get(b"k", lease=d.now + S, worker=b"you").token == 2


@case("FJ-GET-6")
def a_write_leaves_the_lease(d: Driver) -> None:
    d.set(b"k", STRING, b"1")
    until = d.get(b"k", lease=d.now + 10 * S, worker=b"me").lease_until
    d.set(b"k", STRING, b"2")
    entry = d.get(b"k")
    assert (entry.data, entry.lease_until, entry.worker) == (b"2", until, b"me")


@case("FJ-GET-7")
def a_probe_tells_the_type_without_the_data(d: Driver) -> None:
    d.set(b"k", STRING, b"long")
    entry = d.get(b"k", data=False)
    assert (entry.kind, entry.data) == (STRING, b"")


@case("FJ-KV-4")
def reading_touches_a_probe_does_not(d: Driver) -> None:
    d.set(b"k", VOID, b"", expires=d.now + 100 * S, ttl=100 * S)
    d.wait(5 * S)
    before = d.get(b"k").expires
    assert before == d.now + 95 * S  # not worth a record yet
    d.wait(50 * S)
    assert d.get(b"k", data=False).expires == before
    assert d.range(b"", b"").entries[0].expires == before
    assert d.get(b"k").expires == d.now + 100 * S
    d.wait(60 * S)
    d.restart()
    assert d.range(b"", b"", touch=True).entries[0].expires == d.now + 100 * S


@case("D-19")
def what_never_expires_is_not_touched(d: Driver) -> None:
    d.set(b"k", VOID, b"", ttl=100 * S)
    assert d.get(b"k").expires == 0


@case("FJ-KV-6")
def one_value_stands_under_several_keys(d: Driver) -> None:
    d.set(b"a", STRING, b"1")
    d.alias(b"a", b"b")
    d.alias(b"b", b"c")
    d.set(b"c", STRING, b"2")
    d.restart()
    assert d.get(b"a").data == d.get(b"b").data == b"2"
    assert d.get(b"b").keys == (b"a", b"b", b"c")
    assert keys(d.range(b"", b"")) == [b"a", b"b", b"c"]
    assert d.delete(b"b").found == 1
    assert keys(d.range(b"", b"")) == []
    d.set(b"c", STRING, b"3")
    assert d.get(b"c").keys == (b"c",)
    with pytest.raises(NotFound):
        d.get(b"a")


@case("FJ-KV-6")
def a_taken_key_is_no_alias(d: Driver) -> None:
    d.set(b"a", VOID, b"")
    d.set(b"b", VOID, b"")
    with pytest.raises(AlreadyExists):
        d.alias(b"a", b"b")
    with pytest.raises(NotFound):
        d.alias(b"x", b"y")
    assert d.alias(b"a", b"a").found == 1


@case("FJ-CMD-4")
def deleting_a_missing_key_is_a_success(d: Driver) -> None:
    assert d.delete(b"k").found == 0
    d.set(b"k", VOID, b"")
    assert d.delete(b"k").found == 1
    assert d.delete(b"k").found == 0


@case("D-20")
def a_tombstone_of_an_unknown_key_beats_an_older_write(d: Driver) -> None:
    t = d.now
    d.delete(b"k", timestamp=t)
    d.restart()
    assert d.set(b"k", VOID, b"", timestamp=t - TICK).stale
    assert not d.set(b"k", VOID, b"", timestamp=t + TICK).stale


@case("FJ-DEL-1")
def a_tombstone_is_collected_after_an_hour(d: Driver) -> None:
    t = d.now
    d.set(b"k", VOID, b"", timestamp=t - TICK)
    d.delete(b"k", timestamp=t)
    d.wait(3601 * S)
    assert d.set(b"other", VOID, b"").found == 0
    d.restart()


@case("FJ-DEL-2")
def a_purge_leaves_nothing(d: Driver) -> None:
    t = d.now
    d.set(b"k", VOID, b"", timestamp=t - 2 * TICK)
    assert d.delete(b"k", purge=True, timestamp=t).found == 1
    assert not d.set(b"k", VOID, b"", timestamp=t - TICK).stale


@case("FJ-NTH-1")
def numbers_are_added(d: Driver) -> None:
    assert d.add(b"i", INTEGER, integer(5)).data == integer(5)
    assert d.add(b"i", INTEGER, integer(-7)).data == integer(-2)
    half = struct.pack(">d", 0.5)
    d.add(b"f", FLOAT, half)
    assert d.add(b"f", FLOAT, half).data == struct.pack(">d", 1.0)
    d.restart()
    assert d.get(b"i").data == integer(-2)


@case("D-21")
def a_sum_that_does_not_fit_changes_nothing(d: Driver) -> None:
    d.set(b"i", INTEGER, integer(100, 1))
    with pytest.raises(OutOfRange):
        d.add(b"i", INTEGER, integer(100, 1))
    assert d.get(b"i").data == integer(100, 1)
    assert d.add(b"i", INTEGER, integer(100, 2)).data == integer(200, 2)
    d.set(b"l", INTEGER, integer(2**63 - 1))
    with pytest.raises(OutOfRange):
        d.add(b"l", INTEGER, integer(1))
    d.set(b"f", FLOAT, struct.pack(">f", 3e38))
    with pytest.raises(OutOfRange):
        d.add(b"f", FLOAT, struct.pack(">f", 3e38))


@case("D-21")
def only_numbers_of_one_type_are_added(d: Driver) -> None:
    d.set(b"s", STRING, b"1")
    d.set(b"i", INTEGER, integer(1))
    for key, kind, data in (
        (b"s", INTEGER, integer(1)),
        (b"i", FLOAT, struct.pack(">d", 1)),
        (b"new", STRING, b"1"),
        (b"new", INTEGER, b""),
        (b"new", INTEGER, b"abc"),
    ):
        with pytest.raises(WrongType):
            d.add(key, kind, data)
    with pytest.raises(NotFound):
        d.get(b"new")


@case("D-21")
def a_numbered_addition_is_made_once(d: Driver) -> None:
    t = d.now
    for _ in range(3):
        d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=t)
        d.add(b"k", INTEGER, integer(1), sender=b"b", timestamp=t)
        d.restart()
    assert d.get(b"k").data == integer(6)
    d.set(b"k", INTEGER, integer(0), timestamp=t + TICK)
    assert d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=t).stale
    d.restart()
    assert d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=t).data == integer(0)
    d.rename(b"k", b"n")
    assert d.add(b"n", INTEGER, integer(5), sender=b"b", timestamp=t).stale
    d.delete(b"n")
    assert d.add(b"n", INTEGER, integer(5), sender=b"b", timestamp=t).stale


@case("D-21")
def a_number_older_than_the_window_is_refused_never_guessed(d: Driver) -> None:
    t = d.now
    d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=t)
    d.wait(601 * S)
    d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=d.now)
    assert d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=t).stale  # still known
    d.wait(60 * S)
    d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=d.now)
    with pytest.raises(ClockSkew):
        d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=t)
    assert d.get(b"k").data == integer(15)


@case("FJ-NTH-2")
def a_boolean_is_flipped(d: Driver) -> None:
    d.set(b"b", BOOLEAN, b"\0")
    assert d.flip(b"b").data == b"\1"
    assert d.flip(b"b").data == b"\0"
    d.set(b"i", INTEGER, integer(1))
    with pytest.raises(WrongType):
        d.flip(b"i")
    with pytest.raises(NotFound):
        d.flip(b"x")


@case("FJ-NTH-3")
def a_value_is_cut_or_filled_up(d: Driver) -> None:
    d.set(b"s", STRING, b"hello")
    assert d.truncate(b"s", 2).data == b"he"
    assert d.truncate(b"s", 4).data == b"he\0\0"
    assert d.truncate(b"s", 0).data == b""
    with pytest.raises(TooLarge):
        d.truncate(b"s", 2**20 + 1)
    d.set(b"i", INTEGER, integer(1))
    with pytest.raises(WrongType):
        d.truncate(b"i", 1)
    with pytest.raises(NotFound):
        d.truncate(b"x", 1)


@case("FJ-NTH-4")
def what_is_locked_is_read_by_all_and_changed_by_its_owner(d: Driver) -> None:
    d.set(b"k", INTEGER, integer(1))
    d.alias(b"k", b"also")
    lock = d.lock(b"k", b"me")
    assert d.get(b"also").locked
    for change in (
        lambda **h: d.set(b"k", VOID, b"", **h), lambda **h: d.delete(b"also", **h),
        lambda **h: d.add(b"k", INTEGER, integer(1), **h), lambda **h: d.rename(b"k", b"n", **h),
        lambda **h: d.alias(b"k", b"n", **h), lambda **h: d.truncate(b"k", 1, **h),
        lambda **h: d.flip(b"k", **h),
    ):  # fmt: skip
        with pytest.raises(Locked):
            change()
        with pytest.raises(Locked):
            change(by=Writer(b"you"))
    with pytest.raises(Locked):
        d.lock(b"also", b"you")
    d.add(b"k", INTEGER, integer(1), by=Writer(b"me"))
    d.add(b"also", INTEGER, integer(1), by=Writer(fence=lock.fence))
    assert d.lock(b"k", b"me").fence == lock.fence
    d.rename(b"k", b"n", by=Writer(b"me"))
    with pytest.raises(Locked):
        d.delete(b"n")


@case("FJ-NTH-5")
def a_lock_is_freed_by_its_owner_only(d: Driver) -> None:
    lock = d.lock(b"free", b"me")
    with pytest.raises(Locked):
        d.unlock(b"free", Writer(b"you"))
    assert d.unlock(b"free", Writer(b"me"))
    assert not d.unlock(b"free", Writer(b"me"))
    assert d.lock(b"free", b"you").fence > lock.fence


@case("D-22")
def a_late_write_of_a_lost_lock_is_refused_by_its_number(d: Driver) -> None:
    first = d.lock(b"k", b"me")
    assert first.until == d.now + 10 * S
    d.wait(10 * S)
    with pytest.raises(LeaseLost):
        d.set(b"k", VOID, b"", by=Writer(fence=first.fence))
    second = d.lock(b"k", b"you")
    assert second.fence > first.fence
    with pytest.raises(LeaseLost):
        d.set(b"k", VOID, b"", by=Writer(fence=first.fence))
    d.set(b"k", VOID, b"", by=Writer(fence=second.fence))
    d.restart()
    with pytest.raises(LeaseLost):
        d.set(b"k", VOID, b"", by=Writer(fence=second.fence))
    assert d.lock(b"k", b"me").fence > second.fence


@case("D-22")
def a_lock_lasts_up_to_an_hour(d: Driver) -> None:
    for until in (d.now, d.now + 3601 * S):
        with pytest.raises(OutOfRange):
            d.lock(b"k", b"me", until)


@case("FJ-NTH-6")
def a_key_is_renamed_in_one_step(d: Driver) -> None:
    d.set(b"a", STRING, b"1")
    d.set(b"b", STRING, b"2")
    with pytest.raises(AlreadyExists):
        d.rename(b"a", b"b")
    d.rename(b"a", b"b", overwrite=True)
    d.restart()
    assert d.get(b"b").data == b"1"
    assert keys(d.range(b"", b"")) == [b"b"]
    with pytest.raises(NotFound):
        d.rename(b"a", b"c")
    assert d.rename(b"b", b"b").found == 1


@case("FJ-NTH-6")
def a_renamed_key_keeps_older_writes_away_from_both_places(d: Driver) -> None:
    t = d.now
    d.set(b"a", STRING, b"1", timestamp=t - 5 * TICK)
    assert d.rename(b"a", b"b", timestamp=t - 6 * TICK).stale
    assert not d.rename(b"a", b"b", timestamp=t - 3 * TICK).stale
    assert d.set(b"a", VOID, b"", timestamp=t - 4 * TICK).stale
    assert d.set(b"b", VOID, b"", timestamp=t - 4 * TICK).stale
    assert not d.set(b"a", VOID, b"", timestamp=t - 2 * TICK).stale


@case("FJ-CNT-1")
def a_count_of_zero_means_as_many_as_fit(d: Driver) -> None:
    for number in range(1500):
        d.set(b"%04d" % number, VOID, b"", persist=False)
    assert len(d.range(b"", b"").entries) == 1500
    assert len(d.range(b"", b"", 7).entries) == 7
    page = d.match(b".")
    assert len(page.entries) == 1000
    assert len(d.resume(page.cursor).entries) == 500


@case("FJ-MSG-2")
def the_empty_value_is_a_value_the_empty_key_is_no_key(d: Driver) -> None:
    d.set(b"k", BUFFER, b"")
    assert d.get(b"k").data == b""
    d.truncate(b"k", 0)
    for ask in (
        lambda: d.set(b"", VOID, b""), lambda: d.get(b""), lambda: d.delete(b""),
        lambda: d.rename(b"k", b""), lambda: d.alias(b"k", b""), lambda: d.lock(b"", b"me"),
    ):  # fmt: skip
        with pytest.raises(BadRequest):
            ask()
    with pytest.raises(TooLarge):
        d.set(b"k" * 65_536, VOID, b"")
    with pytest.raises(TooLarge):
        d.set(b"k", BUFFER, bytes(2**20 + 1))
    d.set(b"k" * 65_535, BUFFER, bytes(2**20))
    d.restart()
    assert d.get(b"k" * 65_535).data == bytes(2**20)


@case("FJ-KV-10")
def an_expired_entry_that_nobody_collected_is_seen_by_nothing(d: Driver) -> None:
    for key in (b"a", b"b", b"c"):
        d.set(key, INTEGER, integer(1), expires=d.now + S)
    d.alias(b"c", b"z")
    d.wait(2 * S)
    assert keys(d.range(b"", b"")) == keys(d.match(b".")) == []
    for ask in (lambda: d.get(b"a"), lambda: d.flip(b"a"), lambda: d.rename(b"a", b"x")):
        with pytest.raises(NotFound):
            ask()
    assert d.add(b"a", INTEGER, integer(7)).data == integer(7)
    assert d.delete(b"b").found == 0
    d.set(b"d", STRING, b"moves in")
    d.rename(b"d", b"z")
    d.restart()
    assert keys(d.range(b"", b"")) == [b"a", b"z"]
