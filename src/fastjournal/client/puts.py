"""Calls of producers: one job, or many.

Rules: those of `protocol`, and

1. A put always carries an id: sent again it changes nothing.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from fastjournal.arguments import Instant, Length, Text, new_job
from fastjournal.client.protocol import QUICK_SIZES, Call, make_call, persistent, value_of
from fastjournal.clock import SYSTEM_CLOCK
from fastjournal.errors import JournalError
from fastjournal.model import DEFAULT_PRIORITY, NewJob, Outcome, Receipt
from fastjournal.wire.fj.bulk import REFUSED, decode_put_outcomes
from fastjournal.wire.fj.error_text import error_from
from fastjournal.wire.fj.functions import Function, Type
from fastjournal.wire.fj.job_put import DELAY, LIFETIME, JobPut, encode_job
from fastjournal.wire.fj.replies import Reply
from fastjournal.wire.fj.requests import encode_request

__all__ = ["any_put", "job_put", "new_id", "plain_put", "put", "puts"]

_CHUNK_BYTES = 2 << 20
_CHUNK_JOBS = 125
_CHECKED = 10_000
_OUTCOMES = tuple(Outcome)

_ids: list[bytes] = []
_DRAWN = 256  # ids at a time
_VERSION = bytes(byte & 0x0F | 0x40 for byte in range(256))
_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))


def new_id() -> bytes:
    """A random id of version 4; never the same in another thread or in a forked child."""
    try:
        return _ids.pop()
    except IndexError:
        drawn = bytearray(os.urandom(16 * _DRAWN))
        drawn[6::16] = drawn[6::16].translate(_VERSION)
        drawn[8::16] = drawn[8::16].translate(_VARIANT)
        many = bytes(drawn)
        _ids.extend([many[at : at + 16] for at in range(16, len(many), 16)])
        return many[:16]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ids.clear)


def job_put(
    payload: bytes = b"",
    key: Text | None = None,
    queue: Text | None = None,
    priority: int = DEFAULT_PRIORITY,
    delay: Length | None = None,
    due: Instant | None = None,
    ttl: Length | None = None,
    expires: Instant | None = None,
    lease: Length | None = None,
    max_attempts: int = 0,
    max_timeouts: int = 0,
    max_fails: int = 0,
    mode: str | None = None,
    timestamp: Instant | None = None,
    id: bytes = b"",  # noqa: A002 - the name of the field
    limit: int = 1 << 32,
) -> JobPut:
    """A put from the arguments of `put`."""
    flags = 0
    now = 0
    if delay is not None:
        flags = DELAY
    if ttl is not None:
        if due is None:
            flags |= LIFETIME
        else:
            now = SYSTEM_CLOCK.now()
    job = new_job(
        now, payload, key, queue, priority, delay, due, ttl, expires, lease, max_attempts,
        max_timeouts, max_fails, mode, timestamp, limit, id or new_id(),
    )  # fmt: skip
    return tuple.__new__(JobPut, (*job, flags))


def any_put(
    payload: bytes,
    key: Text | None,
    queue: Text | None,
    priority: int,
    special: tuple[Any, ...],
    limits: tuple[int, int, int],
    id: bytes,  # noqa: A002 - the name of the field
    persist: bool,
) -> Call:
    """Take a job in; `special`: delay, due, ttl, expires, lease, mode, timestamp."""
    call = None
    if special == _UNSAID and limits == _UNLIMITED and not id:
        call = plain_put(payload, key, queue, priority)
    if call is None:
        delay, due, ttl, expires, lease, mode, timestamp = special
        call = put(
            job_put(
                payload, key, queue, priority, delay, due, ttl, expires, lease, *limits, mode,
                timestamp, id,
            )
        )  # fmt: skip
    return persistent(call) if persist else call


_UNSAID = (None,) * 7
_UNLIMITED = (0, 0, 0)


def put(job: JobPut) -> Call:
    """Take a job in."""
    data = encode_request(Function.SET, 1, value_type=Type.JOB, value=encode_job(job))
    return Call(data, _read_receipt, 0.0, True, _quick_receipt)


def plain_put(payload: bytes, key: Text | None, queue: Text | None, priority: int) -> Call | None:
    """`put` of a job that says nothing but these; None if it takes a closer look."""
    job = _plain_job(payload, key, queue, priority)
    if job is None:
        return None
    size = len(job) + 1
    flags, pack = _HEADS[0] if size < 256 else _HEADS[1] if size < 65_536 else _HEADS[2]
    data = pack(b"FJ", 1, 2, 1, flags, 0, 0, size, 6) + job
    return tuple.__new__(Call, (data, _read_receipt, 0.0, True, _quick_receipt))


# Header of SET, no key, size and type of the value; by the size of the value.
_HEADS = tuple(
    (flags, struct.Struct(f">2sHHHHQB{size}B").pack)
    for flags, size in ((2, "B"), (4, "H"), (6, "I"))
)
_LARGE = 1 << 20
_HEAD = b"JR\0\1\0\1"


def _quick_receipt(data: bytes) -> Receipt | None:
    if (
        len(data) == 41
        and data[16:24] == b"\0\0\x16\1\0\0\0\1"
        and data[:6] == _HEAD
        and data[7] & 0xEF == 2
        and data[24] < 4
    ):
        return tuple.__new__(Receipt, (data[25:], _OUTCOMES[data[24]]))
    return None


QUICK_SIZES[_quick_receipt] = 41


def _read_receipt(reply: Reply) -> Receipt:
    put = decode_put_outcomes(value_of(reply))[0]
    return Receipt(put.id, _OUTCOMES[put.outcome])


def puts(jobs: Iterable[NewJob | Mapping[str, Any]]) -> Iterator[Call]:
    """Take many jobs in: calls of `_CHUNK_JOBS` each, so that the daemon works on one while the
    next is sent. Up to `_CHECKED` jobs are checked before the first of them leaves."""
    jobs = iter(jobs)
    while parts := [_encoded(job) for job in islice(jobs, _CHECKED)]:
        start = size = 0
        for number, part in enumerate(parts, 1):
            size += len(part)
            if number - start == _CHUNK_JOBS or size > _CHUNK_BYTES:
                yield _puts_call(parts[start:number])
                start, size = number, 0
        if start < len(parts):
            yield _puts_call(parts[start:])


def _encoded(job: NewJob | Mapping[str, Any]) -> bytes:
    if isinstance(job, NewJob):
        return encode_job(JobPut(*job[:14], job.id or new_id(), 0))
    if job.keys() <= _PLAIN_NAMES:
        get = job.get
        encoded = _plain_job(
            get("payload", b""), get("key"), get("queue"), get("priority", DEFAULT_PRIORITY)
        )
        if encoded is not None:
            return encoded
    return encode_job(job_put(**job))


def _plain_job(payload: Any, key: Any, queue: Any, priority: Any) -> bytes | None:
    """A job that says nothing but these, as layout 2; None if it takes a closer look."""
    if type(payload) is not bytes or type(priority) is not int or not 0 <= priority <= 255:
        return None
    if key is None:
        key = b""
    elif not key:
        return None
    elif type(key) is str:
        key = key.encode()
    if type(queue) is str:
        queue = queue.encode()
    if type(queue) is not bytes or type(key) is not bytes or len(payload) > _LARGE:
        return None
    if not queue or len(queue) > 255 or len(key) > 65_535:
        return None
    head = _PLAIN_JOB(
        _MERGED if key else _ALONE, new_id(), priority, _NOTHING, len(queue), len(key), len(payload)
    )
    return b"".join((head, queue, key, payload))


_PLAIN_NAMES = frozenset(("payload", "key", "queue", "priority"))
# Layout 2 of a job: its first four bytes, id, priority, all that it does not say, sizes.
_PLAIN_JOB = struct.Struct(">4s16sq52sHHI").pack
_MERGED, _ALONE, _NOTHING = b"\2\0\1\0", b"\2\2\1\0", bytes(52)


def _puts_call(parts: list[bytes]) -> Call:
    value = b"".join((len(parts).to_bytes(4, "big"), *parts))
    return make_call(Function.PUTS, _read_receipts, {"value_type": Type.BUFFER, "value": value})


def _read_receipts(reply: Reply) -> list[Receipt | JournalError]:
    new = tuple.__new__
    outcomes = _OUTCOMES
    return [
        error_from(put.error)
        if put.outcome == REFUSED
        else new(Receipt, (put.id, outcomes[put.outcome]))
        for put in decode_put_outcomes(value_of(reply))
    ]


def taken(answers: list[Receipt | JournalError]) -> list[Receipt]:
    """The receipts of many puts; the error of the first refused one is raised."""
    for answer in answers:
        if answer.__class__ is not Receipt:
            assert isinstance(answer, JournalError)
            raise answer
    return answers  # type: ignore[return-value]
