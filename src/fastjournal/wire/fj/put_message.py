"""A whole SET message that puts a job of layout 2, for a process that has nothing but `struct`.

A producer's import of the spool must cost next to nothing, and a put there one call: the codec of
layout 2 (`job_codec`) and that of messages (`requests`) are for those who hold a connection. What
they would make of the same job is byte for byte the same.

    "FJ", u16 1, function SET, identifier 1, flags, u64 timestamp in us, no key     see `requests`
    u8, u16 or u32 size of the value, u8 type 6, then the job                       see `job_codec`

Rule: this module imports nothing of ours.
"""

from __future__ import annotations

from struct import Struct

__all__ = ["encode_put"]

_FORMS = tuple(Struct(f">8sHQx{size}2sBBx16sqQQQQQIIIHHI").pack for size in "BHI")
"""One for each size class of the value; what never changes is one string, or left out as a zero."""
_JOB_SIZE = 88
_NO_ID = bytes(16)


def encode_put(
    now: int,
    queue: bytes,
    value: bytes,
    key: bytes,
    mode: int,
    priority: int,
    due: int = 0,
    expires: int = 0,
    timestamp: int = 0,
    lease: int = 0,
    max_attempts: int = 0,
    max_timeouts: int = 0,
    max_fails: int = 0,
    kind: int = 1,
    ttl: int = 0,
    job_id: bytes = b"",
) -> bytes:
    """The message of a job that is put at `now`; `struct.error` if a field does not fit."""
    size = 1 + _JOB_SIZE + len(queue) + len(key) + len(value)
    wide = 0 if size < 256 else 1 if size < 65_536 else 2
    head = _FORMS[wide](
        b"FJ\0\1\0\2\0\1", 0x202 + 2 * wide, now // 1000, size, b"\6\2",
        mode, kind, job_id or _NO_ID,
        priority, due, expires, timestamp, lease, ttl, max_attempts, max_timeouts, max_fails,
        len(queue), len(key), len(value),
    )  # fmt: skip
    return head + queue + key + value
