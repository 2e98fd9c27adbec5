"""The rule of a repeated key, field by field.

A repeat meets a row that waits. The row keeps its id, its place of arrival and its history:

    field      becomes
    ---------  ---------------------------------------------------------------------------
    inserted   kept
    expires    the largest; never (0) is above all
    rank       the smallest: the most urgent
    due        the largest, but never past inserted + max_wait where the queue sets one
    timeouts   0
    attempts   kept: the next token must be new
    fails      kept
    value      replaced; so are the kind of the value, and lease, limits and ttl where the repeat
               gives any
    modified   the timestamp of the repeat

A repeat that is not newer than the row changes nothing: with the very timestamp of the row it is
the same message sent again, with an older one it was written before what is there (D-09).
"""

from __future__ import annotations

from fastjournal.clock import MILLISECOND
from fastjournal.journal.language.commands import DEFAULT_POLICY, Policy, Put, policy_of
from fastjournal.journal.state.row import Row
from fastjournal.model import NewJob

__all__ = ["bounded_due", "later", "merge", "policy_for"]


def merge(row: Row, job: NewJob, rank: int, timestamp: int, now: int, max_wait: int) -> Put | None:
    """The row after the repeat; None if it changes nothing."""
    if timestamp <= row.modified:
        return None
    more = row.rare
    return Put(
        row.id,
        row.queue.name,
        row.key,
        min(row.rank, rank),
        bounded_due(max(row.due, job.due or now), row.inserted, max_wait),
        row.inserted,
        timestamp,
        later(row.expires, job.expires),
        job.kind,
        job.value,
        policy_for(job, row.policy),
        row.attempts,
        0,
        more.fails,
        more.aliases,
    )


def later(one: int, other: int) -> int:
    """The later expiry; 0 is never."""
    return max(one, other) if one and other else 0


def bounded_due(due: int, inserted: int, max_wait: int) -> int:
    """A due time that is not before the insertion and not past the longest wait."""
    if max_wait and due > inserted + max_wait:
        return inserted + max_wait
    return max(inserted, due)


def policy_for(job: NewJob, old: Policy = DEFAULT_POLICY) -> Policy:
    """What the job asks for, else what was there."""
    return policy_of(
        old.flags,
        -(-job.ttl // MILLISECOND) or old.ttl,
        -(-job.lease // MILLISECOND) or old.lease,
        job.max_attempts or old.max_attempts,
        job.max_timeouts or old.max_timeouts,
        job.max_fails or old.max_fails,
    )
