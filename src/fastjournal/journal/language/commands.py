"""The commands of the log, as values that write themselves.

Their layouts stand in the head of `codec`, which reads them.

Rules:

1. A command states what becomes of one row (or of a queue, a sender), never what was asked:
   applying it needs neither clock nor choice.
2. The 16 bytes after the type byte name the row, except in GROUP, MARK, QUEUE, SENDER and ENDS.
3. Types 1..8 are those of Workq, byte for byte; ours begin at 32, so Workq refuses them loudly.
4. Put, Add and Schedule state the whole row: what came before does not matter any more.
5. A command never changes once it is made. Two are equal if their bytes are.
"""

from enum import IntEnum
from typing import Final, final

from mypy_extensions import i64, mypyc_attr, u8

from fastjournal.buffers import BytesWriter, write_i64_be
from fastjournal.clock import MILLISECOND
from fastjournal.journal.language.settings_codec import put_settings
from fastjournal.journal.language.varint import put_blob, put_sv, put_uv
from fastjournal.log.record import encode_time
from fastjournal.model import QueueSettings

__all__ = [
    "ADD",
    "BY_SCHEDULE",
    "COMPLETE",
    "DEAD",
    "DEFAULT_POLICY",
    "DELETE",
    "ENDS",
    "EXPIRE",
    "FAIL",
    "FAILED",
    "FROM_WORKQ",
    "GAVE_BACK",
    "GAVE_UP",
    "GROUP",
    "KEEP_VERSIONS",
    "KEYS",
    "LEASE",
    "LOCK_NOTE",
    "MARK",
    "PERSIST",
    "PLAIN_END",
    "PURGE",
    "PUT",
    "QUEUE",
    "REDRIVE",
    "RENEW",
    "RETRY",
    "SCHEDULE",
    "SCHEMA_SHIFT",
    "SENDER",
    "SNAPSHOT_NOTE",
    "START",
    "TIMED_OUT",
    "TIMEOUT",
    "TOMB",
    "TOO_MANY_ATTEMPTS",
    "TOO_MANY_TIMEOUTS",
    "TOUCH",
    "VALUE",
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
    "WorkqJob",
    "as_one",
    "fault_of",
    "policy_of",
    "write_aliases",
]

ADD: Final[i64] = 1
SCHEDULE: Final[i64] = 2
COMPLETE: Final[i64] = 3
FAIL: Final[i64] = 4
DELETE: Final[i64] = 5
EXPIRE: Final[i64] = 6
START: Final[i64] = 7
TIMEOUT: Final[i64] = 8
PUT: Final[i64] = 32
LEASE: Final[i64] = 34
RENEW: Final[i64] = 35
TOUCH: Final[i64] = 36
TOMB: Final[i64] = 37
PURGE: Final[i64] = 38
DEAD: Final[i64] = 39
KEYS: Final[i64] = 40
VALUE: Final[i64] = 41
GROUP: Final[i64] = 44
MARK: Final[i64] = 45
QUEUE: Final[i64] = 46
RETRY: Final[i64] = 47
REDRIVE: Final[i64] = 48
SENDER: Final[i64] = 49
ENDS: Final[i64] = 50

PERSIST: Final = 1
KEEP_VERSIONS: Final = 2
FROM_WORKQ: Final = 4
BY_SCHEDULE: Final = 8
SCHEMA_SHIFT: Final = 4
"""Flags of a row; above them, in four bits, the version of its payload."""
TOO_MANY_TIMEOUTS: Final = 1
TOO_MANY_ATTEMPTS: Final = 2
FAILED: Final = 3
"""Why a row is dead."""
GAVE_UP: Final = 1
GAVE_BACK: Final = 2
TIMED_OUT: Final = 3
"""Why a row waits again."""
SNAPSHOT_NOTE: Final = b"snapshot"
"""Note of the MARK behind a snapshot, whose number it names: the log below it may go."""
LOCK_NOTE: Final = b"lock"
"""Note of the MARK whose TIME is the fencing number of a lock."""

PLAIN_END: Final[i64] = 1 << 56
"""How most images end, as one number: the flag PERSIST and seven zeros."""


