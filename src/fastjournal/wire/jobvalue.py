"""Values of type 6: a job, as it is put and as it is handed out.

Layout 1, the short one: in SET requests and in replies to NEXT and GET.

    u8   1            u64  Process Date, us, 0 = now
    u8   priority     u32  lease length, ms, 0 = default of the queue
    u8   max timeouts, 0 = default of the queue
    u8   0 in SET; in replies the attempt = lease token, 255 = 255 or more
    u16  q, then q bytes of queue, 0 = domain(key); the rest is user data

Layout 2, to put a job with everything: in SET requests and, one after another, in PUTS.

    u8   2                          u32  lease length, ms, 0 = default of the queue
    u8   flags, see below           u16  max attempts, 0 = no limit
    u8   type of the user data      u16  max timeouts, 0 = default of the queue
    u8   0                          u16  max fails, 0 = none: the first fail is final
    16   id, zero = server's choice u16  size of queue, 0 = domain(key)
    i64  priority, smaller first    u16  size of key, 0 = key of the message, or none
    u64  due, ns, 0 = now           u32  size of user data
    u64  expires, ns, 0 = never     then queue, key, user data
    u64  modified, ns, 0 = timestamp of the message

    flags: bits 0-1 mode (0 merge if there is a key, else plain; 1 merge; 2 unique; 3 plain)
           bit 2 due is a delay from the server's now; bit 3 expires is a length of life from then

Layout 3, a job handed out: in replies to LEASE and to NEXT with bit 13.

    u8   3                          u32  lease length, ms
    u8   state, ASCII letter        u32  attempts
    u8   type of the user data      u16  timeouts, u16 fails
    u8   0                          u16  max attempts, u16 max timeouts, u16 max fails
    16   id                         u16  size of queue
    u32  token                      u32  size of user data
    u64  lease deadline, ns         then queue, user data; the key is that of the pair
    i64  priority
    u64  due, u64 inserted, u64 modified, u64 expires, all ns, 0 = none

Rules:

1. A job is named by its key, or by its id: every job has one, 16 bytes, and a client that chooses
   it may send the same put again without harm.
2. The token of layout 1 has one byte, as it was specified. A client that wants to be fenced past
   the 255th attempt asks for layout 3 (LEASE, or NEXT with bit 13) and settles by id with bit 13,
   where the ttl field carries the whole token.
3. Decoding checks sizes and ranges, never meaning; what it gives can be encoded to the same bytes.
4. Trailing bytes are refused. Reserved bytes and flags must be 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.wire.fj import MAX_INSTANT, Pair
from fastjournal.wire.functions import Type

__all__ = [
    "DELAY",
    "LIFETIME",
    "MAX_JOBS",
    "NO_ID",
    "JobPut",
    "LeasedJob",
    "Mode",
    "ShortJob",
    "decode_job",
    "decode_jobs",
    "decode_leased",
    "encode_job",
    "encode_jobs",
    "encode_leased",
    "encode_short",
    "short_of",
]

NO_ID = bytes(16)
MAX_JOBS = 65_535
"""Most jobs in one PUTS."""

_SHORT = struct.Struct(">BBBBQIH")
_PUT = struct.Struct(">BBBB16sqQQQIHHHHHI")
_LEASED = struct.Struct(">BBBB16sIQqQQQQIIHHHHHHI")
_COUNT = struct.Struct(">I")
_PUT_SIZE = _PUT.size
_LEASED_SIZE = _LEASED.size
_KNOWN = 15

DELAY = 4
"""Flag: due is counted from the server's now."""
LIFETIME = 8
"""Flag: expires is counted from the server's now."""


class Mode(IntEnum):
    """What happens when the key of a new job is already waiting."""

    DEFAULT = 0
    MERGE = 1
    UNIQUE = 2
    PLAIN = 3


class ShortJob(NamedTuple):
    """Layout 1."""

    data: bytes
    priority: int = 0
    max_timeouts: int = 0
    token: int = 0
    due: int = 0
    """Ns; 0 = now."""
    lease_ms: int = 0
    queue: bytes = b""


