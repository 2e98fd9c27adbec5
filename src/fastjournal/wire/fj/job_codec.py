"""Values of type 6: a job, as it is put and as it is handed out.

Layout 1, the short one: in SET requests and in replies to NEXT and GET.

    u8   1            u64  Process Date, us, 0 = now
    u8   priority     u32  lease length, ms, 0 = default of the queue
    u8   max timeouts, 0 = default of the queue
    u8   0 in SET; in replies the attempt = lease token, 255 = 255 or more
    u16  q, then q bytes of queue, 0 = domain(key); the rest is user data

Layout 2, to put a job with everything: in SET requests and, one after another, in PUTS.

    u8   2                           u64  lease length, ns, 0 = default of the queue
    u8   flags, see below            u64  ttl, ns: leases and touches keep it alive so long
    u8   type of the user data       u32  max attempts   0 = default of the queue
    u8   0                           u32  max timeouts   0 = default of the queue
    16   id, zero = server's choice  u32  max fails      0 = default of the queue
    i64  priority, smaller first     u16  size of queue, 0 = domain(key)
    u64  due, ns, 0 = now            u16  size of key, 0 = key of the message, or none
    u64  expires, ns, 0 = never      u32  size of user data
    u64  timestamp of the sender, ns, 0 = that of the message
                                     then queue, key, user data

    flags: bits 0-1 mode (0 merge, 1 unique, 2 plain)
           bit 2 due is a delay, bit 3 expires is a length of life, both from the server's now

Layout 3, a job handed out: in replies to LEASE and to NEXT with bit 13.

    u8   3                           i64  rank, i64 priority
    u8   state, ASCII letter         u64  due, inserted, modified, expires, ns, 0 = none
    u8   type of the user data       u64  lease length, lease start, ttl, ns
    u8   bit 0 Workq, bit 1 schedule u32  attempts, timeouts, fails
    16   id                          u32  max attempts, max timeouts, max fails
    u32  token                       u16  size of queue, u16 of worker, u16 of note
    u64  lease deadline, ns          u32  size of user data
                                     then queue, worker, note, user data; the key is the pair's

Rules:

1. A job is named by its key, or by its id: every job has one, 16 bytes.
2. The token of layout 1 has one byte, as it was specified. A client that wants to be fenced past
   the 255th attempt asks for layout 3 (LEASE, or NEXT with bit 13) and settles by id with bit 13,
   where the ttl field carries the whole token.
3. What is malformed refuses the whole message and is raised. A job that is framed well but cannot
   be (its priority, its queue) is refused by itself: its error stands in its place.
4. What is read is absolute: lengths have been added to the server's now, an empty queue is the
   domain of the key. What is written is as given; `flags` say what is a length.
5. Trailing bytes are refused. Reserved bytes and flags must be 0.
6. Result and aliases of a job that is handed out are not told.
7. A reply of many jobs is written job by job: first `write_lease_head`, told the longest key and
   the largest job (`leased_size`), then for each `write_leased_pair` and `write_leased`.
"""

from typing import Any, Final, final

from mypy_extensions import i64, mypyc_attr, u8

from fastjournal.buffers import BytesWriter, read_i64_be, write_i64_be
from fastjournal.errors import BadRequest, OutOfRange, RequestError, TooLarge
from fastjournal.keys import domain
from fastjournal.model import MAX_INSTANT, Job, Lease, NewJob, State
from fastjournal.put_request import MERGE, PLAIN, UNIQUE, PutRequest
from fastjournal.wire.fj.fields import (
    get_u16,
    get_u32,
    get_u64,
    put_u16,
    put_u32,
    value_class,
    write_key,
    write_value_head,
)
from fastjournal.wire.fj.functions import DATA, KEY_SIZE, QUERY_SHIFT, VALUE_SHIFT
from fastjournal.wire.fj.replies import Pair, write_reply_head

__all__ = [
    "DELAY",
    "LEASED_SIZE",
    "LIFETIME",
    "MAX_JOBS",
    "NO_ID",
    "PUT_SIZE",
    "JobReader",
    "ShortJob",
    "decode_leased",
    "encode_job",
    "encode_leased",
    "fitting_request",
    "job_size",
    "leased_size",
    "read_job",
    "read_jobs",
    "short_of",
    "write_job",
    "write_lease_head",
    "write_leased",
    "write_leased_pair",
    "write_short",
]


