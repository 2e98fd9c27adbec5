"""What a client asks and how it reads the answer; no sockets. Both clients are loops over this.

Rules:

1. A `Call` holds everything to send a request, to read its reply and to judge whether it may be
   sent again when the connection broke and nobody knows whether it happened.
2. A put always carries an id: sent again it changes nothing. A lease whose answer was lost is lost
   until it ends by itself. What settles a lease and then finds no job has settled it the first
   time.
3. Lengths of time are sent as such where the protocol allows it: the clocks of client and server
   need not agree.
4. Errors of the server come back as the classes of `fastjournal.errors`.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from fastjournal.clock import MILLISECOND, SECOND, SYSTEM_CLOCK
from fastjournal.edges import Instant, Length, Text, length, new_job, queue_bytes
from fastjournal.errors import BadRequest, NotFound, ProtocolError
from fastjournal.model import (
    DEFAULT_PRIORITY,
    Lease,
    NewJob,
    Outcome,
    Receipt,
    State,
)
from fastjournal.wire.bulk import (
    REFUSED,
    Action,
    LeaseRequest,
    Settle,
    SettleOutcome,
    Settling,
    decode_put_outcomes,
    decode_settle_outcomes,
    encode_lease_request,
    encode_settle,
)
from fastjournal.wire.errortext import error_from
from fastjournal.wire.fj import Reply, encode_integer, encode_request
from fastjournal.wire.functions import BY_ID, PERSIST, Function, Type
from fastjournal.wire.jobvalue import DELAY, LIFETIME, JobPut, decode_leased, encode_job

__all__ = ["Call", "Figures", "new_id"]

_CHUNK_BYTES = 2 << 20
_CHUNK_JOBS = 125
_CHECKED = 10_000
_OUTCOMES = tuple(Outcome)


class Call(NamedTuple):
    """One request."""

    data: bytes
    """The whole message, under identifier 1."""
    read: Callable[[Reply], Any]
    wait: float = 0.0
    """Seconds the server may take because it was asked to wait."""
    again: bool = True
    """May be sent again when its outcome is unknown."""
    settles: bool = False
    """Sent again, "not found" means that it had happened."""
    quick: Callable[[bytes], Any] | None = None
    """Reads the commonest answer from its bytes; None if it is another one."""


def make_call(
    function: int,
    read: Callable[[Reply], Any],
    fields: Mapping[str, Any],
    wait: float = 0.0,
    again: bool = True,
    settles: bool = False,
) -> Call:
    """A call of the fields of `encode_request`."""
    return Call(encode_request(function, 1, **fields), read, wait, again, settles)


class Figures:
    """Figures of a daemon, to be read like the status of an embedded journal: by attribute."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        for name, value in data.items():
            setattr(self, name, Figures(value) if isinstance(value, dict) else value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def _asdict(self) -> dict[str, Any]:
        return {
            name: value._asdict() if isinstance(value, Figures) else value
            for name, value in vars(self).items()
        }

    def __repr__(self) -> str:
        return f"Figures({vars(self)})"


_pool = b""
_KEEP = ~((0xF << 76) | (0x3 << 62))
_FIXED = (0x4 << 76) | (0x2 << 62)


def new_id() -> bytes:
    """A random id of version 4; never the same in a forked child."""
    global _pool
    pool = _pool
    if len(pool) < 16:
        pool = os.urandom(4096)
    _pool = pool[16:]
    return (int.from_bytes(pool[:16], "big") & _KEEP | _FIXED).to_bytes(16, "big")


def _empty_pool() -> None:
    global _pool
    _pool = b""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_empty_pool)


