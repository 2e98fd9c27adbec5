"""From a stream of bytes to FJ requests, however the stream is cut.

Rules:

1. The messages depend on the bytes only, never on how they were cut into reads.
2. A size is compared with its limit before anything of that size is kept, so a parser never
   holds more than `max_message` bytes and one read.
3. While a message is incomplete nothing is parsed again until the bytes it is known to need are
   there; a large value that comes byte by byte costs time linear in its size.
4. A fault that leaves the framing whole (unknown function, bits or combinations, identifier 0)
   gives a `Refusal`, and the connection goes on. Wrong magic, version or size gives a `Refusal`
   with `close`, and every later byte is ignored.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fastjournal.wire.checks import check
from fastjournal.wire.fj import MAX_INSTANT, VERSION, Refusal, Request
from fastjournal.wire.functions import (
    FUNCTIONS,
    KEY_SIZE,
    QUERY_BITS,
    QUERY_SHIFT,
    TIMEOUT,
    TTL,
    VALUE_BITS,
)

__all__ = ["BEFORE_HELLO", "Limits", "RequestParser"]

# Magic and version as one number, then function, identifier, flags, timestamp, short key size.
_HEAD = struct.Struct(">IHHHQB").unpack_from
_LEAD = 0x464A0000 | VERSION
_U16 = struct.Struct(">H").unpack_from
_U32 = struct.Struct(">I").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_BULK = frozenset(number for number, row in FUNCTIONS.items() if row.bulk)
_MAX_US = MAX_INSTANT // 1000
_ODD = TIMEOUT | QUERY_BITS | TTL | KEY_SIZE
# Bytes of the value size, by bits 1-2 where they stand.
_WIDTHS = {0: 0, 2: 1, 4: 2, 6: 4}
_new = tuple.__new__


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a message may be; sizes in bytes."""

    max_key: int = 65_535
    max_value: int = (1 << 20) + 1 + 66_560
    """One value: 1 MiB of user data, its type, and the longest head of a job (key and queue)."""
    max_message: int = 16 << 20
    """A whole message, and the value of a bulk function."""


BEFORE_HELLO = Limits(max_key=1024, max_value=4096, max_message=8192)
"""What a connection may send before it has shown who it is."""


