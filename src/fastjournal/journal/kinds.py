"""The commands of the log, as values. How they are written: `commands`.

Rules:

1. A command states what becomes of one row (or of a queue, a sender), never what was asked.
2. Commands are tuples: cheap to make, frozen, and equal only by content, so compare types too.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

from fastjournal.model import QueueSettings

__all__ = [
    "BY_SCHEDULE",
    "DEFAULT_POLICY",
    "FAILED",
    "FROM_WORKQ",
    "GAVE_BACK",
    "GAVE_UP",
    "KEEP_VERSIONS",
    "PERSIST",
    "TIMED_OUT",
    "TOO_MANY_ATTEMPTS",
    "TOO_MANY_TIMEOUTS",
    "Add",
    "Command",
    "Complete",
    "Dead",
    "Delete",
    "End",
    "Ends",
    "Expire",
    "Fail",
    "Group",
    "Keys",
    "Lease",
    "Mark",
    "Policy",
    "Purge",
    "Put",
    "Queue",
    "Redrive",
    "Renew",
    "Retry",
    "Schedule",
    "Sender",
    "Start",
    "Timeout",
    "Tomb",
    "Touch",
    "Value",
    "policy_of",
]

PERSIST, KEEP_VERSIONS, FROM_WORKQ, BY_SCHEDULE = 1, 2, 4, 8
TOO_MANY_TIMEOUTS, TOO_MANY_ATTEMPTS, FAILED = 1, 2, 3
GAVE_UP, GAVE_BACK, TIMED_OUT = 1, 2, 3


class Policy(NamedTuple):
    """The part of a row that most rows share: one object for all of them."""

    flags: int = PERSIST
    ttl: int = 0
    """ms"""
    lease: int = 0
    """ms; 0: as the queue says, like the limits below"""
    max_attempts: int = 0
    max_timeouts: int = 0
    max_fails: int = 0


DEFAULT_POLICY = Policy()
_MAX_POLICIES = 4096
_POLICIES: dict[tuple[int, ...], Policy] = {DEFAULT_POLICY: DEFAULT_POLICY}


def policy_of(
    flags: int, ttl: int, lease: int, max_attempts: int, max_timeouts: int, max_fails: int
) -> Policy:
    """The shared object for these values."""
    numbers = (flags, ttl, lease, max_attempts, max_timeouts, max_fails)
    found = _POLICIES.get(numbers)
    if found is None:
        found = Policy(*numbers)
        if len(_POLICIES) < _MAX_POLICIES:
            _POLICIES[found] = found
    return found


class Add(NamedTuple):
    """Workq: a job for now."""

    id: bytes
    name: bytes
    ttr: int
    ttl: int
    priority: int
    max_attempts: int
    max_fails: int
    payload: bytes
    time: int
    created: int


class Schedule(NamedTuple):
    """Workq: a job for later."""

    id: bytes
    name: bytes
    ttr: int
    ttl: int
    priority: int
    max_attempts: int
    max_fails: int
    payload: bytes
    time: int
    created: int


class Complete(NamedTuple):
    """The job is done, with this result."""

    id: bytes
    result: bytes = b""


class Fail(NamedTuple):
    """The job has failed for good, with this result."""

    id: bytes
    result: bytes = b""


class Delete(NamedTuple):
    """Workq: the row goes."""

    id: bytes


class Expire(NamedTuple):
    """The row goes, its time is over."""

    id: bytes


class Start(NamedTuple):
    """Workq: handed out; the lease ends TIME + ttr."""

    id: bytes


class Timeout(NamedTuple):
    """The lease was lost: waiting again at the old place."""

    id: bytes


class Put(NamedTuple):
    """The whole row, waiting."""

    id: bytes
    queue: bytes
    key: bytes
    rank: int
    due: int
    inserted: int
    modified: int
    expires: int
    kind: int
    value: bytes
    policy: Policy = DEFAULT_POLICY
    attempts: int = 0
    timeouts: int = 0
    fails: int = 0
    aliases: tuple[bytes, ...] = ()


class Lease(NamedTuple):
    """Handed out."""

    id: bytes
    start: int
    until: int
    attempt: int
    worker: bytes = b""


class Renew(NamedTuple):
    """The lease goes on."""

    id: bytes
    until: int
    attempt: int


class Touch(NamedTuple):
    """The row lives until `expires`."""

    id: bytes
    expires: int


class Tomb(NamedTuple):
    """Deleted; the key is remembered against older writes."""

    id: bytes
    queue: bytes
    key: bytes
    modified: int


class Purge(NamedTuple):
    """The row goes without a trace."""

    id: bytes
    queue: bytes
    key: bytes
    modified: int


class Dead(NamedTuple):
    """The row is given up."""

    id: bytes
    reason: int
    when: int


class Keys(NamedTuple):
    """The row has another key or other aliases."""

    id: bytes
    key: bytes
    aliases: tuple[bytes, ...]
    modified: int


class Value(NamedTuple):
    """The row has another value."""

    id: bytes
    kind: int
    value: bytes
    modified: int
    operation: bytes = b""


class Group(NamedTuple):
    """Several commands under one CRC: all or none."""

    members: tuple[Command, ...]


class Mark(NamedTuple):
    """A note in the log: clean shutdown, snapshot taken."""

    when: int
    segment: int
    offset: int
    note: bytes = b""


class Queue(NamedTuple):
    """The settings of a queue; the defaults mean: none of its own."""

    queue: bytes
    settings: QueueSettings


class Retry(NamedTuple):
    """Waiting again from `due` on."""

    id: bytes
    reason: int
    due: int
    timeouts: int
    fails: int
    note: bytes = b""


class Redrive(NamedTuple):
    """A dead row waits again, its counters at 0."""

    id: bytes
    due: int
    max_attempts: int


class End(IntEnum):
    """How a lease, or a job, ended."""

    DONE = 1
    DEAD = 2
    """Failed for the last time."""
    GONE = 3
    """Removed otherwise: taken, deleted, given up for its twin."""
    DROPPED = 4
    """Failed, and a twin took its place."""
    LEFT = 5
    """Released, and a twin took its place."""
    RETRIED = 6
    """Failed, and waits again."""
    RETURNED = 7
    """Released, and waits again."""


class Ends(NamedTuple):
    """What is remembered of ends whose own records may go: (row, end, token) each.

    An end of 8 and more is that of a lease whose row was still there.
    """

    ends: tuple[tuple[bytes, int, int], ...]


class Sender(NamedTuple):
    """All requests of a sender up to `mark` have been taken in; 0: the sender is forgotten."""

    name: bytes
    mark: int


Command: TypeAlias = (
    Add
    | Schedule
    | Complete
    | Fail
    | Delete
    | Expire
    | Start
    | Timeout
    | Put
    | Lease
    | Renew
    | Touch
    | Tomb
    | Purge
    | Dead
    | Keys
    | Value
    | Group
    | Mark
    | Queue
    | Retry
    | Redrive
    | Sender
    | Ends
)
