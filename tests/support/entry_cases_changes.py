"""Cases: numbers, booleans, sizes, locks, renaming."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from entry_driver import Driver, S
from entry_table import TICK, case, integer, keys
from fastjournal.entry_value import BOOLEAN, FLOAT, INTEGER, STRING, VOID
from fastjournal.errors import (
    AlreadyExists,
    ClockSkew,
    LeaseLost,
    Locked,
    NotFound,
    OutOfRange,
    TooLarge,
    WrongType,
)
from fastjournal.journal.entries.locks import Writer


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
    assert d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=t).data == integer(5)
    assert d.add(b"k", INTEGER, integer(1), sender=b"b", timestamp=t).data == integer(6)
    assert d.get(b"k").data == integer(0)
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
    for _ in range(20):
        d.wait(60 * S)
        d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=d.now)
    with pytest.raises(ClockSkew):
        d.add(b"k", INTEGER, integer(5), sender=b"a", timestamp=t)
    assert d.get(b"k").data == integer(110)


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
    changes: list[Callable[..., Any]] = [
        lambda **h: d.set(b"k", VOID, b"", **h), lambda **h: d.delete(b"also", **h),
        lambda **h: d.add(b"k", INTEGER, integer(1), **h), lambda **h: d.rename(b"k", b"n", **h),
        lambda **h: d.alias(b"k", b"n", **h), lambda **h: d.truncate(b"k", 1, **h),
        lambda **h: d.flip(b"k", **h),
    ]  # fmt: skip
    for change in changes:
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