@final
@mypyc_attr(acyclic=True)
class Policy:
    """The part of a row that most rows share: one object for all of them, by `policy_of`."""

    def __init__(
        self,
        flags: i64 = 1,
        ttl: i64 = 0,
        lease: i64 = 0,
        max_attempts: i64 = 0,
        max_timeouts: i64 = 0,
        max_fails: i64 = 0,
    ) -> None:
        self.flags: i64 = flags
        self.ttl: i64 = ttl
        """ms"""
        self.lease: i64 = lease
        """ms; 0: as the queue says, like the limits below"""
        self.max_attempts: i64 = max_attempts
        self.max_timeouts: i64 = max_timeouts
        self.max_fails: i64 = max_fails

    def changed(self, *, flags: i64 = -1, max_attempts: i64 = -1) -> "Policy":
        """The shared object that differs in these."""
        return policy_of(
            self.flags if flags < 0 else flags,
            self.ttl,
            self.lease,
            self.max_attempts if max_attempts < 0 else max_attempts,
            self.max_timeouts,
            self.max_fails,
        )


DEFAULT_POLICY: Final = Policy()
_MAX_POLICIES: Final = 4096
_POLICIES: Final[dict[tuple[int, int, int, int, int, int], Policy]] = {}


def policy_of(
    flags: i64, ttl: i64, lease: i64, max_attempts: i64, max_timeouts: i64, max_fails: i64
) -> Policy:
    """The shared object for these values."""
    if flags == 1 and not (ttl | lease | max_attempts | max_timeouts | max_fails):
        return DEFAULT_POLICY
    numbers = (
        int(flags),
        int(ttl),
        int(lease),
        int(max_attempts),
        int(max_timeouts),
        int(max_fails),
    )
    found = _POLICIES.get(numbers)
    if found is None:
        found = Policy(flags, ttl, lease, max_attempts, max_timeouts, max_fails)
        if len(_POLICIES) < _MAX_POLICIES:
            _POLICIES[numbers] = found
    return found