NO_ID: Final = bytes(16)
MAX_JOBS: Final = 65_535
"""Most jobs in one PUTS."""
DELAY: Final[i64] = 4
"""Flag: due is counted from the server's now."""
LIFETIME: Final[i64] = 8
"""Flag: expires is counted from the server's now."""
PUT_SIZE: Final = 88
"""Bytes of layout 2 before the queue."""

_SHORT_SIZE: Final = 18
_MILLISECOND: Final = 1_000_000
_MAX_TRIES: Final[i64] = 2**31 - 1
_LAST: Final[i64] = MAX_INSTANT


def job_size(job: PutRequest) -> i64:
    """Bytes of a job as layout 2."""
    return PUT_SIZE + len(job.queue) + len(job.key) + len(job.value)


def write_job(out: BytesWriter, job: PutRequest, flags: i64 = 0) -> None:
    """Layout 2; `flags`: `DELAY`, `LIFETIME`, joined by `|`."""
    queue = job.queue
    key = job.key
    value = job.value
    out.append(2)
    out.append(u8(job.mode | flags))
    out.append(u8(job.kind))
    out.append(0)
    out.write(job.id or NO_ID)
    write_i64_be(out, job.priority)
    write_i64_be(out, job.due)
    write_i64_be(out, job.expires)
    write_i64_be(out, job.timestamp)
    write_i64_be(out, job.lease)
    write_i64_be(out, job.ttl)
    put_u32(out, job.max_attempts)
    put_u32(out, job.max_timeouts)
    put_u32(out, job.max_fails)
    put_u16(out, len(queue))
    put_u16(out, len(key))
    put_u32(out, len(value))
    out.write(queue)
    out.write(key)
    out.write(value)


def fitting_request(job: NewJob) -> PutRequest:
    """What a `NewJob` says, if layout 2 can say it; whoever reads it decides whether it can be."""
    given: Any = job  # anybody may have filled it, with anything
    queue, value, key, mode, priority, due, expires, stamp, lease = given[:9]
    attempts, timeouts, fails, kind, ttl, job_id = given[9:]
    if type(queue) is not bytes or type(value) is not bytes or type(key) is not bytes:
        raise BadRequest("queue, key and value are bytes")
    for number in given[3:14]:
        if not isinstance(number, int):
            raise BadRequest("the other fields are whole numbers")
    times = [due, expires, stamp, lease, ttl]
    tries = [attempts, timeouts, fails]
    if (
        min(times) < 0
        or max(times) > MAX_INSTANT
        or min(tries) < 0
        or max(tries) > 0xFFFF_FFFF
        or not 0 <= mode < 3
        or not -MAX_INSTANT <= priority <= MAX_INSTANT
        or not 0 <= kind <= 255
        or max(len(queue), len(key)) > 0xFFFF
        or (job_id and (type(job_id) is not bytes or len(job_id) != 16))
    ):
        raise OutOfRange("job does not fit layout 2")
    return PutRequest(
        queue, value, key, mode, priority, due, expires, stamp, lease, attempts, timeouts, fails,
        kind, ttl, job_id,
    )  # fmt: skip


