"""One rule for both clients: what is tried again, and when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fastjournal.client import operator_calls, puts
from fastjournal.client.calls import Call
from fastjournal.client.retry import (
    Attempts,
    Connect,
    Receive,
    Search,
    Send,
    Sleep,
    Steps,
    carry_out,
    carry_out_many,
    error_of_end,
    reach,
)
from fastjournal.client.urls import Target, target_of
from fastjournal.errors import (
    BadRequest,
    ClockSkew,
    Closed,
    GarbledAnswer,
    JournalError,
    Loading,
    Locked,
    NoSpace,
    NotFound,
    NotPrimary,
    ProtocolError,
    QueueFull,
    QueuePaused,
    ReadOnly,
    SettingError,
    TooLarge,
    Unavailable,
    VersionMismatch,
)
from fastjournal.wire.fj.functions import AGAIN


def again(attempts: Attempts, error: JournalError, now: float = 0.0, *, out: bool = True) -> bool:
    attempts.out = out
    try:
        attempts.failed(error, now)
    except type(error):
        return False
    return True


def test_what_may_have_happened_is_sent_again_only_if_it_may_be() -> None:
    assert again(Attempts(True, 10, 0), Unavailable("lost"))
    assert not again(Attempts(False, 10, 0), Unavailable("lost"))


def test_what_never_went_out_may_always_be_tried_again() -> None:
    attempts = Attempts(False, 10, 0)
    assert again(attempts, Unavailable("nobody there"), out=False)
    assert not attempts.repeated
    assert not again(attempts, Unavailable("lost"))


@pytest.mark.parametrize("may", [True, False])
def test_a_daemon_that_loads_has_done_nothing_yet(may: bool) -> None:
    attempts = Attempts(may, 10, 0)
    assert again(attempts, Loading("loading"))
    assert not attempts.repeated


def test_a_call_that_was_lost_once_stays_one_that_may_have_happened() -> None:
    attempts = Attempts(True, 10, 0)
    assert again(attempts, Unavailable("lost"))
    assert again(attempts, Loading("loading"))
    assert attempts.repeated


def test_other_errors_and_the_end_of_the_time_are_told_at_once() -> None:
    assert not again(Attempts(True, 10, 0), NotFound("none"))
    assert not again(Attempts(True, 10, 0), Closed("closed"))
    assert not again(Attempts(True, 10, 0), Unavailable("lost"), now=10.0)


def test_who_was_turned_away_at_the_door_comes_again_and_a_full_queue_is_told() -> None:
    assert again(Attempts(False, 10, 0), QueueFull("too many connections"), out=False)
    assert not again(Attempts(True, 10, 0), QueueFull("the write queue is full"))
    full = QueueFull("too many connections")
    driver = Driver(full, full, "connected", "value")
    assert driver.call(operator_calls.redrive(None, "q")) == "value"
    assert Driver(full, "connected").run(reach(10)) is None


def test_pauses_grow_up_to_a_limit() -> None:
    attempts = Attempts(True, 1000, 0)
    pauses = [attempts.failed(Unavailable("lost"), 0) for _ in range(20)]
    assert pauses[0] <= 0.03
    assert 1.0 <= max(pauses) <= 3.0


class Driver:
    """Does what the steps say; `answers`: what comes of each of them, except of a `Sleep`."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.done: list[str] = []
        self.sent: list[Call] = []
        self.now = 0.0

    def run(self, steps: Steps) -> Any:
        try:
            step = steps.send(None)
            while True:
                self.done.append(type(step).__name__)
                if isinstance(step, Sleep):
                    self.now += step.seconds
                    step = steps.send(None)
                    continue
                if isinstance(step, Call):
                    self.sent.append(step)
                elif isinstance(step, Send):
                    self.sent += step.calls
                assert isinstance(step, (Connect, Call, Send, Receive))
                answer = self.answers.pop(0)
                if isinstance(answer, JournalError):
                    step = steps.throw(answer)
                else:
                    step = steps.send(answer)
        except StopIteration as ended:
            return ended.value

    def clock(self) -> float:
        return self.now

    def call(self, call: Call, **how: Any) -> Any:
        return self.run(carry_out(call, {}, 10, self.clock, **how))

    def many(self, calls: Any, *, again: bool = True, together: int = 1, ahead: int = 2) -> Any:
        return self.run(
            carry_out_many(calls, {}, 10, self.clock, again=again, together=together, ahead=ahead)
        )


def a_put() -> Call:
    return puts.put(b"x", queue="q")


def says_again(call: Call) -> bool:
    return bool(call.data[9] & AGAIN)


def test_a_call_is_sent_once_when_all_is_well() -> None:
    driver = Driver("connected", "value")
    assert driver.call(a_put()) == "value"
    assert driver.done == ["Connect", "Call"]


