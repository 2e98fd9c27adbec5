"""The small parts commands are made of: varints, lengths, instants.

    uv   unsigned LEB128, shortest form, at most 63 bits
    sv   signed: zig-zag (0, -1, 1, -2 ... become 0, 1, 2, 3 ...), then uv of at most 64 bits
    b    uv length, then that many bytes
    t    u64 big endian, ns since 1970; 0 = not set

Rules:

1. A `Reader` that runs over the end raises `IndexError`; what cannot be a number, `CorruptCommand`.
2. Instants past the year 2262 do not fit the signed numbers of the core: they are read as the last
   instant that does.
3. Whoever writes has checked the ranges: compiled numbers have 64 bits.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr, u8

from fastjournal.buffers import BytesWriter, read_i64_be
from fastjournal.errors import CorruptCommand

__all__ = ["Reader", "blob", "put_blob", "put_sv", "put_uv", "sv", "uv"]

_LAST_INSTANT: Final[i64] = 9_223_372_036_854_775_807


def put_uv(out: BytesWriter, value: i64) -> None:
    """Write an unsigned number."""
    while value >= 0x80:
        out.append(u8(value & 0x7F | 0x80))
        value >>= 7
    out.append(u8(value))


def put_sv(out: BytesWriter, value: i64) -> None:
    """Write a signed number."""
    top = value >> 62
    if top == 0 or top == -1:
        put_uv(out, value << 1 if value >= 0 else ~(value << 1))
        return
    # The zig-zag form has 64 bits and no room for its sign: its low 7 bits first, then the rest.
    low = value << 1 & 0x7F if value >= 0 else ~(value << 1) & 0x7F
    out.append(u8(low | 0x80))
    put_uv(out, (value if value >= 0 else ~value) >> 6)


def put_blob(out: BytesWriter, data: bytes) -> None:
    """Write a length and the bytes."""
    size: i64 = len(data)
    if size < 0x80:
        out.append(u8(size))
    else:
        put_uv(out, size)
    out.write(data)


def uv(value: int) -> bytes:
    """An unsigned number by itself."""
    out = BytesWriter()
    put_uv(out, value)
    return out.getvalue()


def sv(value: int) -> bytes:
    """A signed number by itself."""
    out = BytesWriter()
    put_sv(out, value)
    return out.getvalue()


def blob(data: bytes) -> bytes:
    """A length and the bytes by themselves."""
    return uv(len(data)) + data


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class Reader:
    """Reads one part after the other."""

    def __init__(self, data: bytes, at: i64 = 0, end: i64 = -1) -> None:
        self.data = data
        self.at: i64 = at
        self.end: i64 = end
        if end < 0:
            self.end = len(data)

    def byte(self) -> i64:
        """One byte."""
        at = self.at
        if at >= self.end:
            raise IndexError
        self.at = at + 1
        return self.data[at]

    def uv(self) -> i64:
        """An unsigned number."""
        value = self._number(62)
        if value < 0:
            raise CorruptCommand("a number has more than 63 bits")
        return value

    def sv(self) -> i64:
        """A signed number."""
        value = self._number(63)
        half = value >> 1
        if value < 0:  # all 64 bits are in use
            half &= _LAST_INSTANT
        return ~half if value & 1 else half

    def blob(self) -> bytes:
        """A length and that many bytes."""
        size = self.uv()
        at = self.at
        if size > self.end - at:
            raise IndexError
        self.at = at + size
        return self.data[at : at + size]

    def raw(self, size: i64) -> bytes:
        """So many bytes."""
        at = self.at
        if size > self.end - at:
            raise IndexError
        self.at = at + size
        return self.data[at : at + size]

    def t(self) -> i64:
        """An instant."""
        at = self.at
        if at + 8 > self.end:
            raise IndexError
        self.at = at + 8
        value = read_i64_be(self.data, at)
        return _LAST_INSTANT if value < 0 else value

    def ahead(self) -> i64:
        """The next eight bytes as a number, without going on; 0 if there are fewer."""
        at = self.at
        if at + 8 > self.end:
            return 0
        return read_i64_be(self.data, at)

    def _number(self, last: i64) -> i64:
        """LEB128 of up to `last` + 1 bits; 64 bits come out as they are, whatever their sign."""
        data = self.data
        at = self.at
        if at >= self.end:
            raise IndexError
        byte: i64 = data[at]
        at += 1
        value = byte & 0x7F
        shift: i64 = 0
        while byte >= 0x80:
            if at >= self.end:
                raise IndexError
            byte = data[at]
            at += 1
            shift += 7
            if shift > 63 or (shift == 63 and byte > 1):
                raise CorruptCommand("a number has more than 64 bits")
            part = byte & 0x7F
            if shift == 63:
                if last < 63:
                    raise CorruptCommand("a number has more than 63 bits")
                value = value - 0x4000_0000_0000_0000 - 0x4000_0000_0000_0000
            else:
                value |= part << shift
            if not byte:
                raise CorruptCommand("a number is not in its shortest form")
        self.at = at
        return value
