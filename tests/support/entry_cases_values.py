"""Cases: what is stored, how long it stays, which write wins, several keys, deletion."""

from __future__ import annotations

import struct

import pytest

from entry_driver import Driver, S
from entry_table import TICK, case, integer, keys
from fastjournal.entry_value import BOOLEAN, BUFFER, FLOAT, INTEGER, STRING, VOID
from fastjournal.errors import (
    AlreadyExists,
    ClockSkew,
    NotFound,
    OutOfRange,
    WrongType,
)


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
def bytes_that_are_no_value_of_their_type_are_not_stored(d: Driver) -> None:
    d.set(b"k", INTEGER, integer(7))
    wrong = {
        VOID: [b"x"], INTEGER: [b"", b"123", bytes(16)], FLOAT: [b"", b"12", bytes(16)],
        BOOLEAN: [b"", b"\2", b"\0\1"],
    }  # fmt: skip
    for kind, values in wrong.items():
        for data in values:
            with pytest.raises(WrongType):
                d.set(b"k", kind, data)
    assert d.get(b"k").data == integer(7)
    for kind in (BUFFER, STRING, 7, 255):
        d.set(b"k%d" % kind, kind, b"\xff\xfe\0")
        assert d.get(b"k%d" % kind).data == b"\xff\xfe\0"


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


@case("FJ-KV-5")
def keys_and_values_hold_any_bytes(d: Driver) -> None:
    every = bytes(range(256))
    for number in range(256):
        d.set(bytes((number, 0, 10, 13, number)), BUFFER, every[number:])
    d.restart()
    for number in range(256):
        assert d.get(bytes((number, 0, 10, 13, number))).data == every[number:]
    assert len(d.range(b"", b"").entries) == 256


@case("FJ-KV-9")
def keys_that_share_a_long_beginning_are_told_apart(d: Driver) -> None:
    site = b"https://www.example.com/" + b"a/very/long/path/" * 100
    for number in range(50):
        d.set(site + b"%02d" % number, INTEGER, integer(number))
    d.set(site, VOID, b"")
    d.restart()
    assert [d.get(site + b"%02d" % n).data for n in range(50)] == [integer(n) for n in range(50)]
    assert keys(d.range(site + b"10", site + b"12")) == [site + b"%d" % n for n in (10, 11, 12)]
    assert d.delete(site + b"07").found == 1
    assert len(d.match(b"example.*0[0-9]$").entries) == 9