def test_a_lost_call_is_sent_again_after_a_pause_and_says_so() -> None:
    driver = Driver("connected", Unavailable("lost"), Unavailable("away"), "connected", "value")
    assert driver.call(a_put()) == "value"
    assert driver.done == ["Connect", "Call", "Sleep", "Connect", "Sleep", "Connect", "Call"]
    assert [says_again(call) for call in driver.sent] == [False, True]


def test_a_call_that_never_went_out_does_not_say_that_it_did() -> None:
    driver = Driver(Unavailable("away"), "connected", Loading("not yet"), "connected", "value")
    assert driver.call(a_put()) == "value"
    assert not any(map(says_again, driver.sent))


def test_after_a_first_try_that_failed_the_next_comes_at_once() -> None:
    driver = Driver("connected", "value")
    assert driver.call(a_put(), failed=(Unavailable("it had broken long ago"), 0.0)) == "value"
    assert driver.done == ["Connect", "Call"]
    assert says_again(driver.sent[0])


def test_what_may_be_sent_once_is_not_sent_twice() -> None:
    driver = Driver(Unavailable("away"), "connected", Unavailable("lost"))
    with pytest.raises(Unavailable, match="lost"):
        driver.call(operator_calls.redrive(None, "q"))
    assert len(driver.sent) == 1


def test_what_is_too_large_is_not_sent() -> None:
    call = a_put().with_data(bytes(100_000))
    with pytest.raises(TooLarge):
        Driver().run(carry_out(call, {"max_message": 70_000}, 10))


def test_a_connection_is_tried_for_until_the_time_is_over() -> None:
    driver = Driver(*[Unavailable("away")] * 1000)
    with pytest.raises(Unavailable):
        driver.run(reach(10, driver.clock))
    assert 5 < driver.now <= 10
    assert Driver(Loading("not yet"), "connected").run(reach(10)) is None


def test_of_many_calls_so_many_are_ahead_and_answers_keep_their_order() -> None:
    driver = Driver("connected", "s1", "s2", ["a"], "s3", ["b"], ["c"])
    assert driver.many([a_put(), a_put(), a_put()]) == ["a", "b", "c"]
    assert driver.done == ["Connect", "Send", "Send", "Receive", "Send", "Receive", "Receive"]


def test_of_many_calls_those_without_an_answer_are_sent_again_and_no_other() -> None:
    driver = Driver("connected", "s1", "s2", ["a"], "s3", Unavailable("lost"), "connected", "s2",
                    "s3", ["b"], ["c"])  # fmt: skip
    calls = [a_put(), a_put(), a_put()]
    assert driver.many(calls) == ["a", "b", "c"]
    assert [says_again(call) for call in driver.sent] == [False, False, False, True, True]
    assert [call.data[20:] for call in driver.sent[3:]] == [call.data[20:] for call in calls[1:]]


def test_a_refusal_that_passes_is_no_answer_of_many_calls() -> None:
    driver = Driver("connected", "s1", "s2", [Loading("not yet")], "connected", "s1", "s2",
                    [NotFound("none")], ["b"])  # fmt: skip
    answers = driver.many([a_put(), a_put()])
    assert isinstance(answers[0], NotFound)
    assert answers[1] == "b"


def test_each_answer_gives_many_calls_their_time_anew() -> None:
    rounds: list[Any] = []
    for number in range(30):
        rounds += ["connected", "sent", [number], *(["sent"] if number < 29 else [])]
        if number < 29:
            rounds += [Unavailable("lost")]
    driver = Driver(*rounds)
    driver.many([a_put() for _ in range(30)], ahead=1)
    assert driver.done.count("Connect") == 30


def test_many_calls_that_may_be_sent_once_are_told_of_a_loss() -> None:
    driver = Driver(Unavailable("away"), "connected", "s1", Unavailable("lost"))
    with pytest.raises(Unavailable, match="lost"):
        driver.many([a_put(), a_put()], again=False, together=2)
    assert len(driver.sent) == 2
    refused = Driver("connected", "s1", [Loading("not yet"), "b"])
    answers = refused.many([a_put(), a_put()], again=False, together=2)
    assert isinstance(answers[0], Loading)


def test_an_error_of_who_makes_the_calls_is_no_reason_to_try_again() -> None:
    def calls() -> Iterator[Call]:
        yield a_put()
        raise Unavailable("where they come from is away")

    with pytest.raises(Unavailable, match="where they come from"):
        Driver("connected", "s1").many(calls())


def test_no_calls_need_no_connection() -> None:
    driver = Driver()
    assert driver.many([]) == []
    assert driver.done == []


def test_the_end_of_a_connection_leaves_the_outcome_open_once_it_was_greeted() -> None:
    def told(error: JournalError, *, greeted: bool = True) -> type[JournalError]:
        return type(error_of_end(error, "host:1", greeted=greeted))

    assert told(ProtocolError("nonsense")) is told(VersionMismatch("2")) is GarbledAnswer
    assert told(QueueFull("too many")) is told(Unavailable("lost")) is Unavailable
    assert told(Closed("by us")) is Closed
    for error in (ProtocolError("nonsense"), VersionMismatch("2"), QueueFull("too many")):
        assert told(error, greeted=False) is type(error)


