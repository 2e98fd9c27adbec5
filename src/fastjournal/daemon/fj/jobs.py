"""Functions on jobs: SET of a job, PUTS, FORWARD; NEXT, LEASE, and what ends or prolongs a lease.

Rules: those of `dispatch`, and

1. A put that is sent again (bit 4) and whose job has come to its end meanwhile is not a new job: it
   is answered like one whose id is there, STALE, as long as the state remembers the end.
2. A job is named by its id, or by its key: of several rows of a key the one is meant that fits.
3. A reply never holds many more bytes of user data than were asked for, however many jobs there
   are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from fastjournal.clock import MILLISECOND
from fastjournal.daemon.session import KEY, Session, Subject, Waiter
from fastjournal.errors import (
    BadFunction,
    JournalError,
    NotFound,
    OutOfRange,
    RequestError,
    TimedOut,
    Unauthorized,
)
from fastjournal.journal.decide.jobs import Deleted
from fastjournal.journal.language.commands import End
from fastjournal.journal.look.inspection import result_of
from fastjournal.journal.state.row import Row, lease_of
from fastjournal.keys import domain
from fastjournal.model import MAX_INSTANT, Lease, NewJob, Outcome, State, Where
from fastjournal.wire.fj.bulk import (
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
from fastjournal.wire.fj.error_text import error_text
from fastjournal.wire.fj.forward import Forwarded, decode_forward, encode_forwarded
from fastjournal.wire.fj.frames import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    AGAIN,
    DATA,
    EXTENDED,
    LENGTH,
    LISTEN,
    OVERWRITE,
    QUERY_BITS,
    STALE,
    WORKED_ON,
    Type,
)
from fastjournal.wire.fj.job_codec import JobPut, decode_job, decode_jobs
from fastjournal.wire.fj.lease_codec import encode_leased, short_of
from fastjournal.wire.fj.replies import Pair, encode_ok, encode_reply
from fastjournal.wire.fj.requests import Request

__all__ = [
    "check_may_delete",
    "deadline_of",
    "delete",
    "delete_everywhere",
    "done",
    "fail",
    "forward",
    "get",
    "lease_many",
    "named_row",
    "next_job",
    "puts",
    "release",
    "result",
    "set_job",
    "settle",
    "touch",
]

_CHUNK = 16
"""Jobs leased between two looks at the size of the reply: at most so many MiB too much."""
_MAX_WAIT = 24 * 3600 * 1000  # ms


def set_job(session: Session, request: Request, now: int) -> bytes:
    """Put one job; layout 2 is answered with its outcome and id."""
    put = decode_job(request.value, request.key, request.timestamp)
    if request.timeout is not None and not put.expires:
        put = put._replace(expires=deadline_of(request, now))
    if request.ttl and not put.ttl:
        put = put._replace(ttl=request.ttl * 1000 * MILLISECOND)
    job_id, outcome = _put(session, _new_job(session, put, now), request, now)
    if request.flags & LISTEN and put.key:
        session.listen(Subject(KEY, put.key), request.identifier)
    flags = session.stable | (STALE if outcome is Outcome.STALE else 0)
    if request.value[0] == 1:
        return encode_ok(request.identifier, now, flags)
    return encode_put_reply(request.identifier, now, outcome, job_id, flags)


def _new_job(session: Session, put: JobPut, now: int) -> NewJob:
    if put.timestamp and session.ahead:
        put = put._replace(timestamp=session.stamp(put.timestamp))
    return put.new_job(now, domain(put.key) if put.key and not put.queue else b"")


def _put(session: Session, job: NewJob, request: Request, now: int) -> tuple[bytes, Outcome]:
    if request.flags & AGAIN and job.id and session.state.endings.of_job(job.id):
        return job.id, Outcome.STALE
    return session.operations.put(job, now)


def puts(session: Session, request: Request, now: int) -> bytes:
    """Put many jobs; each has an outcome of its own."""
    if not session.engine.reserve.held:
        session.engine.reserve.check()
    outcomes = []
    for put in decode_jobs(request.value, request.timestamp):
        try:
            job_id, outcome = _put(session, _new_job(session, put, now), request, now)
            outcomes.append(PutOutcome(outcome, job_id))
        except JournalError as error:
            outcomes.append(PutOutcome(REFUSED, error=error_text(error)))
    pair = Pair(b"", Type.BUFFER, encode_put_outcomes(outcomes))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def forward(session: Session, request: Request, now: int) -> bytes:
    """Take jobs of a spool in, each of them once."""
    marks, jobs, forget = decode_forward(request.value, now, request.key)
    operations = session.operations
    owner = session.owner
    if session.ahead:
        jobs = [job._replace(timestamp=session.stamp(job.timestamp)) for job in jobs]
    if forget:
        operations.forget_sender(request.key, owner)
        outcome = Forwarded(0)
    else:
        taken = operations.put_from(
            request.key, zip(marks, jobs, strict=True), now, decoded=True, owner=owner
        )
        errors = tuple([(mark, error_text(error)) for mark, error in taken.refused])
        outcome = Forwarded(taken.mark, *taken.outcomes, len(errors), taken.repeated, errors)
    pair = Pair(b"", Type.BUFFER, encode_forwarded(outcome))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def next_job(session: Session, request: Request, now: int) -> bytes:
    """Lease one job."""
    length = 0
    if request.timeout is not None:
        length = deadline_of(request, now) - now
        if length <= 0:
            raise OutOfRange("the lease would end in the past")
    where = Where((request.key,)) if request.key else Where()
    wait = _wait_of(request)
    reply = _ask_next(session, request, where, length, _no_wait(session, wait), now)
    if reply:
        return reply
    ask = functools.partial(_ask_next, session, request, where, length)
    return _ask_later(session, request, ask, wait, where=where)


def _ask_next(
    session: Session, request: Request, where: Where, length: int, last: bool, now: int
) -> bytes:
    take = request.flags & OVERWRITE != 0
    leases, due = _lease(session, where, 1, length, take, True, session.name, last, now)
    if leases:
        lease = leases[0]
        pair = encode_leased(lease) if request.flags & EXTENDED else short_of(lease)
        return encode_reply(
            request.identifier,
            now,
            flags=session.stable | DATA,
            timeout=lease.until or None,
            pairs=(pair,),
        )
    if not last or session.engine.holds_back():
        return b""
    return encode_reply(request.identifier, now, timeout=due or None)


def lease_many(session: Session, request: Request, now: int) -> bytes:
    """Lease up to n jobs."""
    wanted, where = _wanted_of(request.value)
    reply = _ask_many(session, request, wanted, where, _no_wait(session, wanted.wait_ms), now)
    if reply:
        return reply
    ask = functools.partial(_ask_many, session, request, wanted, where)
    return _ask_later(session, request, ask, wanted.wait_ms, where=where)


@functools.lru_cache(1024)
def _wanted_of(value: bytes) -> tuple[LeaseRequest, Where]:
    """What a LEASE asks for; consumers ask the same again and again."""
    wanted = decode_lease_request(value)
    return wanted, Where(prefix=wanted.queues[0]) if wanted.prefix else Where(wanted.queues)


def _ask_many(
    session: Session,
    request: Request,
    wanted: LeaseRequest,
    where: Where,
    last: bool,
    now: int,
) -> bytes:
    _, limit, _, length, _, fair, take, max_bytes, worker = wanted
    worker = worker or session.name
    leases, due = _lease(session, where, min(limit, _CHUNK), length, take, fair, worker, last, now)
    if len(leases) == _CHUNK < limit:
        most = session.max_message() - 65_536
        if max_bytes:
            most = min(most, max_bytes)
        size = sum([len(lease[0][3]) for lease in leases])
        lease_more = session.operations.lease
        while len(leases) < limit and size < most:
            count = min(limit - len(leases), _CHUNK)
            got = lease_more(where, count, worker, length, fair, take).leases
            leases += got
            size += sum([len(lease[0][3]) for lease in got])
            if len(got) < count:
                break
    if leases:
        pairs = [encode_leased(lease) for lease in leases]
        flags = session.stable | DATA
        return encode_reply(request.identifier, now, flags=flags, pairs=pairs, several=True)
    if not last or session.engine.holds_back():
        return b""
    return encode_reply(request.identifier, now, timeout=due or None, several=True)


def _lease(
    session: Session,
    where: Where,
    count: int,
    length: int,
    take: bool,
    fair: bool,
    worker: bytes,
    last: bool,
    now: int,
) -> tuple[list[Lease], int]:
    """Lease; a consumer that waits passes over "nothing but slow ones" by asking once more."""
    lease = session.operations.lease
    leases, due = lease(where, count, worker, length, fair, take)
    if not leases and not last and 0 < due <= now:
        leases, due = lease(where, count, worker, length, fair, take)
    return leases, due


def done(session: Session, request: Request, now: int) -> bytes:
    """Complete a job."""
    flags = request[2]
    if flags & EXTENDED:
        result = None if request[9] is None else request[10]
        try:
            session.operations.complete(request[7], request[6] or None, result)
        except RequestError:
            if not flags & AGAIN or _repeated(session, _COMPLETE, request[7], request[6]) is None:
                raise
    else:
        row = _find_row(session, request, leased=True)
        session.operations.complete(row.id, request.token, None)
    return encode_ok(request[1], now, session.stable)


def fail(session: Session, request: Request, now: int) -> bytes:
    """Fail a job."""
    row = _find_row(session, request, leased=True)
    state = session.operations.fail(row.id, request.token, request.value)
    outcome = _after_failure(session, row.id, state)
    pair = Pair(b"", Type.BUFFER, encode_settle_outcomes([outcome]))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def _after_failure(session: Session, job_id: bytes, state: State) -> SettleOutcome:
    if state is State.WAITING:
        return SettleOutcome(Settling.WAITING, session.state.rows[job_id].due)
    return SettleOutcome(Settling.DEAD if state is State.FAILED else Settling.DONE)


def touch(session: Session, request: Request, now: int) -> bytes:
    """Prolong a lease."""
    row = _find_row(session, request, leased=True)
    length = 0
    if request.timeout is not None:
        length = request.timeout - now
        if length <= 0:
            raise OutOfRange("the lease would end in the past")
    elif request.value_type is not None:
        length = max(0, decode_integer(request.value)) * MILLISECOND
    until = session.operations.touch(row.id, _token(request, row), length)
    return encode_reply(request.identifier, now, flags=session.stable, timeout=until)


def release(session: Session, request: Request, now: int) -> bytes:
    """Give a job back."""
    row = _find_row(session, request, leased=True)
    delay = 0 if request.value_type is None else decode_integer(request.value) * MILLISECOND
    session.operations.release(row.id, _token(request, row), delay)
    return encode_ok(request.identifier, now, session.stable)


def _token(request: Request, row: Row) -> int:
    """The token given; a client that named the job by its key may give none."""
    return request.token or (0 if request.by_id else row.attempts)


def settle(session: Session, request: Request, now: int) -> bytes:
    """End or prolong many leases."""
    items = decode_settle(request.value)
    again = request.flags & AGAIN
    outcomes = [_settled(session, item, again) for item in items]
    pair = Pair(b"", Type.BUFFER, encode_settle_outcomes(outcomes))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def _settled(session: Session, item: Settle, again: int) -> SettleOutcome:
    try:
        return _settle_one(session, item)
    except JournalError as error:
        same = _repeated(session, item.action, item.id, item.token) if again else None
        return same or SettleOutcome(REFUSED, error=error_text(error))


def _repeated(
    session: Session, action: int, job_id: bytes, token: int | None
) -> SettleOutcome | None:
    """What became of this very request the first time; None: it did not happen, or long ago.

    Nobody but the holder of the token is told so: who lost the lease meanwhile stays refused.
    """
    if not token:
        return None
    row = session.state.rows.get(job_id)
    mine = row if row is not None and row.attempts == token else None
    if mine is not None and mine.state is State.COMPLETED:
        return _SETTLED if action == _COMPLETE else None
    end = session.state.endings.of_lease(job_id, token)
    outcome = None if end is None else _OUTCOMES.get((action, end))
    if outcome is Settling.WAITING and mine is not None and mine.state is State.WAITING:
        return SettleOutcome(outcome, mine.due)
    return None if outcome is None else SettleOutcome(outcome)


_SETTLED = SettleOutcome(Settling.DONE)
# Looking a member up in its enumeration costs more than the comparison.
_COMPLETE, _FAIL, _RELEASE = int(Action.COMPLETE), int(Action.FAIL), int(Action.RELEASE)
_OUTCOMES = {
    (_COMPLETE, End.DONE): Settling.DONE,
    (_FAIL, End.DEAD): Settling.DEAD,
    (_FAIL, End.RETRIED): Settling.WAITING,
    (_FAIL, End.DROPPED): Settling.DONE,
    (_RELEASE, End.RETURNED): Settling.WAITING,
    (_RELEASE, End.LEFT): Settling.DONE,
}
"""What was answered to an action that ended a lease so."""


def _settle_one(session: Session, item: Settle) -> SettleOutcome:
    action, job_id, token, argument, key, result = item
    operations = session.operations
    row: Row | None = None
    if key:
        row = named_row(session, b"", key, leased=True)
        job_id = row.id
    if action == _COMPLETE:
        operations.complete(job_id, token or None, result)
        return _SETTLED
    if action == _FAIL:
        state = operations.fail(job_id, token or None, result or b"", argument)
        return _after_failure(session, job_id, state)
    if not token and row is not None:
        token = row.attempts
    if action == _RELEASE:
        operations.release(job_id, token, argument or 0)
        row = session.state.rows.get(job_id)
        return _SETTLED if row is None else SettleOutcome(Settling.WAITING, row.due)
    return SettleOutcome(Settling.EXTENDED, operations.touch(job_id, token, argument or 0))


def check_may_delete(session: Session) -> None:
    """Whoever only produces may delete entries, not the jobs of others."""
    if not session.may_take:
        session.deny("role does not allow DELETE of a job")
        raise Unauthorized("the token does not allow deleting jobs")


def delete(session: Session, request: Request, now: int) -> bytes:
    """Remove jobs by id or by key."""
    check_may_delete(session)
    operations = session.operations
    timestamp, purge = session.stamp(request.timestamp), request.flags & OVERWRITE != 0
    if request.by_id:
        deleted = operations.delete(request.key, timestamp, purge=purge)
    elif request.value:
        deleted = operations.delete_key(request.value, request.key, timestamp, purge=purge)
    else:
        deleted = delete_everywhere(session, request)
    # D-20: a missing key is a success with count 0, an existing one with count 1.
    pair = Pair(b"", Type.INTEGER, encode_integer(deleted.found))
    flags = session.stable | (STALE if deleted.stale else 0)
    return encode_reply(request.identifier, now, flags=flags, pairs=(pair,))


def delete_everywhere(session: Session, request: Request) -> Deleted:
    """Remove the jobs of a key in all queues."""
    stamp = session.stamp(request.timestamp)
    purge = request.flags & OVERWRITE != 0
    return session.operations.delete_everywhere(request.key, stamp, purge=purge)


def get(session: Session, request: Request, now: int) -> bytes:
    """Read one job by its key."""
    if request.flags & QUERY_BITS or request.timeout is not None:
        raise BadFunction("GET serves one job by its key here")
    row = named_row(session, b"", request.key, leased=False)
    session.engine.load(row)
    pair = short_of(lease_of(row))
    working = WORKED_ON if row.state is State.PROCESSING else 0
    if request.flags & WORKED_ON and working:
        raise NotFound("the job is being worked on")
    value = pair.value if request.flags & DATA else b""
    pair = Pair(b"", pair.type, value, row.expires if request.flags & EXTENDED else None)
    flags = working | request.flags & DATA
    return encode_reply(
        request.identifier, row.modified, flags=flags, timeout=row.expires or None, pairs=(pair,)
    )


def result(session: Session, request: Request, now: int) -> bytes:
    """Wait for the result of a job."""
    if request.by_id and request.key not in session.state.rows:
        row_id = request.key  # it may be gone because it is done
    else:
        row_id = _find_row(session, request).id
    wait = _wait_of(request)
    reply = _ask_result(session, request, row_id, _no_wait(session, wait), now)
    if reply:
        return reply
    ask = functools.partial(_ask_result, session, request, row_id)
    return _ask_later(session, request, ask, wait, row_id=row_id)


def _ask_result(session: Session, request: Request, job_id: bytes, last: bool, now: int) -> bytes:
    found = result_of(session.state, job_id, now)
    if found is not None:
        pair = Pair(b"", Type.BUFFER, bytes((found[0],)) + found[1])
        return encode_reply(request.identifier, now, flags=DATA, pairs=(pair,))
    if last:
        raise TimedOut("the job is not finished")
    return b""


def _no_wait(session: Session, wait_ms: int) -> bool:
    """Whether a request must be answered at once."""
    if wait_ms > _MAX_WAIT:
        raise OutOfRange(f"a wait of {wait_ms} ms is longer than a day")
    return not wait_ms or session.leaving


def _ask_later(
    session: Session,
    request: Request,
    ask: Callable[[bool, int], bytes],
    wait_ms: int,
    *,
    where: Where | None = None,
    row_id: bytes | None = None,
) -> bytes:
    """Let a request wait; `ask` is told whether it is the last time, and what the time is."""

    def retry(waiter: Waiter, now: int) -> bool:
        reply = ask(waiter.expired, now)
        session.out.write(reply)
        return bool(reply)

    waiter = Waiter(session, request.identifier, retry, where, row_id)
    session.wait(waiter, wait_ms / 1000)
    return b""


def deadline_of(request: Request, now: int) -> int:
    """When what a request asks for is to end; 0: it does not say."""
    if request.timeout is None:
        return 0
    if request.flags & LENGTH:
        return min(now + request.timeout, MAX_INSTANT)
    return request.timeout


def _wait_of(request: Request) -> int:
    """How long a request is ready to wait, ms."""
    if request.value_type is None:
        return 0
    wait = decode_integer(request.value)
    if wait < 0:
        raise OutOfRange("a wait cannot be negative")
    return wait


def _find_row(session: Session, request: Request, *, leased: bool = False) -> Row:
    """The job that a request names by id or by key."""
    return named_row(session, request.key if request.by_id else b"", request.key, leased=leased)


def named_row(
    session: Session, job_id: bytes, key: bytes, *, leased: bool, queue: bytes = b""
) -> Row:
    """The job of this id, or else of this key."""
    state = session.state
    if job_id:
        row = state.rows.get(job_id)
    else:
        rows = state.keys.find(queue, key) if queue else state.keys.everywhere(key)
        found = [row for row in rows if row.queue.name]
        wanted = State.PROCESSING if leased else State.WAITING
        found.sort(key=lambda row: (row.state is not wanted, row.state, row.queue.name))
        row = found[0] if found else None
    if row is None or row.state is State.DELETED:
        raise NotFound(f"no job {(job_id.hex() if job_id else key[:80])!r}")
    return row
