"""The small parts commands are made of: varints, lengths, instants.

    uv   unsigned LEB128, shortest form, at most 64 bits
    sv   signed: zig-zag (0, -1, 1, -2 ... become 0, 1, 2, 3 ...), then uv
    b    uv length, then that many bytes
    t    u64 big endian, ns since 1970; 0 = not set

Readers take (data, position) and return (value, next position). One that runs over the end raises
`IndexError`, or returns a position behind the end, which `commands.decode` notices.
"""

from __future__ import annotations

from struct import Struct

from fastjournal.errors import CorruptCommand

__all__ = ["SV", "UV", "T", "blob", "get_blob", "get_sv", "get_t", "get_uv", "sv", "uv"]

T = Struct(">Q")


def uv(value: int) -> bytes:
    """Write an unsigned number."""
    if value < 0x80:
        return UV[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sv(value: int) -> bytes:
    """Write a signed number."""
    return uv(value << 1 if value >= 0 else ~(value << 1))


def blob(data: bytes) -> bytes:
    """Write a length and the bytes."""
    return uv(len(data)) + data


def get_uv(data: bytes, at: int) -> tuple[int, int]:
    """Read an unsigned number."""
    value = data[at]
    at += 1
    if value < 0x80:
        return value, at
    value &= 0x7F
    shift = 7
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise CorruptCommand("a number has more than 64 bits")
    if not byte:
        raise CorruptCommand("a number is not in its shortest form")
    if value > 0xFFFF_FFFF_FFFF_FFFF:
        raise CorruptCommand("a number has more than 64 bits")
    return value, at


def get_sv(data: bytes, at: int) -> tuple[int, int]:
    """Read a signed number."""
    value, at = get_uv(data, at)
    return (value >> 1) ^ -(value & 1), at


def get_blob(data: bytes, at: int) -> tuple[bytes, int]:
    """Read a length and that many bytes."""
    size, at = get_uv(data, at)
    end = at + size
    return data[at:end], end


def get_t(data: bytes, at: int) -> tuple[int, int]:
    """Read an instant."""
    if at + 8 > len(data):
        raise IndexError
    return T.unpack_from(data, at)[0], at + 8


UV: tuple[bytes, ...] = tuple(bytes((n,)) for n in range(0x80))
UV += tuple(map(uv, range(0x80, 2048)))
"""Small numbers as they are written."""
SV = tuple(sv(n) for n in range(0x100))
"""Priorities 0..255 as they are written."""
