"""FJ requests and JR replies as values, and the bytes they are sent as.

Request                                     Reply
    46 4A          magic                        4A 52          magic
    u16            version = 1                  u16            version = 1
    u16            function                     u16            identifier
    u16            identifier, 1..65535         u16            flags
    u16            flags                        u64            timestamp, us
    u64            timestamp, us                [u64           timeout, us]        bit 3
    [u64           timeout, us]     bit 3       [u16           count]              bits 7-8 != 0
    [u16           count]           bits 7-8 = 1
    [u32           ttl, s]          bit 13      u8 | u16, n    error, "" = success
    u8 | u16, n    key              bit 0       [u8 | u16, n   cursor]             bits 7-8 = 3
    [u8 | u16, n   upper key]       bits 7-8 = 1
    [u8|u16|u32    value size V]    bits 1-2    pairs: [u64 expiry, us]  bit 13
    [u8            value type]                         key size, key
    [V - 1         value]                              value size V, type, V - 1 bytes

Rules:

1. All integers are big endian; bit 0 is the least significant bit of the flags.
2. In Python every instant is ns since 1970; the header carries whole us, rounded down. A
   header instant past the year 2262 does not fit and is refused (RANGE).
3. Sizes are chosen by the encoder: the smallest class that holds the largest key (also error and
   cursor) and the largest value of the message. Any legal class is read.
4. A reply holds `count` pairs if bits 7-8 are set; else one if bits 1-2 are set; else none.
5. A `Request` of HELLO never shows its value, which holds a token.
6. `requests` and `replies` read what this module writes; they are tested against each other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.wire.functions import (
    BY_ID,
    GONE,
    KEY_SIZE,
    PERSIST,
    PERSIST_SET,
    PUSH,
    QUERY_BITS,
    QUERY_SHIFT,
    STABLE,
    STALE,
    TIMEOUT,
    TTL,
    VALUE_BITS,
    VALUE_SHIFT,
    Function,
    Query,
    Type,
)

__all__ = [
    "MAX_INSTANT",
    "VERSION",
    "Pair",
    "Refusal",
    "Reply",
    "Request",
    "decode_integer",
    "encode_error",
    "encode_integer",
    "encode_ok",
    "encode_push",
    "encode_reply",
    "encode_request",
]

VERSION = 1
MAX_INSTANT = (1 << 63) - 1
"""Latest instant in ns that every part of the system can hold (year 2262)."""

_REQUEST = struct.Struct(">2sHHHHQ")
_REPLY = struct.Struct(">2sHHHQ")
_REPLY_OK = struct.Struct(">2sHHHQB")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_ONE = struct.Struct(">B").pack
# Size and type of a value, by its size class; class 0 has none.
_VALUE_HEADS = tuple(struct.Struct(form).pack for form in ("", ">BB", ">HB", ">IB"))
_BYTES = tuple(bytes((number,)) for number in range(256))
_STRUCTURE = KEY_SIZE | VALUE_BITS | TIMEOUT | QUERY_BITS | TTL


class Request(NamedTuple):
    """One request, as framed; `value` is bytes without its type."""

    function: int
    identifier: int
    flags: int = 0
    timestamp: int = 0
    """Ns; 0 = the server's time."""
    timeout: int | None = None
    limit: int | None = None
    """The count field of a range: most pairs to give, 0 = no limit."""
    ttl: int | None = None
    """The 4-byte field of bit 13: seconds for SET, the lease token where the key is an id."""
    key: bytes = b""
    upper: bytes | None = None
    value_type: int | None = None
    value: bytes = b""

    @property
    def query(self) -> Query:
        """What the key is."""
        return Query((self.flags & QUERY_BITS) >> QUERY_SHIFT)

    @property
    def persist(self) -> bool:
        """Answer only when the effect is on stable storage (bit 9, or bit 12 of SET)."""
        return bool(self.flags & (PERSIST | PERSIST_SET))

    @property
    def by_id(self) -> bool:
        """The key is a 16-byte id and `ttl` its token (never true for SET, GET and NEXT)."""
        return bool(self.flags & BY_ID) and self.function not in _OWN_BIT_13

    @property
    def token(self) -> int | None:
        """The lease token of DONE, FAIL, TOUCH, RELEASE; None = none given."""
        if self.by_id:
            return self.ttl or None
        if self.function == Function.DONE and self.value_type == Type.INTEGER:
            return decode_integer(self.value)
        return None

    def __repr__(self) -> str:
        name = Function(self.function).name if self.function in _NAMES else str(self.function)
        value = "<hidden>" if self.function == Function.HELLO else repr(self.value[:40])
        return (
            f"Request({name}, id={self.identifier}, flags={self.flags:#06x}, "
            f"key={self.key[:80]!r}, type={self.value_type}, value={value}[{len(self.value)}])"
        )


