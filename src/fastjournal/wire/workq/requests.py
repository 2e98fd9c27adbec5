"""Requests of the Workq text protocol: bytes in, commands out.

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
5. An id must be of version 4 and of the RFC variant, except in `delete`, which does nothing for one
   that no job can have, and in `inspect job`, which does not find it.
6. Times are ns since 1970. Whether a scheduled job is already past its life is for the caller, who
   has a clock (`is_past`).
7. Priorities are Workq's: larger first. `rank` is ours: smaller first.
8. A value is checked in the order in which the Workq server checks it: first that every word can
   be read, then that every value is in range; so a command with several faults gets the same text.
9. Ids are read as laxly as Workq reads them: dashes are optional, `{` or `urn:uuid:` may stand in
   front, upper case is fine, and whatever follows 32 hex digits is ignored. An id cut short, which
   brings the Workq server down, is an invalid id here.
10. An instant before 1970 is an invalid time, and so is one from the last second that fits 64 bits
    on (2262-04-11T23:47:16Z): a record cannot hold it.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fastjournal.errors import BadRequest

__all__ = [
    "COUNTS",
    "MAX_LIMIT",
    "MAX_PAYLOAD",
    "MAX_REQUEST",
    "MAX_TTL",
    "MAX_TTR",
    "MAX_WAIT",
    "Add",
    "Command",
    "Complete",
    "Delete",
    "Fail",
    "InspectJob",
    "InspectJobs",
    "InspectQueue",
    "InspectQueues",
    "InspectServer",
    "Lease",
    "Refused",
    "Result",
    "Run",
    "Schedule",
    "WorkqParser",
    "build",
    "is_version_4",
    "parse_id",
    "parse_time",
    "payload_size",
]


_MILLISECOND = 1_000_000


def is_version_4(job_id: bytes) -> bool:
    """An id that a job can have."""
    return job_id[6] >> 4 == 4 and job_id[8] >> 6 == 2


class _Ranked:
    """A job with a priority."""

    __slots__ = ()
    priority: int

    @property
    def rank(self) -> int:
        """The priority, smaller first."""
        return -self.priority


@dataclass(frozen=True, slots=True)
class Add(_Ranked):
    """`add id name ttr ttl size`: a job for a queue."""

    id: bytes
    name: str
    ttr_ms: int
    ttl_ms: int
    payload: bytes
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0


@dataclass(frozen=True, slots=True)
class Schedule(_Ranked):
    """`schedule id name ttr ttl time size`: a job that is due at an instant."""

    id: bytes
    name: str
    ttr_ms: int
    ttl_ms: int
    time: int
    payload: bytes
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0

    def is_past(self, now: int) -> bool:
        """Its life is over at `now`: answer Invalid Time."""
        return self.time + self.ttl_ms * _MILLISECOND < now


@dataclass(frozen=True, slots=True)
class Run(_Ranked):
    """`run id name ttr wait-timeout size`: a job whose result is waited for."""

    id: bytes
    name: str
    ttr_ms: int
    wait_ms: int
    payload: bytes
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """`lease name... wait-timeout`: the next job of one of the queues."""

    names: tuple[str, ...]
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Complete:
    """`complete id size`: a job is done."""

    id: bytes
    result: bytes


@dataclass(frozen=True, slots=True)
class Fail:
    """`fail id size`: a job failed."""

    id: bytes
    result: bytes


@dataclass(frozen=True, slots=True)
class Result:
    """`result id wait-timeout`: the result of a job, when there is one."""

    id: bytes
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Delete:
    """`delete id`: remove a job, whatever its state."""

    id: bytes

    @property
    def is_possible(self) -> bool:
        """A job can have this id; if not, the answer is OK and nothing is done."""
        return is_version_4(self.id)


@dataclass(frozen=True, slots=True)
class InspectJob:
    """`inspect job id`."""

    id: bytes


@dataclass(frozen=True, slots=True)
class InspectJobs:
    """`inspect jobs name offset limit`, or `inspect scheduled-jobs ...`."""

    name: str
    offset: int
    limit: int
    scheduled: bool = False


@dataclass(frozen=True, slots=True)
class InspectQueue:
    """`inspect queue name`."""

    name: str


@dataclass(frozen=True, slots=True)
class InspectQueues:
    """`inspect queues offset limit`."""

    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class InspectServer:
    """`inspect server`."""


Command = (
    Add | Schedule | Run | Lease | Complete | Fail | Result | Delete
    | InspectJob | InspectJobs | InspectQueue | InspectQueues | InspectServer
)  # fmt: skip


MAX_PAYLOAD = 1_048_576
MAX_TTR = 86_400_000
MAX_TTL = 2_592_000_000
MAX_WAIT = 86_400_000
MAX_LIMIT = 100
_END_OF_TIME = 9_223_372_036_000_000_000
_DASH = ord("-")
_NAME = re.compile(rb"[A-Za-z0-9_.-]{1,255}").fullmatch
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?Z", re.ASCII
).fullmatch
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def build(
    name: bytes, words: Sequence[bytes], flags: Mapping[bytes, bytes], payload: bytes
) -> Command:
    """Make the command of its words; `BadRequest` carries the text that Workq answers."""
    return _BUILDERS[name](words, flags, payload)


def parse_id(word: bytes) -> bytes:
    """Read an id as laxly as Workq does; its version is not looked at."""
    if len(word) == 36:
        digits = word.replace(b"-", b"")
        if len(digits) == 32 and word[8] == word[13] == word[18] == word[23] == _DASH:
            return _unhex(digits)
    if len(word) < 32:
        raise BadRequest("Invalid ID")
    if word.startswith(b"urn:uuid:"):
        word = word[9:]
    elif word.startswith(b"{"):
        word = word[1:]
    digits = b""
    for size in (8, 4, 4, 4, 12):
        if word.startswith(b"-"):
            word = word[1:]
        digits += word[:size]
        word = word[size:]
    return _unhex(digits)


def _unhex(digits: bytes) -> bytes:
    try:
        found = binascii.unhexlify(digits)
    except binascii.Error:
        raise BadRequest("Invalid ID") from None
    if len(found) != 16:
        raise BadRequest("Invalid ID")
    return found


def parse_time(word: bytes) -> int:
    """Read `YYYY-MM-DDTHH:MM:SS[.fraction]Z` to the nanosecond."""
    match = _TIME(word.decode("ascii", "replace"))
    if match is None:
        raise BadRequest("Invalid Time")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    # datetime has no year 0, Workq has: its instants are long past in either case.
    try:
        when = datetime(year or 4, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        raise BadRequest("Invalid Time") from None
    since = when - _EPOCH
    fraction = (match.group(7) or "").ljust(9, "0")
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int(fraction)


def _valid_id(job_id: bytes) -> bytes:
    if not is_version_4(job_id):
        raise BadRequest("Invalid ID")
    return job_id


def _valid_name(word: bytes) -> str:
    if _NAME(word) is None:
        raise BadRequest("Invalid Name")
    return word.decode("ascii")


def _unsigned(word: bytes, most: int, fault: str) -> int:
    # The number of digits is bounded first: a long line of them must cost nothing.
    if len(word) > 20:
        word = word.lstrip(b"0") or b"0"
    if not word.isdigit() or len(word) > 20 or (number := int(word)) > most:
        raise BadRequest(fault)
    return number


def _signed(word: bytes, least: int, most: int, fault: str) -> int:
    sign, digits = (word[:1], word[1:]) if word[:1] in (b"+", b"-") else (b"", word)
    number = _unsigned(digits, 1 << 63, fault)
    if sign == b"-":
        number = -number
    if not least <= number <= most:
        raise BadRequest(fault)
    return number


def _within(number: int, most: int, fault: str) -> int:
    if not 1 <= number <= most:
        raise BadRequest(fault)
    return number


def payload_size(word: bytes, fault: str) -> int:
    """Read the size of a payload or result: a sign is allowed, a negative size is not."""
    return _signed(word, 0, MAX_PAYLOAD, fault)


def _wait(word: bytes) -> int:
    return _unsigned(word, MAX_WAIT, "Invalid wait timeout")


def _expect(count: int, words: Sequence[bytes], flags: Mapping[bytes, bytes], most: int) -> None:
    if len(words) != count or len(flags) > most:
        raise BadRequest("Invalid command args")


def _options(flags: Mapping[bytes, bytes]) -> tuple[int, int, int]:
    attempts = fails = priority = 0
    if (word := flags.get(b"max-attempts")) is not None:
        attempts = _unsigned(word, 255, "Invalid Max Attempts")
    if (word := flags.get(b"max-fails")) is not None:
        fails = _unsigned(word, 255, "Invalid Max Fails")
    if (word := flags.get(b"priority")) is not None:
        priority = _priority(word)
    return priority, attempts, fails


def _priority(word: bytes) -> int:
    return _signed(word, -(1 << 31), (1 << 31) - 1, "Invalid Priority")


_U32 = (1 << 32) - 1
_U64 = (1 << 64) - 1


def _add(words: Sequence[bytes], flags: Mapping[bytes, bytes], payload: bytes) -> Command:
    _expect(5, words, flags, 3)
    job_id = parse_id(words[0])
    ttr = _unsigned(words[2], _U32, "Invalid TTR")
    ttl = _unsigned(words[3], _U64, "Invalid TTL")
    priority, attempts, fails = _options(flags) if flags else (0, 0, 0)
    return Add(
        _valid_id(job_id), _valid_name(words[1]), _within(ttr, MAX_TTR, "Invalid TTR"),
        _within(ttl, MAX_TTL, "Invalid TTL"), payload, priority, attempts, fails,
    )  # fmt: skip


def _schedule(words: Sequence[bytes], flags: Mapping[bytes, bytes], payload: bytes) -> Command:
    _expect(6, words, flags, 3)
    job_id = parse_id(words[0])
    ttr = _unsigned(words[2], _U32, "Invalid TTR")
    ttl = _unsigned(words[3], _U64, "Invalid TTL")
    when = parse_time(words[4])
    priority, attempts, fails = _options(flags)
    _valid_id(job_id)
    name = _valid_name(words[1])
    _within(ttr, MAX_TTR, "Invalid TTR")
    _within(ttl, MAX_TTL, "Invalid TTL")
    if when + ttl * _MILLISECOND >= _END_OF_TIME or when < 0:
        raise BadRequest("Invalid Time")
    return Schedule(job_id, name, ttr, ttl, when, payload, priority, attempts, fails)


def _run(words: Sequence[bytes], flags: Mapping[bytes, bytes], payload: bytes) -> Command:
    _expect(5, words, flags, 1)
    job_id = parse_id(words[0])
    ttr = _unsigned(words[2], _U32, "Invalid TTR")
    priority = _priority(flags[b"priority"]) if b"priority" in flags else 0
    wait = _wait(words[3])
    return Run(
        _valid_id(job_id), _valid_name(words[1]), _within(ttr, MAX_TTR, "Invalid TTR"), wait,
        payload, priority,
    )  # fmt: skip


def _lease(words: Sequence[bytes], flags: Mapping[bytes, bytes], _: bytes) -> Command:
    if flags:
        raise BadRequest("Invalid command args")
    wait = _wait(words[-1])
    return Lease(tuple([_valid_name(word) for word in words[:-1]]), wait)


def _complete(words: Sequence[bytes], flags: Mapping[bytes, bytes], payload: bytes) -> Command:
    _expect(2, words, flags, 0)
    return Complete(_valid_id(parse_id(words[0])), payload)


def _fail(words: Sequence[bytes], flags: Mapping[bytes, bytes], payload: bytes) -> Command:
    _expect(2, words, flags, 0)
    return Fail(_valid_id(parse_id(words[0])), payload)


def _result(words: Sequence[bytes], flags: Mapping[bytes, bytes], _: bytes) -> Command:
    _expect(2, words, flags, 0)
    return Result(_valid_id(parse_id(words[0])), _wait(words[1]))


def _delete(words: Sequence[bytes], flags: Mapping[bytes, bytes], _: bytes) -> Command:
    _expect(1, words, flags, 0)
    return Delete(parse_id(words[0]))


def _inspect(words: Sequence[bytes], flags: Mapping[bytes, bytes], _: bytes) -> Command:
    kind = words[0]
    count = _INSPECT.get(kind)
    if count is None:
        raise BadRequest("Unknown command")
    _expect(count, words, flags, 0)
    if kind == b"server":
        return InspectServer()
    if kind == b"job":
        return InspectJob(parse_id(words[1]))
    if kind == b"queue":
        return InspectQueue(_valid_name(words[1]))
    if kind == b"queues":
        return InspectQueues(_offset(words[1]), _limit(words[2]))
    name = _valid_name(words[1])
    return InspectJobs(name, _offset(words[2]), _limit(words[3]), kind == b"scheduled-jobs")


def _offset(word: bytes) -> int:
    return _unsigned(word, _U32, "Invalid cursor offset")


def _limit(word: bytes) -> int:
    return _within(_unsigned(word, MAX_LIMIT, "Invalid limit"), MAX_LIMIT, "Invalid limit")


# Words after `inspect`, the kind included.
_INSPECT = {b"server": 1, b"queues": 3, b"queue": 2, b"jobs": 4, b"scheduled-jobs": 4, b"job": 2}

_BUILDERS = {
    b"add": _add, b"schedule": _schedule, b"run": _run, b"lease": _lease, b"complete": _complete,
    b"fail": _fail, b"result": _result, b"delete": _delete, b"inspect": _inspect,
}  # fmt: skip


MAX_REQUEST = 1_058_576
"""Most bytes of one request: 10,000 for the line, 1 MiB for the payload."""

# Number of words after the command; None = decided later. With payload: its size comes last.
COUNTS = {
    b"add": 5, b"schedule": 6, b"run": 5, b"complete": 2, b"fail": 2, b"delete": 1, b"result": 2,
    b"lease": None, b"inspect": None,
}  # fmt: skip
_LEAST = {b"lease": 2, b"inspect": 1}
_WITH_PAYLOAD = frozenset({b"add", b"schedule", b"run", b"complete", b"fail"})
_LONGEST = max(map(len, COUNTS))
_HTTP = frozenset(b"GET HEAD POST PUT DELETE OPTIONS PATCH CONNECT TRACE PRI".split())


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

    __slots__ = ("_buffer", "_closed", "_head", "_searched", "max_request")

    def __init__(self, max_request: int = MAX_REQUEST) -> None:
        self.max_request = max_request
        self._buffer = bytearray()
        self._searched = 0
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
                end = buffer.find(b"\n", at + self._searched)
                if end < 0:
                    self._searched = len(buffer) - at
                    if self._searched > self.max_request:
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
                self._searched = 0
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
        if word in COUNTS:
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
        count = COUNTS[name]
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
