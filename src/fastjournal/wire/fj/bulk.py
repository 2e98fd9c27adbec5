"""Values of the bulk functions: outcomes of PUTS, what LEASE asks for, SETTLE, FORWARD.

Outcomes of PUTS, also the value of the reply to a SET of type 6 layout 2 (count 1):

    u32  count
    per job: u8 outcome, 16 id
    per refused job, in order: u16 size, text `CODE ...`

What LEASE asks for:

    u8   1                          u32  time to wait, ms, 0 = do not wait
    u8   flags, see below           u64  lease length, ns, 0 = that of each job
    u16  most jobs, 1..65535        u16  number of names, u16 size of the worker's name
    u32  most bytes of user data in the reply, 0 = as much as a message holds
                                    per name: u16 size, name; then the worker's name
    flags: bit 0 the only name is a prefix; bit 1 fair (queues take turns); bit 2 take and delete
    No name = any queue. No worker = the name given with HELLO.

SETTLE:

    u32  count
    per lease: u8   bits 0-3 action, bit 6 an argument is given, bit 7 a result is given
               16   id, zero = named by key
               u32  token, 0 = none given
               u64  argument, ns, 0 if none is given
               u16  size of key, u32 size of result, then key, result
    action 0 complete   takes no argument
           1 fail       argument = delay of the next attempt instead of the back-off; result = why
           2 release    argument = delay until it is due again
           3 touch      argument = lease length from now instead of that of the job

Outcomes of SETTLE:

    u32  count
    per lease: u8 outcome, u64 instant, ns (new lease deadline, or when it is due again; else 0)
    per refused lease, in order: u16 size, text `CODE ...`

FORWARD, jobs out of a spool; its key is the sender, one for each file of a spool:

    u8   1                     u32  count
    u8   flags, see below      per job: u32 mark, growing
    u16  0                     per job: layout 2 of type 6, key inside

    flags: bit 0 forget the sender: all of it is done and nothing of it will be sent again

Its reply:

    u32  mark: all jobs of this sender up to it have been decided, now or before
    u32  how many are new, merged, twin, stale, refused, and how many came again
    per refused job: u32 mark, u16 size, text `CODE ...`

Rules:

1. One outcome per item, in the order of the request; a refused item changes nothing and does not
   stop the others. A malformed value refuses the whole message and changes nothing.
2. Counts are compared with the size of the value before anything is allocated for them.
3. Outcome 255 = refused; its text is an error of the protocol.
4. FORWARD: a job whose mark is not above the sender's is not looked at: it came before. Marks grow
   along the request, from 2 on; a request whose marks do not is refused as a whole. A refused job
   is decided too: sending it again changes nothing.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, final

from mypy_extensions import i64, mypyc_attr, u8

from fastjournal.buffers import BytesWriter, read_i64_be, write_i64_be
from fastjournal.errors import BadRequest, OutOfRange, RequestError, TooLarge
from fastjournal.model import MAX_INSTANT
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj.fields import get_u16, get_u32, get_u64, put_u16, put_u32
from fastjournal.wire.fj.job_codec import MAX_JOBS, NO_ID, JobReader
from fastjournal.wire.fj.replies import write_value_reply

__all__ = [
    "FORGET",
    "MAX_ITEMS",
    "REFUSED",
    "Action",
    "ForwardRequest",
    "Forwarded",
    "LeaseRequest",
    "PutOutcomeReader",
    "PutOutcomes",
    "Putting",
    "Settle",
    "SettleOutcome",
    "SettleOutcomes",
    "SettleReader",
    "Settling",
    "decode_forwarded",
    "decode_lease_request",
    "decode_settle_outcomes",
    "encode_forget",
    "encode_forward",
    "encode_forwarded",
    "encode_lease_request",
    "encode_settle",
    "read_forward",
    "write_put_reply",
]


MAX_ITEMS: Final = 65_535
"""Most items in one message."""
REFUSED: Final = 255
LEASE_SIZE: Final = 24
"""Bytes of what LEASE asks for, before the names."""
SETTLE_SIZE: Final = 35
"""Bytes of an item of SETTLE, before its key."""

_PUT_OUTCOME: Final = 17
_SETTLE_OUTCOME: Final = 9
_VERSIONED: Final[i64] = 8
_ARGUMENT: Final[i64] = 64
_RESULT: Final[i64] = 128
_BUFFER: Final = 1


class Putting(IntEnum):
    """What became of a put: an `Outcome` of the model, or refused."""

    NEW = 0
    MERGED = 1
    TWIN = 2
    """A new row, held back until the row being worked on ends."""
    STALE = 3
    """Nothing changed: an equal or newer write is there, or this very put came before."""
    REFUSED = 255


class Settling(IntEnum):
    """What became of a lease."""

    DONE = 0
    WAITING = 1
    """The job is in its queue again; the instant says when it is due."""
    DEAD = 2
    """No attempts are left."""
    EXTENDED = 3
    """The instant is the new deadline."""
    REFUSED = 255


class Action(IntEnum):
    """What SETTLE does with a lease."""

    COMPLETE = 0
    FAIL = 1
    RELEASE = 2
    TOUCH = 3


@final
@mypyc_attr(acyclic=True)
class SettleOutcome:
    """One outcome of SETTLE."""

    def __init__(self, outcome: int, instant: int = 0, error: str = "") -> None:
        self.outcome = outcome
        self.instant = instant
        self.error = error

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SettleOutcome)
            and self.outcome == other.outcome
            and self.instant == other.instant
            and self.error == other.error
        )

    def __hash__(self) -> int:
        return hash((self.outcome, self.instant, self.error))

    def __repr__(self) -> str:
        return f"SettleOutcome({self.outcome}, {self.instant}, {self.error!r})"


@final
@mypyc_attr(acyclic=True)
class Settle:
    """One lease to settle, named by id or, with a zero id, by key."""

    def __init__(
        self,
        action: int,
        id: bytes = NO_ID,  # noqa: A002 - the name of the field
        token: int = 0,
        argument: int | None = None,
        key: bytes = b"",
        result: bytes | None = None,
    ) -> None:
        self.action = action
        self.id = id
        self.token = token
        self.argument = argument
        """Ns; see the table of actions."""
        self.key = key
        self.result = result

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Settle)
            and self.action == other.action
            and self.id == other.id
            and self.token == other.token
            and self.argument == other.argument
            and self.key == other.key
            and self.result == other.result
        )

    def __hash__(self) -> int:
        return hash((self.action, self.id, self.token, self.argument, self.key, self.result))

    def __repr__(self) -> str:
        return (
            f"Settle({self.action}, {self.id!r}, {self.token}, {self.argument}, {self.key!r}, "
            f"{self.result!r})"
        )


@final
@mypyc_attr(acyclic=True)
class LeaseRequest:
    """What LEASE asks for."""

    def __init__(
        self,
        queues: tuple[bytes, ...] = (),
        limit: int = 1,
        wait_ms: int = 0,
        lease: int = 0,
        prefix: bool = False,
        fair: bool = False,
        take: bool = False,
        max_bytes: int = 0,
        worker: bytes = b"",
        schema: int = -1,
    ) -> None:
        self.queues = queues
        self.limit = limit
        self.wait_ms = wait_ms
        self.lease = lease
        """Length in ns; 0 = that of each job."""
        self.prefix = prefix
        self.fair = fair
        self.take = take
        self.max_bytes = max_bytes
        self.worker = worker
        self.schema = schema
        """Only jobs with payloads of this version; -1: of any."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeaseRequest) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        return (
            f"LeaseRequest({self.queues}, limit={self.limit}, wait_ms={self.wait_ms}, "
            f"lease={self.lease}, prefix={self.prefix}, fair={self.fair}, take={self.take}, "
            f"max_bytes={self.max_bytes}, worker={self.worker!r}, schema={self.schema})"
        )


