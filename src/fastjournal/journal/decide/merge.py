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
    value      replaced, and its version is that of today; so are the kind of the value, and
               lease, limits and ttl where the repeat gives any
    modified   the timestamp of the repeat
    persist    the larger: what is in the log stays there

A repeat that is not newer than the row changes nothing: with the very timestamp of the row it is
the same message sent again, with an older one it was written before what is there (D-09).
"""

from typing import Final

from mypy_extensions import i64

from fastjournal.clock import MILLISECOND
from fastjournal.journal.language.commands import (
    DEFAULT_POLICY,
    PERSIST,
    SCHEMA_SHIFT,
    Policy,
    Put,
    policy_of,
)
from fastjournal.journal.state.row import Row
from fastjournal.put_request import PutRequest

__all__ = ["bounded_due", "later", "merge", "policy_for"]

_SCHEMA: Final[i64] = 15 << SCHEMA_SHIFT


def merge(row: Row, job: PutRequest, rank: i64, timestamp: i64, now: i64) -> Put | None:
    """The row after the repeat; None if it changes nothing."""
    if timestamp <= row.modified:
        return None
    more = row.rare
    due = max(row.due, job.due or now)
    return Put(
        row.id,
        row.queue.name,
        row.key,
        min(row.rank, rank),
        bounded_due(due, row.inserted, row.queue.max_wait),
        row.inserted,
        timestamp,
        later(row.expires, job.expires),
        job.kind,
        job.value,
        _stated(policy_for(job, row.policy), job.persist or row.queue.persist, row.queue.schema),
        row.attempts,
        0,
        more.fails,
        more.aliases,
    )


def later(one: i64, other: i64) -> i64:
    """The later expiry; 0 is never."""
    if one == 0 or other == 0:
        return 0
    return max(one, other)


def bounded_due(due: i64, inserted: i64, max_wait: i64) -> i64:
    """A due time that is not before the insertion and not past the longest wait."""
    if 0 < max_wait < due - inserted:
        return inserted + max_wait
    return max(inserted, due)


def policy_for(job: PutRequest, old: Policy = DEFAULT_POLICY) -> Policy:
    """What the job asks for, else what was there."""
    limits = job.lease | job.max_attempts | job.max_timeouts | job.max_fails
    if limits | job.ttl == 0 and job.kind == 1:  # the queue's rules hold
        return old
    return policy_of(
        old.flags,
        _ms(job.ttl) or old.ttl,
        _ms(job.lease) or old.lease,
        job.max_attempts or old.max_attempts,
        job.max_timeouts or old.max_timeouts,
        job.max_fails or old.max_fails,
    )


def _stated(policy: Policy, persist: bool, schema: i64) -> Policy:
    """A row in memory comes into the log when that is asked for, never back; its payload is new."""
    flags = policy.flags & ~_SCHEMA | schema << SCHEMA_SHIFT
    if persist:
        flags |= PERSIST
    return policy if flags == policy.flags else policy.changed(flags=flags)


def _ms(length: i64) -> i64:
    """Whole milliseconds, no fewer."""
    return (length - 1) // MILLISECOND + 1 if length else 0