class RequestParser:
    """Server side: feed bytes, get requests and refusals.

    A guarded parser gives at most one message per `feed`; the caller decides about it (HELLO),
    calls `open`, and feeds `b""` for what is left. So a stranger's bytes are read under
    `BEFORE_HELLO` and nothing behind a wrong token is looked at.
    """

    __slots__ = ("_closed", "_guarded", "_need", "_rest", "limits")

    def __init__(self, limits: Limits | None = None, *, guarded: bool = False) -> None:
        self.limits = limits or (BEFORE_HELLO if guarded else Limits())
        self._guarded = guarded
        self._rest = bytearray()
        self._need = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Framing is lost; nothing more will come."""
        return self._closed

    @property
    def pending(self) -> int:
        """Bytes held back for an incomplete message."""
        return len(self._rest)

    @property
    def guarded(self) -> bool:
        """Still one message per `feed`."""
        return self._guarded

    def open(self, limits: Limits | None = None) -> None:
        """Leave the guarded mode, under these limits."""
        self.limits = limits or Limits()
        self._guarded = False

    def feed(self, read: bytes | bytearray | memoryview) -> list[Request | Refusal]:
        """Take the next bytes; give what is complete."""
        out: list[Request | Refusal] = []
        if self._closed:
            return out
        rest = self._rest
        if rest:
            rest += read
            if len(rest) < self._need:
                return out
            data = bytes(rest)
        else:
            data = bytes(read)
        start = 0
        end = len(data)
        while start < end:
            step = self._one(data, start, end, out)
            if step <= 0:
                self._need = -step
                if not step:
                    start = end
                break
            start = step
            if self._guarded:
                self._need = 0
                break
        if start == end:
            if rest:
                self._rest = bytearray()
        elif start or not rest:
            self._rest = bytearray(data[start:])
        return out

    def _one(self, data: bytes, start: int, end: int, out: list[Request | Refusal]) -> int:
        """Parse one message at `start`: where it ends, minus the bytes it needs, or 0 = closed."""
        if end - start < 19:
            return self._short(data, start, end - start, out)
        flags: int
        size: int
        stop: int
        lead, function, identifier, flags, timestamp, size = _HEAD(data, start)
        if lead != _LEAD:
            return self._short(data, start, end - start, out)
        limits = self.limits
        timeout = limit = ttl = upper = None
        if flags & _ODD:
            fields = self._fields(data, start, end, identifier, flags, out)
            if isinstance(fields, int):
                return fields
            timeout, limit, ttl, key, upper, stop = fields
        else:
            stop = start + 19 + size
            if size > limits.max_key:
                return self._lost(out, identifier, "TOO-LARGE", f"key of {size} bytes")
            if end < stop:
                return start - stop
            key = data[start + 19 : stop]
        bits = flags & VALUE_BITS
        value_type: int | None = None
        value = b""
        if bits:
            at = stop + _WIDTHS[bits]
            if end < at:
                return start - at
            if bits == 2:
                size = data[stop]
            elif bits == 4:
                size = _U16(data, stop)[0]
            else:
                size = _U32(data, stop)[0]
            stop = at + size
            if (size > limits.max_value and function not in _BULK) or (
                stop - start > limits.max_message
            ):
                return self._lost(out, identifier, "TOO-LARGE", f"value of {size} bytes")
            if not size:
                return self._lost(out, identifier, "CLIENT-ERROR", "value of size 0")
            if end < stop:
                return start - stop
            value_type = data[at]
            value = data[at + 1 : stop]
        fault = check(function, flags, key, value_type, ttl)
        if not identifier:
            out.append(Refusal(0, "CLIENT-ERROR", "identifier 0 is the server's", False))
        elif fault is not None:
            out.append(Refusal(identifier, fault.code, str(fault), False))
        elif timestamp > _MAX_US or (timeout is not None and timeout > _MAX_US):
            out.append(Refusal(identifier, "RANGE", "instant past the year 2262", False))
        else:
            # The bare constructor of tuple: a third of the time of Request(...).
            out.append(
                _new(Request, (
                    function, identifier, flags, timestamp * 1000,
                    None if timeout is None else timeout * 1000,
                    limit, ttl, key, upper, value_type, value,
                ))
            )  # fmt: skip
        return stop

    def _fields(
        self,
        data: bytes,
        start: int,
        end: int,
        identifier: int,
        flags: int,
        out: list[Request | Refusal],
    ) -> tuple[int | None, int | None, int | None, bytes, bytes | None, int] | int:
        """What stands before the value where there is more than a short key, or as `_one`."""
        timeout = limit = ttl = upper = None
        ranged = flags & QUERY_BITS == 1 << QUERY_SHIFT
        at = start + 18
        extra = 8 * (flags >> 3 & 1) + 2 * ranged + 4 * (flags >> 13 & 1)
        if end < at + extra + 1:
            return start - at - extra - 1
        if flags & TIMEOUT:
            timeout = _U64(data, at)[0]
            at += 8
        if ranged:
            limit = _U16(data, at)[0]
            at += 2
        if flags & TTL:
            ttl = _U32(data, at)[0]
            at += 4
        width = 2 if flags & KEY_SIZE else 1
        keys = []
        for _ in range(2 if ranged else 1):
            stop = at + width
            if end < stop:
                return start - stop
            size: int = _U16(data, at)[0] if width == 2 else data[at]
            if size > self.limits.max_key:
                return self._lost(out, identifier, "TOO-LARGE", f"key of {size} bytes")
            at = stop + size
            if end < at:
                return start - at
            keys.append(data[stop:at])
        if ranged:
            upper = keys[1]
        return timeout, limit, ttl, keys[0], upper, at

    def _short(self, data: bytes, start: int, have: int, out: list[Request | Refusal]) -> int:
        """A message whose magic or version is wrong, or too short to tell."""
        if data[start : start + 2] != b"FJ"[:have]:
            return self._lost(out, 0, "CLIENT-ERROR", "no FJ message")
        if have >= 8 and _U16(data, start + 2)[0] != VERSION:
            version, _, identifier = struct.unpack_from(">HHH", data, start + 2)
            return self._lost(out, identifier, "VERSION", f"{version} is not spoken, {VERSION} is")
        return -2 if have < 2 else -8 if have < 8 else -19

    def _lost(self, out: list[Request | Refusal], identifier: int, code: str, text: str) -> int:
        self._closed = True
        out.append(Refusal(identifier, code, text, True))
        return 0