def encode_lease_request(wanted: LeaseRequest) -> bytes:
    """The value of LEASE."""
    numbers = (wanted.limit, len(wanted.queues), len(wanted.worker), *map(len, wanted.queues))
    if (
        min(numbers) < 0
        or max(numbers) > 0xFFFF
        or not 0 <= wanted.max_bytes <= 0xFFFF_FFFF
        or not 0 <= wanted.wait_ms <= 0xFFFF_FFFF
        or not 0 <= wanted.lease <= MAX_INSTANT
        or not -1 <= wanted.schema <= 15
    ):
        raise OutOfRange("does not fit a LEASE")
    flags: i64 = 0
    if wanted.prefix:
        flags = 1
    if wanted.fair:
        flags |= 2
    if wanted.take:
        flags |= 4
    if wanted.schema >= 0:
        version: i64 = wanted.schema
        flags |= _VERSIONED | version << 4
    out = BytesWriter()
    out.append(1)
    out.append(u8(flags))
    put_u16(out, wanted.limit)
    put_u32(out, wanted.max_bytes)
    put_u32(out, wanted.wait_ms)
    write_i64_be(out, wanted.lease)
    put_u16(out, len(wanted.queues))
    put_u16(out, len(wanted.worker))
    for name in wanted.queues:
        put_u16(out, len(name))
        out.write(name)
    out.write(wanted.worker)
    return out.getvalue()


