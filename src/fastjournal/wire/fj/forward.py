"""Values of FORWARD: jobs out of a spool, each of them taken in once however often it is sent.

The request; its key is the sender, one for each file of a spool:

    u8   1                     u32  count
    u8   flags, see below      per job: u32 mark, growing
    u16  0                     per job: layout 2 of type 6, key inside

    flags: bit 0 forget the sender: all of it is done and nothing of it will be sent again

The reply:

    u32  mark: all jobs of this sender up to it have been decided, now or before
    u32  how many are new, merged, twin, stale, refused, and how many came again
    per refused job: u32 mark, u16 size, text `CODE ...`

Rules:

1. A job whose mark is not above the sender's is not looked at: it came before.
2. Marks grow along the request, from 2 on; a request whose marks do not is refused as a whole.
3. A refused job is decided too: sending it again changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.keys import domain
from fastjournal.model import MAX_INSTANT, Mode, NewJob
from fastjournal.wire.fj.job_codec import DELAY, LIFETIME, MAX_JOBS, NO_ID, PUT_LAYOUT

__all__ = [
    "FORGET",
    "ForwardRequest",
    "Forwarded",
    "decode_forward",
    "decode_forwarded",
    "encode_forget",
    "encode_forward",
    "encode_forwarded",
]

FORGET = 1

_HEAD = struct.Struct(">BBHI")
_REPLY = struct.Struct(">7I")
_REFUSED = struct.Struct(">IH")
_MODES = (Mode.MERGE, Mode.UNIQUE, Mode.PLAIN)


class ForwardRequest(NamedTuple):
    """Jobs with their marks."""

    marks: tuple[int, ...]
    jobs: list[NewJob]
    forget: bool = False


class Forwarded(NamedTuple):
    """How far a sender has come, and what became of its jobs this time."""

    mark: int
    new: int = 0
    merged: int = 0
    twin: int = 0
    stale: int = 0
    refused: int = 0
    repeated: int = 0
    """Came before; not looked at."""
    errors: tuple[tuple[int, str], ...] = ()
    """Mark and error of each refused job."""


def encode_forward(marks: Sequence[int], jobs: Sequence[bytes]) -> bytes:
    """The value of FORWARD; `jobs` are encoded as layout 2 already."""
    count = len(marks)
    if count > MAX_JOBS:
        raise TooLarge(f"at most {MAX_JOBS} jobs in one message")
    return b"".join((_HEAD.pack(1, 0, 0, count), struct.pack(f">{count}I", *marks), *jobs))


def encode_forget() -> bytes:
    """The value of the FORWARD that ends a sender."""
    return _HEAD.pack(1, FORGET, 0, 0)


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


def encode_forwarded(outcome: Forwarded) -> bytes:
    """The value of the reply."""
    parts = [_REPLY.pack(*outcome[:7])]
    for mark, error in outcome.errors:
        text = error.encode("utf-8", "replace")[:1000]
        parts += (_REFUSED.pack(mark, len(text)), text)
    return b"".join(parts)


def decode_forwarded(value: bytes) -> Forwarded:
    """Read the value of the reply."""
    if len(value) < _REPLY.size:
        raise BadRequest("reply to FORWARD is too short")
    counts = _REPLY.unpack_from(value)
    errors = []
    at = _REPLY.size
    while at < len(value):
        stop = at + _REFUSED.size
        if stop > len(value):
            raise BadRequest("reply to FORWARD is cut off")
        mark, size = _REFUSED.unpack_from(value, at)
        at = stop + size
        if at > len(value):
            raise BadRequest("reply to FORWARD is cut off")
        errors.append((mark, value[stop:at].decode("utf-8", "replace")))
    if len(errors) != counts[5]:
        raise BadRequest("reply to FORWARD with a wrong number of errors")
    mark, new, merged, twin, stale, refused, repeated = counts
    return Forwarded(mark, new, merged, twin, stale, refused, repeated, tuple(errors))
