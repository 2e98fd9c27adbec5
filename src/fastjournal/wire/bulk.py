"""Values of the bulk functions: outcomes of PUTS, what LEASE asks for, SETTLE and its outcomes.

Outcomes of PUTS, also the value of the reply to a SET of type 6 layout 2 (count 1):

    u32  count
    per job: u8 outcome, 16 id
    per refused job, in order: u16 size, text `CODE ...`

What LEASE asks for:

    u8   1                          u32  time to wait, ms, 0 = do not wait
    u8   flags, see below           u32  lease length, ms, 0 = default of the job
    u16  most jobs, 1..65535        u16  number of names
    u32  most bytes of user data in the reply, 0 = as much as a message holds
                                    per name: u16 size, name
    flags: bit 0 names are prefixes; bit 1 fair (round robin over queues); bit 2 take and delete
    No name = any queue.

SETTLE:

    u32  count
    per lease: u8   action          u64  argument, ns
               16   id, zero = named by key
               u32  token, 0 = none given
               u16  size of key, u32 size of result, then key, result
    action 0 complete   argument 0            result kept if the queue keeps results
           1 fail       argument 0, or least delay before the next attempt
           2 release    argument = delay until it is due again
           3 touch      argument = lease length from now, 0 = that of the job

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
from fastjournal.wire.fj import MAX_INSTANT
from fastjournal.wire.jobvalue import NO_ID

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
    "encode_settle",
    "encode_settle_outcomes",
]

MAX_ITEMS = 65_535
"""Most items in one message."""
REFUSED = 255

_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_PUT = struct.Struct(">B16s")
_LEASE = struct.Struct(">BBHIIIH")
_SETTLE = struct.Struct(">B16sIQHI")
_SETTLED = struct.Struct(">BQ")
_SETTLE_SIZE = _SETTLE.size


class Putting(IntEnum):
    """What became of a put."""

    STORED = 0
    MERGED = 1
    STALE = 2
    """An equal or newer write of this key exists; nothing changed."""
    TWIN = 3
    """Stored as a waiting row behind the one being worked on."""
    REPEATED = 4
    """The id is known already: the first put counted."""
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
    argument: int = 0
    """Ns; see the table of actions."""
    key: bytes = b""
    result: bytes = b""


class LeaseRequest(NamedTuple):
    """What LEASE asks for."""

    queues: tuple[bytes, ...] = ()
    limit: int = 1
    wait_ms: int = 0
    lease_ms: int = 0
    prefix: bool = False
    fair: bool = False
    take: bool = False
    max_bytes: int = 0


def encode_lease_request(wanted: LeaseRequest) -> bytes:
    """The value of LEASE."""
    flags = wanted.prefix | wanted.fair << 1 | wanted.take << 2
    try:
        head = _LEASE.pack(
            1, flags, wanted.limit, wanted.max_bytes, wanted.wait_ms, wanted.lease_ms,
            len(wanted.queues),
        )  # fmt: skip
        return head + b"".join(_U16.pack(len(name)) + name for name in wanted.queues)
    except struct.error as error:
        raise OutOfRange(f"does not fit a LEASE: {error}") from None


def decode_lease_request(value: bytes) -> LeaseRequest:
    """Read the value of LEASE."""
    if len(value) < _LEASE.size:
        raise BadRequest("LEASE is too short")
    layout, flags, limit, max_bytes, wait_ms, lease_ms, count = _LEASE.unpack_from(value)
    if layout != 1 or flags > 7:
        raise BadRequest("LEASE of an unknown layout")
    if not limit:
        raise OutOfRange("LEASE of no job")
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
    if at != len(value):
        raise BadRequest("bytes behind the names of LEASE")
    return LeaseRequest(
        tuple(names), limit, wait_ms, lease_ms, bool(flags & 1), bool(flags & 2), bool(flags & 4),
        max_bytes,
    )  # fmt: skip


def encode_settle(items: Iterable[Settle]) -> bytes:
    """The value of SETTLE."""
    parts: list[bytes] = []
    pack = _SETTLE.pack
    try:
        for action, job_id, token, argument, key, result in items:
            parts += (pack(action, job_id, token, argument, len(key), len(result)), key, result)
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
    for _ in range(count):
        if at + _SETTLE_SIZE > end:
            raise BadRequest("SETTLE is cut off")
        action, job_id, token, argument, key_size, size = unpack(value, at)
        if action > Action.TOUCH:
            raise BadRequest(f"SETTLE with an unknown action {action}")
        if argument > MAX_INSTANT:
            raise OutOfRange("length of time does not fit")
        at += _SETTLE_SIZE
        if key_size or size:
            stop = at + key_size + size
            if stop > end:
                raise BadRequest("SETTLE is cut off")
            key, result = value[at : at + key_size], value[at + key_size : stop]
            at = stop
        else:
            key = result = b""
        if not key_size and job_id == NO_ID:
            raise BadRequest("SETTLE of a lease without id and key")
        items.append(Settle(action, job_id, token, argument, key, result))
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


def decode_put_outcomes(value: bytes) -> list[PutOutcome]:
    """Read the outcomes of PUTS."""
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
