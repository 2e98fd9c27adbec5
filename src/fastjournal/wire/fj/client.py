"""The client's side of one FJ connection: numbers requests, matches replies, keeps subscriptions.

Rules:

1. An identifier is not used again while its request is unanswered or its subscription lives.
2. Requests may be pipelined; the server answers in order, but a reply is matched by identifier.
3. A reply to nobody is a broken server (`ProtocolError`); a push for a subscription that has just
   ended is dropped. Identifier 0 is the server speaking of the connection as a whole: its error
   is raised.
4. Nothing here reads or writes a socket: the blocking and the asyncio client are two loops over
   this object.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fastjournal.errors import ProtocolError, QueueFull
from fastjournal.wire.fj.replies import Reply, ReplyParser, error_from
from fastjournal.wire.fj.requests import encode_request

__all__ = ["Answer", "Conversation"]


class Answer(NamedTuple):
    """What came back: the note given with the request, and the reply or push."""

    note: Any
    reply: Reply


class Conversation:
    """One connection. `note` is whatever the caller wants back with the answer."""

    def __init__(self, *, max_message: int = 64 << 20, max_outstanding: int = 16_384) -> None:
        self.max_outstanding = max_outstanding
        self._parser = ReplyParser(max_message)
        self._waiting: dict[int, Any] = {}
        self._listening: dict[int, Any] = {}
        self._last = 0

    @property
    def outstanding(self) -> int:
        """Requests without an answer yet."""
        return len(self._waiting)

    @property
    def fault(self) -> Exception | None:
        """Why the connection must end; None while all is well."""
        return self._parser.fault

    def request(self, note: Any, function: int, *, listen: bool = False, **fields: Any) -> bytes:
        """The bytes of a request, whose fields are those of `encode_request`.

        With `listen` the note also comes back with every push until `forget`.
        """
        identifier = self._free()
        message = encode_request(function, identifier, **fields)
        self._begin(identifier, note, listen)
        return message

    def adopt(self, note: Any, message: bytes, *, listen: bool = False) -> bytes:
        """A request that was encoded before, under an identifier of this connection."""
        identifier = self._free()
        self._begin(identifier, note, listen)
        return b"".join((message[:6], identifier.to_bytes(2, "big"), message[8:]))

    def _free(self) -> int:
        if len(self._waiting) >= self.max_outstanding:
            raise QueueFull(f"{self.max_outstanding} requests are unanswered")
        identifier = self._last
        while True:
            identifier = identifier % 0xFFFF + 1
            if identifier not in self._waiting and identifier not in self._listening:
                break
            if identifier == self._last:
                raise QueueFull("every identifier is in use")
        return identifier

    def _begin(self, identifier: int, note: Any, listen: bool) -> None:
        self._last = identifier
        self._waiting[identifier] = note
        if listen:
            self._listening[identifier] = note

    def forget(self, note: Any) -> None:
        """End the subscriptions that were made with this note."""
        self._listening = {k: v for k, v in self._listening.items() if v is not note}

    def receive(self, data: bytes) -> list[Answer]:
        """Take bytes of the server; give the answers and pushes in them."""
        answers = []
        for reply in self._parser.feed(data):
            identifier = reply.identifier
            if reply.is_push:
                if identifier in self._listening:
                    answers.append(Answer(self._listening[identifier], reply))
                continue
            if identifier not in self._waiting:
                if not identifier and reply.error:
                    raise error_from(reply.error)
                raise ProtocolError(f"reply to request {identifier}, which was not sent")
            if reply.error:
                self._listening.pop(identifier, None)
            answers.append(Answer(self._waiting.pop(identifier), reply))
        return answers

    def waiting(self) -> list[Any]:
        """The notes of everything unanswered, in the order sent."""
        return list(self._waiting.values())

    def abandon(self) -> list[Any]:
        """The connection is gone: the notes of everything unanswered."""
        notes = self.waiting()
        self._waiting.clear()
        self._listening.clear()
        return notes
