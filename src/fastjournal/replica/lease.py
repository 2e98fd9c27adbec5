"""How long a node may trust the arbiter's word: its lease, seen from this side. Pure.

One lease a node; the leader keys of all its journals hang on it. It counts from the moment that
renewing was *sent*, less a margin, so it ends here before it ends at the arbiter, whatever the
network did; and it is looked at again before every answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.replica.rules import Rules

__all__ = ["NodeLease", "Timing"]


@dataclass(frozen=True, slots=True)
class Timing:
    """Lengths in ns."""

    ttl: int = 10 * SECOND
    """How long the arbiter keeps a lease that nobody renews."""
    margin: int = 2 * SECOND
    """How much earlier its holder stops to rely on it; also for clocks that go unevenly."""
    renew: int = 3 * SECOND
    request: int = 2 * SECOND
    """After so long a request counts as lost."""
    look: int = SECOND
    """Between two looks at the arbiter's keys."""
    suspicion: int = 150 * MILLISECOND
    """The same while a primary that was heard of is silent: its key may be gone any moment."""
    beat: int = 250 * MILLISECOND
    """Between two signs of life of a primary, each of which repeats what was not acknowledged."""
    rank: int = 200 * MILLISECOND
    """What a candidate waits for each one that is ahead of it."""
    candidacy: int = 5 * SECOND
    """After so long a candidate that has no majority gives up."""


class NodeLease:
    """What this node knows of its own lease."""

    def __init__(self, timing: Timing, rules: Rules) -> None:
        self._timing = timing
        self._rules = rules
        self.number = 0
        """The arbiter's name of it; 0: there is none. What hung on another one is gone."""
        self.until = 0
        """On the monotonic clock."""

    def renewed(self, number: int, sent: int) -> None:
        """The arbiter has confirmed what was sent at that moment."""
        end = self._rules.lease_end(sent, self._timing.ttl, self._timing.margin)
        self.until = max(self.until, end) if number == self.number else end
        self.number = number

    def lost(self) -> None:
        """The arbiter says that there is no such lease any more."""
        self.number = self.until = 0

    def is_held(self, now: int) -> bool:
        """Whether it holds at this moment of the monotonic clock."""
        return self.number > 0 and now < self.until