@mypyc_attr(acyclic=True)
class Command:
    """One change of state."""

    id: bytes
    """The row it is about; empty where it is about none."""

    def write(self, out: BytesWriter) -> None:
        """Append its payload, the type byte first."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return False
        mine, its = BytesWriter(), BytesWriter()
        self.write(mine)
        other.write(its)
        return mine.getvalue() == its.getvalue()

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        out = BytesWriter()
        self.write(out)
        return f"<{type(self).__name__} {out.getvalue().hex()}>"


@mypyc_attr(acyclic=True)
class WorkqJob(Command):
    """What both ways of Workq to bring in a job say."""

    def __init__(
        self,
        row_id: bytes,
        name: bytes,
        ttr: i64,
        ttl: i64,
        priority: i64,
        max_attempts: i64,
        max_fails: i64,
        payload: bytes,
        time: i64,
        created: i64,
    ) -> None:
        self.id = row_id
        self.name = name
        self.ttr: i64 = ttr
        self.ttl: i64 = ttl
        self.priority: i64 = priority
        self.max_attempts: i64 = max_attempts
        self.max_fails: i64 = max_fails
        self.payload = payload
        self.time: i64 = time
        self.created: i64 = created

    def write_job(self, out: BytesWriter, kind: i64, zone: i64) -> None:
        """`zone`: the zone bytes of its times, 0 as documented, 0xFFFF as the real server."""
        out.append(u8(kind))
        out.write(self.id)
        put_blob(out, self.name)
        put_uv(out, self.ttr)
        put_uv(out, self.ttl)
        put_sv(out, self.priority)
        put_uv(out, self.max_attempts)
        put_uv(out, self.max_fails)
        put_blob(out, self.payload)
        if self.time:
            out.write(encode_time(self.time, zone))
        else:
            out.append(1)
            out.write(bytes(12))
            out.append(u8(zone >> 8))
            out.append(u8(zone & 0xFF))
        out.write(encode_time(self.created, zone))


@final
@mypyc_attr(acyclic=True)
class Add(WorkqJob):
    """Workq: a job for now."""

    def write(self, out: BytesWriter) -> None:
        self.write_job(out, ADD, 0)


@final
@mypyc_attr(acyclic=True)
class Schedule(WorkqJob):
    """Workq: a job for later."""

    def write(self, out: BytesWriter) -> None:
        self.write_job(out, SCHEDULE, 0)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Complete(Command):
    """The job is done, with this result."""

    def __init__(self, row_id: bytes, result: bytes = b"") -> None:
        self.id = row_id
        self.result = result

    def write(self, out: BytesWriter) -> None:
        out.append(u8(COMPLETE))
        out.write(self.id)
        put_blob(out, self.result)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Fail(Command):
    """The job has failed for good, with this result."""

    def __init__(self, row_id: bytes, result: bytes = b"") -> None:
        self.id = row_id
        self.result = result

    def write(self, out: BytesWriter) -> None:
        out.append(u8(FAIL))
        out.write(self.id)
        put_blob(out, self.result)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Delete(Command):
    """Workq: the row goes."""

    def __init__(self, row_id: bytes) -> None:
        self.id = row_id

    def write(self, out: BytesWriter) -> None:
        out.append(u8(DELETE))
        out.write(self.id)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Expire(Command):
    """The row goes, its time is over."""

    def __init__(self, row_id: bytes) -> None:
        self.id = row_id

    def write(self, out: BytesWriter) -> None:
        out.append(u8(EXPIRE))
        out.write(self.id)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Start(Command):
    """Workq: handed out; the lease ends TIME + ttr."""

    def __init__(self, row_id: bytes) -> None:
        self.id = row_id

    def write(self, out: BytesWriter) -> None:
        out.append(u8(START))
        out.write(self.id)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Timeout(Command):
    """The lease was lost: waiting at the old place, or failed when its attempts are used up."""

    def __init__(self, row_id: bytes) -> None:
        self.id = row_id

    def write(self, out: BytesWriter) -> None:
        out.append(u8(TIMEOUT))
        out.write(self.id)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Put(Command):
    """The whole row, waiting."""

    def __init__(
        self,
        row_id: bytes,
        queue: bytes,
        key: bytes,
        rank: i64,
        due: i64,
        inserted: i64,
        modified: i64,
        expires: i64,
        kind: i64,
        value: bytes,
        policy: Policy = DEFAULT_POLICY,
        attempts: i64 = 0,
        timeouts: i64 = 0,
        fails: i64 = 0,
        aliases: tuple[bytes, ...] = (),
    ) -> None:
        self.id = row_id
        self.queue = queue
        self.key = key
        self.rank: i64 = rank
        self.due: i64 = due
        self.inserted: i64 = inserted
        self.modified: i64 = modified
        self.expires: i64 = expires
        self.kind: i64 = kind
        self.value = value
        self.policy = policy
        self.attempts: i64 = attempts
        self.timeouts: i64 = timeouts
        self.fails: i64 = fails
        self.aliases = aliases

    def write(self, out: BytesWriter) -> None:
        out.append(u8(PUT))
        out.write(self.id)
        out.append(1)
        put_blob(out, self.queue)
        put_blob(out, self.key)
        if self.aliases:
            write_aliases(out, self.aliases)
        else:
            out.append(0)
        put_sv(out, self.rank)
        write_i64_be(out, self.due)
        write_i64_be(out, self.inserted)
        write_i64_be(out, self.modified)
        write_i64_be(out, self.expires)
        policy = self.policy
        put_uv(out, policy.ttl)
        out.append(u8(self.kind))
        put_blob(out, self.value)
        if policy is DEFAULT_POLICY and not (self.attempts | self.timeouts | self.fails):
            write_i64_be(out, PLAIN_END)
            return
        out.append(u8(policy.flags))
        put_uv(out, policy.lease)
        put_uv(out, self.attempts)
        put_uv(out, self.timeouts)
        put_uv(out, self.fails)
        put_uv(out, policy.max_attempts)
        put_uv(out, policy.max_timeouts)
        put_uv(out, policy.max_fails)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Lease(Command):
    """Handed out."""

    def __init__(
        self,
        row_id: bytes,
        start: i64,
        until: i64,
        attempt: i64,
        worker: bytes = b"",
    ) -> None:
        self.id = row_id
        self.start: i64 = start
        self.until: i64 = until
        self.attempt: i64 = attempt
        self.worker = worker

    def write(self, out: BytesWriter) -> None:
        out.append(u8(LEASE))
        out.write(self.id)
        write_i64_be(out, self.start)
        write_i64_be(out, self.until)
        put_uv(out, self.attempt)
        put_blob(out, self.worker)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Renew(Command):
    """The lease goes on."""

    def __init__(self, row_id: bytes, until: i64, attempt: i64) -> None:
        self.id = row_id
        self.until: i64 = until
        self.attempt: i64 = attempt

    def write(self, out: BytesWriter) -> None:
        out.append(u8(RENEW))
        out.write(self.id)
        write_i64_be(out, self.until)
        put_uv(out, self.attempt)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Touch(Command):
    """The row lives until `expires`."""

    def __init__(self, row_id: bytes, expires: i64) -> None:
        self.id = row_id
        self.expires: i64 = expires

    def write(self, out: BytesWriter) -> None:
        out.append(u8(TOUCH))
        out.write(self.id)
        write_i64_be(out, self.expires)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Tomb(Command):
    """Deleted; the key is remembered against older writes."""

    def __init__(self, row_id: bytes, queue: bytes, key: bytes, modified: i64) -> None:
        self.id = row_id
        self.queue = queue
        self.key = key
        self.modified: i64 = modified

    def write(self, out: BytesWriter) -> None:
        out.append(u8(TOMB))
        out.write(self.id)
        put_blob(out, self.queue)
        put_blob(out, self.key)
        write_i64_be(out, self.modified)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Purge(Command):
    """The row goes without a trace."""

    def __init__(self, row_id: bytes, queue: bytes, key: bytes, modified: i64) -> None:
        self.id = row_id
        self.queue = queue
        self.key = key
        self.modified: i64 = modified

    def write(self, out: BytesWriter) -> None:
        out.append(u8(PURGE))
        out.write(self.id)
        put_blob(out, self.queue)
        put_blob(out, self.key)
        write_i64_be(out, self.modified)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Dead(Command):
    """The row is given up."""

    def __init__(self, row_id: bytes, reason: i64, when: i64) -> None:
        self.id = row_id
        self.reason: i64 = reason
        self.when: i64 = when

    def write(self, out: BytesWriter) -> None:
        out.append(u8(DEAD))
        out.write(self.id)
        out.append(u8(self.reason))
        write_i64_be(out, self.when)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Keys(Command):
    """The row has another key or other aliases."""

    def __init__(
        self,
        row_id: bytes,
        key: bytes,
        aliases: tuple[bytes, ...],
        modified: i64,
    ) -> None:
        self.id = row_id
        self.key = key
        self.aliases: tuple[bytes, ...] = aliases
        self.modified: i64 = modified

    def write(self, out: BytesWriter) -> None:
        out.append(u8(KEYS))
        out.write(self.id)
        put_blob(out, self.key)
        write_aliases(out, self.aliases)
        write_i64_be(out, self.modified)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Value(Command):
    """The row has another value."""

    def __init__(
        self,
        row_id: bytes,
        kind: i64,
        value: bytes,
        modified: i64,
        operation: bytes = b"",
    ) -> None:
        self.id = row_id
        self.kind: i64 = kind
        self.value = value
        self.modified: i64 = modified
        self.operation = operation

    def write(self, out: BytesWriter) -> None:
        out.append(u8(VALUE))
        out.write(self.id)
        out.append(u8(self.kind))
        put_blob(out, self.value)
        write_i64_be(out, self.modified)
        put_blob(out, self.operation)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Group(Command):
    """Several commands under one CRC: all or none."""

    def __init__(self, members: tuple[Command, ...]) -> None:
        self.id = b""
        self.members = members

    def write(self, out: BytesWriter) -> None:
        out.append(u8(GROUP))
        members = self.members
        put_uv(out, len(members))
        for member in members:
            part = BytesWriter()
            member.write(part)
            put_blob(out, part.getvalue())


def as_one(commands: list[Command]) -> Command | None:
    """All of them as one change: a group, the only one, or nothing."""
    if len(commands) < 2:
        return commands[0] if commands else None
    return Group(tuple(commands))


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Mark(Command):
    """A note in the log: clean shutdown, snapshot taken."""

    def __init__(self, when: i64, segment: i64, offset: i64, note: bytes = b"") -> None:
        self.id = b""
        self.when: i64 = when
        self.segment: i64 = segment
        self.offset: i64 = offset
        self.note = note

    def write(self, out: BytesWriter) -> None:
        out.append(u8(MARK))
        write_i64_be(out, self.when)
        put_uv(out, self.segment)
        put_uv(out, self.offset)
        put_blob(out, self.note)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Queue(Command):
    """The settings of a queue; the defaults mean: none of its own."""

    def __init__(self, queue: bytes, settings: QueueSettings) -> None:
        self.id = b""
        self.queue = queue
        self.settings = settings

    def write(self, out: BytesWriter) -> None:
        out.append(u8(QUEUE))
        put_blob(out, self.queue)
        put_settings(out, self.settings)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Retry(Command):
    """Waiting again from `due` on."""

    def __init__(
        self,
        row_id: bytes,
        reason: i64,
        due: i64,
        timeouts: i64,
        fails: i64,
        note: bytes = b"",
    ) -> None:
        self.id = row_id
        self.reason: i64 = reason
        self.due: i64 = due
        self.timeouts: i64 = timeouts
        self.fails: i64 = fails
        self.note = note

    def write(self, out: BytesWriter) -> None:
        out.append(u8(RETRY))
        out.write(self.id)
        out.append(u8(self.reason))
        write_i64_be(out, self.due)
        put_uv(out, self.timeouts)
        put_uv(out, self.fails)
        put_blob(out, self.note)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Redrive(Command):
    """A dead row waits again, its counters at 0."""

    def __init__(self, row_id: bytes, due: i64, max_attempts: i64) -> None:
        self.id = row_id
        self.due: i64 = due
        self.max_attempts: i64 = max_attempts

    def write(self, out: BytesWriter) -> None:
        out.append(u8(REDRIVE))
        out.write(self.id)
        write_i64_be(out, self.due)
        put_uv(out, self.max_attempts)


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Sender(Command):
    """All requests of a sender up to `mark` have been taken in; 0: the sender is forgotten."""

    def __init__(self, name: bytes, mark: i64) -> None:
        self.id = b""
        self.name = name
        self.mark: i64 = mark

    def write(self, out: BytesWriter) -> None:
        out.append(u8(SENDER))
        put_blob(out, self.name)
        write_i64_be(out, self.mark)


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


@final
@mypyc_attr(acyclic=True)
class Ends(Command):
    """What is remembered of ends whose own records may go: (row, end, token) each.

    An end of 8 and more is that of a lease whose row was still there.
    """

    def __init__(self, ends: tuple[tuple[bytes, int, int], ...]) -> None:
        self.id = b""
        self.ends = ends

    def write(self, out: BytesWriter) -> None:
        out.append(u8(ENDS))
        put_uv(out, len(self.ends))
        for row, end, token in self.ends:
            out.write(row)
            out.append(u8(i64(end)))
            put_uv(out, token)


def write_aliases(out: BytesWriter, aliases: tuple[bytes, ...]) -> None:
    """A count and each alias."""
    put_uv(out, len(aliases))
    for alias in aliases:
        put_blob(out, alias)


_LAST_INSTANT: Final = 9_223_372_036_854_775_807
_END_OF_TIME: Final = 9_223_372_036 * 1_000_000_000
_NAME: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


def fault_of(job: WorkqJob) -> str:
    """What is wrong with a Workq job, in its server's words; empty if nothing is.

    Its payload is not looked at. A ttl may be longer than that server's 30 days.
    """
    row_id = job.id
    if len(row_id) != 16 or row_id[6] >> 4 != 4 or row_id[8] >> 6 != 2:
        return "Invalid ID"
    if not 1 <= len(job.name) <= 255 or not _NAME.issuperset(job.name):
        return "Invalid Name"
    if not 1 <= job.ttr <= 86_400_000:
        return "Invalid TTR"
    if not 1 <= job.ttl <= _LAST_INSTANT // MILLISECOND:
        return "Invalid TTL"
    if not -(2**31) <= job.priority < 2**31:
        return "Invalid Priority"
    if not 0 <= job.max_attempts <= 255:
        return "Invalid Max Attempts"
    if not 0 <= job.max_fails <= 255:
        return "Invalid Max Fails"
    if isinstance(job, Schedule) and not 0 < job.time < _END_OF_TIME:
        return "Invalid Time"
    return ""
