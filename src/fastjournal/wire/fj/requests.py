"""FJ requests: read from a stream, however it is cut, and made for sending.

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
3. Frames depend on the bytes only, never on how they were cut into reads. While one is incomplete
   nothing is parsed again until the bytes it is known to need are there; a large value that comes
   byte by byte costs time linear in its size.
4. A size is compared with its limit before anything of that size is kept, so a reader never holds
   more than `max_message` bytes and one read.
5. A fault that leaves the framing whole (unknown function, bits or combinations, identifier 0) is
   REFUSED, and the connection goes on. After a wrong magic, version or size the framing is LOST,
   and every later byte is ignored.
6. The fields are those of the newest frame: whoever wants to keep one makes a `Request` of it.
7. Whoever serves many requests takes them from a `FrameReader` as they stand; a `Request` is for
   what is kept, or rare. One of HELLO never shows its value, which holds a token.
8. Sizes are chosen by the encoder: the smallest class that holds the largest key and the value.
   Any legal class is read.
"""

from typing import Any, Final, NamedTuple, final

from mypy_extensions import i64

from fastjournal.buffers import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.wire.fj.fields import (
    MAX_US,
    VERSION,
    decode_integer,
    get_u16,
    get_u32,
    put_u16,
    put_u32,
    us_of,
    value_class,
    write_key,
    write_value_head,
)
from fastjournal.wire.fj.functions import (
    ALWAYS_ALLOWED,
    BY_ID,
    FUNCTIONS,
    JOBS,
    KEY_SIZE,
    LENGTH,
    PERSIST,
    PERSIST_SET,
    QUERY_BITS,
    QUERY_SHIFT,
    TIMEOUT,
    TTL,
    VALUE_BITS,
    VALUE_SHIFT,
    WORKED_ON,
    Function,
    Key,
    Query,
    Spec,
    Type,
)
from fastjournal.wire.fj.replies import encode_error

__all__ = [
    "BEFORE_HELLO",
    "FRAME",
    "LOST",
    "MORE",
    "NO_VALUE",
    "REFUSED",
    "FrameReader",
    "Limits",
    "Refusal",
    "Request",
    "RequestParser",
    "encode_request",
    "request_of",
    "write_request_head",
]


MORE: Final[i64] = 0
"""What `FrameReader.next` says: bytes are missing."""
FRAME: Final[i64] = 1
"""A frame stands in the fields."""
REFUSED: Final[i64] = 2
"""A frame is to be answered with `code` and `text`, and has no other effect."""
LOST: Final[i64] = 3
"""The same, and then the connection ends."""
NO_VALUE: Final[i64] = -1
"""`FrameReader.kind` of a frame without a value."""

_LEAD: Final = 0x464A0000 | VERSION

_RANGE: Final[i64] = 1 << 7
_CURSOR: Final[i64] = 3 << 7
_INTEGER: Final[i64] = 3
_JOB: Final[i64] = 6


@final
class Limits:
    """How large a message may be; sizes in bytes."""

    def __init__(
        self,
        max_key: i64 = 65_535,
        max_value: i64 = (1 << 20) + 1 + 66_560,
        max_message: i64 = 16 << 20,
    ) -> None:
        self.max_key: i64 = max_key
        self.max_value: i64 = max_value
        """One value: 1 MiB of user data, its type, and the longest head of a job (key, queue)."""
        self.max_message: i64 = max_message
        """A whole message, and the value of a bulk function."""


BEFORE_HELLO: Final = Limits(1024, 4096, 8192)
"""What a connection may send before it has shown who it is."""