def nodes_asked(search: Search, answers: dict[str, JournalError], asked: list[str]) -> list[str]:
    """Which nodes are asked, until one serves or nobody is left; also noted in `asked`."""
    while True:
        node = search.next()
        asked.append(node.address)
        error = answers.get(node.address)
        if error is None:
            return asked
        assert isinstance(error, Unavailable)
        search.failed(node, error)


def test_the_node_that_another_one_names_is_tried_next() -> None:
    """SNAP-IDX-2."""
    target = target_of("fj://a:1,b:2,c:3/jobs")
    led = {f"{name}": NotPrimary("d:4") for name in ("a:1", "b:2", "c:3")}
    asked = nodes_asked(Search(target), led, [])
    assert len(asked) == 2
    assert asked[1] == "d:4"


def test_one_that_is_named_and_away_is_not_tried_twice_and_the_others_are() -> None:
    target = target_of("fj://a:1,b:2/jobs")
    answers = {"a:1": NotPrimary("b:2"), "b:2": Unavailable("nobody there")}
    for _ in range(10):
        asked: list[str] = []
        with pytest.raises(Unavailable):
            nodes_asked(Search(target), answers, asked)
        assert asked in (["a:1", "b:2"], ["b:2", "a:1", "b:2"])  # led back to it, once


def test_nodes_that_name_each_other_are_given_up() -> None:
    answers = {"a:1": NotPrimary("b:2"), "b:2": NotPrimary("a:1")}
    with pytest.raises(Unavailable, match="nobody is known to lead"):
        nodes_asked(Search(target_of("fj://a:1,b:2/jobs")), answers, [])


def test_the_pauses_stay_short_while_nodes_answer_and_none_leads() -> None:
    """F58: a client finds the next primary soon after it leads, the old one being gone."""
    answers = {"a:1": NotPrimary("b:2"), "b:2": Unavailable("nobody there")}
    attempts, now, pauses = Attempts(True, 60.0, 0.0), 0.0, []
    while now < 10:
        with pytest.raises(NotPrimary) as told:
            nodes_asked(Search(target_of("fj://a:1,b:2/jobs")), answers, [])
        pauses.append(attempts.failed(told.value, now))
        now += pauses[-1]
    assert max(pauses) <= 0.3
    assert attempts.failed(Unavailable("nobody there"), now) > 0.9


def test_who_wants_a_follower_is_not_led_to_the_primary() -> None:
    target = target_of("fj://a:1,b:2/jobs?read=follower")
    answers = {"a:1": NotPrimary("d:4"), "b:2": NotPrimary("d:4")}
    with pytest.raises(Unavailable):  # not that the third one serves
        nodes_asked(Search(target), answers, [])


def test_a_token_follows_no_redirection_in_clear() -> None:
    """The rule about tokens holds for nodes that nobody named before."""
    target = target_of("fj://secret@127.0.0.1:1/jobs")
    with pytest.raises(SettingError, match="in clear"):
        target.moved("10.0.0.1:17994")
    assert target.moved("127.0.0.1:9").journal == "jobs"
    with pytest.raises(ProtocolError):
        Target().moved("no address:x")


@pytest.mark.parametrize("refusal", [ClockSkew, NoSpace, Locked, QueueFull, QueuePaused, ReadOnly])
def test_a_repeat_that_is_refused_for_how_things_stand_says_nothing_of_the_first_try(
    refusal: type[JournalError],
) -> None:
    """Nothing is known: the daemon refuses it before it looks whether that was carried out."""
    driver = Driver("connected", Unavailable("lost"), "connected", refusal("not now"))
    with pytest.raises(Unavailable, match="sent first: not now") as caught:
        driver.call(a_put())
    assert isinstance(caught.value.__cause__, refusal)
    first = Driver("connected", refusal("not now"))
    with pytest.raises(refusal):
        first.call(a_put())


def test_a_repeat_that_is_refused_for_what_it_asks_was_refused_before() -> None:
    driver = Driver("connected", Unavailable("lost"), "connected", BadRequest("no such thing"))
    with pytest.raises(BadRequest):
        driver.call(a_put())


def test_so_does_one_of_many() -> None:
    calls = [a_put(), a_put()]
    driver = Driver(
        "connected", 1, 2, Unavailable("lost"), "connected", 1, 2, [ClockSkew("old")], [b"fine"]
    )
    told = driver.many(calls)
    assert type(told[0]) is Unavailable
    assert told[1] == b"fine"
    fresh = Driver("connected", 1, 2, [ClockSkew("old")], [b"fine"])
    assert type(fresh.many(calls)[0]) is ClockSkew
