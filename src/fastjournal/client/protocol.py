"""What a client asks and how it reads the answer; no sockets. Both clients are loops over this.

The requests themselves: `puts`, `leases`, `entry_calls` and `operating`.

Rules:

1. A `Call` holds everything to send a request, to read its reply and to judge whether it may be
   sent again when the connection broke and nobody knows whether it happened.
2. Lengths of time are sent as such where the protocol allows it: the clocks of client and server
   need not agree.
3. Errors of the server come back as the classes of `fastjournal.errors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fastjournal.errors import ProtocolError, TooLarge
from fastjournal.wire.fj.error_text import error_from
from fastjournal.wire.fj.functions import AGAIN, FUNCTIONS, PERSIST, VALUE_BITS, Function, Type
from fastjournal.wire.fj.job_put import decode_job
from fastjournal.wire.fj.replies import Reply
from fastjournal.wire.fj.requests import Limits, Request, RequestParser, encode_request

__all__ = [
    "QUICK_SIZES",
    "SMALL",
    "Call",
    "Figures",
    "check_size",
    "make_call",
    "nothing",
    "persistent",
    "read",
    "sent_again",
    "value_of",
]

SMALL = 64 << 10
"""Bytes of a message that any daemon takes."""
QUICK_SIZES: dict[Callable[[bytes], Any], int] = {}
"""Bytes of the answers that `Call.quick` reads, where all have the same size."""


class Call(NamedTuple):
    """One request."""

    data: bytes
    """The whole message, under identifier 1."""
    read: Callable[[Reply], Any]
    wait: float = 0.0
    """Seconds the server may take because it was asked to wait."""
    again: bool = True
    """May be sent again when its outcome is unknown."""
    quick: Callable[[bytes], Any] | None = None
    """Reads the commonest answer from its bytes; None if it is another one."""


def make_call(
    function: int,
    read: Callable[[Reply], Any],
    fields: Mapping[str, Any],
    wait: float = 0.0,
    again: bool = True,
) -> Call:
    """A call of the fields of `encode_request`."""
    return Call(encode_request(function, 1, **fields), read, wait, again)


class Figures:
    """Figures of a daemon, to be read like the status of an embedded journal: by attribute."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        for name, value in data.items():
            setattr(self, name, Figures(value) if isinstance(value, dict) else value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def _asdict(self) -> dict[str, Any]:
        return {
            name: value._asdict() if isinstance(value, Figures) else value
            for name, value in vars(self).items()
        }

    def __repr__(self) -> str:
        return f"Figures({vars(self)})"


def persistent(call: Call) -> Call:
    """The same, answered when it is on stable storage."""
    data = call.data
    flags = int.from_bytes(data[8:10], "big") | PERSIST
    return call._replace(data=data[:8] + flags.to_bytes(2, "big") + data[10:])


_TELLING = tuple(
    function.to_bytes(2, "big") for function in (Function.DONE, Function.SETTLE, Function.PUTS)
)
_SET = Function.SET.to_bytes(2, "big")
_PLAIN = VALUE_BITS | PERSIST


def sent_again(call: Call) -> bytes:
    """The message of a call that was sent before: puts and what settles a lease say so."""
    data = call.data
    if data[4:6] in _TELLING or (data[4:6] == _SET and _is_job(data)):
        return b"".join((data[:9], bytes((data[9] | AGAIN,)), data[10:]))
    return data


def _is_job(data: bytes) -> bool:
    """Whether a SET has no key of its own: a put. Of an entry bit 4 says something else."""
    return not int.from_bytes(data[8:10], "big") & ~_PLAIN and data[18] == 0


def check_size(call: Call, about: Mapping[str, Any]) -> None:
    """Refuse what a daemon that said this of itself would not take; it would cut the connection.

    `TooLarge` names the daemon's own limit. To be asked of large messages only.
    """
    data = call.data
    most = about.get("max_message", len(data))
    if len(data) > most:
        raise TooLarge(f"a message of {len(data)} bytes exceeds the daemon's limit of {most}")
    request = RequestParser(_ANY_SIZE).feed(data)[0]
    if not isinstance(request, Request) or FUNCTIONS[request.function].bulk:
        return  # the daemon tells which of its items is too large
    is_job = request.value_type == Type.JOB
    size = len(decode_job(request.value, request.key).value if is_job else request.value)
    limit = about.get("max_payload", size)
    if size > limit:
        raise TooLarge(f"a payload of {size} bytes exceeds the daemon's limit of {limit}")


_ANY_SIZE = Limits(max_value=1 << 32, max_message=1 << 33)


def read(call: Call, reply: Reply) -> Any:
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