def decode_lease_request(value: bytes) -> LeaseRequest:
    """Read the value of LEASE."""
    end: i64 = len(value)
    if end < LEASE_SIZE:
        raise BadRequest("LEASE is too short")
    flags: i64 = value[1]
    limit = get_u16(value, 2)
    lease = read_i64_be(value, 12)
    count = get_u16(value, 20)
    versioned = flags & _VERSIONED != 0
    if value[0] != 1 or (flags > 7 and not versioned) or (flags & 1 and count != 1):
        raise BadRequest("LEASE of an unknown layout")
    if not limit or lease < 0:
        raise OutOfRange("LEASE of no job, or for too long")
    names: list[bytes] = []
    here: i64 = LEASE_SIZE
    for _ in range(count):
        if here + 2 > end:
            raise BadRequest("LEASE is cut off")
        stop = here + 2 + get_u16(value, here)
        if stop > end:
            raise BadRequest("LEASE is cut off")
        names.append(value[here + 2 : stop])
        here = stop
    if here + get_u16(value, 22) != end:
        raise BadRequest("LEASE has a wrong size")
    return LeaseRequest(
        tuple(names), int(limit), int(get_u32(value, 8)), int(lease), flags & 1 != 0,
        flags & 2 != 0, flags & 4 != 0, int(get_u32(value, 4)), value[here:end],
        int(flags >> 4) if versioned else -1,
    )  # fmt: skip


def encode_settle(items: Iterable[Settle]) -> bytes:
    """The value of SETTLE."""
    found = list(items)
    if len(found) > MAX_ITEMS:
        raise TooLarge(f"at most {MAX_ITEMS} leases in one message")
    out = BytesWriter()
    put_u32(out, len(found))
    for item in found:
        job_id, key, result = item.id, item.key, item.result
        bits: i64 = item.action
        argument = 0
        if item.argument is not None:
            bits |= _ARGUMENT
            argument = item.argument
        if result is None:
            result = b""
        else:
            bits |= _RESULT
        if (
            bits > 255
            or len(job_id) != 16
            or len(key) > 0xFFFF
            or not 0 <= item.token <= 0xFFFF_FFFF
            or not 0 <= argument <= MAX_INSTANT
        ):
            raise OutOfRange("does not fit a SETTLE")
        out.append(u8(bits))
        out.write(job_id)
        put_u32(out, item.token)
        write_i64_be(out, argument)
        put_u16(out, len(key))
        put_u32(out, len(result))
        out.write(key)
        out.write(result)
    return out.getvalue()


