"""Unsigned numbers of two, four and eight bytes, big endian; the buffers know signed ones only.

Whoever writes has checked the range; reading past the end is an `IndexError`.
"""

from typing import Final

from mypy_extensions import i16, i32, i64

from fastjournal.buffers import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
)

__all__ = ["get_u16", "get_u32", "get_u64", "put_u16", "put_u32"]

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