def job_put(
    payload: bytes = b"",
    key: Text | None = None,
    queue: Text | None = None,
    priority: int = DEFAULT_PRIORITY,
    delay: Length | None = None,
    due: Instant | None = None,
    ttl: Length | None = None,
    expires: Instant | None = None,
    lease: Length | None = None,
    max_attempts: int = 0,
    max_timeouts: int = 0,
    max_fails: int = 0,
    mode: str | None = None,
    timestamp: Instant | None = None,
    id: bytes = b"",  # noqa: A002 - the name of the field
    limit: int = 8 << 20,
) -> JobPut:
    """A put from the arguments of `put`."""
    flags = 0
    now = 0
    if delay is not None:
        flags = DELAY
    if ttl is not None:
        if due is None:
            flags |= LIFETIME
        else:
            now = SYSTEM_CLOCK.now()
    job = new_job(
        now, payload, key, queue, priority, delay, due, ttl, expires, lease, max_attempts,
        max_timeouts, max_fails, mode, timestamp, limit, id or new_id(),
    )  # fmt: skip
    return tuple.__new__(JobPut, (*job, flags))


def put(job: JobPut) -> Call:
    """Take a job in."""
    data = encode_request(Function.SET, 1, value_type=Type.JOB, value=encode_job(job))
    return Call(data, _read_receipt, 0.0, True, False, _quick_receipt)


def plain_put(payload: bytes, key: Text | None, queue: Text | None, priority: int) -> Call | None:
    """`put` of a job that says nothing but these; None if it takes a closer look."""
    job = _plain_job(payload, key, queue, priority)
    if job is None:
        return None
    size = len(job) + 1
    flags, pack = _HEADS[0] if size < 256 else _HEADS[1] if size < 65_536 else _HEADS[2]
    data = pack(b"FJ", 1, 2, 1, flags, 0, 0, size, 6) + job
    return tuple.__new__(Call, (data, _read_receipt, 0.0, True, False, _quick_receipt))


# Header of SET, no key, size and type of the value; by the size of the value.
_HEADS = tuple(
    (flags, struct.Struct(f">2sHHHHQB{size}B").pack)
    for flags, size in ((2, "B"), (4, "H"), (6, "I"))
)
_LARGE = 1 << 20
_HEAD = b"JR\0\1\0\1"


def _quick_receipt(data: bytes) -> Receipt | None:
    if (
        len(data) == 41
        and data[16:24] == b"\0\0\x16\1\0\0\0\1"
        and data[:6] == _HEAD
        and data[7] & 0xEF == 2
        and data[24] < 4
    ):
        return tuple.__new__(Receipt, (data[25:], _OUTCOMES[data[24]]))
    return None


def _quick_done(data: bytes) -> bool | None:
    return True if len(data) == 17 and data[:6] == _HEAD and not data[16] else None


QUICK_SIZES: dict[Callable[[bytes], Any], int] = {_quick_receipt: 41, _quick_done: 17}
"""Bytes of the answers that they read."""


def _read_receipt(reply: Reply) -> Receipt:
    outcome, job_id, _ = decode_put_outcomes(value_of(reply))[0]
    return Receipt(job_id, _OUTCOMES[outcome])


def puts(jobs: Iterable[NewJob | Mapping[str, Any]]) -> Iterator[Call]:
    """Take many jobs in: calls of `_CHUNK_JOBS` each, so that the daemon works on one while the
    next is sent. Up to `_CHECKED` jobs are checked before the first of them leaves."""
    jobs = iter(jobs)
    while parts := [_encoded(job) for job in islice(jobs, _CHECKED)]:
        start = size = 0
        for number, part in enumerate(parts, 1):
            size += len(part)
            if number - start == _CHUNK_JOBS or size > _CHUNK_BYTES:
                yield _puts_call(parts[start:number])
                start, size = number, 0
        if start < len(parts):
            yield _puts_call(parts[start:])


def _encoded(job: NewJob | Mapping[str, Any]) -> bytes:
    if isinstance(job, NewJob):
        return encode_job(JobPut(*job[:14], job.id or new_id(), 0))
    if job.keys() <= _PLAIN_NAMES:
        get = job.get
        encoded = _plain_job(
            get("payload", b""), get("key"), get("queue"), get("priority", DEFAULT_PRIORITY)
        )
        if encoded is not None:
            return encoded
    return encode_job(job_put(**job))


