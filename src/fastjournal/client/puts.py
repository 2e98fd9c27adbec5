"""Calls of producers: one job, or many.

Rules: those of `calls`, and

1. A put always carries an id: sent again it changes nothing.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from mypy_extensions import i64

from fastjournal.arguments import put_arguments, put_request, put_request_of
from fastjournal.buffers import BytesWriter
from fastjournal.client.calls import Call, value_of
from fastjournal.clock import SYSTEM_CLOCK
from fastjournal.errors import JournalError, ProtocolError
from fastjournal.model import DEFAULT_PRIORITY, NewJob, Outcome, Receipt
from fastjournal.wire.fj.bulk import REFUSED, PutOutcomeReader
from fastjournal.wire.fj.fields import put_u32, value_class, write_value_head
from fastjournal.wire.fj.functions import PERSIST, VALUE_SHIFT
from fastjournal.wire.fj.job_codec import (
    DELAY,
    LIFETIME,
    encode_job,
    fitting_request,
    job_size,
    write_job,
)
from fastjournal.wire.fj.replies import Reply, error_from
from fastjournal.wire.fj.requests import write_request_head

__all__ = ["new_id", "put", "puts", "taken"]

_CHUNK_BYTES: Final = 2 << 20
_CHUNK_JOBS: Final = 125
_CHECKED: Final = 10_000
_LIMIT: Final = 1 << 32
_OUTCOMES: Final = list(Outcome)
_SET: Final = 2
_PUTS: Final = 32
_BUFFER: Final = 1
_JOB: Final = 6
_new: Final[Any] = tuple.__new__

_ids: Final[list[bytes]] = []
_DRAWN: Final = 256  # ids at a time
_VERSION: Final = bytes([byte & 0x0F | 0x40 for byte in range(256)])
_VARIANT: Final = bytes([byte & 0x3F | 0x80 for byte in range(256)])


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


def _now(due: object, ttl: object) -> i64:
    """Only a life that begins when the job falls due needs a clock of ours."""
    if due is None or ttl is None:
        return 0
    return SYSTEM_CLOCK.now()


def _flags(delay: object, due: object, ttl: object) -> i64:
    """What of a put is a length."""
    flags: i64 = 0
    if delay is not None:
        flags = DELAY
    if ttl is not None and due is None:
        flags |= LIFETIME
    return flags


def put(
    payload: Any = b"",
    key: Any = None,
    queue: Any = None,
    priority: Any = DEFAULT_PRIORITY,
    delay: Any = None,
    due: Any = None,
    ttl: Any = None,
    expires: Any = None,
    lease: Any = None,
    max_attempts: Any = 0,
    max_timeouts: Any = 0,
    max_fails: Any = 0,
    mode: Any = None,
    timestamp: Any = None,
    id: Any = b"",  # noqa: A002 - the name of the field
    persist: bool = False,
) -> Call:
    """Take a job in; arguments as those of `Client.put`."""
    job = put_request(
        _now(due, ttl), payload, key, queue, priority, delay, due, ttl, expires, lease,
        max_attempts, max_timeouts, max_fails, mode, timestamp, _LIMIT, id or new_id(),
    )  # fmt: skip
    size = 1 + job_size(job)
    width = value_class(size)
    flags = width << VALUE_SHIFT
    if persist:
        flags |= PERSIST
    out = BytesWriter()
    write_request_head(out, _SET, 1, flags, 0)
    out.append(0)
    write_value_head(out, width, size, _JOB)
    write_job(out, job, _flags(delay, due, ttl))
    return Call(out.getvalue(), _read_receipt)


def _read_receipt(reply: Reply) -> Receipt:
    reader = PutOutcomeReader(value_of(reply))
    if reader.count != 1 or not reader.next():
        raise ProtocolError("one outcome was expected")
    if reader.outcome == REFUSED:
        raise error_from(reader.error)
    return _receipt(reader)


def _receipt(reader: PutOutcomeReader) -> Receipt:
    outcome = reader.outcome
    if outcome >= len(_OUTCOMES):
        raise ProtocolError(f"unknown outcome {outcome} of a put")
    receipt: Receipt = _new(Receipt, (reader.id, _OUTCOMES[outcome]))
    return receipt


def puts(jobs: Iterable[NewJob | Mapping[str, Any]]) -> Iterator[Call]:
    """Take many jobs in: calls of `_CHUNK_JOBS` each, so that the daemon works on one while the
    next is sent. Up to `_CHECKED` jobs are checked before the first of them leaves."""
    rest = iter(jobs)
    while True:
        parts = [_encoded(job) for job in islice(rest, _CHECKED)]
        if not parts:
            return
        start = size = 0
        for number, part in enumerate(parts, 1):
            size += len(part)
            if number - start == _CHUNK_JOBS or size > _CHUNK_BYTES:
                yield _puts_call(parts, start, number)
                start, size = number, 0
        if start < len(parts):
            yield _puts_call(parts, start, len(parts))


def _encoded(job: Any) -> bytes:
    flags: i64 = 0
    if isinstance(job, NewJob):
        request = fitting_request(job)
    else:
        given = put_arguments(job)
        due, ttl = given.get("due"), given.get("ttl")
        request = put_request_of(_now(due, ttl), given, _LIMIT)
        flags = _flags(given.get("delay"), due, ttl)
    if not request.id:
        request.id = new_id()
    return encode_job(request, flags)


def _puts_call(parts: list[bytes], start: int, stop: int) -> Call:
    size: i64 = 5
    for part in parts[start:stop]:
        size += len(part)
    width = value_class(size)
    out = BytesWriter()
    write_request_head(out, _PUTS, 1, width << VALUE_SHIFT, 0)
    out.append(0)
    write_value_head(out, width, size, _BUFFER)
    put_u32(out, stop - start)
    for part in parts[start:stop]:
        out.write(part)
    return Call(out.getvalue(), _read_receipts)


def _read_receipts(reply: Reply) -> list[Receipt | JournalError]:
    found: list[Receipt | JournalError] = []
    reader = PutOutcomeReader(value_of(reply))
    while reader.next():
        if reader.outcome == REFUSED:
            found.append(error_from(reader.error))
        else:
            found.append(_receipt(reader))
    return found


def taken(answers: list[Receipt | JournalError]) -> list[Receipt]:
    """The receipts of many puts; the error of the first refused one is raised."""
    kind: Any = Receipt
    found: Any = answers
    for answer in found:
        if type(answer) is not kind:
            raise answer
    receipts: list[Receipt] = found
    return receipts
