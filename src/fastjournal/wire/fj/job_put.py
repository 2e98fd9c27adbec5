"""A job to be put as a tuple; for the daemon, until it reads jobs natively (`job_codec`)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.keys import domain
from fastjournal.model import DEFAULT_PRIORITY, MAX_INSTANT, Mode, NewJob

__all__ = [
    "DELAY",
    "LIFETIME",
    "MAX_JOBS",
    "NO_ID",
    "PUT_LAYOUT",
    "JobPut",
    "decode_forward",
    "decode_job",
    "decode_jobs",
    "decode_plain",
    "decode_plain_jobs",
    "decode_short",
    "encode_job",
    "encode_jobs",
    "encode_short",
]

NO_ID = bytes(16)
MAX_JOBS = 65_535
"""Most jobs in one PUTS."""
DELAY = 4
"""Flag: due is counted from the server's now."""
LIFETIME = 8
"""Flag: expires is counted from the server's now."""

_SHORT = struct.Struct(">BBBBQIH")
PUT_LAYOUT = _PUT = struct.Struct(">BBBB16sqQQQQQIIIHHI")
"""The fixed part of layout 2."""
# Layout 2 for those who only ask whether it says anything special.
_PLAIN = struct.Struct(">4s16sq52sHHI").unpack_from
_KEYED, _UNKEYED, _NOTHING = b"\2\0\1\0", b"\2\2\1\0", bytes(52)
_MERGE, _PLAIN_MODE = Mode.MERGE, Mode.PLAIN
_new = tuple.__new__
_COUNT = struct.Struct(">I")
_PUT_SIZE = _PUT.size
_MODES = (Mode.MERGE, Mode.UNIQUE, Mode.PLAIN)
_MILLISECOND = 1_000_000


class JobPut(NamedTuple):
    """All that a put can say: the fields of `NewJob` in the same order, then id and flags."""

    queue: bytes = b""
    """Empty = domain(key)."""
    value: bytes = b""
    key: bytes = b""
    mode: Mode = Mode.MERGE
    priority: int = DEFAULT_PRIORITY
    due: int = 0
    """Ns; 0 = now; with `DELAY` counted from the server's now."""
    expires: int = 0
    """Ns; 0 = never; with `LIFETIME` counted from the server's now."""
    timestamp: int = 0
    lease: int = 0
    max_attempts: int = 0
    max_timeouts: int = 0
    max_fails: int = 0
    kind: int = 1
    ttl: int = 0
    id: bytes = NO_ID
    """Zero = the server's choice."""
    flags: int = 0
    """`DELAY`, `LIFETIME`, joined by `|`."""

    def new_job(self, now: int, queue: bytes) -> NewJob:
        """The job to put at `now`; `queue` is used where none was given."""
        job_id = self[14]
        if job_id == NO_ID:
            job_id = b""
        if self.queue and not self.flags:
            return tuple.__new__(NewJob, (*self[:14], job_id))
        due, expires = self.due, self.expires
        if self.flags & DELAY and due:
            due = min(now + due, MAX_INSTANT)
        if self.flags & LIFETIME and expires:
            expires = min(now + expires, MAX_INSTANT)
        return NewJob(self.queue or queue, *self[1:5], due, expires, *self[7:14], job_id)


def encode_short(
    value: bytes,
    *,
    queue: bytes = b"",
    priority: int = DEFAULT_PRIORITY,
    max_timeouts: int = 0,
    token: int = 0,
    due: int = 0,
    lease: int = 0,
) -> bytes:
    """Layout 1; a token above 255 is sent as 255, instants and lengths are in ns."""
    try:
        head = _SHORT.pack(
            1, priority, max_timeouts, min(token, 255), due // 1000, lease // _MILLISECOND,
            len(queue),
        )  # fmt: skip
    except struct.error as error:
        raise OutOfRange(f"job does not fit layout 1: {error}") from None
    return head + queue + value


def decode_short(value: bytes) -> tuple[int, int, int, int, int, bytes, bytes]:
    """Priority, max timeouts, token, due and lease length in ns, queue, user data."""
    if len(value) < 18:
        raise BadRequest("job of layout 1 is too short")
    _, priority, max_timeouts, token, due, lease_ms, size = _SHORT.unpack_from(value)
    stop = 18 + size
    if len(value) < stop:
        raise BadRequest("queue of a job is cut off")
    if due > MAX_INSTANT // 1000:
        raise OutOfRange("due does not fit")
    return (
        priority, max_timeouts, token, due * 1000, lease_ms * _MILLISECOND, value[18:stop],
        value[stop:],
    )  # fmt: skip


