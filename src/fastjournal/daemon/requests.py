"""The functions of the FJ protocol, carried out on a journal: a request in, the reply out.

Rules:

1. Every handler runs under the journal's lock inside a batch and waits for nothing. Empty bytes
   mean: answered later.
2. A `JournalError` becomes the reply; the handler has then changed nothing.
3. A bulk request has one outcome per item; a refused item does not stop the others.
4. Bit 9 of a reply is set by the connection's `stable`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from fastjournal.clock import MILLISECOND
from fastjournal.daemon.waiters import Waiter
from fastjournal.errors import (
    BadFunction,
    BadRequest,
    JournalError,
    NotFound,
    OutOfRange,
    TimedOut,
)
from fastjournal.journal.rows import Row, job_of, lease_of
from fastjournal.keys import domain
from fastjournal.model import Lease, NewJob, Outcome, State, Where
from fastjournal.wire.bulk import (
    REFUSED,
    Action,
    LeaseRequest,
    PutOutcome,
    Settle,
    SettleOutcome,
    Settling,
    decode_lease_request,
    decode_settle,
    encode_put_outcomes,
    encode_put_reply,
    encode_settle_outcomes,
)
from fastjournal.wire.errortext import error_text
from fastjournal.wire.fj import (
    Pair,
    Request,
    decode_integer,
    encode_integer,
    encode_ok,
    encode_reply,
)
from fastjournal.wire.forward import Forwarded, decode_forward, encode_forwarded
from fastjournal.wire.functions import (
    DATA,
    EXTENDED,
    OVERWRITE,
    QUERY_BITS,
    STALE,
    WORKED_ON,
    Function,
    Type,
)
from fastjournal.wire.functions import LISTEN as LISTEN_BIT
from fastjournal.wire.jobvalue import (
    JobPut,
    decode_job,
    decode_jobs,
    encode_leased,
    short_of,
)
from fastjournal.wire.pictures import dump, job_to_json, load, queue_to_json

if TYPE_CHECKING:
    from fastjournal.daemon.fj import FjConnection

__all__ = ["HANDLERS", "Handler", "reserved"]

Handler = Callable[["FjConnection", Request, int], bytes]

_MAX_WAIT = 24 * 3600 * 1000  # ms
_CHUNK = 16
"""Jobs leased between two looks at the size of the reply: at most so many MiB too much."""


def _nop(session: FjConnection, request: Request, now: int) -> bytes:
    return encode_ok(request[1], now)


def _quit(session: FjConnection, request: Request, now: int) -> bytes:
    session.quit()
    return encode_ok(request[1], now)


def _hello(session: FjConnection, request: Request, now: int) -> bytes:
    return session.hello(request, now)


def _new_job(put: JobPut, now: int) -> NewJob:
    queue = put[0]
    return put.new_job(now, b"" if queue else domain(put[2]) if put[2] else b"")


def _set(session: FjConnection, request: Request, now: int) -> bytes:
    if request[9] != Type.JOB:
        raise BadFunction("entries are not served by this journal")
    put = decode_job(request[10], request[7], request[3])
    if request.timeout is not None and not put.expires:
        put = put._replace(expires=request.timeout)
    if request.ttl and not put.ttl:
        put = put._replace(ttl=request.ttl * 1000 * MILLISECOND)
    job_id, outcome = session.host.operations.put(_new_job(put, now), now)
    if request[2] & LISTEN_BIT and put.key:
        session.server.pushes(session.host).listen(session, False, put.key, request.identifier)
    if request[10][0] == 1:
        stale = STALE if outcome is Outcome.STALE else 0
        return encode_ok(request[1], now, session.stable | stale)
    flags = session.stable | (STALE if outcome is Outcome.STALE else 0)
    return encode_put_reply(request[1], now, outcome, job_id, flags)


def _puts(session: FjConnection, request: Request, now: int) -> bytes:
    put = session.host.operations.put
    outcomes = []
    for job in decode_jobs(request.value, request.timestamp):
        try:
            receipt = put(_new_job(job, now), now)
        except JournalError as error:
            outcomes.append(PutOutcome(REFUSED, error=error_text(error)))
        else:
            outcomes.append(PutOutcome(receipt[1], receipt[0]))
    pair = Pair(b"", Type.BUFFER, encode_put_outcomes(outcomes))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def _forward(session: FjConnection, request: Request, now: int) -> bytes:
    marks, jobs, forget = decode_forward(request.value)
    operations = session.host.operations
    if forget:
        operations.forget_sender(request.key)
        outcome = Forwarded(0)
    else:
        taken = operations.put_from(
            request.key,
            zip(marks, [_new_job(job, now) for job in jobs], strict=True),
            now,
        )
        errors = tuple([(mark, error_text(error)) for mark, error in taken.refused])
        outcome = Forwarded(taken.mark, *taken.outcomes, len(errors), taken.repeated, errors)
    pair = Pair(b"", Type.BUFFER, encode_forwarded(outcome))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def _next(session: FjConnection, request: Request, now: int) -> bytes:
    length = 0
    if request.timeout is not None:
        length = request.timeout - now
        if length <= 0:
            raise OutOfRange("the lease would end in the past")
    where = Where((request.key,)) if request.key else Where()
    waiter = Waiter(
        session.host,
        session,
        request,
        functools.partial(_ask_next, session, request, where, length),
        where=where,
    )
    return _first(session, waiter, _wait_of(request), now)


def _ask_next(
    session: FjConnection, request: Request, where: Where, length: int, waiter: Waiter, now: int
) -> bytes:
    leases, due = _lease(
        session, where, 1, length, request.flags & OVERWRITE != 0, True, session.name, waiter, now
    )
    flags = session.stable | DATA
    if leases:
        lease = leases[0]
        pair = encode_leased(lease) if request.flags & EXTENDED else short_of(lease)
        return encode_reply(
            request.identifier, now, flags=flags, timeout=lease.until or None, pairs=(pair,)
        )
    if not waiter.expired:
        return b""
    return encode_reply(request.identifier, now, timeout=due or None)


def _lease_many(session: FjConnection, request: Request, now: int) -> bytes:
    wanted = decode_lease_request(request.value)
    if wanted.prefix:
        where = Where(prefix=wanted.queues[0])
    else:
        where = Where(wanted.queues)
    waiter = Waiter(
        session.host,
        session,
        request,
        functools.partial(_ask_many, session, request, wanted, where),
        where=where,
    )
    return _first(session, waiter, wanted.wait_ms, now)


def _ask_many(
    session: FjConnection,
    request: Request,
    wanted: LeaseRequest,
    where: Where,
    waiter: Waiter,
    now: int,
) -> bytes:
    most = session.server.wire_limits.max_message - 65_536
    if wanted.max_bytes:
        most = min(most, wanted.max_bytes)
    worker = wanted.worker or session.name
    leases: list[Lease] = []
    size = due = 0
    while len(leases) < wanted.limit and size < most:
        count = min(wanted.limit - len(leases), _CHUNK)
        got, due = _lease(
            session, where, count, wanted.lease, wanted.take, wanted.fair, worker, waiter, now,
            again=not leases,
        )  # fmt: skip
        leases += got
        size += sum([len(lease[0][3]) for lease in got])
        if len(got) < count:
            break
    if leases:
        pairs = [encode_leased(lease) for lease in leases]
        flags = session.stable | DATA
        return encode_reply(request.identifier, now, flags=flags, pairs=pairs, several=True)
    if not waiter.expired:
        return b""
    return encode_reply(request.identifier, now, timeout=due or None, several=True)


def _lease(
    session: FjConnection,
    where: Where,
    count: int,
    length: int,
    take: bool,
    fair: bool,
    worker: bytes,
    waiter: Waiter,
    now: int,
    *,
    again: bool = True,
) -> tuple[list[Lease], int]:
    """Lease; a consumer that waits passes over "nothing but slow ones" by asking once more."""
    lease = session.host.operations.lease
    leases, due = lease(where, count, consumer=worker, length=length, fair=fair, take=take)
    if not leases and again and not waiter.expired and 0 < due <= now:
        leases, due = lease(where, count, consumer=worker, length=length, fair=fair, take=take)
    return leases, due


def _first(session: FjConnection, waiter: Waiter, wait_ms: int, now: int) -> bytes:
    """Ask once; then answer, or wait."""
    if not wait_ms or session.leaving:
        waiter.expired = True
    elif wait_ms > _MAX_WAIT:
        raise OutOfRange(f"a wait of {wait_ms} ms is longer than a day")
    reply = waiter.retry(waiter, now)
    return reply or session.wait(waiter, wait_ms / 1000)


def _wait_of(request: Request) -> int:
    if request.value_type is None:
        return 0
    wait = decode_integer(request.value)
    if wait < 0:
        raise OutOfRange("a wait cannot be negative")
    return wait


def _row(session: FjConnection, request: Request, *, leased: bool = False) -> Row:
    """The job that a request names by id or by key."""
    return _named(session, request.key if request.by_id else b"", request.key, leased=leased)


def _named(
    session: FjConnection, job_id: bytes, key: bytes, *, leased: bool, queue: bytes = b""
) -> Row:
    state = session.host.state
    if job_id:
        row = state.rows.get(job_id)
    else:
        rows = state.keys.find(queue, key) if queue else state.keys.everywhere(key)
        found = [row for row in rows if row.lane.name]
        wanted = State.PROCESSING if leased else State.WAITING
        found.sort(key=lambda row: (row.state is not wanted, row.state, row.lane.name))
        row = found[0] if found else None
    if row is None or row.state is State.DELETED:
        raise NotFound(f"no job {(job_id.hex() if job_id else key[:80])!r}")
    return row


def _done(session: FjConnection, request: Request, now: int) -> bytes:
    flags = request[2]
    if flags & EXTENDED:
        result = None if request[9] is None else request[10]
        session.host.operations.complete(request[7], request[6] or None, result)
    else:
        row = _row(session, request, leased=True)
        session.host.operations.complete(row.id, request.token, None)
    return encode_ok(request[1], now, session.stable)


def _fail(session: FjConnection, request: Request, now: int) -> bytes:
    row = _row(session, request, leased=True)
    state = session.host.operations.fail(row.id, request.token, request.value)
    outcome = _after_failure(session, row.id, state)
    pair = Pair(b"", Type.BUFFER, encode_settle_outcomes([outcome]))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def _after_failure(session: FjConnection, job_id: bytes, state: State) -> SettleOutcome:
    if state is State.WAITING:
        return SettleOutcome(Settling.WAITING, session.host.state.rows[job_id].due)
    return SettleOutcome(Settling.DEAD if state is State.FAILED else Settling.DONE)


def _touch(session: FjConnection, request: Request, now: int) -> bytes:
    row = _row(session, request, leased=True)
    length = 0
    if request.timeout is not None:
        length = request.timeout - now
        if length <= 0:
            raise OutOfRange("the lease would end in the past")
    elif request.value_type is not None:
        length = max(0, decode_integer(request.value)) * MILLISECOND
    until = session.host.operations.touch(row.id, _token(request, row), length)
    return encode_reply(request.identifier, now, flags=session.stable, timeout=until)


def _release(session: FjConnection, request: Request, now: int) -> bytes:
    row = _row(session, request, leased=True)
    delay = 0 if request.value_type is None else decode_integer(request.value) * MILLISECOND
    session.host.operations.release(row.id, _token(request, row), delay)
    return encode_ok(request.identifier, now, session.stable)


def _token(request: Request, row: Row) -> int:
    """The token given; a client that named the job by its key may give none."""
    return request.token or (0 if request.by_id else row.attempts)


def _settle(session: FjConnection, request: Request, now: int) -> bytes:
    outcomes = []
    for item in decode_settle(request.value):
        try:
            outcomes.append(_settle_one(session, item))
        except JournalError as error:
            outcomes.append(SettleOutcome(REFUSED, error=error_text(error)))
    pair = Pair(b"", Type.BUFFER, encode_settle_outcomes(outcomes))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


_SETTLED = SettleOutcome(Settling.DONE)


def _settle_one(session: FjConnection, item: Settle) -> SettleOutcome:
    action, job_id, token, argument, key, result = item
    operations = session.host.operations
    row: Row | None = None
    if key:
        row = _named(session, b"", key, leased=True)
        job_id = row.id
    if action == Action.COMPLETE:
        operations.complete(job_id, token or None, result)
        return _SETTLED
    if action == Action.FAIL:
        state = operations.fail(job_id, token or None, result or b"", argument)
        return _after_failure(session, job_id, state)
    if not token and row is not None:
        token = row.attempts
    if action == Action.RELEASE:
        operations.release(job_id, token, argument or 0)
        row = session.host.state.rows.get(job_id)
        return _SETTLED if row is None else SettleOutcome(Settling.WAITING, row.due)
    return SettleOutcome(Settling.EXTENDED, operations.touch(job_id, token, argument or 0))


def _delete(session: FjConnection, request: Request, now: int) -> bytes:
    operations, found = session.host.operations, 0
    if request.by_id:
        found += operations.delete(request.key)
    else:
        queue = request.value
        for row in list(session.host.state.keys.everywhere(request.key)):
            name = row.lane.name
            if (name == queue if queue else name) and row.state <= State.PROCESSING:
                found += operations.delete(row.id)
    # D-20: a missing key is a success with count 0, an existing one with count 1.
    pair = Pair(b"", Type.INTEGER, encode_integer(found))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def _get(session: FjConnection, request: Request, now: int) -> bytes:
    if request.flags & QUERY_BITS or request.timeout is not None:
        raise BadFunction("GET serves one job by its key here")
    row = _named(session, b"", request.key, leased=False)
    pair = short_of(lease_of(row))
    working = WORKED_ON if row.state is State.PROCESSING else 0
    if request.flags & WORKED_ON and working:
        raise NotFound("the job is being worked on")
    if not request.flags & DATA:
        pair = pair._replace(value=b"")
    pair = pair._replace(key=b"", expires=row.expires if request.flags & EXTENDED else None)
    flags = working | request.flags & DATA
    return encode_reply(
        request.identifier, row.modified, flags=flags, timeout=row.expires or None, pairs=(pair,)
    )


def _result(session: FjConnection, request: Request, now: int) -> bytes:
    row = _row(session, request)
    waiter = Waiter(
        session.host,
        session,
        request,
        functools.partial(_ask_result, session, request, row.id),
        row_id=row.id,
    )
    return _first(session, waiter, _wait_of(request), now)


def _ask_result(
    session: FjConnection, request: Request, job_id: bytes, waiter: Waiter, now: int
) -> bytes:
    row = session.host.state.rows.get(job_id)
    if row is None or row.state is State.DELETED or 0 < row.expires < now:
        raise NotFound(f"no job {job_id.hex()}")
    if row.state in (State.COMPLETED, State.FAILED):
        value = bytes((row.state is State.COMPLETED,)) + row.rare.result
        pair = Pair(b"", Type.BUFFER, value)
        return encode_reply(request.identifier, now, flags=DATA, pairs=(pair,))
    if waiter.expired:
        raise TimedOut("the job is not finished")
    return b""


def _listen(session: FjConnection, request: Request, now: int) -> bytes:
    if request.flags & QUERY_BITS:
        raise BadFunction("ranges are not served by this journal")
    queue = request.flags & WORKED_ON != 0
    if not queue and not request.key:
        raise BadRequest("LISTEN needs a key, or a queue with bit 6")
    pushes = session.server.pushes(session.host)
    if request.function == Function.LISTEN:
        pushes.listen(session, queue, request.key, request.identifier)
    else:
        pushes.unlisten(session, queue, request.key)
    return encode_ok(request.identifier, now)


def _json(request: Request, value: object, now: int, flags: int = 0) -> bytes:
    pair = Pair(b"", Type.STRING, dump(value))  # type: ignore[arg-type]
    return encode_reply(request.identifier, now, flags=flags | DATA, pairs=(pair,))


def _status(session: FjConnection, request: Request, now: int) -> bytes:
    return _json(request, session.server.status(session.host), now)


def _queue(session: FjConnection, request: Request, now: int) -> bytes:
    changes = load(request.value) if request.value else {}
    if not isinstance(changes, dict):
        raise BadRequest("settings are a JSON object")
    session.host.operations.configure(request.key, changes)
    return _json(request, _queue_picture(session, request.key), now, session.stable)


def _queue_picture(session: FjConnection, name: bytes) -> object:
    if name not in session.host.state.lanes:
        raise NotFound(f"no queue {name!r}")
    return queue_to_json(session.host.journal.queue(name))


def _pause(session: FjConnection, request: Request, now: int) -> bytes:
    changes = _PAUSES.get(request.value or b"pause")
    if changes is None:
        raise BadRequest('PAUSE takes "pause", "drain" or "both"')
    session.host.operations.configure(request.key, changes)
    return encode_ok(request.identifier, now, session.stable)


_PAUSES = {
    b"pause": {"paused": True},
    b"drain": {"draining": True},
    b"both": {"paused": True, "draining": True},
}


def _resume(session: FjConnection, request: Request, now: int) -> bytes:
    session.host.operations.configure(request.key, {"paused": False, "draining": False})
    return encode_ok(request.identifier, now, session.stable)


def _redrive(session: FjConnection, request: Request, now: int) -> bytes:
    operations = session.host.operations
    if request.by_id:
        operations.redrive(request.key)
        count = 1
    else:
        lanes = session.host.state.lanes
        names = [request.key] if request.key else [n for n in lanes if lanes[n].dead]
        count = sum(operations.redrive_queue(name) for name in names)
    pair = Pair(b"", Type.INTEGER, encode_integer(count))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def _inspect(session: FjConnection, request: Request, now: int) -> bytes:
    what, host = request.value, session.host
    if what[:4] in (b"job", b"job "):
        job_id = request.key if request.by_id else b""
        row = _named(session, job_id, request.key, leased=False, queue=what[4:])
        if 0 < row.expires < now:
            raise NotFound("the job has expired")
        return _json(request, job_to_json(job_of(row)), now)
    if what == b"queue":
        return _json(request, _queue_picture(session, request.key), now)
    if what == b"queues":
        return _json(request, [queue_to_json(q) for q in host.journal.queues()], now)
    if what in (b"journal", b"server"):
        return _json(request, session.server.status(host), now)
    raise BadRequest(f"INSPECT does not know {what[:40]!r}")


def _list(session: FjConnection, request: Request, now: int) -> bytes:
    asked = load(request.value) if request.value else {}
    if not isinstance(asked, dict):
        raise BadRequest("LIST takes a JSON object")
    try:
        state = State[asked["state"].upper()] if asked.get("state") else None
        limit, offset = int(asked.get("limit", 100)), int(asked.get("offset", 0))
        prefix = str(asked.get("prefix", "")).encode("utf-8", "surrogateescape")
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadRequest("LIST takes state, prefix, limit, offset and values") from None
    if not 1 <= limit <= 1000 or offset < 0:
        raise OutOfRange("limit must be 1..1000, offset not negative")
    jobs = session.host.journal.jobs(request.key or None, state=state, offset=offset, limit=limit)
    values = bool(asked.get("values", True))
    shown = [job_to_json(job, values=values) for job in jobs if job.key.startswith(prefix)]
    return _json(request, shown, now)


def _maintain(session: FjConnection, request: Request, now: int) -> bytes:
    journal = session.host.journal
    work: dict[bytes, Callable[[], object]] = {
        b"sync": journal.sync,
        b"rotate": journal.rotate,
        b"snapshot": journal.snapshot,
        b"clean": journal.clean,
    }
    task = work.get(request.value)
    if task is None:
        raise BadRequest('MAINTAIN takes "sync", "rotate", "snapshot" or "clean"')
    return session.later(request, task, lambda _, at: encode_ok(request.identifier, at))


def reserved(session: FjConnection, request: Request, now: int) -> bytes:
    """Answers for functions that are not served yet."""
    raise BadFunction(f"{Function(request.function).name} is not served yet")


HANDLERS: dict[int, Handler] = {
    Function.NOP: _nop,
    Function.QUIT: _quit,
    Function.SET: _set,
    Function.GET: _get,
    Function.DELETE: _delete,
    Function.NEXT: _next,
    Function.DONE: _done,
    Function.FAIL: _fail,
    Function.PING: _nop,
    Function.LISTEN: _listen,
    Function.UNLISTEN: _listen,
    Function.HELLO: _hello,
    Function.STATUS: _status,
    Function.PUTS: _puts,
    Function.LEASE: _lease_many,
    Function.SETTLE: _settle,
    Function.TOUCH: _touch,
    Function.RELEASE: _release,
    Function.RESULT: _result,
    Function.FORWARD: _forward,
    Function.QUEUE: _queue,
    Function.PAUSE: _pause,
    Function.RESUME: _resume,
    Function.REDRIVE: _redrive,
    Function.INSPECT: _inspect,
    Function.LIST: _list,
    Function.MAINTAIN: _maintain,
}
"""By number."""
