"""What nodes say to each other: values, and their bytes. Pure.

    offset  size  field
    0       4     SIZE   u32: bytes behind this field
    4       4     CRC    CRC-32C of what follows
    8       2     HEAD   u16: bytes of the head
    10      ..    head   JSON: ["word", field, ...]
    ..      ..    data   raw records in `append` and `tail`, bytes of a snapshot in `part`

All integers are big endian. Messages may be lost, repeated and reordered: each says by itself for
which epoch, and for which run of the other process (`session`), it was meant.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import google_crc32c
import msgspec

from fastjournal.errors import ProtocolError
from fastjournal.replica.rules import EpochStart, LogEnd

__all__ = [
    "MAX_MESSAGE",
    "Ack",
    "Align",
    "Append",
    "AskCommit",
    "AskStatus",
    "Committed",
    "Compare",
    "Decoder",
    "Fence",
    "Message",
    "Offer",
    "Part",
    "Promised",
    "Pull",
    "PullPart",
    "Resigned",
    "Status",
    "Tail",
    "encode",
]

MAX_MESSAGE = 64 * 1024 * 1024
_HEAD = Struct(">IIH")
_SUM = Struct(">II")
_LENGTH = Struct(">H")
_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


class AskStatus(NamedTuple):
    """How far are you?"""


class Status(NamedTuple):
    """How far a node is; binds to nothing."""

    end: LogEnd
    eligible: bool
    leads: int
    """The epoch this node serves as primary; 0: none."""


class Fence(NamedTuple):
    """Promise this epoch to the sender."""

    epoch: int


class Promised(NamedTuple):
    """The answer to a fence."""

    epoch: int
    """The epoch asked for; it is promised if `promised` is the same."""
    promised: int
    kept: bool
    """False: refused, by a promise that stands."""
    history: tuple[EpochStart, ...]
    end: LogEnd
    eligible: bool
    clock: int
    session: int
    dropped_to: int
    """Records up to this TIME may be missing: who lacks them cannot have them from here."""
    base: int
    """Up to this TIME a snapshot stands for the log."""


class Align(NamedTuple):
    """The primary's history: cut off what is not in it, then ask for the rest."""

    epoch: int
    session: int
    """Of the node this is for: one that restarted since must be aligned again."""
    history: tuple[EpochStart, ...]
    goal: int
    """The primary's newest TIME."""
    restart: bool
    """Nothing less than the whole log will do: the primary has dropped what comes next."""


class Append(NamedTuple):
    """All records behind `after`, or as many as fit; without data a sign of life."""

    epoch: int
    after: int
    commit: int
    round: int
    begins: bool
    """The records are the first of a segment: it begins here too, so that snapshots fit."""
    data: bytes


class Ack(NamedTuple):
    """What a follower holds, as safely as its sync policy says."""

    epoch: int
    session: int
    time: int
    round: int
    refused: str
    """Empty; else `align` (not aligned yet), `gap`, `broken` or `clock`."""
    base: int
    """Up to this TIME a snapshot stands for the log there."""


class Pull(NamedTuple):
    """A candidate asks one who has promised it for what it lacks."""

    epoch: int
    after: int


class Tail(NamedTuple):
    """The answer: records behind `after`."""

    epoch: int
    after: int
    begins: bool
    data: bytes


class Offer(NamedTuple):
    """The primary has a snapshot: fetch it, and let go of the records that it stands for."""

    epoch: int
    session: int
    base: int
    size: int
    crc: int
    checkpoint: str
    """Hex: the small file that makes it count."""
    needed: bool
    """What comes behind the follower's newest record was dropped: there is no other way."""


class PullPart(NamedTuple):
    """A follower asks for the bytes of the snapshot from an offset on."""

    epoch: int
    base: int
    at: int


class Part(NamedTuple):
    """The answer; none comes while others have priority: it is asked again."""

    epoch: int
    base: int
    at: int
    data: bytes


class Compare(NamedTuple):
    """The primary has left a segment: whoever has one of these TIMEs has the same bytes."""

    epoch: int
    first: int
    last: int
    size: int
    crc: int


class AskCommit(NamedTuple):
    """A follower that is looked at asks its primary how far a majority is."""

    epoch: int
    session: int
    asked: int
    """When, by the follower's own clock."""


class Committed(NamedTuple):
    """The answer: what a majority had at some moment after the question."""

    epoch: int
    session: int
    asked: int
    commit: int


class Resigned(NamedTuple):
    """Nobody leads any more: look at the arbiter now instead of a while later. Binds to nothing."""

    epoch: int


Message: TypeAlias = (
    AskStatus | Status | Fence | Promised | Align | Append | Ack | Pull | Tail | Offer | PullPart
    | Part | Compare | AskCommit | Committed | Resigned
)  # fmt: skip

_WORDS: dict[str, type[Any]] = {
    "ask-status": AskStatus, "status": Status, "fence": Fence, "promised": Promised,
    "align": Align, "append": Append, "ack": Ack, "pull": Pull, "tail": Tail,
    "offer": Offer, "pull-part": PullPart, "part": Part, "compare": Compare,
    "ask-commit": AskCommit, "committed": Committed, "resigned": Resigned,
}  # fmt: skip
_NAMES = {kind: word for word, kind in _WORDS.items()}
_WITH_DATA = frozenset({Append, Tail, Part})  # their last field stands behind the head


def encode(message: Message) -> bytes:
    """One message as bytes."""
    kind = type(message)
    fields: list[Any] = [_NAMES[kind], *message]
    data: bytes = fields.pop() if kind in _WITH_DATA else b""
    head = _to_json(fields)
    body = _LENGTH.pack(len(head)) + head + data
    return _SUM.pack(len(body) + 4, google_crc32c.value(body)) + body


class Decoder:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Every message that is whole by now; `ProtocolError` if it is none of ours."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < _HEAD.size or len(self._buffer) < _size_of(self._buffer):
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        messages: list[Message] = []
        at, end = 0, len(data)
        while end - at >= _HEAD.size:
            size, crc, head = _HEAD.unpack_from(data, at)
            if not 6 <= size <= MAX_MESSAGE or head > size - 6:
                raise ProtocolError(f"a message of {size} bytes with a head of {head}")
            if end - at < 4 + size:
                break
            body = data[at + 8 : at + 4 + size]
            if google_crc32c.value(body) != crc:
                raise ProtocolError("a message whose CRC is wrong")
            messages.append(_decode(body[2 : 2 + head], body[2 + head :]))
            at += 4 + size
        if at < end:
            self._buffer += data[at:]
        return messages


def _size_of(data: bytearray) -> int:
    """Bytes of the message that begins here."""
    return 4 + int.from_bytes(data[:4], "big")


def _decode(head: bytes, data: bytes) -> Message:
    try:
        word, *fields = _from_json(head)
        kind = _WORDS[word]
        if kind in _WITH_DATA:
            fields.append(data)
        message: Message = kind(*fields)
        made = _MADE.get(kind)
        return message if made is None else made(message)
    except (msgspec.DecodeError, ValueError, TypeError, KeyError) as error:
        raise ProtocolError(f"not a message between nodes: {head[:80]!r}") from error


def _history(found: Any) -> tuple[EpochStart, ...]:
    return tuple(EpochStart(*map(int, start)) for start in found)


_MADE: dict[type[Any], Callable[[Any], Message]] = {
    Promised: lambda one: one._replace(history=_history(one.history), end=LogEnd(*one.end)),
    Align: lambda one: one._replace(history=_history(one.history)),
    Status: lambda one: one._replace(end=LogEnd(*one.end)),
}
"""What JSON gives as lists."""
