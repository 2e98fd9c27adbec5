"""The Workq text protocol, server side: bytes in, commands out.

    request    word *( SP word ) CR LF [ payload CR LF ]
    word       the command first; then arguments and flags in any order
    flag       -key=value
    payload    as many bytes as the last argument says: add, schedule, run, complete, fail

Rules:

1. The commands depend on the bytes only, never on how they were cut into reads; CR and LF may come
   in different reads (the Workq server loses the connection then).
2. A malformed request gives a `Refused` with the very text that Workq answers. Bad flags, a wrong
   number of words and a bad size are found before the payload is read, so that the payload is then
   taken for the next request, as Workq does. Everything else is found behind the payload, and the
   stream stays in step.
3. A payload that is not followed by CR LF is refused; the two bytes in its place are gone.
4. A line that ends in LF without CR, and a request of more than `MAX_REQUEST` bytes, end the
   connection without an answer. Nothing larger than that is ever kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastjournal.errors import BadRequest
from fastjournal.wire.workq_commands import Command
from fastjournal.wire.workq_words import build, payload_size

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
                if sound:
                    self._build(head.name, head.words, head.flags, payload, out)
                else:
                    out.append(Refused(head.fault))
        if at:
            del buffer[:at]
        return out

    def finish(self) -> list[Command | Refused]:
        """The client sends no more: a payload cut short is refused, a line cut short is nothing."""
        head = self._head
        self._close()
        return [] if head is None else [Refused(head.fault)]

    def _line(self, line: bytes, out: list[Command | Refused]) -> None:
        parts = line.split(b" ")
        words: list[bytes] = []
        flags: dict[bytes, bytes] = {}
        for part in parts:
            if not part:
                continue
            if part[0] != 45 or b"=" not in part:
                words.append(part)
                continue
            key, value = part[1:].split(b"=")[:2]
            if not key or not value or key in flags:
                out.append(Refused("Invalid command flags"))
                return
            flags[key] = value
        name = parts[0]
        if name not in _COUNTS:
            out.append(Refused("Unknown command"))
            return
        del words[0]
        count = _COUNTS[name]
        if len(words) < _LEAST[name] if count is None else len(words) != count:
            out.append(Refused("Invalid command args"))
            return
        if name not in _WITH_PAYLOAD:
            self._build(name, words, flags, b"", out)
            return
        fault = "Invalid result size" if name == b"fail" else "Invalid payload size"
        try:
            size = payload_size(words[-1], fault)
        except BadRequest as error:
            out.append(Refused(str(error)))
            return
        if len(line) + 4 + size > self.max_request:
            self._close()
            return
        self._head = _Head(name, words, flags, size, fault)

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