class JobPut(NamedTuple):
    """Layout 2: all that a put can say. Also what layout 1 becomes when it is put."""

    data: bytes
    key: bytes = b""
    queue: bytes = b""
    id: bytes = NO_ID
    priority: int = 0
    due: int = 0
    """Ns; 0 = now; with `DELAY` counted from the server's now."""
    expires: int = 0
    """Ns; 0 = never; with `LIFETIME` counted from the server's now."""
    modified: int = 0
    """Ns; 0 = timestamp of the message."""
    lease_ms: int = 0
    max_attempts: int = 0
    max_timeouts: int = 0
    max_fails: int = 0
    flags: int = 0
    """A `Mode`, `DELAY`, `LIFETIME`, joined by `|`."""
    data_type: int = Type.BUFFER

    @property
    def mode(self) -> Mode:
        """What to do if the key is waiting already."""
        return Mode(self.flags & 3)

    @property
    def is_delay(self) -> bool:
        """`due` counts from the server's now."""
        return self.flags & DELAY != 0

    @property
    def is_ttl(self) -> bool:
        """`expires` counts from the server's now."""
        return self.flags & LIFETIME != 0


class LeasedJob(NamedTuple):
    """Layout 3: a job as it is handed out."""

    id: bytes
    key: bytes
    queue: bytes
    data: bytes
    token: int
    lease_until: int
    """Ns."""
    priority: int = 0
    due: int = 0
    inserted: int = 0
    modified: int = 0
    expires: int = 0
    lease_ms: int = 0
    attempts: int = 0
    timeouts: int = 0
    fails: int = 0
    max_attempts: int = 0
    max_timeouts: int = 0
    max_fails: int = 0
    state: int = ord("P")
    data_type: int = Type.BUFFER


def encode_short(job: ShortJob) -> bytes:
    """Layout 1; a token above 255 is sent as 255."""
    try:
        return (
            _SHORT.pack(
                1, job.priority, job.max_timeouts, min(job.token, 255), job.due // 1000,
                job.lease_ms, len(job.queue),
            )
            + job.queue
            + job.data
        )  # fmt: skip
    except struct.error as error:
        raise OutOfRange(f"job does not fit layout 1: {error}") from None


def _decode_short(value: bytes) -> ShortJob:
    if len(value) < 18:
        raise BadRequest("job of layout 1 is too short")
    _, priority, max_timeouts, token, due, lease_ms, size = _SHORT.unpack_from(value)
    if len(value) < 18 + size:
        raise BadRequest("queue of a job is cut off")
    if due > MAX_INSTANT // 1000:
        raise OutOfRange("due does not fit")
    return ShortJob(
        value[18 + size :],
        priority,
        max_timeouts,
        token,
        due * 1000,
        lease_ms,
        value[18 : 18 + size],
    )


def encode_job(job: JobPut) -> bytes:
    """Layout 2, for SET (leave the key to the message) and for PUTS (key inside)."""
    queue, key, data = job.queue, job.key, job.data
    try:
        return b"".join(
            (
                _PUT.pack(
                    2, job.flags, job.data_type, 0, job.id,
                    job.priority, job.due, job.expires, job.modified, job.lease_ms,
                    job.max_attempts, job.max_timeouts, job.max_fails,
                    len(queue), len(key), len(data),
                ),
                queue, key, data,
            )
        )  # fmt: skip
    except struct.error as error:
        raise OutOfRange(f"job does not fit layout 2: {error}") from None


def _decode_puts(value: bytes, at: int, count: int, key: bytes, timestamp: int) -> list[JobPut]:
    """`count` jobs of layout 2 that fill the value from `at` on."""
    jobs = []
    total = len(value)
    unpack = _PUT.unpack_from
    new = tuple.__new__
    for _ in range(count):
        end = at + _PUT_SIZE
        if end > total:
            raise BadRequest("job of layout 2 is too short")
        (
            layout, flags, data_type, zero, job_id, priority, due, expires, modified, lease_ms,
            max_attempts, max_timeouts, max_fails, queue_size, key_size, size,
        ) = unpack(value, at)  # fmt: skip
        if layout != 2 or zero or flags > _KNOWN:
            raise BadRequest("job of an unknown layout")
        if due | expires | modified > MAX_INSTANT:
            raise OutOfRange("instant past the year 2262")
        key_at = end + queue_size
        data_at = key_at + key_size
        at = data_at + size
        if at > total:
            raise BadRequest("job is cut off")
        # The bare constructor of tuple: half the time of JobPut(...), which counts per job.
        jobs.append(
            new(JobPut, (
                value[data_at:at], value[key_at:data_at] or key, value[end:key_at], job_id,
                priority, due, expires, modified or timestamp, lease_ms, max_attempts,
                max_timeouts, max_fails, flags, data_type,
            ))
        )  # fmt: skip
    if at != total:
        raise BadRequest("bytes behind the job")
    return jobs


