"""Calls of consumers: lease, and what ends or keeps a lease.

Rules: those of `calls`, and

1. A lease whose answer was lost is lost until it ends by itself. What settles a lease says when it
   is sent again; the daemon then answers as it did the first time, to the holder of the token only.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Final

from mypy_extensions import i64

from fastjournal.arguments import (
    JobId,
    id_bytes,
    length,
    queue_bytes,
    result_bytes,
    schema_number,
    token_number,
    worker_bytes,
)
from fastjournal.buffers import BytesWriter
from fastjournal.client.calls import Call, nothing, value_of
from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.errors import (
    AlreadyExists,
    BadRequest,
    LeaseLost,
    NotFound,
    ProtocolError,
)
from fastjournal.model import Lease, State, Unchecked
from fastjournal.wire.fj.bulk import (
    REFUSED,
    Action,
    LeaseRequest,
    Settle,
    SettleOutcome,
    Settling,
    decode_settle_outcomes,
    encode_lease_request,
    encode_settle,
)
from fastjournal.wire.fj.fields import (
    encode_integer,
    put_u32,
    value_class,
    write_key,
    write_value_head,
)
from fastjournal.wire.fj.functions import BY_ID, VALUE_SHIFT, Function, Type
from fastjournal.wire.fj.job_codec import decode_leased
from fastjournal.wire.fj.replies import Reply, error_from
from fastjournal.wire.fj.requests import encode_request, write_request_head

__all__ = [
    "complete",
    "complete_many",
    "fail",
    "give_back",
    "kept",
    "lease",
    "release",
    "result",
    "settle",
    "touch",
    "touch_many",
]


def lease(
    count: Any,
    queue: Any,
    queues: Any,
    prefix: Any,
    wait: Any,
    lasts: Any,
    fair: bool,
    worker: Any,
    take: bool,
    schema: Any = None,
) -> Call:
    """Lease up to `count` jobs; a consumer asks the same again and again, so it is kept."""
    if type(count) is not int:
        raise BadRequest(f"count must be 1..65535, not {count!r}")
    version = -1 if schema is None else schema_number(schema)
    names = None if queues is None or isinstance(queues, (str, bytes)) else tuple(queues)
    asked = (count, queue, names or queues, prefix, wait, lasts, fair, worker, take, version)
    try:
        kept: Call = _lease(*asked)
    except TypeError:  # something that cannot be looked up
        return _new_lease(*asked)
    return kept


def _new_lease(
    count: int,
    queue: Any,
    queues: Any,
    prefix: Any,
    wait: Any,
    lasts: Any,
    fair: bool,
    worker: Any,
    take: bool,
    version: int,
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
        names = (worker_bytes(prefix),)
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
        worker_bytes(worker) if worker else b"",
        version,
    )
    data = encode_request(
        Function.LEASE, 1, value_type=Type.BUFFER, value=encode_lease_request(wanted)
    )
    return Call(data, _read_leases, wait_ns / SECOND)


_lease: Final[Any] = functools.lru_cache(256)(_new_lease)


def _read_leases(reply: Reply) -> list[Lease]:
    return [decode_leased(pair) for pair in reply.pairs]


def give_back(call: Call, reply: Reply) -> Call | None:
    """What gives back the jobs in a reply that nobody wants any more; None: there are none."""
    if call.read is not _read_leases or reply.error or not reply.pairs:
        return None
    return settle(
        [Settle(Action.RELEASE, lease.job.id, lease.token) for lease in _read_leases(reply)]
    )


def _token(token: Any) -> int:
    """A token as messages have it; 0: the caller has none."""
    number = token_number(token)
    if number is None:
        return 0
    return number if 0 < number < _OF_NO_LEASE else _OF_NO_LEASE


def complete(job_id: Any, token: Any, result: Any) -> Call:
    """The work is done."""
    row_id = id_bytes(job_id)
    number = _token(token)
    value = _kept_result(result)
    size: i64 = 0
    width: i64 = 0
    flags: i64 = BY_ID
    if value is not None:
        size = len(value) + 1
        width = value_class(size)
        flags |= width << VALUE_SHIFT
    out = BytesWriter()
    write_request_head(out, _DONE, 1, flags, 0)
    put_u32(out, number)
    write_key(out, row_id, False)
    if value is not None:
        write_value_head(out, width, size, _BUFFER)
        out.write(value)
    return Call(out.getvalue(), nothing)


_DONE: Final = 12
_BUFFER: Final = 1
_OF_NO_LEASE: Final = 0xFFFF_FFFF  # no job is leased so often


def settle(items: Sequence[Settle]) -> Call:
    """Settle many leases."""
    data = encode_request(Function.SETTLE, 1, value_type=Type.BUFFER, value=encode_settle(items))
    return Call(data, _read_settled)


def complete_many(
    finished: Iterable[tuple[JobId, int | Unchecked | None, bytes | Unchecked | None]],
) -> list[Settle]:
    """The items of `settle` for finished jobs."""
    return [
        Settle(Action.COMPLETE, id_bytes(job_id), _token(token), None, b"", _kept_result(result))
        for job_id, token, result in finished
    ]


def _kept_result(result: Any) -> bytes | None:
    return None if result is None else result_bytes(result)


def touch_many(leases: Iterable[tuple[JobId, int | Unchecked]], extend: Any) -> list[Settle]:
    """The items of `settle` for leases to be kept."""
    lasts = None if extend is None else length(extend, "extend")
    return [
        Settle(Action.TOUCH, id_bytes(job_id), _token(token), lasts) for job_id, token in leases
    ]


def kept(outcomes: Iterable[SettleOutcome]) -> list[bool]:
    """Which of the touched leases are still ours; what is no question of the lease is raised."""
    found = []
    for outcome in outcomes:
        error = error_from(outcome.error) if outcome.outcome == REFUSED else None
        if error is not None and not isinstance(error, (LeaseLost, NotFound, AlreadyExists)):
            raise error
        found.append(error is None)
    return found


def _read_settled(reply: Reply) -> list[SettleOutcome]:
    return decode_settle_outcomes(value_of(reply))


def one_settled(outcomes: list[SettleOutcome]) -> SettleOutcome:
    """The only outcome, or its error raised."""
    if len(outcomes) != 1:
        raise ProtocolError("one outcome was expected")
    if outcomes[0].outcome == REFUSED:
        raise error_from(outcomes[0].error)
    return outcomes[0]


def fail(job_id: Any, token: Any, reason: Any, delay: Any) -> Call:
    """The work failed."""
    wait = None if delay is None else length(delay, "delay")
    item = Settle(Action.FAIL, id_bytes(job_id), _token(token), wait, b"", result_bytes(reason))
    return settle([item]).read_by(_read_failed)


def _read_failed(reply: Reply) -> State:
    outcome = one_settled(_read_settled(reply)).outcome
    if outcome == Settling.WAITING:
        return State.WAITING
    return State.FAILED if outcome == Settling.DEAD else State.DELETED


def touch(job_id: Any, token: Any, extend: Any) -> Call:
    """Keep a lease."""
    lasts = None if extend is None else length(extend, "extend")
    item = Settle(Action.TOUCH, id_bytes(job_id), _token(token), lasts)
    return settle([item]).read_by(_read_touched)


def _read_touched(reply: Reply) -> int:
    return one_settled(_read_settled(reply)).instant


def release(job_id: Any, token: Any, delay: Any) -> Call:
    """Give a job back."""
    wait = None if delay is None else length(delay, "delay")
    item = Settle(Action.RELEASE, id_bytes(job_id), _token(token), wait)
    return settle([item]).read_by(_read_released)


def _read_released(reply: Reply) -> None:
    one_settled(_read_settled(reply))


def result(job_id: Any, wait: Any) -> Call:
    """Wait for a result."""
    wait_ns = length(wait, "wait")
    data = encode_request(
        Function.RESULT, 1, flags=BY_ID, key=id_bytes(job_id), ttl=0, value_type=Type.INTEGER,
        value=encode_integer(-(-wait_ns // MILLISECOND)),
    )  # fmt: skip
    return Call(data, _read_result, wait_ns / SECOND)


def _read_result(reply: Reply) -> tuple[bool, bytes]:
    value = value_of(reply)
    return value[:1] == b"\1", value[1:]