@final
class SettleReader:
    """The items of a SETTLE whose value fills `data` from `at` to `end`, checked before the first.

    `next` goes to the next one, whose fields stand here until it is called again.
    """

    def __init__(self, data: bytes, at: i64, end: i64) -> None:
        self.count: i64 = _count(data, at, end, SETTLE_SIZE, "SETTLE")
        self.action: i64 = 0
        self.id: bytes = NO_ID
        """Zero: named by key."""
        self.token: i64 = 0
        """0: none given."""
        self.argument: i64 = -1
        """Ns; see the table of actions; -1: none given."""
        self.key: bytes = b""
        self.result: bytes | None = None
        self._data = data
        self._end: i64 = end
        self._at: i64 = at + 4
        self._left: i64 = self.count
        here = at + 4
        for _ in range(self.count):
            here = self._check(here)
        if here != end:
            raise BadRequest("bytes behind the leases of SETTLE")

    def _check(self, at: i64) -> i64:
        """Where the item at `at` ends."""
        data, end = self._data, self._end
        if at + SETTLE_SIZE > end:
            raise BadRequest("SETTLE is cut off")
        bits: i64 = data[at]
        argument = read_i64_be(data, at + 21)
        key_size = get_u16(data, at + 29)
        size = get_u32(data, at + 31)
        action = bits & 15
        if action > 3 or bits & 48 or (action == 0 and bits & _ARGUMENT):
            raise BadRequest(f"SETTLE with an unknown action {bits}")
        if argument < 0:
            raise OutOfRange("length of time does not fit")
        if (argument and not bits & _ARGUMENT) or (size and not bits & _RESULT):
            raise BadRequest("SETTLE with an argument or a result that is not announced")
        if not key_size and data[at + 1 : at + 17] == NO_ID:
            raise BadRequest("SETTLE of a lease without id and key")
        stop = at + SETTLE_SIZE + key_size + size
        if stop > end:
            raise BadRequest("SETTLE is cut off")
        return stop

    def next(self) -> bool:
        """Go to the next item; False if there is none."""
        if not self._left:
            return False
        self._left -= 1
        data, at = self._data, self._at
        bits: i64 = data[at]
        key_at = at + SETTLE_SIZE
        result_at = key_at + get_u16(data, at + 29)
        stop = result_at + get_u32(data, at + 31)
        self.action = bits & 15
        self.id = data[at + 1 : at + 17]
        self.token = get_u32(data, at + 17)
        self.argument = read_i64_be(data, at + 21) if bits & _ARGUMENT else -1
        self.key = data[key_at:result_at]
        self.result = data[result_at:stop] if bits & _RESULT else None
        self._at = stop
        return True


