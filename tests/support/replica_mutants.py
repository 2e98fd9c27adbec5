"""The kinds of worlds a cluster is tried in, and what becomes of it without each safety rule."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fastjournal.clock import SECOND
from fastjournal.replica.rules import EpochStart, LogEnd, MemberSet, Promise, Rules
from replica_world import TIMING, Plan

PLANS = {
    "plain": Plan(seconds=7, each=0.7),
    "five nodes": Plan(nodes=5, seconds=4, each=0.6),
    "damage": Plan(
        seconds=7,
        each=0.9,
        faults=("kill", "power", "pause", "cut-off", "wipe", "flip", "power-everywhere"),
        flips=0.03,
    ),
    "clocks": Plan(seconds=7, each=0.7, faults=("kill", "pause", "cut-off", "clock", "clock")),
    "old backup": Plan(
        seconds=9, each=0.7, faults=("kill", "pause", "cut-off", "arbiter", "old-backup")
    ),
    "lazy sync": Plan(seconds=7, each=0.7, sync="os", may_stall=True),
    "moving": Plan(
        spares=2,
        seconds=8,
        each=0.4,
        faults=("kill", "cut-off", "one-way", "members", "members", "mend"),
        loss=0.25,
    ),
    "growing": Plan(
        nodes=1,
        spares=3,
        seconds=8,
        each=0.3,
        faults=("kill", "cut-off", "members", "resize", "resize", "mend"),
    ),
    "late mail": Plan(
        seconds=9, each=0.6, faults=("kill", "pause", "cut-off", "power"), twice=0.2, late=0.15
    ),
    "short reigns": Plan(
        nodes=5, seconds=12, each=0.25, faults=("kill", "kill", "cut-off", "one-way"), loss=0.2
    ),
    "lazy and late": Plan(
        seconds=9,
        each=0.5,
        sync="os",
        faults=("power", "power", "cut-off", "kill", "mend"),
        twice=0.3,
        late=0.2,
        may_stall=True,
    ),
    "wiped": Plan(
        seconds=9, each=0.35, faults=("pause", "pause", "wipe", "wipe", "cut-off", "mend"), late=0.1
    ),
    "rare looks": Plan(
        seconds=9,
        each=0.5,
        faults=("pause", "pause", "cut-off", "mend"),
        timing=replace(TIMING, look=3 * SECOND, suspicion=3 * SECOND),
    ),
    "snapshots": Plan(
        seconds=8,
        each=0.3,
        faults=("snapshot", "snapshot", "kill", "power", "cut-off", "wipe", "pause", "mend"),
        flips=0.02,
        requests=0.03,
    ),
    "looked at": Plan(
        nodes=5,
        seconds=7,
        each=0.5,
        faults=("kill", "pause", "cut-off", "one-way", "arbiter", "wipe", "mend"),
        late=0.1,
        looked_at=True,
    ),
    "leases": Plan(seconds=9, each=0.6, faults=("pause", "pause", "cut-off", "arbiter", "kill")),
}


LED_BY_HAND = (
    "AnyLease", "AnySession", "KeepsSnapshot", "LeavesEarly", "NoMark", "NothingPromised",
    "PromiseIsNothing", "StaleAnswers", "TimeOnly", "VouchesAlone",
)  # fmt: skip
"""What chance meets too rarely; the others are found by seeds."""


class NoFence(Rules):
    """A candidate compares ends without a majority's promise."""

    def is_fenced(self, members: MemberSet, promised: Collection[str], candidate: str) -> bool:
        return candidate in promised


class AnyEpoch(Rules):
    """A follower takes bytes of every epoch."""

    def may_append(self, given: Promise, epoch: int, sender: str) -> bool:
        return True


class PromiseToAnybody(Rules):
    """An epoch is promised to whoever asks for it."""

    def may_promise(self, given: Promise, asked: Promise) -> bool:
        return asked.epoch >= given.epoch


class SameEpochAgain(Rules):
    """A node goes on with an epoch that it began before it was started again."""

    def may_begin(self, given: Promise, epoch: int) -> bool:
        return epoch >= given.epoch


class GapsAreFine(Rules):
    """A follower takes bytes that do not follow its newest record."""

    def follows(self, last: int, after: int) -> bool:
        return True


