"""Faults that chance brings too rarely: each is led by hand, with its rule and without it.

With the rule no promise is broken; without it one is.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

import replica_mutants
from fastjournal.replica.arbiter import ChangeSet
from fastjournal.replica.messages import Align, Fence, Resigned
from fastjournal.replica.rules import MemberSet, Rules
from replica_led import DEAF, QUIET, settled
from replica_world import BrokenPromise, Node


def a_new_lease_under_an_old_reign(rules: Rules) -> None:
    """The primary's lease ends, another one leads; then it gets a new lease."""
    world, old = settled(DEAF, rules)
    world.isolate(old)
    world.run_for(3)
    for node in world.others(old):
        world.hand(old.name, node, Resigned(1))  # so that it looks who leads
    new = world.leader(2)
    world.arbiter_down.clear()
    world.run_for(2)
    world.put(new)
    world.put(old, "read")


def a_node_that_forgot_its_promise(rules: Rules) -> None:
    """A node that has promised a new epoch is wiped, and meets the primary of the old one."""
    world, old = settled(QUIET, rules)
    world.isolate(old)
    new = world.leader(2)
    world.put(new)
    (third,) = world.others(old, new)
    world.wipe(third)
    world.blocked.clear()
    world.isolate(new)
    world.start(third)
    world.run_for(1)
    world.put(old)
    world.finish()


def a_promise_asked_for_by_an_old_primary(rules: Rules) -> None:
    """A node is started again, and an old request for a lower promise arrives."""
    world, old = settled(QUIET, rules)
    world.isolate(old)
    new = world.leader(2)
    world.put(new)
    (third,) = world.others(old, new)
    world.kill(third)
    world.blocked.clear()
    world.isolate(new)
    world.start(third)
    world.hand(old.name, third, Fence(1))
    world.run_for(1)
    world.put(old)
    world.finish()


def a_goal_of_an_earlier_run(rules: Rules) -> None:
    """A node loses what it acknowledged, then hears how far it once had to come."""
    world, old = settled(replace(QUIET, sync="os"), rules)
    one, other = world.others(old)
    first = one.replicas["j0"].member
    history, goal = first.log.meta.history, first.log.last_time
    stale = Align(1, first.session, history, goal, False)
    world.isolate(other)
    world.put(old)
    world.isolate(old)
    raw = first.log.records()
    for path, content in one.files.snapshot().items():
        if path.name.endswith(".log") and len(content) > 100:  # the newest record goes
            kept = [at for at in range(len(raw)) if raw[:at] == other_log(other)[:at]]
            one.files.put(path, content[: 8 + max(kept)])
    one.files.reboot()
    one.files = one.files.killed()
    world.end(one)
    world.start(one)
    world.run_for(0.05)
    world.hand(old.name, one, stale)
    world.kill(old)
    world.blocked.clear()
    world.arbiter_down.clear()
    world.run_for(8)
    world.start(old)
    world.finish()


def other_log(node: Node) -> bytes:
    return node.replicas["j0"].member.log.records()


def a_tail_that_was_shown_too_early(rules: Rules) -> None:
    """An older epoch's tail is on a majority without the MARK, and loses to an epoch in between."""
    world, first = settled(QUIET, rules)
    world.isolate(first)
    world.request(first, "put")
    world.kill(first)
    second = world.leader(2, serving=False)
    world.isolate(second)
    world.kill(second)
    world.blocked.clear()
    (rest,) = world.others(first, second)
    world.arbiter_down = {rest.name}
    world.start(first)
    third = world.leader(3, serving=False)
    assert third is first
    world.arbiter_down.clear()
    for name in world.nodes:
        world.blocked |= {(third.name, name), (name, third.name)}
    world.run_for(0.1)
    world.request(third, "read")
    world.run_for(0.1)
    world.kill(third)
    world.blocked.clear()
    world.start(second)
    world.leader(4)
    world.start(first)
    world.finish()


def an_old_tail_with_a_later_time(rules: Rules) -> None:
    """What an old primary wrote after a new one had acknowledged is longer, not newer."""
    world, old = settled(QUIET, rules)
    world.isolate(old)
    new = world.leader(2)
    world.put(new)
    world.request(old, "put")
    world.kill(new)
    world.blocked.clear()
    world.arbiter_down.clear()
    world.leader(3)
    world.start(new)
    world.finish()


def a_question_to_an_old_primary(rules: Rules) -> None:
    """Cut off, its lease over, nothing under way: it must not tell what it takes for the state."""
    world, old = settled(QUIET, rules)
    world.isolate(old)
    world.put(world.leader(2))
    world.put(old, "read")
    world.finish()


def a_follower_of_an_old_primary(rules: Rules) -> None:
    """Cut off together, they know nothing of what the others acknowledge: so nothing is shown."""
    world, old = settled(replace(QUIET, nodes=5, looked_at=True), rules)
    friend = world.others(old)[0]
    world.isolate(old, friend)
    world.isolate(friend, old)
    world.put(world.leader(2))
    world.run_for(1)
    world.finish()
    assert world.counted["looks"]


