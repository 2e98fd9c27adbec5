"""Keys in order: a mostly written sorted set, beside a plain one."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from fastjournal.clock import SECOND
from fastjournal.errors import ClockSkew
from fastjournal.journal.state.entry_keys import OrderedKeys
from fastjournal.journal.state.numbered import Operations, made, operation_of, remembered


@pytest.mark.parametrize("seed", range(5))
def test_walks_tell_the_living_keys_in_order(seed: int) -> None:
    """I7: against a plain set, through growth, deletion and revival."""
    chance = Random(seed)
    living: set[bytes] = set()
    ordered = OrderedKeys(living.__contains__)
    for _ in range(120):
        for _ in range(chance.choice([1, 3, 400])):
            key = b"%d" % chance.randrange(4000)
            if chance.random() < 0.6:
                living.add(key)
                ordered.add(key)
            else:
                living.discard(key)
        start, after = b"%d" % chance.randrange(4000), chance.random() < 0.5
        want = sorted(k for k in living if (k > start if after else k >= start))
        if chance.random() < 0.5:
            assert list(ordered.walk(start, after=after)) == want
        else:
            assert list(islice(ordered.walk(start, after=after), 5)) == want[:5]
        assert living <= set(ordered.walk(b""))


def test_keys_that_come_and_go_unseen_do_not_pile_up() -> None:
    living: set[bytes] = set()
    ordered = OrderedKeys(living.__contains__)
    for number in range(100_000):
        key = b"%d" % number
        living.add(key)
        ordered.add(key)
        living.discard(key)
    assert len(ordered) < 1000


def test_a_range_of_dead_keys_is_looked_through_once() -> None:
    asked = 0
    living = {b"%06d" % number for number in range(10_000)}

    def alive(key: bytes) -> bool:
        nonlocal asked
        asked += 1
        return key in living

    ordered = OrderedKeys(alive)
    for key in sorted(living):
        ordered.add(key)
    assert len(list(ordered.walk(b""))) == 10_000
    living.clear()
    living.add(b"009999")
    assert list(ordered.walk(b"")) == [b"009999"]
    asked = 0
    assert list(ordered.walk(b"")) == [b"009999"]
    assert asked < 1100


def test_numbers_of_changes_are_bounded_and_never_guessed() -> None:
    """D-21, bounded: when there are too many the oldest are refused, not made again."""
    kept: Operations | None = None
    start = 10**18
    for number in range(20_000):
        at = start + number
        kept = remembered(kept, operation_of(b"me", at), (at, 3, b"%d" % number))
    assert kept is not None
    assert len(kept) == 16_384
    newest = start + 19_999
    assert made(kept, operation_of(b"me", newest), newest, start) == (newest, 3, b"19999")
    with pytest.raises(ClockSkew):
        made(kept, operation_of(b"me", start), start, start)
    assert made(kept, operation_of(b"me", newest + 1), newest + 1, start) is None


def test_a_number_of_a_clock_that_is_ahead_does_not_make_others_forgotten() -> None:
    """Kept by when they were made, not by what their senders' clocks said."""
    start = 10**18
    kept = remembered(None, operation_of(b"right", start), (start, 3, b"1"))
    kept = remembered(kept, operation_of(b"ahead", start + 3600 * SECOND), (start + 1, 3, b"2"))
    assert made(kept, operation_of(b"right", start), start, start + 2) == (start, 3, b"1")
