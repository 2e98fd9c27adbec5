"""A run gives back in order what came in any order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastjournal.journal.runs import Run

steps = st.lists(st.one_of(st.tuples(st.integers(0, 20)), st.none()), max_size=200)


@given(steps)
def test_the_first_is_always_the_smallest(story: list[tuple[int] | None]) -> None:
    run: Run[tuple[int]] = Run()
    plain: list[tuple[int]] = []
    for entry in story:
        if entry is not None:
            run.push(entry)
            plain.append(entry)
        elif plain:
            run.pop()
            plain.remove(min(plain))
        assert run.first() == (min(plain) if plain else None)
        assert len(run) == len(plain)
        assert sorted(run) == sorted(plain)


def test_entries_in_order_never_see_the_heap() -> None:
    run: Run[tuple[int]] = Run()
    for n in range(1000):
        run.push((n,))
        if n % 3:
            run.pop()
    assert run._heap is None
    assert len(run._run) < 1000


def test_one_entry_out_of_order_does_not_end_the_run() -> None:
    run: Run[tuple[int]] = Run([(1,), (2,)])
    run.push((999,))
    for n in range(3, 100):
        run.push((n,))
    assert run._heap == [(999,)]
    assert [n for (n,) in run] == [*range(1, 100), 999]


def test_a_run_is_made_of_entries_in_any_order() -> None:
    assert list(Run([(3,), (1,), (2,)])) == [(1,), (2,), (3,)]
    assert not Run()