@final
class PutOutcomes:
    """The value of the reply to PUTS, outcome by outcome."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self._items = BytesWriter()
        self._texts = BytesWriter()

    def add(self, outcome: i64, job_id: bytes) -> None:
        """A job that was taken in, or is there already."""
        self.count += 1
        self._items.append(u8(outcome))
        self._items.write(job_id)

    def refuse(self, error: str) -> None:
        """A job that was refused."""
        self.add(REFUSED, NO_ID)
        _write_text(self._texts, error)

    def value(self) -> bytes:
        """The value by itself."""
        return _join(self.count, self._items, self._texts)

    def write(self, out: BytesWriter, identifier: i64, timestamp: i64, flags: i64) -> None:
        """The whole reply."""
        _write_outcomes(out, identifier, timestamp, flags, self.value())


@final
class SettleOutcomes:
    """The value of the reply to SETTLE, outcome by outcome."""

    def __init__(self) -> None:
        self.count: i64 = 0
        self._items = BytesWriter()
        self._texts = BytesWriter()

    def add(self, outcome: i64, instant: i64 = 0) -> None:
        """A lease that was settled."""
        self.count += 1
        self._items.append(u8(outcome))
        write_i64_be(self._items, instant)

    def refuse(self, error: str) -> None:
        """A lease that was not."""
        self.add(REFUSED)
        _write_text(self._texts, error)

    def value(self) -> bytes:
        """The value by itself."""
        return _join(self.count, self._items, self._texts)

    def write(self, out: BytesWriter, identifier: i64, timestamp: i64, flags: i64) -> None:
        """The whole reply."""
        _write_outcomes(out, identifier, timestamp, flags, self.value())


def _join(count: i64, items: BytesWriter, texts: BytesWriter) -> bytes:
    out = BytesWriter()
    put_u32(out, count)
    out.write(items.getvalue())
    out.write(texts.getvalue())
    return out.getvalue()


def _write_outcomes(
    out: BytesWriter, identifier: i64, timestamp: i64, flags: i64, value: bytes
) -> None:
    write_value_reply(out, identifier, timestamp, flags, _BUFFER, len(value))
    out.write(value)


def _write_text(out: BytesWriter, error: str) -> None:
    text = error.encode("utf-8", "replace")[:1000]
    put_u16(out, len(text))
    out.write(text)


def write_put_reply(
    out: BytesWriter, identifier: i64, timestamp: i64, outcome: i64, job_id: bytes, flags: i64
) -> None:
    """The whole reply to a SET of layout 2 that was not refused."""
    write_value_reply(out, identifier, timestamp, flags, _BUFFER, 4 + _PUT_OUTCOME)
    put_u32(out, 1)
    out.append(u8(outcome))
    out.write(job_id)


@final
class PutOutcomeReader:
    """The outcomes of PUTS; `next` goes to the next one, whose fields stand here until then."""

    def __init__(self, value: bytes) -> None:
        end: i64 = len(value)
        self.count: i64 = _count(value, 0, end, _PUT_OUTCOME, "outcomes")
        self.outcome: i64 = 0
        self.id: bytes = NO_ID
        self.error: str = ""
        """Why, if it was refused."""
        self._value = value
        self._at: i64 = 4
        self._text: i64 = 4 + _PUT_OUTCOME * self.count

    def next(self) -> bool:
        """Go to the next outcome; False if there is none."""
        value, at = self._value, self._at
        if at == 4 + _PUT_OUTCOME * self.count:
            if self._text != len(value):
                raise BadRequest("bytes behind the outcomes")
            return False
        self._at = at + _PUT_OUTCOME
        self.outcome = value[at]
        self.id = value[at + 1 : at + _PUT_OUTCOME]
        if self.outcome == REFUSED:
            text = self._text
            stop = _text_end(value, text, len(value))
            self.error = value[text + 2 : stop].decode("utf-8", "replace")
            self._text = stop
        else:
            self.error = ""
        return True


def decode_settle_outcomes(value: bytes) -> list[SettleOutcome]:
    """Read the outcomes of SETTLE."""
    found: list[SettleOutcome] = []
    end: i64 = len(value)
    at: i64 = 4
    texts = at + _SETTLE_OUTCOME * _count(value, 0, end, _SETTLE_OUTCOME, "outcomes")
    stop = texts
    while at < texts:
        item = SettleOutcome(value[at], get_u64(value, at + 1))
        if item.outcome == REFUSED:
            text_at = stop + 2
            stop = _text_end(value, stop, end)
            item.error = value[text_at:stop].decode("utf-8", "replace")
        found.append(item)
        at += _SETTLE_OUTCOME
    if stop != end:
        raise BadRequest("bytes behind the outcomes")
    return found


def _count(data: bytes, at: i64, end: i64, smallest: i64, what: str) -> i64:
    if end - at < 4:
        raise BadRequest(f"{what} without a count")
    count = get_u32(data, at)
    if count > MAX_ITEMS or 4 + count * smallest > end - at:
        raise BadRequest(f"{what}: {count} items in {end - at} bytes")
    return count


def _text_end(data: bytes, at: i64, end: i64) -> i64:
    """Where the text at `at` ends."""
    stop = at + 2
    if stop <= end:
        stop += get_u16(data, at)
    if stop > end:
        raise BadRequest("text of a refused item is cut off")
    return stop


FORGET: Final = 1

_HEAD_SIZE: Final = 8
_REPLY_SIZE: Final = 28
_MOST: Final = 0xFFFF_FFFF


@final
@mypyc_attr(acyclic=True)
class ForwardRequest:
    """Jobs with their marks; of a job that cannot be, why it is refused."""

    def __init__(
        self, marks: list[int], jobs: list[PutRequest | RequestError], forget: bool = False
    ) -> None:
        self.marks = marks
        self.jobs = jobs
        self.forget = forget


class Forwarded(NamedTuple):
    """How far a sender has come, and what became of its jobs this time."""

    mark: int
    new: int = 0
    merged: int = 0
    twin: int = 0
    stale: int = 0
    refused: int = 0
    repeated: int = 0
    """Came before; not looked at."""
    errors: tuple[tuple[int, str], ...] = ()
    """Mark and error of each refused job."""


def encode_forward(marks: Sequence[int], jobs: Sequence[bytes]) -> bytes:
    """The value of FORWARD; `jobs` are encoded as layout 2 already."""
    if len(marks) > MAX_JOBS:
        raise TooLarge(f"at most {MAX_JOBS} jobs in one message")
    out = BytesWriter()
    _write_head(out, 0, len(marks))
    for mark in marks:
        if not 0 <= mark <= _MOST:
            raise OutOfRange(f"mark {mark} does not fit")
        put_u32(out, mark)
    for job in jobs:
        out.write(job)
    return out.getvalue()


def encode_forget() -> bytes:
    """The value of the FORWARD that ends a sender."""
    out = BytesWriter()
    _write_head(out, FORGET, 0)
    return out.getvalue()


def _write_head(out: BytesWriter, flags: i64, count: i64) -> None:
    put_u16(out, 1 << 8 | flags)
    put_u16(out, 0)
    put_u32(out, count)


def read_forward(data: bytes, at: i64, end: i64, now: i64, sender: bytes = b"") -> ForwardRequest:
    """Read the value of FORWARD, which fills `data` from `at` to `end`.

    With a `sender` of 12 bytes, a job that has no id gets sender and mark. `now` is for jobs whose
    delay or life is to count from the server's now, as no spool of ours says it.
    """
    if end - at < _HEAD_SIZE:
        raise BadRequest("FORWARD is too short")
    flags: i64 = data[at + 1]
    count = get_u32(data, at + 4)
    if data[at] != 1 or flags > FORGET or get_u16(data, at + 2):
        raise BadRequest("FORWARD of an unknown layout")
    jobs_at = at + _HEAD_SIZE + 4 * count
    if count > MAX_JOBS or jobs_at > end:
        raise BadRequest(f"FORWARD of {count} jobs in {end - at} bytes")
    marks: list[int] = []
    before: i64 = 1
    for mark_at in range(at + _HEAD_SIZE, jobs_at, 4):
        mark = get_u32(data, mark_at)
        if mark <= before:
            raise BadRequest("marks must grow, from 2 on")
        before = mark
        marks.append(int(mark))
    if flags & FORGET and count:
        raise BadRequest("a sender that is forgotten sends no jobs")
    reader = JobReader(data, jobs_at, end, now)
    named = len(sender) == 12
    jobs = [
        reader.next(b"", 0, sender + data[mark_at : mark_at + 4] if named else b"")
        for mark_at in range(at + _HEAD_SIZE, jobs_at, 4)
    ]
    if reader.at != end:
        raise BadRequest("bytes behind the jobs")
    return ForwardRequest(marks, jobs, flags & FORGET != 0)


def encode_forwarded(outcome: Forwarded) -> bytes:
    """The value of the reply."""
    out = BytesWriter()
    for number in (outcome.mark, outcome.new, outcome.merged, outcome.twin, outcome.stale,
                   outcome.refused, outcome.repeated):  # fmt: skip
        put_u32(out, number)
    for mark, error in outcome.errors:
        text = error.encode("utf-8", "replace")[:1000]
        put_u32(out, mark)
        put_u16(out, len(text))
        out.write(text)
    return out.getvalue()


def decode_forwarded(value: bytes) -> Forwarded:
    """Read the value of the reply."""
    end: i64 = len(value)
    if end < _REPLY_SIZE:
        raise BadRequest("reply to FORWARD is too short")
    errors: list[tuple[int, str]] = []
    at: i64 = _REPLY_SIZE
    while at < end:
        stop = at + 6
        if stop > end:
            raise BadRequest("reply to FORWARD is cut off")
        mark = get_u32(value, at)
        at = stop + get_u16(value, at + 4)
        if at > end:
            raise BadRequest("reply to FORWARD is cut off")
        errors.append((int(mark), value[stop:at].decode("utf-8", "replace")))
    counts = [int(get_u32(value, mark_at)) for mark_at in range(0, _REPLY_SIZE, 4)]
    if len(errors) != counts[5]:
        raise BadRequest("reply to FORWARD with a wrong number of errors")
    return Forwarded(
        counts[0], counts[1], counts[2], counts[3], counts[4], counts[5], counts[6], tuple(errors)
    )