def decode_job(value: bytes, key: bytes = b"", timestamp: int = 0) -> JobPut:
    """The job of a SET with type 6, layout 1 or 2.

    `key` and `timestamp` are those of the message; a key inside layout 2 must be empty or equal.
    """
    if not value:
        raise BadRequest("job without a layout")
    if value[0] == 1:
        short = _decode_short(value)
        if short.token:
            raise BadRequest("byte 3 of a job must be 0 in SET")
        return JobPut(
            short.data, key, short.queue, NO_ID, short.priority, short.due, 0, timestamp,
            short.lease_ms, 0, short.max_timeouts,
        )  # fmt: skip
    job = _decode_puts(value, 0, 1, key, timestamp)[0]
    if key and job.key != key:
        raise BadRequest("the key of the job is not the key of the message")
    return job


def encode_jobs(jobs: Iterable[JobPut]) -> bytes:
    """The value of PUTS: u32 count, then so many jobs of layout 2."""
    parts = [encode_job(job) for job in jobs]
    if len(parts) > MAX_JOBS:
        raise TooLarge(f"at most {MAX_JOBS} jobs in one message")
    return _COUNT.pack(len(parts)) + b"".join(parts)


def decode_jobs(value: bytes, timestamp: int = 0) -> list[JobPut]:
    """The jobs of a PUTS; a malformed one refuses the whole message."""
    if len(value) < 4:
        raise BadRequest("PUTS without a count")
    count: int = _COUNT.unpack_from(value)[0]
    if count > MAX_JOBS or count * _PUT_SIZE > len(value):
        raise BadRequest(f"PUTS of {count} jobs in {len(value)} bytes")
    return _decode_puts(value, 4, count, b"", timestamp)


def encode_leased(job: LeasedJob) -> Pair:
    """The pair of a leased job: its key, and layout 3."""
    try:
        head = _LEASED.pack(
            3, job.state, job.data_type, 0, job.id, job.token, job.lease_until, job.priority,
            job.due, job.inserted, job.modified, job.expires, job.lease_ms, job.attempts,
            job.timeouts, job.fails, job.max_attempts, job.max_timeouts, job.max_fails,
            len(job.queue), len(job.data),
        )  # fmt: skip
    except struct.error as error:
        raise OutOfRange(f"job does not fit layout 3: {error}") from None
    return Pair(job.key, 6, b"".join((head, job.queue, job.data)))


def decode_leased(pair: Pair, lease_until: int = 0) -> LeasedJob:
    """The job of a pair in a reply, layout 1 or 3.

    Layout 1 tells no id and no deadline: the id is zero, the deadline is the one of the reply.
    """
    value = pair.value
    if value[:1] == b"\1":
        short = _decode_short(value)
        return LeasedJob(
            NO_ID, pair.key, short.queue, short.data, short.token, lease_until, short.priority,
            short.due, lease_ms=short.lease_ms, attempts=short.token,
            max_timeouts=short.max_timeouts,
        )  # fmt: skip
    if len(value) < _LEASED_SIZE or value[0] != 3 or value[3]:
        raise BadRequest("leased job of an unknown layout")
    (
        _, state, data_type, _, job_id, token, deadline, priority, due, inserted, modified, expires,
        lease_ms, attempts, timeouts, fails, max_attempts, max_timeouts, max_fails, queue_size,
        size,
    ) = _LEASED.unpack_from(value)  # fmt: skip
    data_at = _LEASED_SIZE + queue_size
    if data_at + size != len(value):
        raise BadRequest("leased job has a wrong size")
    return tuple.__new__(LeasedJob, (
        job_id, pair.key, value[_LEASED_SIZE:data_at], value[data_at:], token, deadline, priority,
        due, inserted, modified, expires, lease_ms, attempts, timeouts, fails, max_attempts,
        max_timeouts, max_fails, state, data_type,
    ))  # fmt: skip


def short_of(job: LeasedJob) -> Pair:
    """The same job as layout 1, for NEXT without bit 13 and for GET."""
    priority = min(max(job.priority, 0), 255)
    short = ShortJob(
        job.data, priority, min(job.max_timeouts, 255), job.token, job.due, job.lease_ms, job.queue
    )
    return Pair(job.key, 6, encode_short(short))
