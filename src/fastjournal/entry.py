"""Key/value entries as people see them, and the bytes of their values.

Rules:

1. A value has a type: void 0, buffer 1, string 2, integer 3, float 4, boolean 5. An integer is
   two's complement, big endian, of 1, 2, 4 or 8 bytes; a float is IEEE 754, big endian, of 4 or 8;
   a boolean is one byte, 0 or 1 (D-21).
2. Storing does not look inside a value; arithmetic and Python do, and say `WrongType` if it is not
   what its type says.
3. Python's integers and floats are written with 8 bytes. Bytes of a string that are no UTF-8
   survive as surrogates.
4. A sum is as wide as the wider of its parts; one that does not fit is `OutOfRange`.
"""

from __future__ import annotations

import math
import struct
from datetime import datetime
from typing import NamedTuple, TypeAlias

from fastjournal.arguments import Text, as_datetime, key_bytes
from fastjournal.errors import BadRequest, OutOfRange, WrongType

__all__ = [
    "BOOLEAN",
    "BUFFER",
    "FLOAT",
    "INTEGER",
    "STRING",
    "VOID",
    "Entry",
    "EntryChange",
    "EntryPage",
    "EntryValue",
    "Watched",
    "added",
    "flipped",
    "from_value",
    "resized",
    "to_value",
    "watched",
]

VOID, BUFFER, STRING, INTEGER, FLOAT, BOOLEAN = range(6)
EntryValue: TypeAlias = bytes | str | int | float | bool | None

_INTEGER_SIZES = (1, 2, 4, 8)
_FLOATS = {4: struct.Struct(">f"), 8: struct.Struct(">d")}
_NAMES = ("void", "buffer", "string", "integer", "float", "boolean")


class Entry(NamedTuple):
    """A key/value entry at one moment. Times in ns since 1970, 0: not set."""

    key: bytes
    """The key it was asked for by."""
    kind: int
    data: bytes
    """Its value as bytes; empty if only a probe was asked for."""
    created: int
    modified: int
    """Time of the newest write, by its sender's clock."""
    expires: int
    ttl: int
    """Reading it moves `expires` at least so far ahead, ns."""
    persist: bool
    """On disk; else lost when the journal is closed."""
    lease_until: int = 0
    """Worked on by somebody until then."""
    worker: bytes = b""
    token: int = 0
    """How often it was handed out."""
    locked: bool = False
    keys: tuple[bytes, ...] = ()
    """All its keys, the first one first."""

    @property
    def value(self) -> EntryValue:
        """The value as Python's own type."""
        return from_value(self.kind, self.data)

    @property
    def expires_at(self) -> datetime | None:
        """When it will be gone; None: never."""
        return as_datetime(self.expires)


class EntryPage(NamedTuple):
    """Some entries, and the cursor to the others."""

    entries: list[Entry]
    cursor: bytes
    """Empty: these were the last. Valid over restarts."""


class EntryChange(NamedTuple):
    """A key whose entry was written, or is gone."""

    key: bytes
    """Empty: changes were lost, and everything may have changed."""
    kind: int = VOID
    """Type of its value now."""
    gone: bool = False
    """Deleted, renamed or expired."""
    at: int = 0
    """When it was told, by the clock of the daemon, ns since 1970."""

    @property
    def lost(self) -> bool:
        """Changes were lost: whatever was known of any key may be old."""
        return not self.key


class Watched(NamedTuple):
    """The keys somebody wants to be told of."""

    lower: bytes
    upper: bytes | None
    """None: `lower` is the only key. Empty: no upper end."""
    prefix: bytes = b""

    def holds(self, key: bytes) -> bool:
        """Whether this is one of them."""
        if self.upper is None:
            return key == self.lower
        if not key.startswith(self.prefix) or key < self.lower:
            return False
        return not self.upper or key <= self.upper


def watched(
    key: Text | None = None, prefix: Text = b"", lower: Text = b"", upper: Text = b""
) -> Watched:
    """A key, the keys that begin so, those of a range, or all."""
    if sum((key is not None, bool(prefix), bool(lower or upper))) > 1:
        raise BadRequest("give one of key, prefix, and lower with upper")
    if key is not None:
        return Watched(key_bytes(key), None)
    low, high, start = (key_bytes(bound) if bound else b"" for bound in (lower, upper, prefix))
    if not start:
        return Watched(low, high)
    head = start.rstrip(b"\xff")
    return Watched(start, head[:-1] + bytes((head[-1] + 1,)) if head else b"", start)


def to_value(value: object) -> tuple[int, bytes]:
    """Type and bytes of a Python value."""
    if value is None:
        return VOID, b""
    if isinstance(value, bool):
        return BOOLEAN, b"\1" if value else b"\0"
    if isinstance(value, int):
        try:
            return INTEGER, value.to_bytes(8, "big", signed=True)
        except OverflowError:
            raise OutOfRange(f"{value} does not fit in 8 bytes") from None
    if isinstance(value, float):
        return FLOAT, _FLOATS[8].pack(value)
    if isinstance(value, str):
        try:
            return STRING, value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise BadRequest(f"the value is not valid text: {error}") from error
    if isinstance(value, (bytes, bytearray, memoryview)):
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
