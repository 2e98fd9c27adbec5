"""Keys in order: a mostly written sorted set, beside a plain one."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from fastjournal.clock import SECOND
from fastjournal.errors import ClockSkew
from fastjournal.journal.state.entry_keys import OrderedKeys
from fastjournal.journal.state.keys import KeyIndex
from fastjournal.journal.state.numbered import Answer, Numbered, made, operation_of
from fastjournal.journal.state.row import DELETED_ROW, QueueRules, Row


class Entries:
    """Rows without a queue, by key, and the keys in order."""

    def __init__(self) -> None:
        self.index = KeyIndex()
        self.ordered = OrderedKeys(self.index)
        self.living: dict[bytes, Row] = {}

    def make(self, key: bytes) -> None:
        if key not in self.living:
            row = self.living[key] = Row(b"%016d" % len(self.living), QueueRules(b""), key, b"")
            self.index.add(row)
        self.ordered.add(key)

    def drop(self, key: bytes) -> None:
        row = self.living.pop(key, None)
        if row is not None:
            self.index.remove(row)


@pytest.mark.parametrize("seed", range(5))
def test_walks_tell_the_living_keys_in_order(seed: int) -> None:
    """I7: against a plain set, through growth, deletion and revival."""
    chance = Random(seed)
    entries = Entries()
    living, ordered = entries.living, entries.ordered
    for _ in range(120):
        for _ in range(chance.choice([1, 3, 400])):
            key = b"%d" % chance.randrange(4000)
            if chance.random() < 0.6:
                entries.make(key)
            else:
                entries.drop(key)
        start, after = b"%d" % chance.randrange(4000), chance.random() < 0.5
        want = sorted(k for k in living if (k > start if after else k >= start))
        if chance.random() < 0.5:
            assert list(ordered.walk(start, after=after)) == want
        else:
            walk = ordered.walk(start, after=after)
            assert list(islice(walk, 5)) == want[:5]
            walk.end()
        assert living.keys() <= set(ordered.walk(b""))


def test_a_walk_gives_the_rows_and_leaves_out_jobs_and_the_deleted() -> None:
    entries = Entries()
    for key in (b"a", b"b", b"c"):
        entries.make(key)
    entries.index.add(Row(b"j" * 16, QueueRules(b"jobs"), b"b", b""))
    entries.living[b"c"].stage = DELETED_ROW
    walk = entries.ordered.walk(b"")
    assert (walk.step(), walk.key) == (entries.living[b"a"], b"a")
    assert (walk.step(), walk.key) == (entries.living[b"b"], b"b")
    assert walk.step() is None


def test_keys_that_come_and_go_unseen_do_not_pile_up() -> None:
    entries = Entries()
    for number in range(100_000):
        key = b"%d" % number
        entries.make(key)
        entries.drop(key)
    assert len(entries.ordered) < 1000


def test_a_range_of_dead_keys_is_looked_through_once() -> None:
    entries = Entries()
    for number in range(10_000):
        entries.make(b"%06d" % number)
    assert len(list(entries.ordered.walk(b""))) == 10_000
    for number in range(9_999):
        entries.drop(b"%06d" % number)
    assert len(entries.ordered) == 10_000
    assert list(entries.ordered.walk(b"")) == [b"009999"]
    assert len(entries.ordered) == 1, "what was found dead is not looked at again"


def test_a_walk_that_stops_early_drops_what_it_found_dead() -> None:
    entries = Entries()
    for number in range(1000):
        entries.make(b"%06d" % number)
    list(entries.ordered.walk(b""))
    for number in range(300):
        entries.drop(b"%06d" % number)
    walk = entries.ordered.walk(b"")
    assert walk.step() is not None
    walk.end()
    assert len(entries.ordered) == 700
    assert next(entries.ordered.walk(b"")) == b"000300"


def test_numbers_of_changes_are_bounded_and_never_guessed() -> None:
    """D-21, bounded: when there are too many the oldest are refused, not made again."""
    kept = Numbered()
    start = 10**18
    for number in range(20_000):
        at = start + number
        kept.add(operation_of(b"me", at), Answer(at, 3, b"%d" % number))
    assert len(kept) == 16_384
    newest = start + 19_999
    known = made(kept, operation_of(b"me", newest), newest, start)
    assert known is not None
    assert (known.when, known.kind, known.value) == (newest, 3, b"19999")
    with pytest.raises(ClockSkew):
        made(kept, operation_of(b"me", start), start, start)
    assert made(kept, operation_of(b"me", newest + 1), newest + 1, start) is None


def test_a_number_of_a_clock_that_is_ahead_does_not_make_others_forgotten() -> None:
    """Kept by when they were made, not by what their senders' clocks said."""
    start = 10**18
    kept = Numbered()
    kept.add(operation_of(b"right", start), Answer(start, 3, b"1"))
    kept.add(operation_of(b"ahead", start + 3600 * SECOND), Answer(start + 1, 3, b"2"))
    known = made(kept, operation_of(b"right", start), start, start + 2)
    assert known is not None
    assert known.value == b"1"


def test_a_number_is_known_behind_a_leap_of_the_clock() -> None:
    """Who asks again after the leap, by a time that follows it, is not counted twice (D-21)."""
    start, leap = 1_700_000_000 * SECOND, 7200 * SECOND
    first = operation_of(b"me", start)
    kept = Numbered()
    kept.add(first, Answer(start, 3, b"1"))
    for number in range(300):
        at = start + leap + number * SECOND
        kept.add(operation_of(b"other", at), Answer(at, 3, b"%d" % number))
    known = made(kept, first, start + leap, start + leap + 300 * SECOND)
    assert known is not None
    assert known.value == b"1"


def test_numbers_of_a_key_that_rests_do_not_pile_up() -> None:
    at = 1_700_000_000 * SECOND
    kept = Numbered()
    for number in range(1000):
        at += 7200 * SECOND
        kept.add(operation_of(b"me", at), Answer(at, 3, b"%d" % number))
    assert 2 <= len(kept) <= 16