def encode_job(job: PutRequest, flags: int = 0) -> bytes:
    """Layout 2 by itself."""
    out = BytesWriter()
    write_job(out, job, flags)
    return out.getvalue()


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class JobReader:
    """Reads jobs of layout 2 that stand one behind the other, from `at` on."""

    def __init__(self, data: bytes, at: i64, end: i64, now: i64 = 0) -> None:
        self.data = data
        self.at: i64 = at
        self.end: i64 = end
        self.now: i64 = now
        """What lengths count from."""
        self.flags: i64 = 0
        """Of the newest job: `DELAY`, `LIFETIME`."""

    def next(
        self, key: bytes = b"", timestamp: i64 = 0, job_id: bytes = b""
    ) -> PutRequest | RequestError:
        """The next job, or why it is refused; what is malformed is raised.

        `key`, `timestamp` and `job_id` are for a job that has none of its own.
        """
        data = self.data
        at = self.at
        queue_at = at + PUT_SIZE
        if queue_at > self.end:
            raise BadRequest("job of layout 2 is too short")
        flags: i64 = data[at + 1]
        if data[at] != 2 or data[at + 3] or flags > 15 or flags & 3 == 3:
            raise BadRequest("job of an unknown layout")
        due = read_i64_be(data, at + 28)
        expires = read_i64_be(data, at + 36)
        stamp = read_i64_be(data, at + 44)
        lease = read_i64_be(data, at + 52)
        ttl = read_i64_be(data, at + 60)
        if due | expires | stamp | lease | ttl < 0:
            raise OutOfRange("instant past the year 2262")
        key_at = queue_at + get_u16(data, at + 80)
        value_at = key_at + get_u16(data, at + 82)
        stop = value_at + get_u32(data, at + 84)
        if stop > self.end:
            raise BadRequest("job is cut off")
        self.at = stop
        self.flags = flags & 12
        if flags & DELAY and due:
            due = due + self.now if due < _LAST - self.now else _LAST
        if flags & LIFETIME and expires:
            expires = expires + self.now if expires < _LAST - self.now else _LAST
        if value_at > key_at:
            key = data[key_at:value_at]
        given = data[at + 4 : at + 20]
        if given != NO_ID:
            job_id = given
        if key_at > queue_at:
            queue = data[queue_at:key_at]
        elif key:
            try:
                queue = domain(key)
            except RequestError as error:
                return error
        else:
            queue = b""
        job = PutRequest(
            queue, data[value_at:stop], key, flags & 3, read_i64_be(data, at + 20), due, expires,
            stamp or timestamp, lease, get_u32(data, at + 68), get_u32(data, at + 72),
            get_u32(data, at + 76), data[at + 2], ttl, job_id,
        )  # fmt: skip
        refused = _refusal(job)
        return job if refused is None else refused


def _refusal(job: PutRequest) -> RequestError | None:
    """Why a job that fits the layout cannot be."""
    size: i64 = len(job.queue)
    priority = job.priority
    mode = job.mode
    most = job.max_attempts | job.max_timeouts | job.max_fails
    if 1 <= size <= 255 and 0 <= priority <= 255 and mode == MERGE and most <= _MAX_TRIES:
        return None
    if size < 1 or size > 255:
        return TooLarge("a queue name has 1 to 255 bytes")
    if priority < 0 or priority > 255:
        return OutOfRange(f"priority {priority} is not in 0..255")
    if mode == UNIQUE and not job.key:
        return BadRequest("a unique job needs a key")
    if mode == PLAIN and job.key:
        return BadRequest("a plain job has no key")
    if most > _MAX_TRIES:
        if job.max_attempts > _MAX_TRIES:
            return OutOfRange(f"max_attempts {job.max_attempts} is not in 0..{_MAX_TRIES}")
        if job.max_timeouts > _MAX_TRIES:
            return OutOfRange(f"max_timeouts {job.max_timeouts} is not in 0..{_MAX_TRIES}")
        return OutOfRange(f"max_fails {job.max_fails} is not in 0..{_MAX_TRIES}")
    return None


def read_job(
    data: bytes, at: i64, end: i64, key: bytes = b"", timestamp: i64 = 0, now: i64 = 0
) -> PutRequest:
    """The job of a SET with type 6, layout 1 or 2, that fills `data` from `at` to `end`.

    `key` and `timestamp` are those of the message; a key inside layout 2 must be empty or equal.
    """
    if at >= end:
        raise BadRequest("job without a layout")
    job: PutRequest | RequestError
    if data[at] == 1:
        short = ShortJob(data, at, end)
        if short.token:
            raise BadRequest("byte 3 of a job must be 0 in SET")
        queue = short.queue
        if not queue and key:
            queue = domain(key)
        job = PutRequest(
            queue, short.value, key, MERGE, short.priority, short.due, 0, timestamp, short.lease,
            0, short.max_timeouts,
        )  # fmt: skip
        refused = _refusal(job)
        if refused is not None:
            raise refused
        return job
    reader = JobReader(data, at, end, now)
    job = reader.next(key, timestamp)
    if reader.at != end:
        raise BadRequest("bytes behind the job")
    if not isinstance(job, PutRequest):
        raise job
    if key and job.key != key:
        raise BadRequest("the key of the job is not the key of the message")
    return job


