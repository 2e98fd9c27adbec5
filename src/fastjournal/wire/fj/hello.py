"""The value of HELLO: who the client is and what it may do.

    u8   1                 layout
    u8   0                 reserved
    u16  options           bit 0: the client wants a JSON description of the server in the reply
                           bit 1: it only looks, and a node that does not lead will do
    u16  size, token       UTF-8, 0 = none
    u16  size, journal     UTF-8, 0 = the default journal
    u64  time              the client's clock, us since 1970; may be missing, 0 = not told
    u32  max_lag           with bit 1: ms by which what it is shown may be old

The key of the message is the client's name, which owns its locks and marks its repeated requests.
HELLO without a value is HELLO with an empty token, the default journal and no options. The reply
is an empty success, or with bit 0 one pair of type string: a JSON object.

Rules:

1. A token is never part of `repr()`, of an error or of a refusal.
2. Bytes behind the last field are ignored: later layouts append fields.
3. Options that are not known are ignored; the server says in its description which it serves.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from fastjournal.errors import BadRequest, TooLarge
from fastjournal.model import MAX_INSTANT

__all__ = ["DESCRIBE", "FOLLOWER", "Hello", "decode_hello", "encode_hello"]

DESCRIBE = 1
FOLLOWER = 2

_HEAD = struct.Struct(">BBHH")
_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class Hello:
    """The capabilities value of HELLO."""

    token: str = field(default="", repr=False)
    journal: str = ""
    options: int = 0
    time: int = 0
    """The client's clock, ns since 1970; 0: not told."""
    max_lag: int = 0
    """With FOLLOWER, ms."""


def encode_hello(hello: Hello) -> bytes:
    """The value of HELLO, type buffer."""
    token, journal = hello.token.encode(), hello.journal.encode()
    if len(token) > 0xFFFF or len(journal) > 0xFFFF:
        raise TooLarge("token or journal name of more than 65535 bytes")
    head = _HEAD.pack(1, 0, hello.options, len(token))
    follows = hello.options & FOLLOWER
    clock_fields = _U64.pack(hello.time // 1000) if hello.time or follows else b""
    if follows:
        clock_fields += _U32.pack(min(hello.max_lag, 0xFFFF_FFFF))
    return b"".join((head, token, _U16.pack(len(journal)), journal, clock_fields))


def decode_hello(value: bytes) -> Hello:
    """Read the value of HELLO; an empty one gives the defaults."""
    if not value:
        return Hello()
    if len(value) < _HEAD.size:
        raise BadRequest("HELLO is too short")
    layout, _, options, size = _HEAD.unpack_from(value)
    if layout != 1:
        raise BadRequest(f"HELLO of layout {layout}")
    at = _HEAD.size + size
    if len(value) < at + 2:
        raise BadRequest("HELLO is cut off")
    stop = at + 2 + _U16.unpack_from(value, at)[0]
    if len(value) < stop:
        raise BadRequest("HELLO is cut off")
    time = _U64.unpack_from(value, stop)[0] * 1000 if len(value) >= stop + 8 else 0
    if time > MAX_INSTANT:
        time = 0  # nothing that a clock could say
    lag = 0
    if options & FOLLOWER and len(value) >= stop + 12:
        lag = _U32.unpack_from(value, stop + 8)[0]
    token, journal = value[_HEAD.size : at], value[at + 2 : stop]
    try:
        return Hello(token.decode(), journal.decode(), options, time, lag)
    except UnicodeDecodeError:
        # The decoder's own message would show the bytes of the token.
        raise BadRequest("HELLO is not UTF-8") from None
