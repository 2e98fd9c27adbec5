"""Entries on the wire: all that is known of one, and who changes it.

A GET with bit 13 and 1 or 2 in the ttl field is answered with pairs whose type is that of the entry
and whose value is its picture. It means entries alone, never jobs:

    u8   1 or 2            layout
    u8   bits              0 persists, 1 locked
    u16  size of the worker's name
    u16  number of keys
    u64  created, modified, expires, touch length, end of the lease; ns each, 0 = none
    u32  token: how often it was handed out
    u64  when it was read last, ns, 0 = not known; only in layout 2, for 2 in the ttl field
    worker, then each key: u16 size, key; then the value, empty if no data was asked for

Who changes an entry stands in the upper key (bits 7-8 = 1, count 0) of the function:

    u64  fencing number: refused unless this very lock is held; 0 = none
    name, instead of that of HELLO: owner of locks, sender of ADD and NOT; may be empty

Rules:

1. Times in a picture are exact; those in the header of a message are whole us.
2. What is cut off or too long is refused: `ProtocolError` for pictures, `BadRequest` for who.
"""

from collections.abc import Sequence
from typing import Any, Final

from mypy_extensions import i64, u8

from fastjournal.buffers import BytesWriter, write_i64_be
from fastjournal.entry_model import Entry
from fastjournal.errors import BadRequest, ProtocolError
from fastjournal.wire.fj.fields import get_u16, get_u32, get_u64, put_u16, put_u32

__all__ = [
    "ALL",
    "ALL_READ",
    "MAX_NAME",
    "decode_entry",
    "decode_who",
    "encode_who",
    "write_entry",
]

ALL: Final = 1
"""The ttl field of a GET that wants to be told everything, but when it was read last."""
ALL_READ: Final = 2
"""That of one that wants to be told this too."""
MAX_NAME: Final = 255

_HEAD_SIZE: Final = 50
_LAYOUT: Final = 1
_READ_LAYOUT: Final = 2
_PERSISTS: Final[i64] = 1
_LOCKED: Final[i64] = 2
_MOST: Final[i64] = 0xFFFF_FFFF
_new: Final[Any] = tuple.__new__


def write_entry(
    out: BytesWriter,
    created: i64,
    modified: i64,
    expires: i64,
    ttl: i64,
    until: i64,
    token: i64,
    persist: bool,
    locked: bool,
    worker: bytes,
    keys: Sequence[bytes],
    data: bytes,
    accessed: i64 = -1,
) -> None:
    """The picture of an entry; `accessed` makes it one of layout 2."""
    bits: i64 = 0
    if persist:
        bits = _PERSISTS
    if locked:
        bits |= _LOCKED
    out.append(_LAYOUT if accessed < 0 else _READ_LAYOUT)
    out.append(u8(bits))
    put_u16(out, len(worker))
    put_u16(out, len(keys))
    write_i64_be(out, created)
    write_i64_be(out, modified)
    write_i64_be(out, expires)
    write_i64_be(out, ttl)
    write_i64_be(out, until)
    put_u32(out, min(_MOST, token))
    if accessed >= 0:
        write_i64_be(out, accessed)
    out.write(worker)
    for key in keys:
        put_u16(out, len(key))
        out.write(key)
    out.write(data)


def decode_entry(key: bytes, kind: int, value: bytes) -> Entry:
    """Read the picture of an entry that was asked for by `key`."""
    end: i64 = len(value)
    head: i64 = _HEAD_SIZE
    if end > 0 and value[0] == _READ_LAYOUT:
        head += 8
    elif end > 0 and value[0] != _LAYOUT:
        raise ProtocolError("the picture of an entry is of another layout")
    if end < head:
        raise ProtocolError("the picture of an entry is cut off")
    bits: i64 = value[1]
    at = head + get_u16(value, 2)
    worker = value[head:at]
    keys: list[bytes] = []
    for _ in range(get_u16(value, 4)):
        stop = at + 2
        if stop > end:
            raise ProtocolError("the picture of an entry is cut off")
        at = stop + get_u16(value, at)
        keys.append(value[stop:at])
    if at > end:
        raise ProtocolError("the picture of an entry is cut off")
    entry: Entry = _new(Entry, (
        key, kind, value[at:], get_u64(value, 6), get_u64(value, 14), get_u64(value, 22),
        get_u64(value, 30), bits & _PERSISTS != 0, get_u64(value, 38), worker,
        int(get_u32(value, 46)), bits & _LOCKED != 0, tuple(keys),
        get_u64(value, 50) if head > _HEAD_SIZE else 0,
    ))  # fmt: skip
    return entry


def encode_who(fence: int = 0, name: bytes = b"") -> bytes:
    """The upper key of a change: the number of a lock, and a name."""
    if not 0 <= fence < 1 << 63:
        raise BadRequest(f"{fence} is no fencing number")
    if len(name) > MAX_NAME:
        raise BadRequest(f"a name has at most {MAX_NAME} bytes")
    out = BytesWriter()
    write_i64_be(out, fence)
    out.write(name)
    return out.getvalue()


def decode_who(upper: bytes) -> tuple[int, bytes]:
    """Fencing number and name."""
    if not 8 <= len(upper) <= 8 + MAX_NAME:
        raise BadRequest("who: 8 bytes of a fencing number, then a name of at most 255")
    return get_u64(upper, 0), upper[8:]