_NAMES = frozenset(int(f) for f in Function)
_OWN_BIT_13 = frozenset({Function.SET, Function.GET, Function.NEXT})


class Refusal(NamedTuple):
    """A request that must be answered with an error and has no other effect."""

    identifier: int
    code: str
    text: str
    close: bool
    """The framing is lost: answer, then end the connection."""

    def encode(self, timestamp: int) -> bytes:
        """The reply to send; `timestamp` is the server's time in ns."""
        return encode_error(self.identifier, f"{self.code} {self.text}".strip(), timestamp)


class Pair(NamedTuple):
    """A key and its value in a reply."""

    key: bytes
    type: int
    value: bytes = b""
    expires: int | None = None


class Reply(NamedTuple):
    """One reply or push, as framed."""

    identifier: int
    flags: int = 0
    timestamp: int = 0
    timeout: int | None = None
    error: str = ""
    pairs: tuple[Pair, ...] = ()
    cursor: bytes | None = None

    @property
    def is_push(self) -> bool:
        """Not an answer: something changed."""
        return bool(self.flags & PUSH)

    @property
    def gone(self) -> bool:
        """The key of this push was deleted or has expired."""
        return bool(self.flags & GONE)

    @property
    def stable(self) -> bool:
        """The effect was on stable storage before this reply left."""
        return bool(self.flags & STABLE)

    @property
    def stale(self) -> bool:
        """An equal or newer write exists; the request was ignored."""
        return bool(self.flags & STALE)

    @property
    def value(self) -> bytes | None:
        """The value of the only pair; None without one."""
        return self.pairs[0].value if self.pairs else None


def _us(instant: int) -> int:
    if instant < 0 or instant > MAX_INSTANT:
        raise OutOfRange(f"instant {instant} does not fit")
    return instant // 1000


def encode_request(
    function: int,
    identifier: int,
    *,
    flags: int = 0,
    timestamp: int = 0,
    timeout: int | None = None,
    query: Query = Query.KEY,
    limit: int = 0,
    ttl: int | None = None,
    key: bytes = b"",
    upper: bytes = b"",
    value_type: int | None = None,
    value: bytes = b"",
) -> bytes:
    """The bytes of a request; `flags` are the bits of meaning, those of structure are added.

    `limit` and `upper` are sent with a range only. A value is sent iff it has a type.
    """
    if not 1 <= identifier <= 0xFFFF:
        raise BadRequest(f"identifier {identifier} is not in 1..65535")
    if len(key) > 0xFFFF or len(upper) > 0xFFFF:
        raise TooLarge("a key has at most 65535 bytes")
    flags &= ~_STRUCTURE
    wide = len(key) > 255 or len(upper) > 255
    if wide:
        flags |= KEY_SIZE
    middle = b""
    if timeout is not None:
        flags |= TIMEOUT
        middle = _U64.pack(_us(timeout))
    if query:
        flags |= query << QUERY_SHIFT
        if query == Query.RANGE:
            middle += _U16.pack(limit)
    if ttl is not None:
        flags |= TTL
        middle += _U32.pack(ttl)
    size = _U16.pack(len(key)) if wide else _BYTES[len(key)]
    tail = b""
    if query == Query.RANGE:
        tail = (_U16.pack(len(upper)) if wide else _BYTES[len(upper)]) + upper
    if value_type is not None:
        bits = _value_class(len(value) + 1)
        flags |= bits << VALUE_SHIFT
        tail += _VALUE_HEADS[bits](len(value) + 1, value_type) + value
    return (
        _REQUEST.pack(b"FJ", VERSION, function, identifier, flags, _us(timestamp))
        + middle
        + size
        + key
        + tail
    )


