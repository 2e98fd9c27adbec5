"""What a client asks and how it reads the answer; no sockets. Both clients are loops over this.

The requests themselves: `puts`, `leases`, `entry_calls` and `operator_calls`.

Rules:

1. A `Call` holds everything to send a request, to read its reply and to judge whether it may be
   sent again when the connection broke and nobody knows whether it happened.
2. Lengths of time are sent as such where the protocol allows it: the clocks of client and server
   need not agree.
3. Errors of the server come back as the classes of `fastjournal.errors`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, final

from mypy_extensions import i64

from fastjournal.errors import ProtocolError, TooLarge
from fastjournal.wire.fj.fields import get_u16
from fastjournal.wire.fj.functions import AGAIN, FUNCTIONS, PERSIST, VALUE_BITS
from fastjournal.wire.fj.job_codec import read_job
from fastjournal.wire.fj.replies import Reply, error_from
from fastjournal.wire.fj.requests import FRAME, FrameReader, Limits, encode_request

__all__ = [
    "SMALL",
    "Call",
    "check_size",
    "make_call",
    "nothing",
    "numbered",
    "read_answer",
    "sent_again",
    "value_of",
]

SMALL: Final = 64 << 10
"""Bytes of a message that any daemon takes."""

_SET: Final = 2
_DONE: Final = 12
_PUTS: Final = 32
_SETTLE: Final = 34
_JOB: Final = 6
_PLAIN: Final = VALUE_BITS | PERSIST


@final
class Call:
    """One request."""

    def __init__(
        self,
        data: bytes,
        read: Callable[[Reply], Any],
        wait: float = 0.0,
        again: bool = True,
    ) -> None:
        self.data = data
        """The whole message, under identifier 1."""
        self.read = read
        self.wait = wait
        """Seconds the server may take because it was asked to wait."""
        self.again = again
        """May be sent again when its outcome is unknown."""

    def with_data(self, data: bytes) -> "Call":
        """The same, said otherwise."""
        return Call(data, self.read, self.wait, self.again)

    def read_by(self, read: Callable[[Reply], Any]) -> "Call":
        """The same, its answer read otherwise."""
        return Call(self.data, read, self.wait, self.again)


def make_call(
    function: int,
    read: Callable[[Reply], Any],
    fields: Mapping[str, Any],
    wait: float = 0.0,
    again: bool = True,
) -> Call:
    """A call of the fields of `encode_request`."""
    return Call(encode_request(function, 1, **fields), read, wait, again)


def sent_again(call: Call) -> Call:
    """The same, sent before: puts and what settles a lease say so."""
    data = call.data
    function = get_u16(data, 4)
    if function in (_DONE, _SETTLE, _PUTS) or _is_put(data):
        return call.with_data(_with_flags(data, AGAIN))
    return call


def _is_put(data: bytes) -> bool:
    """Whether it is a SET that has no key of its own. Of an entry bit 4 says something else."""
    return get_u16(data, 4) == _SET and not get_u16(data, 8) & ~_PLAIN and data[18] == 0


def _with_flags(data: bytes, flags: i64) -> bytes:
    flags |= get_u16(data, 8)
    return b"".join((data[:8], bytes((flags >> 8, flags & 255)), data[10:]))


def numbered(call: Call, number: int) -> bytes:
    """The message under a number of its own."""
    data = call.data
    return b"".join((data[:6], bytes((number >> 8, number & 255)), data[8:]))


def check_size(call: Call, about: Mapping[str, Any]) -> None:
    """Refuse what a daemon that said this of itself would not take; it would cut the connection.

    `TooLarge` names the daemon's own limit. To be asked of large messages only.
    """
    data = call.data
    most = about.get("max_message", len(data))
    if len(data) > most:
        raise TooLarge(f"a message of {len(data)} bytes exceeds the daemon's limit of {most}")
    frame = FrameReader(_ANY_SIZE)
    frame.feed(data)
    if frame.next() != FRAME or FUNCTIONS[int(frame.function)].bulk:
        return  # the daemon tells which of its items is too large
    size = int(frame.end - frame.at)
    if frame.kind == _JOB:
        size = len(read_job(data, frame.at, frame.end, frame.key).value)
    limit = about.get("max_payload", size)
    if size > limit:
        raise TooLarge(f"a payload of {size} bytes exceeds the daemon's limit of {limit}")


_ANY_SIZE: Final = Limits(65_535, 1 << 32, 1 << 33)


def read_answer(call: Call, reply: Reply) -> Any:
    """The value of a reply, or its error raised: what happened is the daemon's to say."""
    if reply.error:
        raise error_from(reply.error)
    return call.read(reply)


def nothing(_: Reply) -> None:
    """For calls that only say that it was done."""
    return


def value_of(reply: Reply) -> bytes:
    """The value of the only pair."""
    if not reply.pairs:
        raise ProtocolError("the reply has no value")
    return reply.pairs[0].value
