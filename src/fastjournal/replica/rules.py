"""What makes replication safe: each rule in one method, over values. Pure.

A record is named by (epoch, TIME): two primaries can draw the same TIME, but an epoch has one
primary, and its log only grows. Why the rules are enough: what was answered at epoch e is stored
by a majority that had promised nothing above e. A primary of a higher epoch has a majority that
promised it; one node is in both and stored before it promised, so the highest (epoch, TIME) among
those who promised holds it.

The methods of `Rules` are asked by `member`; a test takes one rule away and sees what breaks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastjournal.clock import SECOND

__all__ = [
    "AHEAD_OF_FOLLOWER",
    "AHEAD_OF_MEDIAN",
    "NO_MEMBERS",
    "NO_PROMISE",
    "OPEN_END",
    "EpochStart",
    "LogEnd",
    "MemberSet",
    "Promise",
    "Rules",
]

AHEAD_OF_MEDIAN = SECOND
"""A candidate whose clock is further ahead of the others' median declines."""
AHEAD_OF_FOLLOWER = 60 * SECOND
"""A follower does not acknowledge a TIME that lies further ahead of its own clock."""
OPEN_END = (1 << 63) - 1
"""The last TIME of a log that its primary goes on writing."""


class EpochStart(NamedTuple):
    """Where an epoch begins in a log."""

    epoch: int
    first: int
    """TIME of its MARK."""
    after: int
    """TIME of the record before that one: the last of the epoch before, in this history."""


class LogEnd(NamedTuple):
    """The newest record of a log, as nodes compare them: first by epoch, then by TIME."""

    epoch: int
    time: int


class Promise(NamedTuple):
    """The word a node gave: nothing of a lower epoch is taken any more."""

    epoch: int
    node: str
    """To whom; empty: whoever the arbiter chose for that epoch."""


NO_PROMISE = Promise(0, "")


@dataclass(frozen=True, slots=True)
class MemberSet:
    """The nodes that keep a journal."""

    voters: tuple[str, ...]
    version: int = 1
    joining: tuple[str, ...] = ()
    """The voters to be, while they change; empty: nothing changes."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Everybody the primary ships to."""
        return tuple(dict.fromkeys((*self.voters, *self.joining)))


NO_MEMBERS = MemberSet(())
_BEFORE_ALL = EpochStart(0, 0, 0)


def _are_most(nodes: Collection[str], voters: Sequence[str]) -> bool:
    every = set(voters)
    return 2 * len(every.intersection(nodes)) > len(every)