def _value_class(size: int) -> int:
    if size <= 0xFF:
        return 1
    if size <= 0xFFFF:
        return 2
    if size <= 0xFFFFFFFF:
        return 3
    raise TooLarge("a value has less than 4 GiB")


def encode_ok(identifier: int, timestamp: int, flags: int = 0) -> bytes:
    """An empty success; the commonest reply, so it takes no detour."""
    return _REPLY_OK.pack(b"JR", VERSION, identifier, flags, timestamp // 1000, 0)


def encode_error(identifier: int, error: str, timestamp: int, flags: int = 0) -> bytes:
    """A reply that says `CODE text`; text beyond 1000 bytes is cut."""
    text = error.encode("utf-8", "replace")[:1000].decode("utf-8", "ignore").encode()
    head = bytes((len(text),)) if len(text) < 256 else _U16.pack(len(text))
    wide = KEY_SIZE if len(text) > 255 else 0
    return (
        _REPLY.pack(b"JR", VERSION, identifier, flags & ~_STRUCTURE | wide, _us(timestamp))
        + head
        + text
    )


def encode_reply(
    identifier: int,
    timestamp: int,
    *,
    flags: int = 0,
    timeout: int | None = None,
    pairs: Sequence[Pair] = (),
    several: bool = False,
    cursor: bytes | None = None,
) -> bytes:
    """The bytes of a success; `flags` are the bits of meaning, those of structure are added.

    `several` = the question allowed more than one pair (a count is sent, also for none or one).
    `cursor` = there is more behind these pairs. Expiry is sent with each pair iff the first has it.
    """
    if len(pairs) > 0xFFFF:
        raise TooLarge("a reply has at most 65535 pairs")
    flags &= ~_STRUCTURE
    several = several or cursor is not None or len(pairs) > 1
    head = b""
    if timeout is not None:
        flags |= TIMEOUT
        head = _U64.pack(_us(timeout))
    longest = len(cursor) if cursor is not None else 0
    largest = 0
    for pair in pairs:
        if len(pair[0]) > longest:
            longest = len(pair[0])
        if len(pair[2]) >= largest:
            largest = len(pair[2]) + 1
    if longest > 0xFFFF:
        raise TooLarge("a key has at most 65535 bytes")
    wide = longest > 255
    key_head = _U16.pack if wide else _ONE
    if wide:
        flags |= KEY_SIZE
    if several:
        flags |= (3 if cursor is not None else 1) << QUERY_SHIFT
        head += _U16.pack(len(pairs))
    parts = [head, b"\0\0" if wide else b"\0"]
    if cursor is not None:
        parts += (key_head(len(cursor)), cursor)
    if pairs:
        bits = _value_class(largest)
        flags |= bits << VALUE_SHIFT
        value_head = _VALUE_HEADS[bits]
        expiring = pairs[0][3] is not None
        if expiring:
            flags |= TTL
        for key, kind, value, expires in pairs:
            if expiring:
                parts.append(_U64.pack(_us(expires or 0)))
            parts += (key_head(len(key)), key, value_head(len(value) + 1, kind), value)
    return _REPLY.pack(b"JR", VERSION, identifier, flags, _us(timestamp)) + b"".join(parts)


def encode_push(
    identifier: int,
    timestamp: int,
    key: bytes,
    *,
    value_type: int = Type.VOID,
    gone: bool = False,
    due: int | None = None,
) -> bytes:
    """A push to the subscription `identifier`: the key or queue changed.

    An empty key means that pushes were lost and anything may have changed. `due` is sent for
    queues: the instant from which a job can be had.
    """
    flags = PUSH | (GONE if gone else 0)
    return encode_reply(
        identifier, timestamp, flags=flags, timeout=due, pairs=(Pair(key, value_type, b""),)
    )


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