class CrcIsNothing(Rules):
    """A follower takes bytes whose CRC is wrong."""

    def is_whole(self, times: Sequence[int], last: int, broken: bool) -> bool:
        return bool(times) and times[0] > last


class AmnesicVotes(Rules):
    """Who may have lost what it acknowledged votes and leads."""

    def may_vote(self, eligible: bool) -> bool:
        return True


class TimeOnly(Rules):
    """The longest log wins, whatever epoch it is of."""

    def best_end(self, ends: Mapping[str, LogEnd], candidate: str) -> str:
        return max(ends, key=lambda node: (ends[node].time, node == candidate, node))


class OwnEnd(Rules):
    """A candidate leads with what it has."""

    def best_end(self, ends: Mapping[str, LogEnd], candidate: str) -> str:
        return candidate


class TailsStay(Rules):
    """Nobody cuts off a divergent tail."""

    def common_time(
        self,
        own: Sequence[EpochStart],
        own_last: int,
        other: Sequence[EpochStart],
        other_last: int,
    ) -> int:
        return own_last


class Minority(Rules):
    """Half of the voters are enough."""

    def has_majority(self, members: MemberSet, nodes: Collection[str]) -> bool:
        return 2 * len(set(members.voters) & set(nodes)) >= len(members.voters) - 1


class OldMajority(Rules):
    """While members change, a majority of the new ones is not asked for."""

    def has_majority(self, members: MemberSet, nodes: Collection[str]) -> bool:
        return super().has_majority(MemberSet(members.voters), nodes)


class LeavesEarly(Rules):
    """The new members count alone, though only the old ones have what was acknowledged."""

    def may_leave(
        self, members: MemberSet, stored: Mapping[str, int], mark: int, commit: int
    ) -> bool:
        return True


class LongLease(Rules):
    """A lease counts from when its answer came, or so."""

    def lease_end(self, sent: int, ttl: int, margin: int) -> int:
        return sent + ttl + margin


class StaleAnswers(Rules):
    """Without a lease, questions are answered without asking a majority."""

    def is_fresh(self, round_sent: int, round_confirmed: int) -> bool:
        return True


class VouchesAlone(Rules):
    """A primary whose lease is over still tells followers how far a majority is."""

    def may_vouch(self, holds_lease: bool) -> bool:
        return True


class NothingLost(Rules):
    """A power loss under a lazy policy is nothing to be careful about."""

    def may_have_lost(self, sync: str, boot: bytes, boot_now: bytes) -> bool:
        return False


class AnyTime(Rules):
    """A follower acknowledges a TIME hours ahead of its clock."""

    def time_fits(self, time: int, clock: int) -> bool:
        return True

    def clock_fits(self, own: int, others: Sequence[int]) -> bool:
        return True


class AnyLease(Rules):
    """A primary trusts a lease that its leader key does not hang on."""

    def is_same_lease(self, taken_under: int, number: int) -> bool:
        return True


class NothingPromised(Rules):
    """A node without a memory promises anything."""

    def first_promise(self, epoch: int) -> Promise:
        return Promise(0, "")


class AnySession(Rules):
    """A goal that was told to an earlier run of a process is good for this one too."""

    def is_for_us(self, session: int, own: int) -> bool:
        return True


class PromiseIsNothing(Rules):
    """A promise is broken when somebody asks for a lower one."""

    def may_promise(self, given: Promise, asked: Promise) -> bool:
        return True


class NoMark(Rules):
    """A primary serves before its MARK is on a majority."""

    def commit_time(self, members: MemberSet, stored: Mapping[str, int], mark: int) -> int:
        return max(super().commit_time(members, stored, 0), mark)


class ShipsHoles(Rules):
    """A primary ships what it has, though it dropped what comes before."""

    def may_ship(self, dropped_to: int, base: int, after: int) -> bool:
        return True


class AnySnapshot(Rules):
    """A snapshot counts though a byte of it was turned over on the way."""

    def is_whole_snapshot(self, size: int, crc: int, got: int, got_crc: int) -> bool:
        return size == got


class KeepsSnapshot(Rules):
    """A tail is cut off, and the snapshot that tells of it stays."""

    def may_keep_snapshot(self, base: int, keep: int) -> bool:
        return True