@final
class FrameReader:
    """Server side: feed bytes, then take frame after frame until more bytes are needed.

    Whoever must decide about a frame before the next one is read (HELLO) takes one, changes
    `limits`, and goes on: nothing behind a wrong token is looked at.
    """

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits if limits is not None else Limits()
        self.closed: bool = False
        """The framing is lost; nothing more will come."""
        self.function: i64 = 0
        self.identifier: i64 = 0
        self.flags: i64 = 0
        self.timestamp: i64 = 0
        """Ns; 0 = the server's time."""
        self.timeout: i64 = 0
        """Ns; there if bit 3 is set."""
        self.limit: i64 = 0
        """The count field of a range: most pairs to give, 0 = no limit."""
        self.ttl: i64 = 0
        """The 4-byte field of bit 13: seconds for SET, the lease token where the key is an id."""
        self.key: bytes = b""
        self.upper: bytes = b""
        """There if bits 7-8 are 1."""
        self.kind: i64 = NO_VALUE
        """The type of the value."""
        self.data: bytes = b""
        """Where the value stands: from `at` to `end`."""
        self.at: i64 = 0
        self.end: i64 = 0
        self.size: i64 = 0
        """Bytes of the whole frame."""
        self.code: str = ""
        self.text: str = ""
        self._next: i64 = 0
        self._need: i64 = 0
        self._more = bytearray()

    @property
    def pending(self) -> i64:
        """Bytes that are not part of a frame yet."""
        return i64(len(self.data)) - self._next + len(self._more)

    @property
    def need(self) -> i64:
        """Bytes that the incomplete frame at the front is known to have; 0: none is there."""
        return self._need

    def value(self) -> bytes:
        """The value without its type."""
        return self.data[self.at : self.end]

    def feed(self, read: bytes) -> None:
        """Take the next bytes."""
        if self.closed:
            return
        left: i64 = len(self.data) - self._next
        if not left:
            self.data = read
            self._next = 0
            return
        more = self._more
        more += read
        if left + len(more) < self._need:
            return
        self.data = self.data[self._next :] + bytes(more)
        self._next = 0
        self._more = bytearray()

    def next(self) -> i64:
        """FRAME, REFUSED, LOST or MORE."""
        data = self.data
        start = self._next
        end: i64 = len(data)
        if start == end:
            self._let_go()
            return MORE
        if self.closed or len(self._more):
            return MORE
        have = end - start
        if have < 19 or read_i32_be(data, start) != _LEAD:
            return self._short(data, start, have)
        limits = self.limits
        function = self.function = get_u16(data, start + 4)
        identifier = self.identifier = get_u16(data, start + 6)
        flags = self.flags = get_u16(data, start + 8)
        timestamp = read_i64_be(data, start + 10)
        timeout: i64 = 0
        ttl: i64 = 0
        at = start + 18
        ranged = flags & QUERY_BITS == _RANGE
        if flags & (TIMEOUT | TTL) or ranged:
            extra: i64 = 0
            if flags & TIMEOUT:
                extra = 8
            if ranged:
                extra += 2
            if flags & TTL:
                extra += 4
            if have < 19 + extra:
                return self._wait(19 + extra)
            if flags & TIMEOUT:
                timeout = read_i64_be(data, at)
                at += 8
            if ranged:
                self.limit = get_u16(data, at)
                at += 2
            if flags & TTL:
                ttl = get_u32(data, at)
                at += 4
        self.ttl = ttl
        width: i64 = 2 if flags & KEY_SIZE else 1
        stop = at + width
        if end < stop:
            return self._wait(stop - start)
        size: i64 = get_u16(data, at) if flags & KEY_SIZE else data[at]
        if size > limits.max_key:
            return self._lose("TOO-LARGE", f"key of {size} bytes")
        at = stop + size
        if end < at:
            return self._wait(at - start)
        key = self.key = data[stop:at] if size else b""
        if ranged:
            stop = at + width
            if end < stop:
                return self._wait(stop - start)
            size = get_u16(data, at) if flags & KEY_SIZE else data[at]
            if size > limits.max_key:
                return self._lose("TOO-LARGE", f"key of {size} bytes")
            at = stop + size
            if end < at:
                return self._wait(at - start)
            self.upper = data[stop:at]
        kind = NO_VALUE
        bits = flags >> 1 & 3
        rule = _RULES[function] if function < _KNOWN else None
        if bits:
            stop = at + (1 << bits - 1)
            if end < stop:
                return self._wait(stop - start)
            if bits == 1:
                size = data[at]
            elif bits == 2:
                size = get_u16(data, at)
            else:
                size = get_u32(data, at)
            at = stop + size
            if at - start > limits.max_message or (
                size > limits.max_value and (rule is None or not rule.bulk)
            ):
                return self._lose("TOO-LARGE", f"value of {size} bytes")
            if not size:
                return self._lose("CLIENT-ERROR", "value of size 0")
            if end < at:
                return self._wait(at - start)
            kind = data[stop]
            self.at = stop + 1
        else:
            self.at = at
        self.kind = kind
        self.end = at
        self.size = at - start
        self._next = at
        self._need = 0
        if not identifier:
            self.code = "CLIENT-ERROR"
            self.text = "identifier 0 is the server's"
            return REFUSED
        if rule is None:
            return self._refuse("BAD-FUNCTION", f"{function} is unknown")
        if not self._fits(rule, flags, len(key), kind, ttl):
            return REFUSED
        if timestamp < 0 or timestamp > MAX_US or timeout < 0 or timeout > MAX_US:
            return self._refuse("RANGE", "instant past the year 2262")
        self.timestamp = timestamp * 1000
        self.timeout = timeout * 1000
        return FRAME

    def put_back(self) -> None:
        """Give the newest frame once more at the next `next`."""
        self._next -= self.size
        self.size = 0

    def _let_go(self) -> None:
        """All that was read has been taken: an idle connection holds none of it."""
        if self._next:
            self.data = b""
            self.at = self.end = 0
            self._next = 0

    def _wait(self, need: i64) -> i64:
        self._need = need
        return MORE

    def _refuse(self, code: str, text: str) -> i64:
        self.code = code
        self.text = text
        return REFUSED

    def _lose(self, code: str, text: str) -> i64:
        self.closed = True
        self.code = code
        self.text = text
        self.data = b""
        self._next = 0
        return LOST

    def _short(self, data: bytes, start: i64, have: i64) -> i64:
        """A frame whose magic or version is wrong, or too short to tell."""
        if data[start : start + 2] != b"FJ"[:have]:
            self.identifier = 0
            return self._lose("CLIENT-ERROR", "no FJ message")
        if have >= 8 and get_u16(data, start + 2) != VERSION:
            version = get_u16(data, start + 2)
            self.identifier = get_u16(data, start + 6)
            return self._lose("VERSION", f"{version} is not spoken, {VERSION} is")
        return self._wait(2 if have < 2 else 8 if have < 8 else 19)

    def _fits(self, rule: "_Rule", flags: i64, key: i64, kind: i64, ttl: i64) -> bool:
        """Whether a well-framed request is what its function takes; else `code` says what is wrong.

        The table of `functions` says it; what a mask of bits cannot tell stands in `_combines`.
        Nothing here looks inside a value.
        """
        text = ""
        code = "BAD-FLAGS"
        if flags & rule.forbidden:
            text = f"{rule.name} does not take bits {_bits(flags & rule.forbidden)}"
        elif flags & (LENGTH | TIMEOUT) == LENGTH:
            text = "bit 14 says what the field of bit 3 is, which is not there"
        elif kind == NO_VALUE and rule.value == _MUST:
            text = f"{rule.name} needs a value"
        elif kind != NO_VALUE and rule.value == _NEVER:
            text = f"{rule.name} takes no value"
        elif kind != NO_VALUE and rule.types and (kind > 7 or not rule.types >> kind & 1):
            code = "TYPE"
            text = f"{rule.name} does not take a value of type {kind}"
        elif key and rule.key == _NEVER:
            code = "CLIENT-ERROR"
            text = f"{rule.name} takes no key"
        elif not key and (rule.key == _MUST or (rule.key == _UNLESS_JOB and kind != _JOB)):
            code = "CLIENT-ERROR"
            text = f"{rule.name} needs a key"
        else:
            return not rule.also or self._combines(rule.also, flags, key, kind, ttl)
        self.code = code
        self.text = text
        return False

    def _combines(self, also: i64, flags: i64, key: i64, kind: i64, ttl: i64) -> bool:
        """Whether bits and fields go together in a function."""
        query = flags & QUERY_BITS
        code = "BAD-FLAGS"
        text = ""
        if also == _GET:
            if not key and query != _RANGE:
                code = "CLIENT-ERROR"
                text = "GET needs a key"
            elif ttl > 2:
                text = "the ttl field must be 0, 1 or 2 here"
        elif also == _NEXT:
            if ttl:
                text = "the ttl field must be 0 here"
        elif also == _LISTEN:
            if query > _RANGE or (query and flags & WORKED_ON):
                text = "LISTEN takes a key, a range of keys, or one queue"
        elif also == _LIST:
            if query and query != _CURSOR:
                text = "LIST takes no such query"
        elif also == _WHO:
            if query > _RANGE or (query and kind == _JOB):
                text = "bits 7-8 of a change of an entry are 0, or 1: who makes it"
        elif also == _DELETE and flags & TTL and query:
            text = "a job has no fencing number"
        elif also == _DELETE and flags & JOBS and (flags & TTL or query or kind != NO_VALUE):
            text = "bit 6 means the jobs of a key in every queue"
        elif also == _DELETE and query > _RANGE:
            text = "bits 7-8 of a change of an entry are 0, or 1: who makes it"
        elif also == _DONE and flags & TTL and kind == _INTEGER:
            code = "TYPE"
            text = "with bit 13 the value of DONE is the result"
        elif also == _DONE and not flags & TTL and kind != NO_VALUE and kind != _INTEGER:
            code = "TYPE"
            text = "the value of DONE is a token; send a result with bit 13"
        elif flags & TTL and key != 16:
            code = "CLIENT-ERROR"
            text = "an id has 16 bytes"
        if not text:
            return True
        self.code = code
        self.text = text
        return False


