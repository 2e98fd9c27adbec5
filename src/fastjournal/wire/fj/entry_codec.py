"""Entries on the wire: all that is known of one, and who changes it.

A GET with bit 13 and 1 in the ttl field is answered with pairs whose type is that of the entry and
whose value is its picture. It means entries alone, never jobs:

    u8   1                 layout
    u8   bits              0 persists, 1 locked
    u16  size of the worker's name
    u16  number of keys
    u64  created, modified, expires, touch length, end of the lease; ns each, 0 = none
    u32  token: how often it was handed out
    worker, then each key: u16 size, key; then the value, empty if no data was asked for

Who changes an entry stands in the upper key (bits 7-8 = 1, count 0) of the function:

    u64  fencing number: refused unless this very lock is held; 0 = none
    name, instead of that of HELLO: owner of locks, sender of ADD and NOT; may be empty

Rules:

1. Times in a picture are exact; those in the header of a message are whole us.
2. What is cut off or too long is refused: `ProtocolError` for pictures, `BadRequest` for who.
"""

from __future__ import annotations

import struct

from fastjournal.entry import Entry
from fastjournal.errors import BadRequest, ProtocolError

__all__ = [
    "ALL",
    "MAX_NAME",
    "decode_entry",
    "decode_who",
    "encode_entry",
    "encode_who",
    "plain_picture",
]

ALL = 1
"""The ttl field of a GET that wants to be told everything."""
MAX_NAME = 255

_HEAD = struct.Struct(">BBHHQQQQQI")
_U16 = struct.Struct(">H")
_LAYOUT = 1
_PERSISTS, _LOCKED = 1, 2


def encode_entry(entry: Entry) -> bytes:
    """The picture of an entry."""
    _, _, data, created, modified, expires, ttl, persist, until, worker, token, locked, keys = entry
    bits = (_PERSISTS if persist else 0) | (_LOCKED if locked else 0)
    head = _HEAD.pack(
        _LAYOUT, bits, len(worker), len(keys), created, modified, expires, ttl, until,
        min(token, 0xFFFFFFFF),
    )  # fmt: skip
    if len(keys) == 1:
        return b"".join((head, worker, _U16.pack(len(keys[0])), keys[0], data))
    parts = [head, worker]
    for key in keys:
        parts += (_U16.pack(len(key)), key)
    parts.append(data)
    return b"".join(parts)


def plain_picture(
    created: int, modified: int, expires: int, token: int, persist: bool, key: bytes, data: bytes
) -> bytes:
    """The picture of an entry with one key, no touch length, no lease and no lock."""
    head = _HEAD.pack(
        _LAYOUT, persist, 0, 1, created, modified, expires, 0, 0, min(token, 0xFFFFFFFF)
    )
    return b"".join((head, _U16.pack(len(key)), key, data))


def decode_entry(key: bytes, kind: int, value: bytes) -> Entry:
    """Read the picture of an entry that was asked for by `key`."""
    if len(value) < _HEAD.size or value[0] != _LAYOUT:
        raise ProtocolError("the picture of an entry is cut off or of another layout")
    _, bits, worker_size, count, created, modified, expires, ttl, until, token = _HEAD.unpack_from(
        value
    )
    at = _HEAD.size + worker_size
    worker = value[_HEAD.size : at]
    keys: tuple[bytes, ...] = ()
    for _ in range(count):
        stop = at + 2
        if stop > len(value):
            raise ProtocolError("the picture of an entry is cut off")
        at = stop + _U16.unpack_from(value, at)[0]
        keys += (value[stop:at],)
    if at > len(value):
        raise ProtocolError("the picture of an entry is cut off")
    fields = (
        key, kind, value[at:], created, modified, expires, ttl, bits & _PERSISTS != 0, until,
        worker, token, bits & _LOCKED != 0, keys,
    )  # fmt: skip
    return tuple.__new__(Entry, fields)


def encode_who(fence: int = 0, name: bytes = b"") -> bytes:
    """The upper key of a change: the number of a lock, and a name."""
    if not 0 <= fence < 1 << 63:
        raise BadRequest(f"{fence} is no fencing number")
    if len(name) > MAX_NAME:
        raise BadRequest(f"a name has at most {MAX_NAME} bytes")
    return fence.to_bytes(8, "big") + name


def decode_who(upper: bytes) -> tuple[int, bytes]:
    """Fencing number and name."""
    if not 8 <= len(upper) <= 8 + MAX_NAME:
        raise BadRequest("who: 8 bytes of a fencing number, then a name of at most 255")
    return int.from_bytes(upper[:8], "big"), upper[8:]
