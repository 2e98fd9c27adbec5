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

Rules: those of `job_codec`.
"""

from __future__ import annotations

import struct

from fastjournal.errors import BadRequest, OutOfRange
from fastjournal.model import Job, Lease, State
from fastjournal.wire.fj.functions import DATA
from fastjournal.wire.fj.job_codec import NO_ID, decode_short, encode_short
from fastjournal.wire.fj.replies import Pair, encode_reply

__all__ = ["decode_leased", "encode_lease_reply", "encode_leased", "short_of"]

_LEASED = struct.Struct(">BBBB16sIQqqQQQQQQQIIIIIIHHHI")
_LEASED_SIZE = _LEASED.size
_LETTERS = tuple(ord(state.letter) for state in State)
_STATES = {ord(state.letter): state for state in State}
_MILLISECOND = 1_000_000


def encode_leased(lease: Lease) -> Pair:
    """The pair of a leased job: its key, and layout 3. Result and aliases are not told."""
    # Unpacked at once: reading 26 fields by name takes twice as long as all the rest.
    job, token, until = lease
    (
        job_id, queue, key, value, state, rank, due, inserted, modified, expires, kind, attempts,
        timeouts, fails, max_attempts, max_timeouts, max_fails, length, start, _, worker, _, note,
        _, workq, scheduled, ttl, _, priority,
    ) = job  # fmt: skip
    try:
        head = _LEASED.pack(
            3, _LETTERS[state], kind, workq | scheduled << 1, job_id, token, until, rank, priority,
            due, inserted, modified, expires, length, start, ttl, attempts, timeouts, fails,
            max_attempts, max_timeouts, max_fails, len(queue), len(worker), len(note), len(value),
        )  # fmt: skip
    except struct.error as error:
        raise OutOfRange(f"job does not fit layout 3: {error}") from None
    return Pair(key, 6, b"".join((head, queue, worker, note, value)))


def encode_lease_reply(identifier: int, timestamp: int, lease: Lease, flags: int = 0) -> bytes:
    """The whole reply to a LEASE of one job, which is the commonest."""
    pair = encode_leased(lease)
    return encode_reply(identifier, timestamp, flags=flags | DATA, pairs=(pair,), several=True)


def decode_leased(pair: Pair, until: int = 0) -> Lease:
    """The job of a pair in a reply, layout 1 or 3.

    Layout 1 tells no id and no deadline: the id is zero, the deadline is the one of the reply.
    """
    value = pair.value
    if value[:1] == b"\1":
        return _leased_short(pair, until)
    if len(value) < _LEASED_SIZE or value[0] != 3 or value[3] > 3:
        raise BadRequest("leased job of an unknown layout")
    (
        _, letter, kind, marks, job_id, token, until, rank, priority, due, inserted, modified,
        expires, length, start, ttl, attempts, timeouts, fails, max_attempts, max_timeouts,
        max_fails, queue_size, worker_size, note_size, size,
    ) = _LEASED.unpack_from(value)  # fmt: skip
    state = _STATES.get(letter)
    if state is None:
        raise BadRequest("leased job in an unknown state")
    worker_at = _LEASED_SIZE + queue_size
    note_at = worker_at + worker_size
    data_at = note_at + note_size
    if data_at + size != len(value):
        raise BadRequest("leased job has a wrong size")
    job = tuple.__new__(Job, (
        job_id, value[_LEASED_SIZE:worker_at], pair.key, value[data_at:], state, rank, due,
        inserted, modified, expires, kind, attempts, timeouts, fails, max_attempts, max_timeouts,
        max_fails, length, start, until, value[worker_at:note_at], b"", value[note_at:data_at],
        False, marks & 1 != 0, marks & 2 != 0, ttl, (), priority,
    ))  # fmt: skip
    return tuple.__new__(Lease, (job, token, until))


def _leased_short(pair: Pair, until: int) -> Lease:
    priority, max_timeouts, token, due, length, queue, data = decode_short(pair.value)
    job = Job(
        NO_ID, queue, pair.key, data, State.PROCESSING, priority, due, 0, 0, 0, 1, token, 0, 0, 0,
        max_timeouts, 0, length, 0, until, b"", b"", b"", False, False, False, priority=priority,
    )  # fmt: skip
    return Lease(job, token, until)


def short_of(lease: Lease) -> Pair:
    """The same job as layout 1, for NEXT without bit 13 and for GET."""
    job = lease.job
    value = encode_short(
        job.value,
        queue=job.queue,
        priority=min(max(job.priority, 0), 255),
        max_timeouts=min(job.max_timeouts, 255),
        token=lease.token,
        due=job.due,
        lease=min(job.lease, 0xFFFFFFFF * _MILLISECOND),
    )
    return Pair(job.key, 6, value)