def _plain_job(payload: Any, key: Any, queue: Any, priority: Any) -> bytes | None:
    """A job that says nothing but these, as layout 2; None if it takes a closer look."""
    if type(payload) is not bytes or type(priority) is not int or not 0 <= priority <= 255:
        return None
    mode = 0
    if key is None:
        key, mode = b"", 2
    elif type(key) is str:
        key = key.encode()
    if type(queue) is str:
        queue = queue.encode()
    if type(queue) is not bytes or type(key) is not bytes or len(payload) > _LARGE:
        return None
    if not queue or (not mode and not key) or len(queue) > 255 or len(key) > 65_535:
        return None
    head = _PLAIN_JOB(
        2, mode, 1, 0, new_id(), priority, 0, 0, 0, 0, 0, 0, 0, 0, len(queue), len(key),
        len(payload),
    )  # fmt: skip
    return b"".join((head, queue, key, payload))


_PLAIN_NAMES = frozenset(("payload", "key", "queue", "priority"))
_PLAIN_JOB = struct.Struct(">BBBB16sqQQQQQIIIHHI").pack


def _puts_call(parts: list[bytes]) -> Call:
    value = b"".join((len(parts).to_bytes(4, "big"), *parts))
    return make_call(Function.PUTS, _read_receipts, {"value_type": Type.BUFFER, "value": value})


def _read_receipts(reply: Reply) -> list[Receipt]:
    receipts = []
    new = tuple.__new__
    outcomes = _OUTCOMES
    for outcome, job_id, error in decode_put_outcomes(value_of(reply)):
        if outcome == REFUSED:
            raise error_from(error)
        receipts.append(new(Receipt, (job_id, outcomes[outcome])))
    return receipts


def lease(
    count: int,
    queue: Text | None,
    queues: Sequence[Text] | None,
    prefix: Text | None,
    wait: Length,
    lasts: Length | None,
    fair: bool,
    worker: Text,
    take: bool,
) -> Call:
    """Lease up to `count` jobs; a consumer asks the same again and again, so it is kept."""
    names = None if queues is None or isinstance(queues, (str, bytes)) else tuple(queues)
    return _lease(count, queue, names or queues, prefix, wait, lasts, fair, worker, take)


