"""The short way for entries: a GET of one key, a SET and an ADD that say nothing special.

Rules: those of `quick`, and

1. A GET goes the long way if anything but a plain value is to be told or done: an expiry, a touch
   length, a lease, a lock.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from fastjournal.journal.engine.entry_operations import EntryOperations
from fastjournal.journal.entries.cursor import Scan
from fastjournal.journal.entries.ground import is_kept
from fastjournal.journal.entries.locks import Writer
from fastjournal.journal.entries.reads import Reading
from fastjournal.model import State
from fastjournal.wire.entryvalue import decode_who, plain_picture
from fastjournal.wire.fj import Pair, encode_ok
from fastjournal.wire.functions import DATA, STALE

if TYPE_CHECKING:
    from fastjournal.daemon.fj import FjConnection

__all__ = [
    "add_entry",
    "get_entry",
    "is_add",
    "is_get",
    "is_set",
    "plain_get",
    "plain_pairs",
    "set_entry",
]

_U16 = struct.Struct(">H").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_SMALL = struct.Struct(">2sHHHQBBBB").pack
_MIDDLE = struct.Struct(">2sHHHQBBHB").pack
_WAITING = State.WAITING
_NO_TIME = bytes(8)
# Flags: persist as the policy promises, overwrite, size of the value.
_SET_SMALL, _SET_MIDDLE = b"\x10\x22", b"\x10\x24"
# Flags: persist as the policy promises, the upper key says who, size of the value.
_ADD = b"\x10\x82"
_JOB = 6


def is_get(data: bytes) -> bool:
    """A GET of one short key with its data, the whole of `data`."""
    return (
        len(data) > 19
        and data[8:18] == b"\4\0" + _NO_TIME
        and len(data) == 19 + data[18]
        and (data[6] or data[7]) > 0
    )


def is_set(data: bytes) -> bool:
    """A SET of an entry with a short key, the whole of `data`."""
    if len(data) < 22 or data[10:18] != _NO_TIME or not (data[6] or data[7]):
        return False
    at = 19 + data[18]
    flags = data[8:10]
    if at == 19 or len(data) < at + 3:
        return False
    if flags == _SET_SMALL:
        return data[at] == len(data) - at - 1 and data[at + 1] != _JOB
    return flags == _SET_MIDDLE and _U16(data, at)[0] == len(data) - at - 2 and data[at + 2] != _JOB


def is_add(data: bytes) -> bool:
    """An ADD that says who makes it, the whole of `data`."""
    if len(data) < 33 or data[8:10] != _ADD or data[18:20] != b"\0\0":
        return False
    at = 21 + data[20]
    if at == 21 or at >= len(data) or not (data[6] or data[7]):
        return False
    at += 1 + data[at]
    return at + 1 < len(data) and data[at] == len(data) - at - 1 and data[at + 1] in (3, 4)


def _operations(session: FjConnection) -> EntryOperations:
    return session.host.journal.entries.operations


def get_entry(session: FjConnection, data: bytes, now: int) -> bytes | None:
    """The value of a key."""
    return plain_get(session, data[19:], data[6] << 8 | data[7], now)


def plain_get(session: FjConnection, key: bytes, identifier: int, now: int) -> bytes | None:
    """The answer to a GET of one key with its data; None: go the long way."""
    operations = _operations(session)
    row = operations.find(key, now)
    if (
        row is None
        or row.state is not _WAITING
        or row.expires
        or row.policy.ttl
        or operations.locks.holder((row.key, *row.rare.aliases), now) is not None
    ):
        return None
    session.host.engine.load(row)
    value = row.value
    if type(value) is not bytes:
        return None
    size = len(value) + 1
    time = row.modified // 1000
    if size < 256:
        return _SMALL(b"JR", 1, identifier, DATA | 2, time, 0, 0, size, row.kind) + value
    if size < 65_536:
        return _MIDDLE(b"JR", 1, identifier, DATA | 4, time, 0, 0, size, row.kind) + value
    return None


def plain_pairs(
    session: FjConnection, scan: Scan, reading: Reading, now: int
) -> tuple[list[Pair] | None, bytes | None]:
    """Pictures of the entries of a page that reading does not change, and its cursor.

    None instead of them if one is not plain: go the long way.
    """
    operations = _operations(session)
    page = operations.rows(scan, reading, now)
    load = session.host.engine.load
    pairs = []
    for key, row in page.rows:
        if (
            row.state is not _WAITING
            or row.policy.ttl
            or row.rare.aliases
            or operations.locks.holder((key,), now) is not None
        ):
            return None, None
        value = b""
        if reading.data:
            load(row)
            if type(row.value) is not bytes:
                return None, None
            value = row.value
        picture = plain_picture(
            row.inserted, row.modified, row.expires, row.attempts, is_kept(row), key, value
        )
        pairs.append(tuple.__new__(Pair, (key, row.kind, picture, None)))
    return pairs, page.cursor or None


def set_entry(session: FjConnection, data: bytes, now: int, stable: int) -> bytes:
    """Store a value."""
    at = 19 + data[18]
    key = data[19:at]
    at += 1 if data[9] == 0x22 else 2
    by = Writer(session.name or session.own_name)
    if _operations(session).set(key, data[at], data[at + 1 :], by=by).stale:
        stable |= STALE
    return encode_ok(data[6] << 8 | data[7], now, stable)


def add_entry(session: FjConnection, data: bytes, now: int, stable: int) -> bytes | None:
    """Add to a number."""
    at = 21 + data[20]
    key = data[21:at]
    stop = at + 1 + data[at]
    fence, name = decode_who(data[at + 1 : stop])
    timestamp = _U64(data, 10)[0] * 1000
    if not name or not timestamp or timestamp >= 1 << 63:
        return None
    decided = _operations(session).add(
        key, data[stop + 1], data[stop + 2 :], sender=name, timestamp=timestamp,
        by=Writer(name, fence),
    )  # fmt: skip
    if decided.remembered is not None:
        stable = 0  # in memory only
    flags = stable | DATA | 2 | (STALE if decided.stale else 0)
    size = len(decided.data) + 1
    head = _SMALL(b"JR", 1, data[6] << 8 | data[7], flags, now // 1000, 0, 0, size, decided.kind)
    return head + decided.data
