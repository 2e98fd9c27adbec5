"""Values of FORWARD: jobs out of a spool, each of them taken in once however often it is sent.

The request; its key is the sender, one for each file of a spool:

    u8   1                     u32  count
    u8   flags, see below      per job: u32 mark, growing
    u16  0                     per job: layout 2 of type 6, key inside

    flags: bit 0 forget the sender: all of it is done and nothing of it will be sent again

The reply:

    u32  mark: all jobs of this sender up to it have been decided, now or before
    u32  how many are new, merged, twin, stale, refused, and how many came again
    per refused job: u32 mark, u16 size, text `CODE ...`

Rules:

1. A job whose mark is not above the sender's is not looked at: it came before.
2. Marks grow along the request, from 2 on; a request whose marks do not is refused as a whole.
3. A refused job is decided too: sending it again changes nothing. What is malformed refuses the
   whole message.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, final

from mypy_extensions import i64, mypyc_attr

from fastjournal.buffers import BytesWriter
from fastjournal.errors import BadRequest, OutOfRange, RequestError, TooLarge
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj.job_codec import MAX_JOBS, JobReader
from fastjournal.wire.unsigned import get_u16, get_u32, put_u16, put_u32

__all__ = [
    "FORGET",
    "ForwardRequest",
    "Forwarded",
    "decode_forwarded",
    "encode_forget",
    "encode_forward",
    "encode_forwarded",
    "read_forward",
]

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
    for place in range(at + _HEAD_SIZE, jobs_at, 4):
        mark = get_u32(data, place)
        if mark <= before:
            raise BadRequest("marks must grow, from 2 on")
        before = mark
        marks.append(int(mark))
    if flags & FORGET and count:
        raise BadRequest("a sender that is forgotten sends no jobs")
    reader = JobReader(data, jobs_at, end, now)
    named = len(sender) == 12
    jobs = [
        reader.next(b"", 0, sender + data[place : place + 4] if named else b"")
        for place in range(at + _HEAD_SIZE, jobs_at, 4)
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
    counts = [int(get_u32(value, place)) for place in range(0, _REPLY_SIZE, 4)]
    if len(errors) != counts[5]:
        raise BadRequest("reply to FORWARD with a wrong number of errors")
    return Forwarded(
        counts[0], counts[1], counts[2], counts[3], counts[4], counts[5], counts[6], tuple(errors)
    )
