"""Who is woken by what, and in which order."""

from __future__ import annotations

from fastjournal.journal.engine.wakeups import Wakeups
from fastjournal.model import Where


class Sleepers:
    """Consumers that note who was woken."""

    def __init__(self) -> None:
        self.wakeups = Wakeups()
        self.woken: list[str] = []

    def wait(self, name: str, where: Where) -> int:
        return self.wakeups.wait_for_row(where, lambda: self.woken.append(name))


def test_a_ready_row_wakes_the_one_that_has_waited_longest_for_its_queue() -> None:
    s = Sleepers()
    s.wait("b", Where((b"b",)))
    s.wait("any", Where())
    s.wait("a", Where((b"a", b"c")))
    s.wait("prefix", Where(prefix=b"a"))
    s.wakeups.ready([(b"a", 1)])
    assert s.woken == ["any"]
    s.wakeups.ready([(b"a", 2)])
    assert s.woken == ["any", "a", "prefix"]
    s.wakeups.ready([(b"a", 5), (b"x", 5)])
    assert s.woken == ["any", "a", "prefix"]
    assert len(s.wakeups) == 1


def test_one_registration_is_woken_once() -> None:
    s = Sleepers()
    s.wait("one", Where())
    s.wakeups.ready([(b"a", 3), (b"b", 3)])
    assert s.woken == ["one"]


def test_who_gave_up_is_not_woken() -> None:
    s = Sleepers()
    handle = s.wait("gone", Where())
    s.wakeups.forget(handle)
    s.wakeups.forget(handle)
    s.wakeups.ready([(b"a", 1)])
    assert s.woken == []
    assert s.wakeups.called == set()


def test_queues_for_which_somebody_was_woken_are_remembered() -> None:
    s = Sleepers()
    s.wait("one", Where((b"a",)))
    s.wakeups.ready([(b"a", 1), (b"b", 1)])
    assert s.wakeups.called == {b"a"}


def test_an_end_wakes_everybody_who_waits_for_that_job() -> None:
    wakeups = Wakeups()
    woken: list[int] = []
    for number in range(3):
        wakeups.wait_for_end(b"1", lambda number=number: woken.append(number))  # type: ignore[misc]
    handle = wakeups.wait_for_end(b"2", lambda: woken.append(9))
    wakeups.ended(b"1")
    wakeups.ended(b"1")
    assert woken == [0, 1, 2]
    wakeups.forget(handle, b"2")
    wakeups.forget(handle, b"2")
    wakeups.ended(b"2")
    assert woken == [0, 1, 2]
    assert len(wakeups) == 0


def test_closing_wakes_all() -> None:
    s = Sleepers()
    s.wait("consumer", Where((b"q",)))
    s.wakeups.wait_for_end(b"1", lambda: s.woken.append("caller"))
    s.wakeups.all()
    s.wakeups.all()
    assert s.woken == ["consumer", "caller"]
