"""The Workq text protocol, server side: bytes in, commands out.

    request    word *( SP word ) CR LF [ payload CR LF ]
    word       the command first; then arguments and flags in any order
    flag       -key=value
    payload    as many bytes as the last argument says: add, schedule, run, complete, fail

Rules:

1. The commands depend on the bytes only, never on how they were cut into reads; CR and LF may come
   in different reads (the Workq server loses the connection then).
2. A malformed request gives a `Refused` with the very text that Workq answers. A payload is never
   taken for a request, as it is by Workq: where the line says how long it is, it is passed over;
   where the line does not (a wrong number of words, a bad size), or where no CR LF follows the
   payload, the refusal is the last answer and the connection ends.
3. A line that begins with no word of Workq ends the connection as soon as that is known; a browser
   that was led here gets no answer either.
4. A line that ends in LF without CR, and a request of more than `MAX_REQUEST` bytes, end the
   connection without an answer. Nothing larger than that is ever kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastjournal.errors import BadRequest
from fastjournal.wire.workq.commands import Command, build, payload_size

__all__ = ["MAX_REQUEST", "Refused", "WorkqParser"]

MAX_REQUEST = 1_058_576
"""Most bytes of one request: 10,000 for the line, 1 MiB for the payload."""

# Number of words after the command; None = decided later. With payload: its size comes last.
_COUNTS = {
    b"add": 5, b"schedule": 6, b"run": 5, b"complete": 2, b"fail": 2, b"delete": 1, b"result": 2,
    b"lease": None, b"inspect": None,
}  # fmt: skip
_LEAST = {b"lease": 2, b"inspect": 1}
_WITH_PAYLOAD = frozenset({b"add", b"schedule", b"run", b"complete", b"fail"})
_LONGEST = max(map(len, _COUNTS))
_HTTP = frozenset(
    (
        b"GET",
        b"HEAD",
        b"POST",
        b"PUT",
        b"DELETE",
        b"OPTIONS",
        b"PATCH",
        b"CONNECT",
        b"TRACE",
        b"PRI",
    )
)


@dataclass(frozen=True, slots=True)
class Refused:
    """A malformed request; the answer says why."""

    text: str

    @property
    def reply(self) -> bytes:
        """The bytes to answer."""
        return b"-CLIENT-ERROR %b\r\n" % self.text.encode()


@dataclass(frozen=True, slots=True)
class _Head:
    """A request whose payload is still to come."""

    name: bytes
    words: list[bytes]
    flags: dict[bytes, bytes]
    size: int
    fault: str
    """What a payload without CR LF behind it is answered."""
    refused: str = ""
    """Why the request is refused whatever its payload; it is passed over."""


class WorkqParser:
    """Feed bytes, get commands and refusals."""

    __slots__ = ("_buffer", "_closed", "_head", "_scanned", "max_request")

    def __init__(self, max_request: int = MAX_REQUEST) -> None:
        self.max_request = max_request
        self._buffer = bytearray()
        self._scanned = 0
        self._head: _Head | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        """Answer what was given, then end the connection; nothing more will come."""
        return self._closed

    @property
    def pending(self) -> int:
        """Bytes held back for an incomplete request."""
        return len(self._buffer)

    @property
    def unfinished(self) -> bool:
        """Whether a request has begun to arrive, and not more."""
        return bool(self._buffer) or self._head is not None

    def feed(self, data: bytes | bytearray | memoryview) -> list[Command | Refused]:
        """Take the next bytes; give what is complete."""
        out: list[Command | Refused] = []
        buffer = self._buffer
        if self._closed:
            return out
        buffer += data
        at = 0
        while not self._closed:
            head = self._head
            if head is None:
                end = buffer.find(b"\n", at + self._scanned)
                if end < 0:
                    self._scanned = len(buffer) - at
                    if self._scanned > self.max_request:
                        self._close()
                    else:
                        self._begin(bytes(buffer[at : at + _LONGEST + 2]), out)
                    break
                if not self._is_known(bytes(buffer[at:end]), out):
                    break
                if end == at or buffer[end - 1] != 13 or end + 1 - at > self.max_request:
                    self._close()
                    break
                line = bytes(buffer[at : end - 1])
                at = end + 1
                self._scanned = 0
                self._line(line, out)
            else:
                end = at + head.size + 2
                if len(buffer) < end:
                    break
                payload = bytes(buffer[at : end - 2])
                sound = buffer[end - 2] == 13 and buffer[end - 1] == 10
                at = end
                self._head = None
                if sound and not head.refused:
                    self._build(head.name, head.words, head.flags, payload, out)
                else:
                    out.append(Refused(head.refused or head.fault))
                if not sound:  # whatever follows, it may be the rest of a payload
                    self._close()
        if at:
            del buffer[:at]
        return out

    def finish(self) -> list[Command | Refused]:
        """The client sends no more: a payload cut short is refused, a line cut short is nothing."""
        head = self._head
        self._close()
        return [] if head is None else [Refused(head.refused or head.fault)]

    def _begin(self, start: bytes, out: list[Command | Refused]) -> None:
        """Look at the beginning of a line that has not come to its end."""
        if b" " in start or len(start) > _LONGEST + 1:  # a word, or too long for one and its CR
            self._is_known(start, out)

    def _is_known(self, line: bytes, out: list[Command | Refused]) -> bool:
        """Whether a line begins with a word of Workq; if not, the connection ends."""
        word = line.removesuffix(b"\r").partition(b" ")[0]
        if word in _COUNTS:
            return True
        if word not in _HTTP:
            out.append(Refused("Unknown command"))
        self._close()
        return False

    def _line(self, line: bytes, out: list[Command | Refused]) -> None:
        name, *parts = line.split(b" ")
        words: list[bytes] = []
        flags: dict[bytes, bytes] = {}
        refused = ""
        for part in parts:
            if not part:
                continue
            if part[0] != 45 or b"=" not in part:
                words.append(part)
                continue
            key, value = part[1:].split(b"=")[:2]
            if not key or not value or key in flags:
                refused = "Invalid command flags"
            flags[key] = value
        count = _COUNTS[name]
        wrong = len(words) < _LEAST[name] if count is None else len(words) != count
        if wrong and not refused:
            refused = "Invalid command args"
        if name not in _WITH_PAYLOAD:
            if refused:
                out.append(Refused(refused))
            else:
                self._build(name, words, flags, b"", out)
            return
        fault = "Invalid result size" if name == b"fail" else "Invalid payload size"
        try:
            size = payload_size(words[-1] if words else b"", fault)
        except BadRequest as error:
            refused = refused or str(error)
            wrong = True
        if wrong:  # nobody knows where the next request begins
            out.append(Refused(refused))
            self._close()
        elif len(line) + 4 + size > self.max_request:
            self._close()
        else:
            self._head = _Head(name, words, flags, size, fault, refused)

    def _build(
        self,
        name: bytes,
        words: list[bytes],
        flags: dict[bytes, bytes],
        payload: bytes,
        out: list[Command | Refused],
    ) -> None:
        try:
            out.append(build(name, words, flags, payload))
        except BadRequest as error:
            out.append(Refused(str(error)))

    def _close(self) -> None:
        self._closed = True
        self._head = None
        self._buffer = bytearray()
