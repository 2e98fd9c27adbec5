"""All rows by id: as a dictionary, in the order in which they came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.journal.state.row import QueueRules, Row
from fastjournal.journal.state.rows import Rows

RULES = QueueRules(b"q")


def row_of(row_id: bytes) -> Row:
    return Row(row_id, RULES, b"", b"")


def add(rows: Rows, row: Row) -> Row:
    assert rows.seek(row.id) is None
    rows.add(row)
    return row


def number_id(number: int) -> bytes:
    return number.to_bytes(16, "little")  # so that the first bytes vary and the last do not


steps = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=400)


@given(steps)
def test_rows_are_found_as_in_a_dictionary_and_keep_their_order(
    story: list[tuple[bool, int]],
) -> None:
    rows, model = Rows(), dict[bytes, Row]()
    for comes, number in story:
        row_id = number_id(number)
        if comes and row_id not in model:
            model[row_id] = add(rows, row_of(row_id))
        elif not comes and row_id in model:
            rows.remove(model.pop(row_id))
        assert rows.get(row_id) is model.get(row_id)
        assert (row_id in rows, len(rows)) == (row_id in model, len(model))
    assert rows.items() == list(model.items())
    assert list(rows) == rows.keys() == list(model)
    assert rows.values() == list(rows.newest())[::-1] == list(model.values())


def test_ten_thousand_come_and_go_in_any_manner() -> None:
    """First in, first out; then all but every tenth; the tables follow."""
    rows = Rows()
    for number in range(30_000):
        add(rows, row_of(number_id(number)))
        if number >= 10_000:
            rows.remove(rows[number_id(number - 10_000)])
    assert len(rows) == 10_000
    assert len(rows._line) < 25_000
    assert len(rows._table.tags) <= 65_536
    assert [row.id for row in rows.values()] == [number_id(n) for n in range(20_000, 30_000)]
    for number in range(20_000, 30_000):
        if number % 10:
            rows.remove(rows[number_id(number)])
    assert [row.id for row in rows.values()] == [number_id(n) for n in range(20_000, 30_000, 10)]
    assert all(number_id(n) in rows for n in range(20_000, 30_000, 10))
    assert len(rows._line) < 2_200


def test_what_is_no_id_is_not_there() -> None:
    rows = Rows()
    assert rows.get(b"") is None
    assert bytes(16) not in rows
    gone = add(rows, row_of(bytes(16)))
    assert rows[bytes(16)] is gone
    rows.remove(gone)
    assert bytes(16) not in rows
    assert b"short" not in rows
    with pytest.raises(KeyError):
        rows[b"\1" * 16]


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_an_id_is_kept_whole_and_ordered_as_bytes(one: bytes, other: bytes) -> None:
    assert row_of(one).id == one
    assert row_of(one).id_before(row_of(other)) is (one < other)


@pytest.mark.parametrize("shift", [0, 7, 31, 32, 60, 64, 100])
def test_ids_that_count_up_spread_over_the_table_as_others_do(shift: int) -> None:
    """Wherever they count: a table that finds each of them behind the others is no table."""
    begin = int.from_bytes(bytes(range(16)), "big")
    rows, places = Rows(), set()
    for step in range(4096):
        row = add(rows, row_of((begin + (step << shift)).to_bytes(16, "big")))
        places.add(row.hash & 8191)
    assert len(places) > 2800  # chance leaves about 3220 of 8192 taken
