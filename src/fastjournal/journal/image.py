"""The PUT record <-> bytes: the image of a whole row, the most frequent record of all.

Rules:

1. The layout stands in `commands`. Short lengths and plain counters take the fast way.
2. The eight numbers behind the value are nearly always the same: they are looked up as bytes, and
   rows with equal numbers share one `Policy` object.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from fastjournal.errors import CorruptCommand
from fastjournal.journal.kinds import DEFAULT_POLICY, Policy, Put, policy_of
from fastjournal.journal.varint import SV, UV, blob, get_blob, get_sv, get_uv, sv, uv

__all__ = [
    "get_aliases",
    "get_fields",
    "get_put",
    "plain_head",
    "plain_image",
    "put_aliases",
    "put_put",
]

_FOUR = Struct(">QQQQ")
_pack_four = _FOUR.pack
_unpack_middle = Struct(">QQQQBBB").unpack_from  # also ttl, kind, size if they are short
_PLAIN_TAIL = b"\x01\0\0\0\0\0\0\0"
_new = tuple.__new__


def put_put(command: Put) -> bytes:
    (
        row,
        queue,
        key,
        rank,
        due,
        inserted,
        modified,
        expires,
        kind,
        value,
        policy,
        attempts,
        timeouts,
        fails,
        aliases,
    ) = command
    size = len(value)
    if policy is DEFAULT_POLICY and not (attempts or timeouts or fails):
        ttl, tail = b"\0", _PLAIN_TAIL
    else:
        ttl, tail = uv(policy.ttl), _tail(policy, attempts, timeouts, fails)
    return b"".join(
        (
            b"\x20",
            row,
            b"\x01",
            UV[len(queue)] if len(queue) < 2048 else uv(len(queue)),
            queue,
            UV[len(key)] if len(key) < 2048 else uv(len(key)),
            key,
            b"\0" if not aliases else put_aliases(aliases),
            SV[rank] if 0 <= rank < 256 else sv(rank),
            _pack_four(due, inserted, modified, expires),
            ttl,
            UV[kind] if kind < 128 else bytes((kind,)),
            UV[size] if size < 2048 else uv(size),
            value,
            tail,
        )
    )


def plain_head(queue: bytes) -> bytes:
    """What stands between the id and the rank in the image of a job without a key."""
    size = UV[len(queue)] if len(queue) < 2048 else uv(len(queue))
    return b"".join((b"\x01", size, queue, b"\0\0"))


def plain_image(row: bytes, head: bytes, rank: int, stamp: int, value: bytes) -> bytes:
    """`put_put` of a new job that says nothing but this; `head` is that of its queue."""
    size = len(value)
    return b"".join(
        (
            b"\x20",
            row,
            head,
            SV[rank],
            _pack_four(stamp, stamp, stamp, 0),
            b"\0\x01",
            UV[size] if size < 2048 else uv(size),
            value,
            _PLAIN_TAIL,
        )
    )


def _tail(policy: Policy, attempts: int, timeouts: int, fails: int) -> bytes:
    return b"".join(
        (
            bytes((policy.flags,)),
            uv(policy.lease),
            uv(attempts),
            uv(timeouts),
            uv(fails),
            uv(policy.max_attempts),
            uv(policy.max_timeouts),
            uv(policy.max_fails),
        )
    )


def get_put(data: bytes) -> tuple[Put, int]:
    """Read a row image, and where it ends."""
    return _new(Put, get_fields(data)), len(data)


def get_fields(data: bytes) -> tuple[Any, ...]:
    """The fields of a row image, in the order of `Put`; it fills all of `data`."""
    if data[17] != 1:
        raise CorruptCommand(f"image version {data[17]} is not known")
    size = data[18]
    if size < 0x80:
        at = 19 + size
        queue = data[19:at]
    else:
        queue, at = get_blob(data, 18)
    size = data[at]
    if size < 0x80:
        end = at + 1 + size
        key = data[at + 1 : end]
        at = end
    else:
        key, at = get_blob(data, at)
    aliases: tuple[bytes, ...] = ()
    if data[at]:
        aliases, at = get_aliases(data, at)
    else:
        at += 1
    rank = data[at]
    if rank < 0x80:
        rank = (rank >> 1) ^ -(rank & 1)
        at += 1
    elif data[at + 1] == 1 and not rank & 1:
        rank = rank >> 1  # two bytes: 64 to 127
        at += 2
    else:
        rank, at = get_sv(data, at)
    due, inserted, modified, expires, ttl, kind, size = _unpack_middle(data, at)
    if ttl or (size >= 0x80 and not 0 < data[at + 35] < 0x80):
        ttl, at = get_uv(data, at + 32)
        kind = data[at]
        size, at = get_uv(data, at + 1)
    elif size < 0x80:
        at += 35
    else:
        size = size & 0x7F | data[at + 35] << 7
        at += 36
    end = at + size
    tail = data[end:]
    known = _TAILS.get(tail)
    if known is None or ttl:
        known = _get_tail(tail, ttl)
    policy, attempts, timeouts, fails = known
    # Most rows are due when they come and never changed: three equal instants are one object.
    if modified == inserted:
        modified = inserted
    if due == inserted:
        due = inserted
    return (
        data[1:17],
        queue,
        key,
        rank,
        due,
        inserted,
        modified,
        expires,
        kind,
        data[at:end],
        policy,
        attempts,
        timeouts,
        fails,
        aliases,
    )


_TAILS: dict[bytes, tuple[Policy, int, int, int]] = {_PLAIN_TAIL: (DEFAULT_POLICY, 0, 0, 0)}
_MAX_TAILS = 4096


def _get_tail(tail: bytes, ttl: int) -> tuple[Policy, int, int, int]:
    flags = tail[0]
    lease, at = get_uv(tail, 1)
    attempts, at = get_uv(tail, at)
    timeouts, at = get_uv(tail, at)
    fails, at = get_uv(tail, at)
    max_attempts, at = get_uv(tail, at)
    max_timeouts, at = get_uv(tail, at)
    max_fails, at = get_uv(tail, at)
    if at != len(tail):
        raise CorruptCommand(f"{len(tail) - at} bytes too many")
    policy = policy_of(flags, ttl, lease, max_attempts, max_timeouts, max_fails)
    parts = (policy, attempts, timeouts, fails)
    if not ttl and len(_TAILS) < _MAX_TAILS:
        _TAILS[tail] = parts
    return parts


def put_aliases(aliases: tuple[bytes, ...]) -> bytes:
    return uv(len(aliases)) + b"".join(map(blob, aliases))


def get_aliases(data: bytes, at: int) -> tuple[tuple[bytes, ...], int]:
    count, at = get_uv(data, at)
    found = []
    for _ in range(count):
        alias, at = get_blob(data, at)
        found.append(alias)
    return tuple(found), at
