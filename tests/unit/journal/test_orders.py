"""Orders give their first row whatever comes and goes, without a search and without leftovers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastjournal.journal.state.orders import Expiry, Order, Timeline
from fastjournal.journal.state.queue_rows import Moments, QueueRows
from fastjournal.journal.state.row import FUTURE, QueueRules, Row
from fastjournal.journal.state.rows import Rows

RULES = QueueRules(b"q")


def row_of(number: int, rank: int = 0, instant: int = 0) -> Row:
    row = Row(number.to_bytes(16, "big"), RULES, b"", b"")
    row.inserted = number
    row.rank = rank
    row.due = row.expires = instant
    row.place = FUTURE  # so `when` is `due`
    return row


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 12)),
        st.tuples(st.just("first"), st.just(0)),
        st.tuples(st.just("any"), st.integers(0, 1000)),
    ),
    max_size=200,
)


@given(steps, st.sampled_from([Order, Timeline, Expiry]))
def test_the_first_is_always_the_smallest(story: list[tuple[str, int]], kind: type[Order]) -> None:
    order = kind()
    here: list[Row] = []

    def key(row: Row) -> tuple[int, int]:
        return (row.rank if kind is Order else row.when, row.inserted)

    for number, (what, value) in enumerate(story, 1):
        if what == "push":
            row = row_of(number, value, value + 1)
            order.push(row)
            here.append(row)
        elif here:
            row = min(here, key=key) if what == "first" else here[value % len(here)]
            order.remove(row)
            here.remove(row)
        assert order.first() is (min(here, key=key) if here else None)
        assert len(order) == len(here)
        assert {row.id for row in order} == {row.id for row in here}


def test_rows_in_order_never_see_the_heap_and_take_no_more_room_than_they_need() -> None:
    order = Order()
    rows = [row_of(n) for n in range(1, 5001)]
    for n, row in enumerate(rows):
        order.push(row)
        assert row.slot >= 0
        if n % 3:
            first = order.first()
            assert first is not None
            order.remove(first)
    left = [row.id for row in order]
    assert len(left) == len(order) == 1667


def test_one_row_out_of_order_does_not_end_the_run() -> None:
    order = Order()
    rows = [row_of(1), row_of(2)]
    late = row_of(3, rank=200)
    for row in (*rows, late):
        order.push(row)
    more = [row_of(n) for n in range(4, 100)]
    for row in more:
        order.push(row)
    assert late.slot < 0
    assert all(row.slot >= 0 for row in (*rows, *more))


queue_steps = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 20), st.booleans()), max_size=150
)


@given(queue_steps)
def test_the_first_moment_of_all_queues_is_known(story: list[tuple[int, int, bool]]) -> None:
    moments = Moments()
    queues = [QueueRows(b"%d" % n, Rows()) for n in range(5)]
    here: list[tuple[Row, QueueRows]] = []
    for number, (which, instant, push) in enumerate(story, 1):
        if push or not here:
            row = row_of(number, instant=instant)
            moments.push(queues[which].future, row)
            here.append((row, queues[which]))
        else:
            row, queue = here.pop((which * 31 + instant) % len(here))
            moments.remove(queue.future, row)
        first = min((row.when for row, _ in here), default=0)
        assert moments.next() == first
        head = moments.head()
        assert (None if head is None else head.when) == (first if here else None)
        assert len(moments) == len({queue.name for _, queue in here})
