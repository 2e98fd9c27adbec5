"""Values of the bulk functions: outcomes of PUTS, what LEASE asks for, SETTLE and its outcomes.

Outcomes of PUTS, also the value of the reply to a SET of type 6 layout 2 (count 1):

    u32  count
    per job: u8 outcome, 16 id
    per refused job, in order: u16 size, text `CODE ...`

What LEASE asks for:

    u8   1                          u32  time to wait, ms, 0 = do not wait
    u8   flags, see below           u64  lease length, ns, 0 = that of each job
    u16  most jobs, 1..65535        u16  number of names, u16 size of the worker's name
    u32  most bytes of user data in the reply, 0 = as much as a message holds
                                    per name: u16 size, name; then the worker's name
    flags: bit 0 the only name is a prefix; bit 1 fair (queues take turns); bit 2 take and delete
    No name = any queue. No worker = the name given with HELLO.

SETTLE:

    u32  count
    per lease: u8   bits 0-3 action, bit 6 an argument is given, bit 7 a result is given
               16   id, zero = named by key
               u32  token, 0 = none given
               u64  argument, ns, 0 if none is given
               u16  size of key, u32 size of result, then key, result
    action 0 complete   takes no argument
           1 fail       argument = delay of the next attempt instead of the back-off; result = why
           2 release    argument = delay until it is due again
           3 touch      argument = lease length from now instead of that of the job

Outcomes of SETTLE:

    u32  count
    per lease: u8 outcome, u64 instant, ns (new lease deadline, or when it is due again; else 0)
    per refused lease, in order: u16 size, text `CODE ...`

Rules:

1. One outcome per item, in the order of the request; a refused item changes nothing and does not
   stop the others. A malformed value refuses the whole message and changes nothing.
2. Counts are compared with the size of the value before anything is allocated for them.
3. Outcome 255 = refused; its text is an error of the protocol.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.wire.fj.frames import MAX_INSTANT, VERSION
from fastjournal.wire.fj.job_codec import NO_ID

__all__ = [
    "MAX_ITEMS",
    "REFUSED",
    "Action",
    "LeaseRequest",
    "PutOutcome",
    "Putting",
    "Settle",
    "SettleOutcome",
    "Settling",
    "decode_lease_request",
    "decode_put_outcomes",
    "decode_settle",
    "decode_settle_outcomes",
    "encode_lease_request",
    "encode_put_outcomes",
    "encode_put_reply",
    "encode_settle",
    "encode_settle_outcomes",
]

MAX_ITEMS = 65_535
"""Most items in one message."""
REFUSED = 255

_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_PUT = struct.Struct(">B16s")
# Header of a reply, no error, no key, value of 22 bytes and type buffer, count, outcome, id.
_PUT_REPLY = struct.Struct(">2sHHHQBBBBIB16s")
_LEASE = struct.Struct(">BBHIIQHH")
_SETTLE = struct.Struct(">B16sIQHI")
_SETTLED = struct.Struct(">BQ")
_SETTLE_SIZE = _SETTLE.size
_ARGUMENT = 64
_RESULT = 128


class Putting(IntEnum):
    """What became of a put: an `Outcome` of the model, or refused."""

    NEW = 0
    MERGED = 1
    TWIN = 2
    """A new row, held back until the row being worked on ends."""
    STALE = 3
    """Nothing changed: an equal or newer write is there, or this very put came before."""
    REFUSED = REFUSED


class Settling(IntEnum):
    """What became of a lease."""

    DONE = 0
    WAITING = 1
    """The job is in its queue again; the instant says when it is due."""
    DEAD = 2
    """No attempts are left."""
    EXTENDED = 3
    """The instant is the new deadline."""
    REFUSED = REFUSED


class Action(IntEnum):
    """What SETTLE does with a lease."""

    COMPLETE = 0
    FAIL = 1
    RELEASE = 2
    TOUCH = 3


class PutOutcome(NamedTuple):
    """One outcome of PUTS."""

    outcome: int
    id: bytes = NO_ID
    error: str = ""


class SettleOutcome(NamedTuple):
    """One outcome of SETTLE."""

    outcome: int
    instant: int = 0
    error: str = ""


class Settle(NamedTuple):
    """One lease to settle, named by id or, with a zero id, by key."""

    action: int
    id: bytes = NO_ID
    token: int = 0
    argument: int | None = None
    """Ns; see the table of actions."""
    key: bytes = b""
    result: bytes | None = None


class LeaseRequest(NamedTuple):
    """What LEASE asks for."""

    queues: tuple[bytes, ...] = ()
    limit: int = 1
    wait_ms: int = 0
    lease: int = 0
    """Length in ns; 0 = that of each job."""
    prefix: bool = False
    fair: bool = False
    take: bool = False
    max_bytes: int = 0
    worker: bytes = b""


def encode_lease_request(wanted: LeaseRequest) -> bytes:
    """The value of LEASE."""
    flags = wanted.prefix | wanted.fair << 1 | wanted.take << 2
    try:
        head = _LEASE.pack(
            1, flags, wanted.limit, wanted.max_bytes, wanted.wait_ms, wanted.lease,
            len(wanted.queues), len(wanted.worker),
        )  # fmt: skip
        names = [_U16.pack(len(name)) + name for name in wanted.queues]
        return b"".join((head, *names, wanted.worker))
    except struct.error as error:
        raise OutOfRange(f"does not fit a LEASE: {error}") from None


def decode_lease_request(value: bytes) -> LeaseRequest:
    """Read the value of LEASE."""
    if len(value) < _LEASE.size:
        raise BadRequest("LEASE is too short")
    layout, flags, limit, max_bytes, wait_ms, lease, count, size = _LEASE.unpack_from(value)
    if layout != 1 or flags > 7 or (flags & 1 and count != 1):
        raise BadRequest("LEASE of an unknown layout")
    if not limit or lease > MAX_INSTANT:
        raise OutOfRange("LEASE of no job, or for too long")
    names = []
    at = _LEASE.size
    for _ in range(count):
        if at + 2 > len(value):
            raise BadRequest("LEASE is cut off")
        stop = at + 2 + _U16.unpack_from(value, at)[0]
        if stop > len(value):
            raise BadRequest("LEASE is cut off")
        names.append(value[at + 2 : stop])
        at = stop
    if at + size != len(value):
        raise BadRequest("LEASE has a wrong size")
    return LeaseRequest(
        tuple(names), limit, wait_ms, lease, bool(flags & 1), bool(flags & 2), bool(flags & 4),
        max_bytes, value[at:],
    )  # fmt: skip


def encode_settle(items: Iterable[Settle]) -> bytes:
    """The value of SETTLE."""
    parts: list[bytes] = []
    pack = _SETTLE.pack
    try:
        for action, job_id, token, argument, key, result in items:
            if argument is not None:
                action |= _ARGUMENT
            if result is None:
                parts += (pack(action, job_id, token, argument or 0, len(key), 0), key, b"")
                continue
            action |= _RESULT
            parts += (
                pack(action, job_id, token, argument or 0, len(key), len(result)), key, result,
            )  # fmt: skip
    except struct.error as error:
        raise OutOfRange(f"does not fit a SETTLE: {error}") from None
    if len(parts) > 3 * MAX_ITEMS:
        raise TooLarge(f"at most {MAX_ITEMS} leases in one message")
    return _U32.pack(len(parts) // 3) + b"".join(parts)


def decode_settle(value: bytes) -> list[Settle]:
    """Read the value of SETTLE."""
    count = _count(value, _SETTLE_SIZE, "SETTLE")
    items = []
    at = 4
    end = len(value)
    unpack = _SETTLE.unpack_from
    new = tuple.__new__
    for _ in range(count):
        if at + _SETTLE_SIZE > end:
            raise BadRequest("SETTLE is cut off")
        marks, job_id, token, argument, key_size, size = unpack(value, at)
        action = marks & 15
        if action > 3 or marks & 48 or (action == 0 and marks & _ARGUMENT):
            raise BadRequest(f"SETTLE with an unknown action {marks}")
        if argument > MAX_INSTANT:
            raise OutOfRange("length of time does not fit")
        if (argument and not marks & _ARGUMENT) or (size and not marks & _RESULT):
            raise BadRequest("SETTLE with an argument or a result that is not announced")
        if not key_size and job_id == NO_ID:
            raise BadRequest("SETTLE of a lease without id and key")
        at += _SETTLE_SIZE
        result_at = at + key_size
        stop = result_at + size
        if stop > end:
            raise BadRequest("SETTLE is cut off")
        items.append(
            new(Settle, (
                action, job_id, token, argument if marks & _ARGUMENT else None,
                value[at:result_at], value[result_at:stop] if marks & _RESULT else None,
            ))
        )  # fmt: skip
        at = stop
    if at != end:
        raise BadRequest("bytes behind the leases of SETTLE")
    return items


def encode_put_outcomes(outcomes: Sequence[PutOutcome]) -> bytes:
    """The value of the reply to PUTS and to a SET of layout 2."""
    parts = [_U32.pack(len(outcomes))]
    pack = _PUT.pack
    texts = []
    for outcome, job_id, error in outcomes:
        parts.append(pack(outcome, job_id))
        if outcome == REFUSED:
            texts.append(_text(error))
    return b"".join(parts + texts)


def encode_put_reply(
    identifier: int, timestamp: int, outcome: int, job_id: bytes, flags: int = 0
) -> bytes:
    """The whole reply to a SET of layout 2 that was not refused: the commonest one, in one step."""
    return _PUT_REPLY.pack(
        b"JR", VERSION, identifier, flags | 2, timestamp // 1000, 0, 0, 22, 1, 1, outcome, job_id
    )


def decode_put_outcomes(value: bytes) -> list[PutOutcome]:
    """Read the outcomes of PUTS."""
    if len(value) == 21 and value[3] == 1 and value[4] != REFUSED:
        return [PutOutcome(value[4], value[5:])]
    count = _count(value, 17, "outcomes")
    at = 4 + 17 * count
    found = [PutOutcome(outcome, job_id) for outcome, job_id in _PUT.iter_unpack(value[4:at])]
    refused = [n for n, item in enumerate(found) if item[0] == REFUSED]
    for n, text in zip(refused, _texts(value, at, len(refused)), strict=True):
        found[n] = found[n]._replace(error=text)
    return found


def encode_settle_outcomes(outcomes: Sequence[SettleOutcome]) -> bytes:
    """The value of the reply to SETTLE."""
    parts = [_U32.pack(len(outcomes))]
    pack = _SETTLED.pack
    texts = []
    for outcome, instant, error in outcomes:
        parts.append(pack(outcome, instant))
        if outcome == REFUSED:
            texts.append(_text(error))
    return b"".join(parts + texts)


def decode_settle_outcomes(value: bytes) -> list[SettleOutcome]:
    """Read the outcomes of SETTLE."""
    count = _count(value, 9, "outcomes")
    at = 4 + 9 * count
    found = [SettleOutcome(outcome, when) for outcome, when in _SETTLED.iter_unpack(value[4:at])]
    refused = [n for n, item in enumerate(found) if item[0] == REFUSED]
    for n, text in zip(refused, _texts(value, at, len(refused)), strict=True):
        found[n] = found[n]._replace(error=text)
    return found


def _count(value: bytes, smallest: int, what: str) -> int:
    if len(value) < 4:
        raise BadRequest(f"{what} without a count")
    count: int = _U32.unpack_from(value)[0]
    if count > MAX_ITEMS or 4 + count * smallest > len(value):
        raise BadRequest(f"{what}: {count} items in {len(value)} bytes")
    return count


def _text(error: str) -> bytes:
    text = error.encode("utf-8", "replace")[:1000]
    return _U16.pack(len(text)) + text


def _texts(value: bytes, at: int, count: int) -> list[str]:
    """The texts behind the outcomes."""
    texts = []
    for _ in range(count):
        stop = at + 2
        if stop <= len(value):
            stop += _U16.unpack_from(value, at)[0]
        if stop > len(value):
            raise BadRequest("text of a refused item is cut off")
        texts.append(value[at + 2 : stop].decode("utf-8", "replace"))
        at = stop
    if at != len(value):
        raise BadRequest("bytes behind the outcomes")
    return texts
