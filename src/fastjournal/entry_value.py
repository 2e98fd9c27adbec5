"""The bytes of an entry's value, and what can be reckoned with them.

Rules:

1. A value has a type: void 0, buffer 1, string 2, integer 3, float 4, boolean 5. An integer is
   two's complement, big endian, of 1, 2, 4 or 8 bytes; a float is IEEE 754, big endian, of 4 or 8;
   a boolean is one byte, 0 or 1 (D-21).
2. What is stored must have the form of its type, else it is `WrongType`; so say arithmetic and
   Python of what was stored before that was so.
3. Python's integers and floats are written with 8 bytes. Bytes of a string that are no UTF-8
   survive as surrogates.
4. A sum is as wide as the wider of its parts; one that does not fit is `OutOfRange`.
"""

import math
import struct
from typing import Final, TypeAlias

from fastjournal.buffers import read_i64_be
from fastjournal.errors import BadRequest, OutOfRange, WrongType

__all__ = [
    "BOOLEAN",
    "BUFFER",
    "FLOAT",
    "INTEGER",
    "STRING",
    "VOID",
    "EntryValue",
    "added",
    "check_form",
    "flipped",
    "from_value",
    "resized",
    "to_value",
]

VOID: Final = 0
BUFFER: Final = 1
STRING: Final = 2
INTEGER: Final = 3
FLOAT: Final = 4
BOOLEAN: Final = 5
EntryValue: TypeAlias = bytes | str | int | float | bool | None

_INTEGER_SIZES: Final = (1, 2, 4, 8)
_FLOATS: Final = {4: struct.Struct(">f"), 8: struct.Struct(">d")}
_NAMES: Final = ("void", "buffer", "string", "integer", "float", "boolean")


def check_form(kind: int, data: bytes) -> None:
    """Refuse bytes that no value of this type can have; of other types anything will do."""
    size = len(data)
    if kind == INTEGER:
        fine = size in _INTEGER_SIZES
    elif kind == FLOAT:
        fine = size in _FLOATS
    elif kind == BOOLEAN:
        fine = data in (b"\0", b"\1")
    else:
        fine = kind != VOID or not size
    if not fine:
        raise WrongType(f"{size} bytes are no {_NAMES[kind]}")


def to_value(value: object) -> tuple[int, bytes]:
    """Type and bytes of a Python value."""
    if isinstance(value, bytes):
        return BUFFER, value
    if isinstance(value, str):
        try:
            return STRING, value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise BadRequest(f"the value is not valid text: {error}") from error
    if isinstance(value, bool):
        return BOOLEAN, b"\1" if value else b"\0"
    if isinstance(value, int):
        try:
            return INTEGER, value.to_bytes(8, "big", signed=True)
        except OverflowError:
            raise OutOfRange(f"{value} does not fit in 8 bytes") from None
    if isinstance(value, float):
        return FLOAT, _FLOATS[8].pack(value)
    if value is None:
        return VOID, b""
    if isinstance(value, (bytearray, memoryview)):
        return BUFFER, bytes(value)
    raise BadRequest(f"a value is bytes, str, int, float, bool or None, not {type(value).__name__}")


def from_value(kind: int, data: bytes) -> EntryValue:
    """The Python value of these bytes."""
    if kind == BUFFER:
        return data
    if kind == STRING:
        return data.decode("utf-8", "surrogateescape")
    if kind == INTEGER:
        return _integer(data)
    if kind == FLOAT:
        return _float(data)
    if kind == BOOLEAN:
        return _boolean(data)
    if kind == VOID:
        return None
    raise WrongType(f"type {kind} has no value in Python")


def added(kind: int, data: bytes, more_kind: int, more: bytes) -> bytes:
    """The sum of two numbers of one type."""
    if kind not in (INTEGER, FLOAT) or kind != more_kind:
        raise WrongType(f"cannot add {_name(more_kind)} to {_name(kind)}")
    size = max(len(data), len(more))
    try:
        if kind == INTEGER:
            return (_integer(data) + _integer(more)).to_bytes(size, "big", signed=True)
        total = _float(data) + _float(more)
        if not math.isfinite(total):
            raise OverflowError
        return _FLOATS[size].pack(total)
    except OverflowError:
        raise OutOfRange(f"the sum does not fit in {size} bytes") from None


def flipped(kind: int, data: bytes) -> bytes:
    """The other boolean."""
    if kind != BOOLEAN:
        raise WrongType(f"cannot flip {_name(kind)}")
    return b"\0" if _boolean(data) else b"\1"


def resized(kind: int, data: bytes, size: int) -> bytes:
    """A buffer or string cut, or made longer by zero bytes."""
    if kind not in (BUFFER, STRING):
        raise WrongType(f"cannot truncate {_name(kind)}")
    return data[:size].ljust(size, b"\0")


def _name(kind: int) -> str:
    return _NAMES[kind] if kind < len(_NAMES) else f"type {kind}"


def _integer(data: bytes) -> int:
    if len(data) == 8:
        return int(read_i64_be(data, 0))
    if len(data) not in _INTEGER_SIZES:
        raise WrongType(f"an integer has 1, 2, 4 or 8 bytes, not {len(data)}")
    return int.from_bytes(data, "big", signed=True)


def _float(data: bytes) -> float:
    code = _FLOATS.get(len(data))
    if code is None:
        raise WrongType(f"a float has 4 or 8 bytes, not {len(data)}")
    number: float = code.unpack(data)[0]
    return number


def _boolean(data: bytes) -> bool:
    if data not in (b"\0", b"\1"):
        raise WrongType("a boolean is one byte, 0 or 1")
    return data == b"\1"