def encode_job(job: JobPut) -> bytes:
    """Layout 2, for SET (leave the key to the message) and for PUTS (key inside)."""
    queue, value, key = job[:3]
    try:
        return b"".join(
            (
                _PUT.pack(
                    2, job.mode | job.flags, job.kind, 0, job.id, job.priority, job.due,
                    job.expires, job.timestamp, job.lease, job.ttl, job.max_attempts,
                    job.max_timeouts, job.max_fails, len(queue), len(key), len(value),
                ),
                queue, key, value,
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
    modes = _MODES
    for _ in range(count):
        end = at + _PUT_SIZE
        if end > total:
            raise BadRequest("job of layout 2 is too short")
        (
            layout, flags, kind, zero, job_id, priority, due, expires, stamp, lease, ttl,
            max_attempts, max_timeouts, max_fails, queue_size, key_size, size,
        ) = unpack(value, at)  # fmt: skip
        if layout != 2 or zero or flags > 15 or flags & 3 == 3:
            raise BadRequest("job of an unknown layout")
        if due | expires | stamp | lease | ttl > MAX_INSTANT:
            raise OutOfRange("instant past the year 2262")
        key_at = end + queue_size
        data_at = key_at + key_size
        at = data_at + size
        if at > total:
            raise BadRequest("job is cut off")
        # The bare constructor of tuple: half the time of JobPut(...), which counts per job.
        jobs.append(
            new(JobPut, (
                value[end:key_at], value[data_at:at], value[key_at:data_at] or key,
                modes[flags & 3], priority, due, expires, stamp or timestamp, lease, max_attempts,
                max_timeouts, max_fails, kind, ttl, job_id, flags & 12,
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
        priority, max_timeouts, token, due, lease, queue, data = decode_short(value)
        if token:
            raise BadRequest("byte 3 of a job must be 0 in SET")
        return JobPut(
            queue, data, key, Mode.MERGE, priority, due, 0, timestamp, lease, 0, max_timeouts
        )
    job = _decode_puts(value, 0, 1, key, timestamp)[0]
    if key and job.key != key:
        raise BadRequest("the key of the job is not the key of the message")
    return job


def decode_plain(data: bytes, at: int, max_value: int) -> NewJob | None:
    """The job of a SET that says nothing out of the ordinary, checked; None: look closer.

    Nearly every job is such a one: layout 2, a queue, no instants, no limits of its own. It fills
    `data` from `at` on.
    """
    if len(data) < at + _PUT_SIZE:
        return None
    head, job_id, priority, rest, queue_size, key_size, size = _PLAIN(data, at)
    queue_at = at + _PUT_SIZE
    key_at = queue_at + queue_size
    data_at = key_at + key_size
    if (
        head != (_KEYED if key_size else _UNKEYED)
        or rest != _NOTHING
        or not 0 < queue_size < 256
        or not 0 <= priority < 256
        or size > max_value
        or data_at + size != len(data)
        or job_id == NO_ID
    ):
        return None
    return _new(NewJob, (
        data[queue_at:key_at], data[data_at:], data[key_at:data_at],
        _MERGE if key_size else _PLAIN_MODE, priority, 0, 0, 0, 0, 0, 0, 0, 1, 0, job_id,
    ))  # fmt: skip


def encode_jobs(jobs: Iterable[JobPut]) -> bytes:
    """The value of PUTS: u32 count, then so many jobs of layout 2."""
    parts = [encode_job(job) for job in jobs]
    if len(parts) > MAX_JOBS:
        raise TooLarge(f"at most {MAX_JOBS} jobs in one message")
    return _COUNT.pack(len(parts)) + b"".join(parts)


def decode_jobs(value: bytes, timestamp: int = 0) -> list[JobPut]:
    """The jobs of a PUTS; a malformed one refuses the whole message."""
    return _decode_puts(value, 4, _count(value), b"", timestamp)


def decode_plain_jobs(value: bytes, max_value: int) -> list[NewJob] | None:
    """The jobs of a PUTS if all of them are as `decode_plain` wants them; None: look closer."""
    end = len(value)
    at = 4
    jobs = []
    unpack, new, keyed, unkeyed, nothing = _PLAIN, _new, _KEYED, _UNKEYED, _NOTHING
    for _ in range(_count(value)):
        queue_at = at + _PUT_SIZE
        if queue_at > end:
            return None
        head, job_id, priority, rest, queue_size, key_size, size = unpack(value, at)
        key_at = queue_at + queue_size
        data_at = key_at + key_size
        at = data_at + size
        if (
            head != (keyed if key_size else unkeyed)
            or rest != nothing
            or not 0 < queue_size < 256
            or not 0 <= priority < 256
            or size > max_value
            or at > end
            or job_id == NO_ID
        ):
            return None
        mode = _MERGE if key_size else _PLAIN_MODE
        jobs.append(
            new(NewJob, (
                value[queue_at:key_at], value[data_at:at], value[key_at:data_at], mode, priority,
                0, 0, 0, 0, 0, 0, 0, 1, 0, job_id,
            ))
        )  # fmt: skip
    return jobs if at == end else None


def _count(value: bytes) -> int:
    if len(value) < 4:
        raise BadRequest("PUTS without a count")
    count: int = _COUNT.unpack_from(value)[0]
    if count > MAX_JOBS or count * _PUT_SIZE > len(value):
        raise BadRequest(f"PUTS of {count} jobs in {len(value)} bytes")
    return count


_HEAD = struct.Struct(">BBHI")
FORGET = 1


class ForwardRequest(NamedTuple):
    """Jobs with their marks."""

    marks: tuple[int, ...]
    jobs: list[NewJob]
    forget: bool = False


def decode_forward(value: bytes, now: int, sender: bytes = b"") -> ForwardRequest:
    """Read the value of FORWARD.

    With a `sender` of 12 bytes, a job that has no id gets sender and mark. `now` is for jobs whose
    delay or life is to count from the server's now, as no spool of ours says it.
    """
    if len(value) < _HEAD.size:
        raise BadRequest("FORWARD is too short")
    layout, flags, zero, count = _HEAD.unpack_from(value)
    if layout != 1 or flags > FORGET or zero:
        raise BadRequest("FORWARD of an unknown layout")
    if count > MAX_JOBS or _HEAD.size + 4 * count > len(value):
        raise BadRequest(f"FORWARD of {count} jobs in {len(value)} bytes")
    marks = struct.unpack_from(f">{count}I", value, _HEAD.size)
    before = 1
    for mark in marks:
        if mark <= before:
            raise BadRequest("marks must grow, from 2 on")
        before = mark
    if flags & FORGET and count:
        raise BadRequest("a sender that is forgotten sends no jobs")
    jobs = _decode_jobs(value, count, now, sender if len(sender) == 12 else b"")
    return ForwardRequest(marks, jobs, bool(flags & FORGET))


def _decode_jobs(value: bytes, count: int, now: int, sender: bytes) -> list[NewJob]:
    jobs = []
    mark_at, at, total = 8, 8 + 4 * count, len(value)
    unpack, size, new = PUT_LAYOUT.unpack_from, PUT_LAYOUT.size, tuple.__new__
    modes = _MODES
    for _ in range(count):
        end = at + size
        if end > total:
            raise BadRequest("job of layout 2 is too short")
        (
            layout, flags, kind, zero, job_id, priority, due, expires, stamp, lease, ttl,
            max_attempts, max_timeouts, max_fails, queue_size, key_size, length,
        ) = unpack(value, at)  # fmt: skip
        if layout != 2 or zero or flags > 15 or flags & 3 == 3:
            raise BadRequest("job of an unknown layout")
        if due | expires | stamp | lease | ttl > MAX_INSTANT:
            raise OutOfRange("instant past the year 2262")
        key_at = end + queue_size
        data_at = key_at + key_size
        at = data_at + length
        if at > total:
            raise BadRequest("job is cut off")
        if job_id == NO_ID:
            job_id = sender and sender + value[mark_at : mark_at + 4]
        mark_at += 4
        if flags & DELAY and due:
            due = min(now + due, MAX_INSTANT)
        if flags & LIFETIME and expires:
            expires = min(now + expires, MAX_INSTANT)
        key = value[key_at:data_at]
        queue = value[end:key_at] or (domain(key) if key else b"")
        # The bare constructor of tuple takes half the time, which counts per job.
        jobs.append(
            new(NewJob, (
                queue, value[data_at:at], key, modes[flags & 3], priority, due, expires, stamp,
                lease, max_attempts, max_timeouts, max_fails, kind, ttl, job_id,
            ))
        )  # fmt: skip
    if at != total:
        raise BadRequest("bytes behind the jobs")
    return jobs
