"""Values of type 6: a job handed out, layout 3; the short layout 1 for those who want no more.

Layout 3, a job handed out: in replies to LEASE and to NEXT with bit 13.

    u8   3                           i64  rank, i64 priority
    u8   state, ASCII letter         u64  due, inserted, modified, expires, ns, 0 = none
    u8   type of the user data       u64  lease length, lease start, ttl, ns
    u8   bit 0 Workq, bit 1 schedule u32  attempts, timeouts, fails
    16   id                          u32  max attempts, max timeouts, max fails
    u32  token                       u16  size of queue, u16 of worker, u16 of note
    u64  lease deadline, ns          u32  size of user data
                                     then queue, worker, note, user data; the key is the pair's

Rules: those of `job_codec`, and

1. Result and aliases of a job are not told.
2. A reply of many jobs is written job by job: first `write_lease_head`, told the longest key and
   the largest job (`leased_size`), then for each `write_leased_pair` and `write_leased`.
"""

from typing import Any, Final

from mypy_extensions import i64, u8

from fastjournal.buffers import BytesWriter, read_i64_be, write_i64_be
from fastjournal.errors import BadRequest, OutOfRange
from fastjournal.model import MAX_INSTANT, Job, Lease, State
from fastjournal.wire.fj.frames import value_class, write_key, write_value_head
from fastjournal.wire.fj.functions import DATA, KEY_SIZE, QUERY_SHIFT, VALUE_SHIFT
from fastjournal.wire.fj.job_codec import NO_ID, ShortJob, write_short
from fastjournal.wire.fj.replies import Pair, write_reply_head
from fastjournal.wire.unsigned import get_u16, get_u32, get_u64, put_u16, put_u32

__all__ = [
    "LEASED_SIZE",
    "decode_leased",
    "encode_leased",
    "leased_size",
    "short_of",
    "write_lease_head",
    "write_leased",
    "write_leased_pair",
]

LEASED_SIZE: Final = 138
"""Bytes of layout 3 before the queue."""

_JOB: Final = 6
_LETTERS: Final = [ord(state.letter) for state in State]
_STATES: Final[dict[int, State]] = {ord(state.letter): state for state in State}
_MOST: Final = 0xFFFF_FFFF
_new: Final[Any] = tuple.__new__


def leased_size(queue: bytes, worker: bytes, note: bytes, value: bytes) -> i64:
    """Bytes of a leased job as layout 3."""
    return LEASED_SIZE + len(queue) + len(worker) + len(note) + len(value)


def write_leased(
    out: BytesWriter,
    letter: i64,
    kind: i64,
    marks: i64,
    job_id: bytes,
    token: i64,
    until: i64,
    rank: i64,
    priority: i64,
    due: i64,
    inserted: i64,
    modified: i64,
    expires: i64,
    length: i64,
    start: i64,
    ttl: i64,
    attempts: i64,
    timeouts: i64,
    fails: i64,
    max_attempts: i64,
    max_timeouts: i64,
    max_fails: i64,
    queue: bytes,
    worker: bytes,
    note: bytes,
    value: bytes,
) -> None:
    """Layout 3; `letter` is that of the state, `marks` are bits 0 and 1 of the fourth byte."""
    out.append(3)
    out.append(u8(letter))
    out.append(u8(kind))
    out.append(u8(marks))
    out.write(job_id)
    put_u32(out, token)
    write_i64_be(out, until)
    write_i64_be(out, rank)
    write_i64_be(out, priority)
    write_i64_be(out, due)
    write_i64_be(out, inserted)
    write_i64_be(out, modified)
    write_i64_be(out, expires)
    write_i64_be(out, length)
    write_i64_be(out, start)
    write_i64_be(out, ttl)
    put_u32(out, attempts)
    put_u32(out, timeouts)
    put_u32(out, fails)
    put_u32(out, max_attempts)
    put_u32(out, max_timeouts)
    put_u32(out, max_fails)
    put_u16(out, len(queue))
    put_u16(out, len(worker))
    put_u16(out, len(note))
    put_u32(out, len(value))
    out.write(queue)
    out.write(worker)
    out.write(note)
    out.write(value)


def write_lease_head(
    out: BytesWriter,
    identifier: i64,
    timestamp: i64,
    flags: i64,
    count: i64,
    longest: i64,
    largest: i64,
) -> None:
    """A reply to LEASE up to its pairs, `count` of them, all with data.

    `longest`: bytes of the longest key; `largest`: of the largest job as layout 3.
    """
    bits = flags | DATA | 1 << QUERY_SHIFT
    if longest > 255:
        bits |= KEY_SIZE
    if count:
        bits |= value_class(largest + 1) << VALUE_SHIFT
    write_reply_head(out, identifier, bits, timestamp)
    put_u16(out, count)
    out.append(0)
    if longest > 255:
        out.append(0)