class Rules:
    """Every safety rule; without state."""

    def has_majority(self, members: MemberSet, nodes: Collection[str]) -> bool:
        """More than half of the voters; while they change, more than half of both sets."""
        return _are_most(nodes, members.voters) and (
            not members.joining or _are_most(nodes, members.joining)
        )

    def may_promise(self, given: Promise, asked: Promise) -> bool:
        """Only a higher epoch; the same one to the same node again.

        The node counts too: an arbiter that was restored from an old backup gives an epoch twice.
        """
        if asked.epoch != given.epoch:
            return asked.epoch > given.epoch
        return given.node in ("", asked.node)

    def may_begin(self, given: Promise, epoch: int) -> bool:
        """A candidate begins an epoch that it has promised to nobody, not even to itself before."""
        return epoch > given.epoch

    def may_append(self, given: Promise, epoch: int, sender: str) -> bool:
        """A follower takes bytes of the epoch that it has promised, and of no other."""
        return epoch == given.epoch and given.node in ("", sender)

    def follows(self, last: int, after: int) -> bool:
        """Bytes fit if they hold all that comes behind our newest record."""
        return after == last

    def is_whole(self, times: Sequence[int], last: int, broken: bool) -> bool:
        """Every CRC holds, and TIME rises from record to record."""
        if broken:
            return False
        for time in times:
            if time <= last:
                return False
            last = time
        return True

    def may_vote(self, eligible: bool) -> bool:
        """Who may have lost what it once acknowledged neither votes nor leads."""
        return eligible

    def is_fenced(self, members: MemberSet, promised: Collection[str], candidate: str) -> bool:
        """A majority, with the candidate, has promised: only then are their ends compared."""
        return candidate in promised and self.has_majority(members, promised)

    def best_end(self, ends: Mapping[str, LogEnd], candidate: str) -> str:
        """Whose log is taken: the highest (epoch, TIME); the candidate's own if it is as high."""
        return max(ends, key=lambda node: (ends[node], node == candidate, node))

    def log_end(self, history: Sequence[EpochStart], last: int) -> LogEnd:
        """The name of the newest record of a log whose newest TIME is `last`."""
        begun = [start.epoch for start in history if start.first <= last]
        return LogEnd(max(begun, default=0), last)

    def common_time(
        self,
        own: Sequence[EpochStart],
        own_last: int,
        other: Sequence[EpochStart],
        other_last: int,
    ) -> int:
        """Up to which TIME our log is the beginning of the other one; the rest is divergent.

        Both logs have the newest epoch that begins alike in both from its one primary, up to
        where each of them leaves it.
        """
        ours = [_BEFORE_ALL, *(start for start in own if start.first <= own_last)]
        theirs = [_BEFORE_ALL, *(start for start in other if start.first <= other_last)]
        shared = max(set(ours) & set(theirs))

        def leaves(history: list[EpochStart], last: int) -> int:
            later = [start.after for start in history if start > shared]
            return min([*later, last])

        return min(leaves(ours, own_last), leaves(theirs, other_last))

    def commit_time(self, members: MemberSet, stored: Mapping[str, int], mark: int) -> int:
        """Up to which TIME a majority has the primary's log; 0 until that includes its MARK.

        Without the MARK an older epoch's tail, though on a majority, could still lose to another
        one of an epoch in between.
        """
        for time in sorted(set(stored.values()), reverse=True):
            if time < mark:
                break
            if self.has_majority(members, [node for node, has in stored.items() if has >= time]):
                return time
        return 0

    def may_leave(
        self, members: MemberSet, stored: Mapping[str, int], mark: int, commit: int
    ) -> bool:
        """While members change: the new ones alone may count, for most of them have all.

        `commit` may still be what a majority of the old ones had, before both were asked.
        """
        return self.commit_time(members, stored, mark) >= commit

    def acknowledged_time(
        self, level: str, members: MemberSet, stored: Mapping[str, int], own: str, commit: int
    ) -> int:
        """Up to which TIME a primary may answer at that level; `all` never shrinks by itself."""
        if level == "quorum":
            return commit
        if level == "one":
            return stored.get(own, 0)
        return min([commit, *(stored.get(node, 0) for node in members.nodes)])

    def lease_end(self, sent: int, ttl: int, margin: int) -> int:
        """Until when a lease counts as held: from when renewing was *sent*, less a margin."""
        return sent + ttl - margin

    def is_fresh(self, round_sent: int, round_confirmed: int) -> bool:
        """Without a lease, an answer needs a majority asked after the question came."""
        return round_confirmed >= round_sent

    def may_vouch(self, holds_lease: bool) -> bool:
        """Only who leads by the arbiter's word tells followers how far a majority is.

        Another one may have gone further with a majority that this one does not know of.
        """
        return holds_lease

    def clock_fits(self, own: int, others: Sequence[int]) -> bool:
        """A candidate that is ahead of the fenced median would make deadlines come early."""
        if not others:
            return True
        return own - sorted(others)[(len(others) - 1) // 2] <= AHEAD_OF_MEDIAN

    def time_fits(self, time: int, clock: int) -> bool:
        """A record from too far ahead of a follower's own clock is not acknowledged."""
        return time - clock <= AHEAD_OF_FOLLOWER

    def first_promise(self, epoch: int) -> Promise:
        """What a node without a memory has promised, as far as it can know: the arbiter's epoch."""
        return Promise(epoch, "")

    def may_have_lost(self, sync: str, boot: bytes, boot_now: bytes) -> bool:
        """Whether acknowledged bytes may be gone: the system restarted under a lazy sync policy."""
        return sync != "always" and boot != boot_now

    def is_same_lease(self, taken_under: int, number: int) -> bool:
        """The leader key went with the lease that it was taken under; another one says nothing."""
        return taken_under == number

    def may_ship(self, dropped_to: int, base: int, after: int) -> bool:
        """What comes behind `after` is whole here: nothing of it was dropped.

        Who has all up to the base of our snapshot, and no more, gets all that we replay ourselves.
        """
        return after >= dropped_to or after == base

    def is_whole_snapshot(self, size: int, crc: int, got: int, got_crc: int) -> bool:
        """A snapshot counts when every byte of it is the primary's."""
        return (size, crc) == (got, got_crc)

    def may_keep_snapshot(self, base: int, keep: int) -> bool:
        """A snapshot that tells of records which are cut off tells of what never happened."""
        return base <= keep

    def is_for_us(self, session: int, own: int) -> bool:
        """A goal counts for the process that it was told to: another run has other losses."""
        return session == own
