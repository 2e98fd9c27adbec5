"""What `buffers` offers, in plain Python, for interpreters that librt was not built for."""

import struct
from struct import Struct

__all__ = [
    "BytesWriter",
    "read_i16_be",
    "read_i32_be",
    "read_i64_be",
    "vec",
    "write_i16_be",
    "write_i32_be",
    "write_i64_be",
]

_I16, _I32, _I64 = Struct(">h"), Struct(">i"), Struct(">q")


class vec:  # noqa: N801 - as librt calls it
    """Arrays: `vec[u8](numbers)`. Of other kinds nobody has asked for one."""

    def __class_getitem__(cls, kind: object) -> type[bytearray]:
        return bytearray


class BytesWriter:
    """A byte string that grows at its end."""

    __slots__ = ("_data",)

    def __init__(self) -> None:
        self._data = bytearray()

    def append(self, byte: int) -> None:
        """One byte more."""
        self._data.append(byte)

    def write(self, data: bytes | bytearray) -> None:
        """These bytes more."""
        self._data += data

    def getvalue(self) -> bytes:
        """All of it."""
        return bytes(self._data)

    def truncate(self, size: int) -> None:
        """Only the first `size` bytes stay."""
        if not 0 <= size <= len(self._data):
            raise ValueError("a writer is cut to at most its size")
        del self._data[size:]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, at: int) -> int:
        return self._data[at]

    def __setitem__(self, at: int, byte: int) -> None:
        self._data[at] = byte


def write_i16_be(out: BytesWriter, value: int) -> None:
    """Append two bytes."""
    out.write(_packed(_I16, value))


def write_i32_be(out: BytesWriter, value: int) -> None:
    """Append four bytes."""
    out.write(_packed(_I32, value))


def write_i64_be(out: BytesWriter, value: int) -> None:
    """Append eight bytes."""
    out.write(_packed(_I64, value))


def read_i16_be(data: bytes, at: int) -> int:
    """Two bytes from `at` on."""
    return _unpacked(_I16, data, at)


def read_i32_be(data: bytes, at: int) -> int:
    """Four bytes from `at` on."""
    return _unpacked(_I32, data, at)


def read_i64_be(data: bytes, at: int) -> int:
    """Eight bytes from `at` on."""
    return _unpacked(_I64, data, at)


def _packed(shape: Struct, value: int) -> bytes:
    try:
        return shape.pack(value)
    except struct.error as error:
        raise ValueError(f"{value} does not fit into {shape.size} bytes") from error


def _unpacked(shape: Struct, data: bytes, at: int) -> int:
    if type(data) is not bytes:
        raise TypeError("numbers are read from bytes")
    if at < 0 or at + shape.size > len(data):
        raise IndexError("index out of range")
    number: int = shape.unpack_from(data, at)[0]
    return number
