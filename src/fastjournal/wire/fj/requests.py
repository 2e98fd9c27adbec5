"""FJ requests as values: made for sending, and read one by one from a stream.

Rules:

1. Sizes are chosen by the encoder: the smallest class that holds the largest key and the value. Any
   legal class is read (`frames`).
2. A `Request` of HELLO never shows its value, which holds a token.
3. Whoever serves many requests takes them from a `FrameReader` as they stand; a `Request` is for
   what is kept, or rare.
"""

from typing import Any, Final, NamedTuple, final

from mypy_extensions import i64

from fastjournal.buffers import BytesWriter, write_i32_be, write_i64_be
from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.wire.fj.frames import (
    BEFORE_HELLO,
    FRAME,
    MORE,
    VERSION,
    FrameReader,
    Limits,
    decode_integer,
    us_of,
    value_class,
    write_key,
    write_value_head,
)
from fastjournal.wire.fj.functions import (
    BY_ID,
    KEY_SIZE,
    PERSIST,
    PERSIST_SET,
    QUERY_BITS,
    QUERY_SHIFT,
    TIMEOUT,
    TTL,
    VALUE_BITS,
    VALUE_SHIFT,
    Function,
    Query,
    Type,
)
from fastjournal.wire.fj.replies import encode_error
from fastjournal.wire.unsigned import put_u16, put_u32

__all__ = [
    "BEFORE_HELLO",
    "Limits",
    "Refusal",
    "Request",
    "RequestParser",
    "encode_request",
    "request_of",
    "write_request_head",
]

_LEAD: Final = 0x464A0000 | VERSION
_STRUCTURE: Final = KEY_SIZE | VALUE_BITS | TIMEOUT | QUERY_BITS | TTL
_RANGE: Final = 1 << QUERY_SHIFT
_new: Final[Any] = tuple.__new__


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


@final
class RequestParser:
    """Server side: feed bytes, get requests and refusals.

    A guarded parser gives at most one message per `feed`; the caller decides about it (HELLO),
    calls `open`, and feeds `b""` for what is left. So a stranger's bytes are read under
    `BEFORE_HELLO` and nothing behind a wrong token is looked at.
    """

    def __init__(self, limits: Limits | None = None, *, guarded: bool = False) -> None:
        if limits is None:
            limits = BEFORE_HELLO if guarded else Limits()
        self.guarded: bool = guarded
        """Still one message per `feed`."""
        self._frames = FrameReader(limits)

    @property
    def limits(self) -> Limits:
        """How large a message may be."""
        return self._frames.limits

    @property
    def closed(self) -> bool:
        """Framing is lost; nothing more will come."""
        return self._frames.closed

    @property
    def pending(self) -> int:
        """Bytes held back for an incomplete message."""
        return self._frames.pending

    def open(self, limits: Limits | None = None) -> None:
        """Leave the guarded mode, under these limits."""
        self._frames.limits = limits if limits is not None else Limits()
        self.guarded = False

    def feed(self, read: bytes | bytearray | memoryview) -> list[Request | Refusal]:
        """Take the next bytes; give what is complete."""
        out: list[Request | Refusal] = []
        frames = self._frames
        frames.feed(read if isinstance(read, bytes) else bytes(read))
        while True:
            found = frames.next()
            if found == MORE:
                break
            if found == FRAME:
                out.append(request_of(frames))
            else:
                out.append(Refusal(int(frames.identifier), frames.code, frames.text, frames.closed))
            if self.guarded:
                break
        return out


def request_of(frame: FrameReader) -> Request:
    """The newest frame of a reader, to be kept."""
    flags = frame.flags
    timeout: int | None = None
    ttl: int | None = None
    limit: int | None = None
    upper: bytes | None = None
    kind: int | None = None
    if flags & TIMEOUT:
        timeout = int(frame.timeout)
    if flags & TTL:
        ttl = int(frame.ttl)
    if flags & QUERY_BITS == _RANGE:
        limit = int(frame.limit)
        upper = frame.upper
    if frame.kind >= 0:
        kind = int(frame.kind)
    # The bare constructor of tuple takes two thirds of the time of Request(...).
    request: Request = _new(Request, (
        int(frame.function), int(frame.identifier), int(flags), int(frame.timestamp), timeout,
        limit, ttl, frame.key, upper, kind, frame.value(),
    ))  # fmt: skip
    return request


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
    if not 0 <= limit <= 0xFFFF or (ttl is not None and not 0 <= ttl <= 0xFFFFFFFF):
        raise OutOfRange(f"count {limit} or ttl {ttl} does not fit a request")
    width: i64 = 0
    bits: i64 = flags & ~_STRUCTURE | query << QUERY_SHIFT
    ranged = bits & QUERY_BITS == _RANGE
    wide = len(key) > 255 or (ranged and len(upper) > 255)
    if wide:
        bits |= KEY_SIZE
    if timeout is not None:
        bits |= TIMEOUT
    if ttl is not None:
        bits |= TTL
    if value_type is not None:
        width = value_class(len(value) + 1)
        bits |= width << VALUE_SHIFT
    out = BytesWriter()
    write_request_head(out, function, identifier, bits, us_of(timestamp))
    if timeout is not None:
        write_i64_be(out, us_of(timeout))
    if ranged:
        put_u16(out, limit)
    if ttl is not None:
        put_u32(out, ttl)
    write_key(out, key, wide)
    if ranged:
        write_key(out, upper, wide)
    if value_type is not None:
        write_value_head(out, width, len(value) + 1, value_type)
        out.write(value)
    return out.getvalue()


def write_request_head(
    out: BytesWriter, function: i64, identifier: i64, flags: i64, timestamp: i64
) -> None:
    """The first 18 bytes of a request; `flags` with the bits of structure, the time in us."""
    write_i32_be(out, _LEAD)
    put_u16(out, function)
    put_u16(out, identifier)
    put_u16(out, flags)
    write_i64_be(out, timestamp)
