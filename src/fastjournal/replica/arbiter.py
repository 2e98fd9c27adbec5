"""What is asked of an arbiter.

An arbiter keeps three keys for each journal: `set` (who its members are) and `epoch`, for ever, and
`leader`, for as long as the lease of a node. All it must be able to do is to compare and change
them in one step; who leads is then safe by epochs, not by the lease.

Rules:

1. `Take` gives the leader key and the next epoch in one step, if nobody leads and both epoch and
   set are as the candidate has seen them.
2. `Raise` moves the epoch up, never down: for an arbiter that was restored from an old backup.
3. `ChangeSet` needs the leader's own epoch, so that it never happens beside an election.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from fastjournal.replica.rules import MemberSet

__all__ = [
    "ChangeSet",
    "Look",
    "Question",
    "Raise",
    "Resign",
    "Take",
    "View",
]


class View(NamedTuple):
    """The keys of one journal at one moment."""

    members: MemberSet
    epoch: int
    leader: str
    """Empty: nobody leads."""
    leads: int
    """The epoch that was taken with the leader key; 0: nobody leads."""


class Look(NamedTuple):
    """What do the keys say? Answer: View."""


class Take(NamedTuple):
    """Let me lead. Answer: True, and the epoch is one higher; or False."""

    epoch: int
    version: int
    lease: int
    """That the leader key hangs on."""


class Raise(NamedTuple):
    """The epoch is at least this. Answer: True."""

    epoch: int


class Resign(NamedTuple):
    """I do not lead this epoch any more. Answer: whether I did."""

    epoch: int


class ChangeSet(NamedTuple):
    """Let these be the members; their version is one higher. Answer: whether that is so now."""

    epoch: int
    members: MemberSet


Question: TypeAlias = Look | Take | Raise | Resign | ChangeSet
