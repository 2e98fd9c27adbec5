"""JR replies and pushes: written for sending, and read from a stream, however it is cut.

Rules:

1. Sizes are chosen by the encoder: the smallest class that holds the largest key (also error and
   cursor) and the largest value of the message. Any legal class is read.
2. A reply holds `count` pairs if bits 7-8 are set; else one if bits 1-2 are set; else none.
3. The replies depend on the bytes only, never on how they were cut into reads.
4. A reply of more than `max_message` bytes is refused before it is kept.
5. Pairs already read of an incomplete reply are kept, so a reply of 65,535 pairs that comes in
   small pieces is read once.
6. A server that breaks the framing sets `fault`; replies that came whole before it are given, and
   every later `feed` raises it.
7. An error travels as `CODE text`, and its text is for people: nothing reads it, but that of
   NOT-PRIMARY, where the primary is. Classes that share a code come back as the one that a caller
   can treat: CLIENT-ERROR as `BadRequest`, SERVER-ERROR as `JournalFault`, and so on. An unknown
   code comes back as `JournalFault` that keeps it: a newer server may have more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final

from mypy_extensions import i64, mypyc_attr, u8

from fastjournal.buffers import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from fastjournal.errors import (
    AlreadyExists,
    BadCursor,
    BadFlags,
    BadFunction,
    BadPattern,
    BadRequest,
    ClockSkew,
    Closed,
    JournalError,
    JournalFault,
    LeaseLost,
    Loading,
    Locked,
    NoSpace,
    NotFound,
    NotPrimary,
    OutcomeUnknown,
    OutOfRange,
    ProtocolError,
    QueueFull,
    QueuePaused,
    ReadOnly,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
    VersionMismatch,
    WrongType,
)
from fastjournal.wire.fj.fields import (
    MAX_US,
    VERSION,
    get_u16,
    get_u32,
    get_u64,
    put_u16,
    us_of,
    value_class,
    write_key,
    write_value_head,
)
from fastjournal.wire.fj.functions import (
    GONE,
    KEY_SIZE,
    PUSH,
    QUERY_BITS,
    QUERY_SHIFT,
    STABLE,
    STALE,
    TIMEOUT,
    TTL,
    VALUE_BITS,
    VALUE_SHIFT,
    Type,
)

__all__ = [
    "CODES",
    "Pair",
    "Reply",
    "ReplyParser",
    "encode_error",
    "encode_ok",
    "encode_push",
    "encode_reply",
    "error_from",
    "error_text",
    "write_error",
    "write_ok",
    "write_reply",
    "write_reply_head",
    "write_value_reply",
]


CODES: dict[str, type[JournalError]] = {
    kind.code: kind
    for kind in (
        BadRequest,
        JournalFault,
        AlreadyExists,
        BadCursor,
        BadFlags,
        BadFunction,
        BadPattern,
        ClockSkew,
        Closed,
        LeaseLost,
        Loading,
        Locked,
        NoSpace,
        NotFound,
        NotPrimary,
        OutOfRange,
        OutcomeUnknown,
        QueueFull,
        QueuePaused,
        ReadOnly,
        TimedOut,
        TooLarge,
        Unauthorized,
        Unavailable,
        VersionMismatch,
        WrongType,
    )
}


def error_text(error: BaseException) -> str:
    """The words for an exception; a foreign one tells its class only, never its text."""
    if isinstance(error, JournalError):
        return f"{error.code} {error}".strip()
    return f"SERVER-ERROR {type(error).__name__}"


def error_from(text: str) -> JournalError:
    """The exception for the words of a reply.

    A daemon that closes is one that cannot be reached: another may come in its place. `Closed` is
    raised by what this process has closed itself.
    """
    code, _, message = text.partition(" ")
    kind = CODES.get(code)
    if kind is Closed:
        return Unavailable(message)
    if kind is not None:
        return kind(message)
    fault = JournalFault(message or code)
    fault.code = code
    return fault


_LEAD: Final = 0x4A520000 | VERSION
_STRUCTURE: Final = KEY_SIZE | VALUE_BITS | TIMEOUT | QUERY_BITS | TTL


@final
@mypyc_attr(acyclic=True)
class Pair:
    """A key and its value in a reply."""

    def __init__(
        self, key: bytes, kind: int, value: bytes = b"", expires: int | None = None
    ) -> None:
        self.key = key
        self.type = kind
        self.value = value
        self.expires = expires

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Pair)
            and self.key == other.key
            and self.type == other.type
            and self.value == other.value
            and self.expires == other.expires
        )

    def __hash__(self) -> int:
        return hash((self.key, self.type, self.value, self.expires))

    def __repr__(self) -> str:
        return f"Pair({self.key!r}, {self.type}, {self.value[:80]!r}, {self.expires})"


@final
@mypyc_attr(acyclic=True)
class Reply:
    """One reply or push, as framed."""

    def __init__(
        self,
        identifier: int,
        flags: int = 0,
        timestamp: int = 0,
        timeout: int | None = None,
        error: str = "",
        pairs: tuple[Pair, ...] = (),
        cursor: bytes | None = None,
    ) -> None:
        self.identifier = identifier
        self.flags = flags
        self.timestamp = timestamp
        self.timeout = timeout
        self.error = error
        self.pairs = pairs
        self.cursor = cursor

    @property
    def is_push(self) -> bool:
        """Not an answer: something changed."""
        return self.flags & PUSH != 0

    @property
    def gone(self) -> bool:
        """The key of this push was deleted or has expired."""
        return self.flags & GONE != 0

    @property
    def stable(self) -> bool:
        """The effect was on stable storage before this reply left."""
        return self.flags & STABLE != 0

    @property
    def stale(self) -> bool:
        """An equal or newer write exists; the request was ignored."""
        return self.flags & STALE != 0

    @property
    def value(self) -> bytes | None:
        """The value of the only pair; None without one."""
        return self.pairs[0].value if self.pairs else None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Reply)
            and self.identifier == other.identifier
            and self.flags == other.flags
            and self.timestamp == other.timestamp
            and self.timeout == other.timeout
            and self.error == other.error
            and self.pairs == other.pairs
            and self.cursor == other.cursor
        )

    def __hash__(self) -> int:
        return hash((self.identifier, self.flags, self.timestamp, self.error, self.pairs))

    def __repr__(self) -> str:
        return (
            f"Reply({self.identifier}, flags={self.flags:#06x}, timestamp={self.timestamp}, "
            f"timeout={self.timeout}, error={self.error!r}, pairs={self.pairs!r}, "
            f"cursor={self.cursor!r})"
        )


def write_reply_head(out: BytesWriter, identifier: i64, flags: i64, timestamp: i64) -> None:
    """The first 16 bytes; `flags` with the bits of structure, the time in ns."""
    write_i32_be(out, _LEAD)
    put_u16(out, identifier)
    put_u16(out, flags)
    write_i64_be(out, timestamp // 1000)


def write_ok(out: BytesWriter, identifier: i64, timestamp: i64, flags: i64 = 0) -> None:
    """An empty success."""
    write_reply_head(out, identifier, flags, timestamp)
    out.append(0)


def write_error(
    out: BytesWriter, identifier: i64, error: str, timestamp: i64, flags: i64 = 0
) -> None:
    """A reply that says `CODE text`; text beyond 1000 bytes is cut."""
    text = error.encode("utf-8", "replace")
    if len(text) > 1000:
        text = text[:1000].decode("utf-8", "ignore").encode()
    bits = flags & ~_STRUCTURE
    if len(text) > 255:
        write_reply_head(out, identifier, bits | KEY_SIZE, timestamp)
        put_u16(out, len(text))
    else:
        write_reply_head(out, identifier, bits, timestamp)
        out.append(u8(len(text)))
    out.write(text)


def write_value_reply(
    out: BytesWriter, identifier: i64, timestamp: i64, flags: i64, kind: i64, size: i64
) -> None:
    """A success with one value, whose `size` bytes are to be written next."""
    bits = value_class(size + 1)
    write_reply_head(out, identifier, flags & ~_STRUCTURE | bits << VALUE_SHIFT, timestamp)
    out.append(0)
    out.append(0)
    write_value_head(out, bits, size + 1, kind)


def write_reply(
    out: BytesWriter,
    identifier: i64,
    timestamp: i64,
    flags: i64,
    pairs: Sequence[Pair],
    several: bool = False,
    cursor: bytes | None = None,
    timeout: i64 = -1,
) -> None:
    """A success; `flags` are the bits of meaning, those of structure are added.

    `several` = the question allowed more than one pair (a count is sent, also for none or one).
    `cursor` = there is more behind these pairs. Expiry is sent with each pair iff the first has it.
    `timeout` is sent if it is not negative.
    """
    count: i64 = len(pairs)
    if count > 0xFFFF:
        raise TooLarge("a reply has at most 65535 pairs")
    bits = flags & ~_STRUCTURE
    longest: i64 = 0 if cursor is None else len(cursor)
    largest: i64 = 0
    expiring = False
    for pair in pairs:
        if len(pair.key) > longest:
            longest = len(pair.key)
        if len(pair.value) >= largest:
            largest = len(pair.value) + 1
    if longest > 0xFFFF:
        raise TooLarge("a key has at most 65535 bytes")
    wide = longest > 255
    if wide:
        bits |= KEY_SIZE
    if timeout >= 0:
        bits |= TIMEOUT
    if cursor is not None:
        bits |= 3 << QUERY_SHIFT
    elif several or count > 1:
        bits |= 1 << QUERY_SHIFT
    width: i64 = 0
    if count:
        width = value_class(largest)
        bits |= width << VALUE_SHIFT
        expiring = pairs[0].expires is not None
        if expiring:
            bits |= TTL
    write_reply_head(out, identifier, bits, timestamp)
    if timeout >= 0:
        write_i64_be(out, timeout // 1000)
    if bits & QUERY_BITS:
        put_u16(out, count)
    out.append(0)
    if wide:
        out.append(0)
    if cursor is not None:
        write_key(out, cursor, wide)
    for pair in pairs:
        if expiring:
            expires = pair.expires
            write_i64_be(out, 0 if expires is None else us_of(expires))
        write_key(out, pair.key, wide)
        write_value_head(out, width, len(pair.value) + 1, pair.type)
        out.write(pair.value)


def encode_ok(identifier: int, timestamp: int, flags: int = 0) -> bytes:
    """An empty success."""
    out = BytesWriter()
    write_ok(out, identifier, timestamp, flags)
    return out.getvalue()


def encode_error(identifier: int, error: str, timestamp: int, flags: int = 0) -> bytes:
    """A reply that says `CODE text`; text beyond 1000 bytes is cut."""
    us_of(timestamp)
    out = BytesWriter()
    write_error(out, identifier, error, timestamp, flags)
    return out.getvalue()


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
    """The bytes of a success; arguments as those of `write_reply`."""
    us_of(timestamp)
    until = -1
    if timeout is not None:
        us_of(timeout)
        until = timeout
    out = BytesWriter()
    write_reply(out, identifier, timestamp, flags, pairs, several, cursor, until)
    return out.getvalue()


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
    flags = PUSH | GONE if gone else PUSH
    pair = Pair(key, int(value_type), b"")
    return encode_reply(identifier, timestamp, flags=flags, timeout=due, pairs=(pair,))


def _instant(data: bytes, at: i64) -> int:
    """An instant of the server, ns, however late it is."""
    us = read_i64_be(data, at)
    return int(us * 1000) if 0 <= us <= MAX_US else get_u64(data, at) * 1000


@final
class ReplyParser:
    """Client side: feed bytes, get replies and pushes."""

    def __init__(self, max_message: int = 64 << 20) -> None:
        self.max_message: i64 = max_message
        self.fault: JournalError | None = None
        """Set when the framing is lost: end the connection; the next `feed` raises it."""
        self._rest = bytearray()
        self._need: i64 = 0
        self._head: Reply | None = None
        self._pairs: list[Pair] = []
        self._wanted: i64 = 0
        self._size: i64 = 0

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
        elif isinstance(read, bytes):
            data = read
        else:
            data = bytes(read)
        start: i64 = 0
        end: i64 = len(data)
        try:
            while start < end:
                head = self._head
                if head is None:
                    head = self._begin(data, start, end)
                    if head is None:
                        break
                    start += self._size
                if self._wanted:
                    start = self._read_pairs(int(head.flags), data, start, end)
                    if self._wanted:
                        self._head = head
                        break
                    head.pairs = tuple(self._pairs)
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

    def _begin(self, data: bytes, start: i64, end: i64) -> Reply | None:
        """Read up to the pairs, `_size` bytes; None if some are missing."""
        have = end - start
        if have < 17 or read_i32_be(data, start) != _LEAD:
            if data[start : start + 4] != b"JR\0\1"[:have]:
                self._foreign(data, start, have)
            self._need = have + 1 if have < 4 else 17
            return None
        flags = get_u16(data, start + 6)
        reply = Reply(int(get_u16(data, start + 4)), int(flags), _instant(data, start + 8))
        at = start + 16
        query = (flags & QUERY_BITS) >> QUERY_SHIFT
        bits = flags & VALUE_BITS
        wanted: i64 = 1 if bits else 0
        if flags & TIMEOUT or query:
            size: i64 = 17
            if flags & TIMEOUT:
                size += 8
            if query:
                size += 2
            if have < size:
                self._need = size
                return None
            if flags & TIMEOUT:
                reply.timeout = _instant(data, at)
                at += 8
            if query:
                wanted = get_u16(data, at)
                at += 2
                if query == 2 or (wanted and not bits):
                    raise ProtocolError("reply with an undefined combination of bits")
        width: i64 = 2 if flags & KEY_SIZE else 1
        stop = self._text(data, start, at, end, width)
        if not stop:
            return None
        if stop > at + width:
            reply.error = data[at + width : stop].decode("utf-8", "replace")
        at = stop
        if query == 3:
            stop = self._text(data, start, at, end, width)
            if not stop:
                return None
            reply.cursor = data[at + width : stop]
        self._wanted = wanted
        self._size = stop - start
        return reply

    def _text(self, data: bytes, start: i64, at: i64, end: i64, width: i64) -> i64:
        """End of the sized text at `at`, or 0 if bytes are missing."""
        stop = at + width
        if end >= stop:
            stop += get_u16(data, at) if width == 2 else data[at]
            if end >= stop:
                return stop
        self._need = stop - start
        return 0

    def _read_pairs(self, flags: i64, data: bytes, at: i64, end: i64) -> i64:
        """Read what is there of the wanted pairs: where the next one starts."""
        wide = flags & KEY_SIZE
        expiring = flags & TTL
        width: i64 = 1 << ((flags & VALUE_BITS) >> VALUE_SHIFT) - 1
        room = self.max_message - self._size
        pairs = self._pairs
        begin = at
        wanted = self._wanted
        here: i64 = at
        expires: int | None = None
        while wanted:
            here = at
            if expiring:
                here += 8
                if end < here:
                    break
                expires = _instant(data, at)
            key_at = here + (2 if wide else 1)
            if end < key_at:
                here = key_at
                break
            key_end = key_at + (get_u16(data, here) if wide else data[here])
            here = key_end + width
            if end < here:
                break
            size: i64
            if width == 1:
                size = data[key_end]
            elif width == 2:
                size = get_u16(data, key_end)
            else:
                size = get_u32(data, key_end)
            if not size:
                raise ProtocolError("reply with a value of size 0")
            stop = here + size
            if stop - begin > room:
                raise ProtocolError(f"reply of more than {self.max_message} bytes")
            if end < stop:
                here = stop
                break
            pairs.append(Pair(data[key_at:key_end], data[here], data[here + 1 : stop], expires))
            at = stop
            wanted -= 1
        else:
            here = at
        self._need = here - at
        self._size += at - begin
        self._wanted = wanted
        return at

    def _foreign(self, data: bytes, start: i64, have: i64) -> None:
        if data[start : start + 2] != b"JR"[:have]:
            raise ProtocolError("the peer does not speak the FJ protocol")
        raise VersionMismatch("the server speaks another version of the FJ protocol")
