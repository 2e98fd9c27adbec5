"""Cases: one entry, ranges, patterns, cursors, leases, touching."""

from __future__ import annotations

import pytest

from entry_driver import Driver, S
from entry_table import case, integer, keys
from fastjournal.entry_value import BUFFER, INTEGER, STRING, VOID
from fastjournal.errors import (
    BadCursor,
    BadPattern,
    BadRequest,
    NotFound,
    TooLarge,
)


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