@functools.lru_cache(256)
def _lease(
    count: int,
    queue: Text | None,
    queues: Sequence[Text] | None,
    prefix: Text | None,
    wait: Length,
    lasts: Length | None,
    fair: bool,
    worker: Text,
    take: bool,
) -> Call:
    """Lease up to `count` jobs."""
    if not 1 <= count <= 65_535:
        raise BadRequest(f"count must be 1..65535, not {count}")
    if sum(given is not None for given in (queue, queues, prefix)) > 1:
        raise BadRequest("give one of queue, queues and prefix")
    names: tuple[bytes, ...] = ()
    if queue is not None:
        names = (queue_bytes(queue),)
    elif queues is not None:
        if isinstance(queues, (str, bytes)) or not queues:
            raise BadRequest("queues must be a list of names")
        names = tuple([queue_bytes(name) for name in queues])
    elif prefix is not None:
        names = (prefix if isinstance(prefix, bytes) else prefix.encode(),)
    wait_ns = length(wait, "wait")
    wanted = LeaseRequest(
        names,
        count,
        -(-wait_ns // MILLISECOND),
        0 if lasts is None else length(lasts, "lease"),
        prefix is not None,
        fair,
        take,
        0,
        worker if isinstance(worker, bytes) else worker.encode(),
    )
    fields = {"value_type": Type.BUFFER, "value": encode_lease_request(wanted)}
    return make_call(Function.LEASE, _read_leases, fields, wait_ns / SECOND)


def _read_leases(reply: Reply) -> list[Lease]:
    return [decode_leased(pair) for pair in reply.pairs]


def complete(job_id: bytes, token: int | None, result: bytes | None) -> Call:
    """The work is done."""
    if len(job_id) != 16:
        raise BadRequest("an id has 16 bytes")
    if result is None and 0 <= (token or 0) <= 0xFFFFFFFF:
        data = _DONE(b"FJ", 1, Function.DONE, 1, BY_ID, 0, token or 0, 16, job_id)
    else:
        data = encode_request(
            Function.DONE, 1, flags=BY_ID, key=job_id, ttl=token or 0, value_type=Type.BUFFER,
            value=result or b"",
        )  # fmt: skip
    return Call(data, nothing, 0.0, True, True, _quick_done)


_DONE = struct.Struct(">2sHHHHQIB16s").pack


def settle(items: Sequence[Settle]) -> Call:
    """Settle many leases."""
    fields = {"value_type": Type.BUFFER, "value": encode_settle(items)}
    return make_call(Function.SETTLE, _read_settled, fields)


def complete_many(
    finished: Iterable[tuple[bytes, int | None, bytes | None]],
) -> list[Settle]:
    """The items of `settle` for finished jobs."""
    new = tuple.__new__
    return [
        new(Settle, (Action.COMPLETE, job_id, token or 0, None, b"", result))
        for job_id, token, result in finished
    ]


def _read_settled(reply: Reply) -> list[SettleOutcome]:
    return decode_settle_outcomes(value_of(reply))


def one_settled(outcomes: list[SettleOutcome]) -> SettleOutcome:
    """The only outcome, or its error raised."""
    if len(outcomes) != 1:
        raise ProtocolError("one outcome was expected")
    if outcomes[0].outcome == REFUSED:
        raise error_from(outcomes[0].error)
    return outcomes[0]


def fail(job_id: bytes, token: int | None, reason: bytes, delay: Length | None) -> Call:
    """The work failed."""
    wait = None if delay is None else length(delay, "delay")
    item = Settle(Action.FAIL, job_id, token or 0, wait, b"", reason)
    return settle([item])._replace(read=_read_failed)


def _read_failed(reply: Reply) -> State:
    outcome = one_settled(_read_settled(reply)).outcome
    if outcome == Settling.WAITING:
        return State.WAITING
    return State.FAILED if outcome == Settling.DEAD else State.DELETED


def touch(job_id: bytes, token: int, extend: Length | None) -> Call:
    """Keep a lease."""
    lasts = None if extend is None else length(extend, "extend")
    item = Settle(Action.TOUCH, job_id, token, lasts)
    return settle([item])._replace(read=lambda reply: one_settled(_read_settled(reply)).instant)


def release(job_id: bytes, token: int, delay: Length | None) -> Call:
    """Give a job back."""
    wait = None if delay is None else length(delay, "delay")
    item = Settle(Action.RELEASE, job_id, token, wait)
    return settle([item])._replace(read=_read_released)


def _read_released(reply: Reply) -> None:
    one_settled(_read_settled(reply))


def result(job_id: bytes, wait: Length) -> Call:
    """Wait for a result."""
    wait_ns = length(wait, "wait")
    fields = {
        "flags": BY_ID, "key": job_id, "ttl": 0, "value_type": Type.INTEGER,
        "value": encode_integer(-(-wait_ns // MILLISECOND)),
    }  # fmt: skip
    return make_call(Function.RESULT, _read_result, fields, wait_ns / SECOND)


def _read_result(reply: Reply) -> tuple[bool, bytes]:
    value = value_of(reply)
    return value[:1] == b"\1", value[1:]


def persistent(call: Call) -> Call:
    """The same, answered when it is on stable storage."""
    data = call.data
    flags = int.from_bytes(data[8:10], "big") | PERSIST
    return call._replace(data=data[:8] + flags.to_bytes(2, "big") + data[10:])


def read(call: Call, reply: Reply, *, repeated: bool = False) -> Any:
    """The value of a reply, or its error raised."""
    if reply.error:
        error = error_from(reply.error)
        if repeated and call.settles and isinstance(error, NotFound):
            return None
        raise error
    return call.read(reply)


def nothing(_: Reply) -> None:
    """For calls that only say that it was done."""
    return


def value_of(reply: Reply) -> bytes:
    """The value of the only pair."""
    if not reply.pairs:
        raise ProtocolError("the reply has no value")
    return reply.pairs[0].value