def a_snapshot_of_what_was_given_up(rules: Rules) -> None:
    """A primary that is cut off takes a snapshot of what nobody else has; then another one leads.

    It should not have; that its log is fetched again is the second line of defence.
    """
    world, old = settled(QUIET, rules)
    world.isolate(old)
    world.request(old, "put")
    world.snapshot(old)
    new = world.leader(2)
    for _ in range(3):
        world.put(new)
    world.blocked.clear()
    world.arbiter_down.clear()
    world.until(lambda: old.replicas["j0"].member.end == new.replicas["j0"].member.end)
    world.finish()


def an_answer_on_its_way_while_members_change(rules: Rules) -> None:
    """The arbiter has both sets already, and the primary still asks the old ones alone."""
    world, primary = settled(replace(QUIET, spares=1), rules)
    stays, _, comes = world.others(primary)
    member, voters = primary.replicas["j0"].member, (primary.name, stays.name, comes.name)
    world.arbiter_down.add(primary.name)
    world.do(primary, "j0", lambda: member.change_voters(voters))
    world.until(lambda: member.lag()[comes.name] == member.commit_time)
    both = ChangeSet(member.epoch, MemberSet(member.members.voters, 2, voters))
    assert world.arbiter.ask("j0", primary.name, both) is True
    world.blocked |= {(primary.name, stays.name), (primary.name, comes.name)}
    world.put(primary)
    world.arbiter_down.clear()
    world.do(primary, "j0", lambda: member.answered(both, True))
    world.run_for(1)
    world.kill(primary)
    world.blocked.clear()
    world.put(world.leader(2))
    world.start(primary)
    world.finish()


CASES = {
    "StaleAnswers": a_question_to_an_old_primary,
    "TimeOnly": an_old_tail_with_a_later_time,
    "AnyLease": a_new_lease_under_an_old_reign,
    "NothingPromised": a_node_that_forgot_its_promise,
    "PromiseIsNothing": a_promise_asked_for_by_an_old_primary,
    "AnySession": a_goal_of_an_earlier_run,
    "LeavesEarly": an_answer_on_its_way_while_members_change,
    "KeepsSnapshot": a_snapshot_of_what_was_given_up,
    "VouchesAlone": a_follower_of_an_old_primary,
    "NoMark": a_tail_that_was_shown_too_early,
}


def test_every_rule_that_is_led_by_hand_has_its_case() -> None:
    assert set(CASES) == set(replica_mutants.LED_BY_HAND)


@pytest.mark.parametrize("mutant", CASES)
def test_a_rule_that_chance_tries_too_rarely(mutant: str, caplog: pytest.LogCaptureFixture) -> None:
    """F58, F59: led by hand."""
    caplog.set_level(logging.CRITICAL, "fastjournal")
    CASES[mutant](Rules())
    with pytest.raises(BrokenPromise):
        CASES[mutant](getattr(replica_mutants, mutant)())


@pytest.mark.parametrize("piece", [1 << 20, 500])
def test_a_bit_that_turns_over_under_a_follower_is_found_and_fetched_again(
    piece: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F58: for each segment that the primary has left it tells the CRC; also piece by piece."""
    monkeypatch.setattr("fastjournal.replica.disk.PIECE", piece)
    caplog.set_level(logging.CRITICAL, "fastjournal")
    world, primary = settled(QUIET, Rules())
    victim = world.others(primary)[0]
    world.isolate(victim)
    while len(primary.replicas["j0"].member.log.sealed()) < 2:
        world.request(primary, "put")
        world.run_for(0.05)
    world.blocked.clear()
    world.until(lambda: bool(victim.replicas["j0"].member.log.sealed()))
    sealed = victim.replicas["j0"].member.log.sealed()[0]
    path = victim.replicas["j0"].member.log.stream.segment_path(sealed.number)
    bad = bytearray(victim.files.snapshot()[path])
    bad[100] ^= 4
    victim.files.put(path, bytes(bad))
    world.until(lambda: "is not what the primary has" in victim.replicas["j0"].member.log.damage)
    assert not victim.replicas["j0"].member.is_eligible
    world.until(lambda: victim.replicas["j0"].member.is_eligible)
    world.finish()


def test_who_is_told_that_nobody_leads_does_not_wait_to_see_it() -> None:
    """F58: a planned switchover, though nobody would look at the arbiter for an hour."""
    world, old = settled(DEAF, Rules())
    member = old.replicas["j0"].member
    world.do(old, "j0", member.resign)
    world.run_for(0.1)
    for node in world.others(old):
        world.hand(old.name, node, Resigned(1))
    world.until(lambda: world.leader(2) is not old, seconds=2)
    world.finish()
