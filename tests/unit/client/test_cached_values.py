"""What a cache remembers, whatever is fetched and pushed at the same time."""

from __future__ import annotations

from fastjournal.client.cached_values import MISSING, CachedValues
from fastjournal.entry_model import Entry, EntryChange

OLD, NEW = (Entry(b"k", 1, data, 0, 0, 0, 0, True) for data in (b"old", b"new"))


def made() -> CachedValues:
    return CachedValues(10, 10_000)


def test_a_value_is_remembered_until_its_key_is_pushed() -> None:
    values = made()
    assert values.find(b"k", 0) is MISSING
    assert values.end(b"k", values.begin(b"k"), OLD, keep=True)
    assert values.find(b"k", 0) == OLD
    values.changed(EntryChange(b"k"))
    assert values.find(b"k", 0) is MISSING


def test_a_value_during_whose_fetching_a_push_was_seen_is_not_remembered() -> None:
    values = made()
    began = values.begin(b"k")
    values.changed(EntryChange(b"k"))
    assert not values.end(b"k", began, OLD, keep=True)
    assert values.find(b"k", 0) is MISSING


def test_different_values_fetched_at_the_same_time_are_not_remembered_in_any_order() -> None:
    for first, second, third in ((OLD, NEW, OLD), (NEW, OLD, OLD), (OLD, OLD, NEW)):
        values = made()
        began = [values.begin(b"k") for _ in range(3)]
        values.end(b"k", began[0], first, keep=True)
        values.end(b"k", began[1], second, keep=False)
        values.end(b"k", began[2], third, keep=True)
        assert values.find(b"k", 0) is MISSING
        values.end(b"k", values.begin(b"k"), NEW, keep=True)  # alone again
        assert values.find(b"k", 0) == NEW


def test_the_same_value_fetched_at_the_same_time_is_remembered() -> None:
    values = made()
    began = [values.begin(b"k") for _ in range(2)]
    for each in began:
        assert values.end(b"k", each, OLD, keep=True)
    assert values.find(b"k", 0) == OLD
