"""From a stream of bytes to JR replies and pushes, however the stream is cut.

Rules:

1. The replies depend on the bytes only, never on how they were cut into reads.
2. A reply of more than `max_message` bytes is refused before it is kept.
3. Pairs already read of an incomplete reply are kept, so a reply of 65,535 pairs that comes in
   small pieces is read once.
4. A server that breaks the framing sets `fault`; replies that came whole before it are given, and
   every later `feed` raises it.
"""

from __future__ import annotations

import struct

from fastjournal.errors import ProtocolError, VersionMismatch
from fastjournal.wire.fj import Pair, Reply
from fastjournal.wire.functions import (
    KEY_SIZE,
    QUERY_BITS,
    QUERY_SHIFT,
    TIMEOUT,
    TTL,
    VALUE_BITS,
    VALUE_SHIFT,
)

__all__ = ["ReplyParser"]

_HEAD = struct.Struct(">HHHHQ").unpack_from
_U16 = struct.Struct(">H").unpack_from
_U32 = struct.Struct(">I").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_LAYOUT = KEY_SIZE | VALUE_BITS | TIMEOUT | QUERY_BITS | TTL


class ReplyParser:
    """Client side: feed bytes, get replies and pushes."""

    __slots__ = ("_head", "_need", "_pairs", "_rest", "_size", "_wanted", "fault", "max_message")

    def __init__(self, max_message: int = 64 << 20) -> None:
        self.max_message = max_message
        self.fault: ProtocolError | VersionMismatch | None = None
        """Set when the framing is lost: end the connection; the next `feed` raises it."""
        self._rest = bytearray()
        self._need = 0
        self._head: Reply | None = None
        self._pairs: list[Pair] = []
        self._wanted = 0
        self._size = 0

    @property
    def pending(self) -> int:
        """Bytes held back for an incomplete reply."""
        return len(self._rest)

    @property
    def busy(self) -> bool:
        """A reply has begun to come and is not complete."""
        return self._head is not None or len(self._rest) > 0

    def feed(self, read: bytes | bytearray | memoryview) -> list[Reply]:
        """Take the next bytes; give what is complete. Look at `fault` afterwards."""
        if self.fault is not None:
            raise self.fault
        out: list[Reply] = []
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
        try:
            while start < end:
                head = self._head
                if head is None:
                    head = self._begin(data, start, end)
                    if head is None:
                        break
                    start += self._size
                if self._wanted:
                    start = self._read_pairs(head, data, start, end)
                    if self._wanted:
                        self._head = head
                        break
                    head = tuple.__new__(Reply, (*head[:5], tuple(self._pairs), head[6]))
                    self._pairs = []
                    self._head = None
                out.append(head)
        except (ProtocolError, VersionMismatch) as fault:
            self.fault = fault
            self._rest = bytearray()
            self._pairs = []
            return out
        if start == end:
            if rest:
                self._rest = bytearray()
        elif start or not rest:
            self._rest = bytearray(data[start:])
        return out

    def _begin(self, data: bytes, start: int, end: int) -> Reply | None:
        """Read up to the pairs, `_size` bytes; None if some are missing."""
        have = end - start
        if data[start : start + 4] != b"JR\0\1"[:have]:
            self._foreign(data, start, have)
        if have < 17:
            self._need = have + 1 if have < 4 else 17
            return None
        _, _, identifier, flags, timestamp = _HEAD(data, start)
        if not flags & _LAYOUT and not data[start + 16]:
            self._wanted = 0
            self._size = 17
            return tuple.__new__(Reply, (identifier, flags, timestamp * 1000, None, "", (), None))
        query = (flags & QUERY_BITS) >> QUERY_SHIFT
        bits = flags & VALUE_BITS
        at = start + 16
        timeout: int | None = None
        cursor: bytes | None = None
        wanted = 1 if bits else 0
        if flags & TIMEOUT or query:
            size = 8 * (flags >> 3 & 1) + (2 if query else 0)
            if have < 17 + size:
                self._need = 17 + size
                return None
            if flags & TIMEOUT:
                timeout = _U64(data, at)[0] * 1000
                at += 8
            if query:
                wanted = _U16(data, at)[0]
                at += 2
                if query == 2 or (wanted and not bits):
                    raise ProtocolError("reply with an undefined combination of bits")
        wide = flags & KEY_SIZE
        error = ""
        stop = self._text(data, start, at, end, wide)
        if not stop:
            return None
        if stop > at + (2 if wide else 1):
            error = data[at + (2 if wide else 1) : stop].decode("utf-8", "replace")
        at = stop
        if query == 3:
            stop = self._text(data, start, at, end, wide)
            if not stop:
                return None
            cursor = data[at + (2 if wide else 1) : stop]
        self._wanted = wanted
        self._size = stop - start
        return tuple.__new__(
            Reply, (identifier, flags, timestamp * 1000, timeout, error, (), cursor)
        )

    def _text(self, data: bytes, start: int, at: int, end: int, wide: int) -> int:
        """End of the sized text at `at`, or 0 if bytes are missing."""
        stop = at + (2 if wide else 1)
        if end >= stop:
            stop += _U16(data, at)[0] if wide else data[at]
            if end >= stop:
                return stop
        self._need = stop - start
        return 0

    def _read_pairs(self, head: Reply, data: bytes, at: int, end: int) -> int:
        """Read what is there of the wanted pairs: where the next one starts."""
        flags = head.flags
        wide = flags & KEY_SIZE
        expiring = flags & TTL
        width = 1 << ((flags & VALUE_BITS) >> VALUE_SHIFT) - 1
        room = self.max_message - self._size
        pairs = self._pairs
        new = tuple.__new__
        begin = at
        wanted = self._wanted
        expires: int | None = None
        while wanted:
            here = at
            if expiring:
                here += 8
                if end < here:
                    break
                expires = _U64(data, at)[0] * 1000
            key_at = here + (2 if wide else 1)
            if end < key_at:
                here = key_at
                break
            key_end = key_at + (_U16(data, here)[0] if wide else data[here])
            here = key_end + width
            if end < here:
                break
            size: int
            if width == 1:
                size = data[key_end]
            elif width == 2:
                size = _U16(data, key_end)[0]
            else:
                size = _U32(data, key_end)[0]
            if not size:
                raise ProtocolError("reply with a value of size 0")
            stop = here + size
            if stop - begin > room:
                raise ProtocolError(f"reply of more than {self.max_message} bytes")
            if end < stop:
                here = stop
                break
            pairs.append(
                new(Pair, (data[key_at:key_end], data[here], data[here + 1 : stop], expires))
            )
            at = stop
            wanted -= 1
        else:
            here = at
        self._need = here - at
        self._size += at - begin
        self._wanted = wanted
        return at

    def _foreign(self, data: bytes, start: int, have: int) -> None:
        if data[start : start + 2] != b"JR"[:have]:
            raise ProtocolError("the peer does not speak the FJ protocol")
        raise VersionMismatch("the server speaks another version of the FJ protocol")