_NEVER: Final[i64] = 0
_MAY: Final[i64] = 1
_MUST: Final[i64] = 2
_UNLESS_JOB: Final[i64] = 3

_GET: Final[i64] = 1
_NEXT: Final[i64] = 2
_LISTEN: Final[i64] = 3
_LIST: Final[i64] = 4
_WHO: Final[i64] = 5
_DELETE: Final[i64] = 6
_DONE: Final[i64] = 7


@final
class _Rule:
    """A row of the table of functions, for the reader."""

    def __init__(self, row: Spec) -> None:
        self.name = row.function.name
        self.bulk = row.bulk
        self.forbidden: i64 = 0xFFFF & ~(row.bits | ALWAYS_ALLOWED)
        self.types: i64 = 0
        """A bit for each type the value may have; 0: any."""
        types = row.types
        if types is not None:
            for kind in types:
                self.types |= 1 << int(kind)
        value = _MAY
        if row.value_needed:
            value = _MUST
        elif types is not None and not types:
            value = _NEVER
        self.value: i64 = value
        key = _MAY
        if row.key == Key.NONE:
            key = _NEVER
        elif row.key == Key.NEEDED:
            key = _MUST
        elif row.key == Key.UNLESS_JOB:
            key = _UNLESS_JOB
        self.key: i64 = key
        self.also: i64 = _ALSO.get(row.function, 0)
        """Which combinations are to be looked at; 0: none."""