def write_leased_pair(out: BytesWriter, longest: i64, largest: i64, key: bytes, size: i64) -> None:
    """The key of a leased job in such a reply and the head of its value; layout 3 comes next."""
    write_key(out, key, longest > 255)
    write_value_head(out, value_class(largest + 1), size + 1, _JOB)


def encode_leased(lease: Lease) -> Pair:
    """The pair of a leased job: its key, and layout 3."""
    out = BytesWriter()
    _write_lease(out, lease)
    return Pair(lease.job.key_bytes, _JOB, out.getvalue())


def _write_lease(out: BytesWriter, lease: Lease) -> None:
    job = lease.job
    token = lease.token
    numbers = (token, job.attempts, job.timeouts, job.fails, job.max_attempts, job.max_timeouts,
               job.max_fails)  # fmt: skip
    times = (lease.until, job.due, job.inserted, job.modified, job.expires, job.lease,
             job.lease_start, job.ttl)  # fmt: skip
    if min(numbers) < 0 or max(numbers) > _MOST or min(times) < 0 or max(times) > MAX_INSTANT:
        raise OutOfRange("job does not fit layout 3")
    if len(job.worker) > 0xFFFF or len(job.note) > 0xFFFF:
        raise OutOfRange("job does not fit layout 3: worker or note")
    marks = 0
    if job.workq:
        marks = 1
    if job.scheduled:
        marks |= 2
    marks |= (job.schema & 15) << 2
    write_leased(
        out, _LETTERS[job.state], job.kind, marks, job.id, token, lease.until, job.rank,
        job.priority, job.due, job.inserted, job.modified, job.expires, job.lease,
        job.lease_start, job.ttl, job.attempts, job.timeouts, job.fails, job.max_attempts,
        job.max_timeouts, job.max_fails, job.queue_bytes, job.worker, job.note, job.payload,
    )  # fmt: skip


def decode_leased(pair: Pair, until: int = 0) -> Lease:
    """The job of a pair in a reply, layout 1 or 3.

    Layout 1 tells no id and no deadline: the id is zero, the deadline is the one of the reply.
    """
    value = pair.value
    total: i64 = len(value)
    if total and value[0] == 1:
        return _leased_short(pair, until)
    if total < LEASED_SIZE or value[0] != 3:
        raise BadRequest("leased job of an unknown layout")
    state = _STATES.get(value[1])
    if state is None:
        raise BadRequest("leased job in an unknown state")
    worker_at = LEASED_SIZE + get_u16(value, 128)
    note_at = worker_at + get_u16(value, 130)
    data_at = note_at + get_u16(value, 132)
    if data_at + get_u32(value, 134) != total:
        raise BadRequest("leased job has a wrong size")
    marks = value[3]
    ends = get_u64(value, 24)
    job: Job = _new(Job, (
        value[4:20], value[LEASED_SIZE:worker_at], pair.key, value[data_at:], state,
        int(read_i64_be(value, 32)), get_u64(value, 48), get_u64(value, 56), get_u64(value, 64),
        get_u64(value, 72), value[2], int(get_u32(value, 104)), int(get_u32(value, 108)),
        int(get_u32(value, 112)), int(get_u32(value, 116)), int(get_u32(value, 120)),
        int(get_u32(value, 124)), get_u64(value, 80), get_u64(value, 88), ends,
        value[worker_at:note_at], b"", value[note_at:data_at], False, marks & 1 != 0,
        marks & 2 != 0, get_u64(value, 96), (), int(read_i64_be(value, 40)),
        marks >> 2 & 15,
    ))  # fmt: skip
    lease: Lease = _new(Lease, (job, int(get_u32(value, 20)), ends))
    return lease


def _leased_short(pair: Pair, until: int) -> Lease:
    short = ShortJob(pair.value, 0, len(pair.value))
    priority, token = int(short.priority), int(short.token)
    job = Job(
        NO_ID, short.queue, pair.key, short.value, State.PROCESSING, priority, int(short.due), 0,
        0, 0, 1, token, 0, 0, 0, int(short.max_timeouts), 0, int(short.lease), 0, until, b"", b"",
        b"", False, False, False, priority=priority,
    )  # fmt: skip
    return Lease(job, token, until)


def short_of(lease: Lease) -> Pair:
    """The same job as layout 1, for NEXT without bit 13 and for GET."""
    job = lease.job
    out = BytesWriter()
    write_short(
        out,
        job.payload,
        job.queue_bytes,
        job.priority,
        job.max_timeouts,
        lease.token,
        job.due,
        job.lease,
    )
    return Pair(job.key_bytes, _JOB, out.getvalue())
