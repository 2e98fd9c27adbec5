"""The fields of messages: numbers without sign, instants, keys, heads of values, integers.

All are big endian; the buffers know signed numbers only. Whoever writes a number has checked its
range; reading past the end is an `IndexError`.
"""

from typing import Final

from mypy_extensions import i16, i32, i64, u8

from fastjournal.buffers import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
)
from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.model import MAX_INSTANT

__all__ = [
    "MAX_US",
    "VERSION",
    "decode_integer",
    "encode_integer",
    "get_u16",
    "get_u32",
    "get_u64",
    "put_u16",
    "put_u32",
    "us_of",
    "value_class",
    "write_key",
    "write_value_head",
]

VERSION: Final = 1
"""Of the protocol."""
MAX_US: Final[i64] = MAX_INSTANT // 1000
"""The latest instant of a header."""

_UNSIGNED: Final = 1 << 64


def put_u16(out: BytesWriter, value: i64) -> None:
    """Write two bytes."""
    # Folded by hand: i16(value) cuts bits off when compiled, but not when interpreted.
    write_i16_be(out, i16(value - 0x1_0000 if value >= 0x8000 else value))


def put_u32(out: BytesWriter, value: i64) -> None:
    """Write four bytes."""
    write_i32_be(out, i32(value - 0x1_0000_0000 if value >= 0x8000_0000 else value))


def get_u16(data: bytes, at: i64) -> i64:
    """Read two bytes."""
    return i64(read_i16_be(data, at)) & 0xFFFF


def get_u32(data: bytes, at: i64) -> i64:
    """Read four bytes."""
    return i64(read_i32_be(data, at)) & 0xFFFF_FFFF


def get_u64(data: bytes, at: i64) -> int:
    """Read eight bytes, however large the number."""
    number: int = read_i64_be(data, at)
    return number if number >= 0 else number + _UNSIGNED


def us_of(instant: int) -> int:
    """An instant in ns as the whole us of a header; `OutOfRange` if it does not fit."""
    if instant < 0 or instant > MAX_INSTANT:
        raise OutOfRange(f"instant {instant} does not fit")
    return instant // 1000


def value_class(size: i64) -> i64:
    """Bits 1-2 of a message whose largest value has so many bytes, its type among them."""
    if size <= 0xFF:
        return 1
    if size <= 0xFFFF:
        return 2
    if size <= 0xFFFFFFFF:
        return 3
    raise TooLarge("a value has less than 4 GiB")


def write_value_head(out: BytesWriter, width: i64, size: i64, kind: i64) -> None:
    """Size and type of a value, in a message of this class; the size counts the type."""
    if width == 1:
        out.append(u8(size))
    elif width == 2:
        put_u16(out, size)
    else:
        put_u32(out, size)
    out.append(u8(kind))


def write_key(out: BytesWriter, key: bytes, wide: bool) -> None:
    """Size and bytes of a key, an error or a cursor."""
    if wide:
        put_u16(out, len(key))
    else:
        out.append(u8(len(key)))
    out.write(key)


def encode_integer(number: int) -> bytes:
    """The shortest of 1, 2, 4 or 8 bytes, two's complement."""
    for size in (1, 2, 4, 8):
        if -(1 << size * 8 - 1) <= number < 1 << size * 8 - 1:
            return number.to_bytes(size, "big", signed=True)
    raise OutOfRange(f"{number} does not fit in 64 bits")


def decode_integer(value: bytes) -> int:
    """Read an integer value of 1, 2, 4 or 8 bytes."""
    if len(value) not in (1, 2, 4, 8):
        raise BadRequest("an integer has 1, 2, 4 or 8 bytes")
    return int.from_bytes(value, "big", signed=True)