_ALSO: Final[dict[Function, int]] = {
    Function.GET: 1,
    Function.NEXT: 2,
    Function.LISTEN: 3,
    Function.UNLISTEN: 3,
    Function.LIST: 4,
    Function.SET: 5,
    Function.ADD: 5,
    Function.NOT: 5,
    Function.TRUNCATE: 5,
    Function.LOCK: 5,
    Function.UNLOCK: 5,
    Function.RENAME: 5,
    Function.ALIAS: 5,
    Function.DELETE: 6,
    Function.DONE: 7,
    Function.FAIL: 8,
    Function.TOUCH: 8,
    Function.RELEASE: 8,
    Function.RESULT: 8,
    Function.REDRIVE: 8,
    Function.INSPECT: 8,
}
_KNOWN: Final[i64] = 1 + max(FUNCTIONS)
_RULES: Final[list[_Rule | None]] = [
    _Rule(FUNCTIONS[number]) if number in FUNCTIONS else None for number in range(_KNOWN)
]
"""By the number of the function; None: there is none."""


def _bits(flags: i64) -> str:
    return ", ".join([str(bit) for bit in range(16) if int(flags) >> bit & 1])


_STRUCTURE: Final = KEY_SIZE | VALUE_BITS | TIMEOUT | QUERY_BITS | TTL
_RANGE_QUERY: Final = 1 << QUERY_SHIFT
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
    if flags & QUERY_BITS == _RANGE_QUERY:
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
    ranged = bits & QUERY_BITS == _RANGE_QUERY
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
