"""How bytes go from a primary to a follower: ahead of all syncs, counted behind them."""

from __future__ import annotations

import errno

import pytest

from fastjournal.errors import JournalError
from fastjournal.replica.member import Member, Role, Send
from fastjournal.replica.messages import Ack, Append
from fastjournal.replica.recent import Chunk, RecentBytes
from fastjournal.testing import Fault, MemoryFiles
from replica_world import Plan, World

QUIET = Plan(loss=0, twice=0, late=0, together=0, faults=())


def make_pair() -> tuple[Member, Member, MemoryFiles]:
    """A primary, a follower that has all, and the follower's disk; nothing is under way."""
    world = World(1, QUIET)
    world.noise = False
    nodes = list(world.nodes.values())

    def members() -> list[Member]:
        return [node.replicas["j0"].member for node in nodes]

    while not (
        any(member.is_serving for member in members())
        and len({member.log.last_time for member in members()}) == 1
    ):
        world.run_for(0.05)
    (primary,) = [one for one in members() if one.role is Role.PRIMARY]
    follower = next(node for node in nodes if node.name != primary.name)
    member = follower.replicas["j0"].member
    assert primary.lag()[member.name] == member.log.last_time
    primary.outbox.clear()
    return primary, member, follower.files


def ship(primary: Member, follower: Member, count: int = 3) -> list[Append]:
    """Records of the primary, each in a message of its own."""
    for number in range(count):
        primary.append(b"put %d" % number)
    return shipped(primary, follower)


def shipped(primary: Member, follower: Member) -> list[Append]:
    """What the primary has to say to the follower now."""
    outbox, primary.outbox = primary.outbox, []
    sent = [one for one in outbox if isinstance(one, Send) and one.to == follower.name]
    return [one.message for one in sent if isinstance(one.message, Append)]


def acknowledged(follower: Member) -> list[Ack]:
    outbox, follower.outbox = follower.outbox, []
    return [one.message for one in outbox if isinstance(one, Send) and type(one.message) is Ack]


def test_what_arrives_together_is_synced_and_acknowledged_once() -> None:
    """F58: several messages are under way before the first is acknowledged."""
    primary, follower, files = make_pair()
    messages = ship(primary, follower)
    assert len(messages) == 3
    before = files.syncs
    follower.receive(primary.name, *messages)
    assert files.syncs == before + 1
    (ack,) = acknowledged(follower)
    assert (ack.time, ack.refused) == (primary.log.last_time, "")
    primary.receive(follower.name, ack)
    assert primary.commit_time == primary.log.last_time


def test_nothing_is_acknowledged_that_could_not_be_synced() -> None:
    """F58: the acknowledgement leaves behind the sync."""
    primary, follower, files = make_pair()
    messages = ship(primary, follower)
    files.failing = lambda work: Fault(errno.EIO) if work.startswith("sync ") else None
    with pytest.raises(JournalError):
        follower.receive(primary.name, *messages)
    assert acknowledged(follower) == []


def test_a_primary_counts_for_what_it_has_synced_and_no_more() -> None:
    """F58: a follower may be faster than the primary's own disk."""
    primary, follower, _ = make_pair()
    before = primary.commit_time

    class Slow:
        """A journal that has written, and not yet synced, one record."""

        time = before + 1

        def stored_time(self) -> int:
            return before

        def written_time(self) -> int:
            return self.time

        def tell_writes(self, told: object) -> None:
            assert callable(told)
            told(before, b"bytes", self.time, False)

    primary.log.lend()
    primary.log.lend_to(Slow())
    primary.wrote()
    (message,) = shipped(primary, follower)
    assert message.data == b"bytes"
    ack = Ack(message.epoch, follower.session, before + 1, message.round, "", 0)
    primary.receive(follower.name, ack)
    primary.synced()
    assert primary.lag()[follower.name] == before + 1
    assert primary.commit_time == before


def test_what_is_missing_is_sent_again_once_and_what_comes_twice_is_no_gap() -> None:
    """F60: one message is lost, those behind it are refused."""
    primary, follower, _ = make_pair()
    messages = ship(primary, follower, 4)
    for message in messages[1:]:
        follower.receive(primary.name, message)
    refusals = acknowledged(follower)
    assert [ack.refused for ack in refusals] == ["gap"] * 3
    for ack in refusals:
        primary.receive(follower.name, ack)
    again = shipped(primary, follower)
    assert [message.after for message in again] == [messages[0].after]
    follower.receive(primary.name, *again, *messages)
    (ack,) = acknowledged(follower)
    assert (ack.time, ack.refused) == (primary.log.last_time, "")
    assert follower.log.records() == primary.log.records()


def test_a_bounded_number_of_messages_is_under_way() -> None:
    """Law 9: what follows is sent as they are acknowledged."""
    primary, follower, _ = make_pair()
    messages = ship(primary, follower, 40)
    assert len(messages) == 16
    while messages:
        follower.receive(primary.name, *messages)
        for ack in acknowledged(follower):
            primary.receive(follower.name, ack)
        messages = shipped(primary, follower)
    assert follower.log.last_time == primary.log.last_time


def test_recent_bytes_are_read_from_where_a_write_began() -> None:
    """Together while they fit and are of one segment; else they are read from the files."""
    recent = RecentBytes(kept=10)
    recent.add(0, b"aaa", 1, True)
    recent.add(1, b"bb", 3, False)
    recent.add(3, b"cc", 4, False)
    recent.add(4, b"dd", 5, True)
    assert recent.read_after(0, 100) == Chunk(b"aaabbcc", True, 4)
    assert recent.read_after(1, 3) == Chunk(b"bb", False, 3)
    assert recent.read_after(4, 100) == Chunk(b"dd", True, 5)
    assert recent.read_after(2, 100) is None
    assert recent.read_after(5, 100) is None
    recent.add(5, b"eee", 6, False)
    assert recent.read_after(0, 100) is None
    assert recent.read_after(1, 100) == Chunk(b"bbcc", False, 4)
