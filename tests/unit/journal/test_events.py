"""What a subscriber is told."""

from __future__ import annotations

from fastjournal.journal.engine.events import Event, Subscription


def subscription(backlog: int = 3) -> tuple[Subscription, list[Subscription]]:
    forgotten: list[Subscription] = []
    return Subscription(frozenset(("due",)), backlog, forgotten.append), forgotten


def test_events_come_in_order() -> None:
    subscriber, _ = subscription()
    for at in range(3):
        subscriber.push(Event("due", b"q", at=at))
    assert [subscriber.next(0).at for _ in range(3)] == [0, 1, 2]  # type: ignore[union-attr]
    assert subscriber.next(0) is None


def test_who_falls_behind_gets_one_lost_instead_and_then_goes_on() -> None:
    subscriber, _ = subscription()
    for at in range(4):
        subscriber.push(Event("due", at=at))
    subscriber.push(Event("due", at=4))
    assert [subscriber.next(0).kind for _ in range(2)] == ["lost", "due"]  # type: ignore[union-attr]
    assert subscriber.next(0) is None


def test_a_closed_subscription_ends_after_what_was_told() -> None:
    subscriber, forgotten = subscription()
    subscriber.push(Event("due"))
    with subscriber:
        pass
    assert forgotten == [subscriber]
    assert [event.kind for event in subscriber] == ["due"]