def read_jobs(
    data: bytes, at: i64, end: i64, timestamp: i64 = 0, now: i64 = 0
) -> list[PutRequest | RequestError]:
    """The jobs of a PUTS, whose value fills `data` from `at` to `end`."""
    if end - at < 4:
        raise BadRequest("PUTS without a count")
    count = get_u32(data, at)
    if count > MAX_JOBS or count * PUT_SIZE > end - at:
        raise BadRequest(f"PUTS of {count} jobs in {end - at} bytes")
    reader = JobReader(data, at + 4, end, now)
    jobs = [reader.next(b"", timestamp) for _ in range(count)]
    if reader.at != end:
        raise BadRequest("bytes behind the job")
    return jobs


@final
@mypyc_attr(acyclic=True)
class ShortJob:
    """A job of layout 1 that fills `data` from `at` to `end`; instants and lengths in ns."""

    def __init__(self, data: bytes, at: i64, end: i64) -> None:
        queue_at = at + _SHORT_SIZE
        if end < queue_at:
            raise BadRequest("job of layout 1 is too short")
        stop = queue_at + get_u16(data, at + 16)
        if end < stop:
            raise BadRequest("queue of a job is cut off")
        due = read_i64_be(data, at + 4)
        if due < 0 or due > _LAST // 1000:
            raise OutOfRange("due does not fit")
        self.priority: i64 = data[at + 1]
        self.max_timeouts: i64 = data[at + 2]
        self.token: i64 = data[at + 3]
        self.due: i64 = due * 1000
        self.lease: i64 = get_u32(data, at + 12) * _MILLISECOND
        self.queue = data[queue_at:stop]
        self.value = data[stop:end]


def write_short(
    out: BytesWriter,
    value: bytes,
    queue: bytes,
    priority: i64,
    max_timeouts: i64,
    token: i64,
    due: i64,
    lease: i64,
) -> None:
    """Layout 1; what does not fit its bytes is told as the most that does."""
    out.append(1)
    out.append(u8(_within(priority, 255)))
    out.append(u8(_within(max_timeouts, 255)))
    out.append(u8(_within(token, 255)))
    write_i64_be(out, due // 1000)
    put_u32(out, _within(lease // _MILLISECOND, 0xFFFF_FFFF))
    put_u16(out, len(queue))
    out.write(queue)
    out.write(value)


def _within(number: i64, most: i64) -> i64:
    if number < 0:
        return 0
    return min(most, number)


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
    bits: i64,
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
    """Layout 3; `letter` is that of the state, `bits` are 0 and 1 of the fourth byte."""
    out.append(3)
    out.append(u8(letter))
    out.append(u8(kind))
    out.append(u8(bits))
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
    bits = 0
    if job.workq:
        bits = 1
    if job.scheduled:
        bits |= 2
    bits |= (job.schema & 15) << 2
    write_leased(
        out, _LETTERS[job.state], job.kind, bits, job.id, token, lease.until, job.rank,
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
    bits = value[3]
    ends = get_u64(value, 24)
    job: Job = _new(Job, (
        value[4:20], value[LEASED_SIZE:worker_at], pair.key, value[data_at:], state,
        int(read_i64_be(value, 32)), get_u64(value, 48), get_u64(value, 56), get_u64(value, 64),
        get_u64(value, 72), value[2], int(get_u32(value, 104)), int(get_u32(value, 108)),
        int(get_u32(value, 112)), int(get_u32(value, 116)), int(get_u32(value, 120)),
        int(get_u32(value, 124)), get_u64(value, 80), get_u64(value, 88), ends,
        value[worker_at:note_at], b"", value[note_at:data_at], False, bits & 1 != 0,
        bits & 2 != 0, get_u64(value, 96), (), int(read_i64_be(value, 40)),
        bits >> 2 & 15,
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
