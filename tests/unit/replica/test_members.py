"""Members change while nodes die: what was begun is brought to its end, and may be repeated."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from fastjournal.errors import ReadOnly
from fastjournal.replica.arbiter import ChangeSet, Look, View
from fastjournal.replica.rules import MemberSet, Rules
from replica_led import QUIET, Led, settled
from replica_world import Node


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "fastjournal")


def _begun(*, alone: bool = False) -> tuple[Led, Node, tuple[str, ...]]:
    """A swap under way, its primary, and who is to keep the journal then.

    `alone`: the primary has just heard that both sets count, and nobody else has heard of it.
    """
    world, primary = settled(replace(QUIET, spares=1), Rules())
    stays = world.others(primary, world.nodes["n3"])[0]
    voters = (primary.name, stays.name, "n3")
    member = primary.replicas["j0"].member
    world.do(primary, "j0", lambda: member.change_voters(voters))
    if alone:
        world.until(lambda: bool(_members(world).joining))
    return world, primary, voters


def _members(world: Led) -> MemberSet:
    view = world.arbiter.ask("j0", "", Look())
    assert isinstance(view, View)
    return view.members


def test_a_change_that_a_dead_primary_had_begun_is_brought_to_its_end() -> None:
    """SNAP-IDX-2, F58: else no member could ever change again."""
    world, primary, voters = _begun(alone=True)
    world.kill(primary)
    second = world.leader(2)
    world.until(lambda: not _members(world).joining)
    assert set(_members(world).voters) == set(voters)
    world.put(second)
    world.start(primary)
    world.finish()


def test_a_change_that_did_not_count_yet_is_begun_again_by_the_next_primary() -> None:
    """SNAP-IDX-2: the same word to whoever leads."""
    world, primary, voters = _begun()
    world.kill(primary)
    second = world.leader(2)
    assert not _members(world).joining
    member = second.replicas["j0"].member
    world.start(primary)
    world.do(second, "j0", lambda: member.change_voters(voters))
    world.until(lambda: _members(world).voters == voters and not _members(world).joining)
    world.finish()


def test_a_change_whose_answer_was_lost_is_seen_at_the_next_look() -> None:
    """SNAP-IDX-2: and is brought to its end, though it was given up meanwhile."""
    world, primary, voters = _begun()
    member = primary.replicas["j0"].member
    old = member.members.voters
    world.arbiter_down.add(primary.name)
    both = ChangeSet(member.epoch, MemberSet(old, 2, voters))
    assert world.arbiter.ask("j0", primary.name, both) is True
    world.do(primary, "j0", lambda: member.change_voters(old))
    assert not member.learners
    world.arbiter_down.clear()
    world.until(lambda: member.members == MemberSet(voters, 3))
    assert member.epoch == 1
    world.finish()


def test_nobody_leaves_before_most_of_those_who_stay_are_caught_up() -> None:
    """SNAP-IDX-2, F58: else nobody could vote with them, once the primary is lost too."""
    world, primary = settled(QUIET, Rules())
    stays, wiped = world.others(primary)
    member, old = primary.replicas["j0"].member, primary.replicas["j0"].member.members
    world.wipe(wiped)
    world.run_for(2)
    left = (stays.name, wiped.name)
    world.do(primary, "j0", lambda: member.change_voters(left))
    world.run_for(2)
    assert _members(world) == old
    assert member.leaving == (primary.name,)  # it waits, and that is told
    world.do(primary, "j0", lambda: member.change_voters(old.voters))  # it is given up
    assert member.leaving == ()
    world.start(wiped)
    world.run_for(2)
    assert _members(world) == old
    world.do(primary, "j0", lambda: member.change_voters(left))
    world.until(lambda: _members(world) == MemberSet(left, 3))
    world.kill(primary)
    world.put(world.leader(2))
    world.start(primary)
    world.finish()


def test_an_old_answer_about_the_members_means_nothing() -> None:
    """SNAP-IDX-2: a question that was asked twice is refused once the change has gone on."""
    world, primary, voters = _begun()
    member = primary.replicas["j0"].member
    both = ChangeSet(member.epoch, MemberSet(member.members.voters, 2, voters))
    world.until(lambda: member.members == MemberSet(voters, 3))
    late = world.arbiter.ask("j0", primary.name, both)
    assert late is False
    world.do(primary, "j0", lambda: member.answered(both, late))
    assert member.is_serving and member.epoch == 1
    world.finish()


def test_a_change_may_be_asked_for_again_and_another_one_waits() -> None:
    """SNAP-IDX-2: while it is under way, and when it is done."""
    world, primary, voters = _begun()
    member = primary.replicas["j0"].member
    member.change_voters(voters)
    with pytest.raises(ReadOnly, match="one at a time"):
        member.change_voters(voters[:2])
    world.until(lambda: bool(_members(world).joining))
    world.until(lambda: bool(member.members.joining))
    assert member.leaving == tuple(set(member.members.voters) - set(voters))
    member.change_voters(voters)
    world.until(lambda: member.members.voters == voters and not member.members.joining)
    version = member.members.version
    member.change_voters(voters)
    world.run_for(1)
    assert member.members.version == version
    world.finish()
