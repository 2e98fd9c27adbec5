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
from typing import Final, final

from mypy_extensions import i64

from fastjournal.buffers import BytesWriter
from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.daemon.session import KEY, Session, Subject, Waiter
from fastjournal.errors import (
    JournalError,
    NotFound,
    OutOfRange,
    RequestError,
    TimedOut,
    Unauthorized,
    quoted,
)
from fastjournal.journal.decide.operator import Deleted
from fastjournal.journal.entries.locks import NOBODY, Writer
from fastjournal.journal.language.commands import BY_SCHEDULE, FROM_WORKQ, SCHEMA_SHIFT, End
from fastjournal.journal.look.inspection import result_of
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import (
    COMPLETED_ROW,
    PROCESSING_ROW,
    WAITING_ROW,
    Row,
    lease_of,
)
from fastjournal.model import MAX_INSTANT, Outcome, State, Where
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj.bulk import (
    Action,
    Forwarded,
    PutOutcomes,
    SettleOutcomes,
    SettleReader,
    Settling,
    decode_lease_request,
    encode_forwarded,
    read_forward,
    write_put_reply,
)
from fastjournal.wire.fj.fields import decode_integer, encode_integer
from fastjournal.wire.fj.functions import (
    AGAIN,
    DATA,
    EXACT,
    EXTENDED,
    LENGTH,
    LISTEN,
    LOCKED,
    OVERWRITE,
    PERSIST,
    PERSIST_SET,
    STALE,
    TIMEOUT,
    TTL,
    WORKED_ON,
    Type,
)
from fastjournal.wire.fj.job_codec import (
    encode_leased,
    leased_size,
    read_job,
    read_jobs,
    short_of,
    write_lease_head,
    write_leased,
    write_leased_pair,
)
from fastjournal.wire.fj.replies import (
    Pair,
    encode_ok,
    encode_reply,
    error_text,
    write_ok,
    write_reply,
    write_value_reply,
)
from fastjournal.wire.fj.requests import NO_VALUE, FrameReader, Request

__all__ = [
    "check_may_delete",
    "deadline",
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

_LASTS: Final[i64] = PERSIST | PERSIST_SET
_CHUNK: Final[i64] = 16
"""Jobs leased between two looks at the size of the reply: at most so many MiB too much."""
_MAX_WAIT: Final = 24 * 3600 * 1000  # ms
_REMEMBERED: Final = 1024  # questions
_LETTERS: Final[list[i64]] = [ord(state.letter) for state in State]
_BUFFER: Final[i64] = int(Type.BUFFER)
_INTEGER: Final[i64] = int(Type.INTEGER)
_STALE: Final[i64] = int(Outcome.STALE)
_COMPLETE: Final[i64] = int(Action.COMPLETE)
_FAIL: Final[i64] = int(Action.FAIL)
_RELEASE: Final[i64] = int(Action.RELEASE)
_DONE: Final[i64] = int(Settling.DONE)
_WAITING: Final[i64] = int(Settling.WAITING)
_DEAD: Final[i64] = int(Settling.DEAD)
_EXTENDED: Final[i64] = int(Settling.EXTENDED)


def set_job(session: Session, frame: FrameReader, now: i64) -> None:
    """Put one job; layout 2 is answered with its outcome and id."""
    job = read_job(frame.data, frame.at, frame.end, frame.key, frame.timestamp, now)
    asked = frame.flags
    if asked & TIMEOUT and not job.expires:
        job.expires = deadline(frame, now)
    if asked & TTL and not job.ttl:
        job.ttl = frame.ttl * SECOND
    outcome = _put(session, job, asked, now)
    if asked & LISTEN and job.key:
        session.listen(Subject(KEY, job.key), int(frame.identifier))
    flags = session.stable
    if outcome == _STALE:
        flags |= STALE
    if frame.data[frame.at] == 1:
        write_ok(session.out, frame.identifier, now, flags)
    else:
        write_put_reply(session.out, frame.identifier, now, outcome, session.placed_id, flags)


def _put(session: Session, job: PutRequest, asked: i64, now: i64) -> i64:
    """Put a job; its id is the session's `placed_id`."""
    if session.ahead:
        job.timestamp = session.stamp(job.timestamp)
    if asked & AGAIN and job.id and session.state.endings.of_job(job.id):
        session.placed_id = job.id
        return _STALE
    operations = session.operations
    job.persist = asked & _LASTS != 0
    by = session.writer() if len(session.engine.locks) else NOBODY
    outcome = operations.put(job, now, by)
    session.placed_id = operations.placed_id
    if not operations.is_kept():
        session.promise(0)  # no sync brings it to stable storage
    return outcome


def puts(session: Session, frame: FrameReader, now: i64) -> None:
    """Put many jobs; each has an outcome of its own, and a refused one does not stop the others."""
    jobs = read_jobs(frame.data, frame.at, frame.end, frame.timestamp, now)
    session.engine.check_room_to_grow()
    asked = frame.flags
    outcomes = PutOutcomes()
    for job in jobs:
        if isinstance(job, RequestError):
            outcomes.refuse(error_text(job))
            continue
        try:
            outcome = _put(session, job, asked, now)
        except JournalError as error:
            outcomes.refuse(error_text(error))
        else:
            outcomes.add(outcome, session.placed_id)
    outcomes.write(session.out, frame.identifier, now, session.stable)


def forward(session: Session, frame: FrameReader, now: i64) -> None:
    """Take jobs of a spool in, each of them once."""
    sent = read_forward(frame.data, frame.at, frame.end, now, frame.key)
    forwarding = session.operations.forwarding
    if sent.forget:
        forwarding.forget_sender(frame.key, session.owner)
        outcome = Forwarded(0)
    else:
        if session.ahead:
            for job in sent.jobs:
                if isinstance(job, PutRequest):
                    job.timestamp = session.stamp(job.timestamp)
        pairs = zip(sent.marks, sent.jobs, strict=True)
        taken = forwarding.put_from(frame.key, pairs, now, owner=session.owner)
        errors = tuple([(mark, error_text(error)) for mark, error in taken.refused])
        outcome = Forwarded(taken.mark, *taken.outcomes, len(errors), taken.repeated, errors)
    value = encode_forwarded(outcome)
    write_value_reply(session.out, frame.identifier, now, session.stable, _BUFFER, len(value))
    session.out.write(value)


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
    if not reply:
        ask = functools.partial(_ask_next, session, request, where, length)
        _ask_later(session, request, ask, wait, where, None)
    return reply


def _ask_next(
    session: Session, request: Request, where: Where, length: int, last: bool, now: int
) -> bytes:
    take = request.flags & OVERWRITE != 0
    rows = _lease(session, where, 1, length, take, True, session.name, last, now)
    if rows:
        session.engine.load(rows[0])
        lease = lease_of(rows[0])
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
    return encode_reply(request.identifier, now, timeout=session.operations.next_due or None)


@final
class _Wanted:
    """What a LEASE asks for, and of which queues."""

    def __init__(self, value: bytes) -> None:
        request = decode_lease_request(value)
        self.request = request
        if request.prefix:
            self.where = Where(prefix=request.queues[0], schema=request.schema)
        else:
            self.where = Where(request.queues, schema=request.schema)


_wanted: Final[dict[bytes, _Wanted]] = {}
"""By the value of the LEASE: consumers ask the same again and again."""


def lease_many(session: Session, frame: FrameReader, now: i64) -> None:
    """Lease up to n jobs."""
    value = frame.value()
    wanted = _wanted.get(value)
    if wanted is None:
        wanted = _Wanted(value)
        if len(_wanted) >= _REMEMBERED:
            _wanted.clear()
        _wanted[value] = wanted
    wait = wanted.request.wait_ms
    identifier = frame.identifier
    if not _ask_many(session, identifier, wanted, _no_wait(session, wait), now):
        given = wanted

        def retry(waiter: Waiter, now: int) -> bool:
            return _ask_many(session, waiter.identifier, given, waiter.expired, now)

        waiter = Waiter(session, int(identifier), retry, wanted.where, None)
        session.wait(waiter, wait / 1000)


def _ask_many(session: Session, identifier: i64, wanted: _Wanted, last: bool, now: i64) -> bool:
    """Answer a LEASE, unless it is to wait; whether it was answered."""
    request, where = wanted.request, wanted.where
    fair, take, length = request.fair, request.take, request.lease
    worker = request.worker or session.name
    limit: i64 = request.limit
    count = min(limit, _CHUNK)
    rows = _lease(session, where, count, length, take, fair, worker, last, now)
    if not rows:
        if not last or session.engine.holds_back():
            return False
        due = session.operations.next_due
        write_reply(session.out, identifier, now, 0, (), True, None, due or -1)
        return True
    values: list[bytes] = []
    size = _fetch(session, rows, values)
    if len(rows) == _CHUNK and limit > _CHUNK:
        most: i64 = session.max_message() - 65_536
        if request.max_bytes:
            most = min(most, i64(request.max_bytes))
        while len(rows) < limit and size < most:
            count = min(limit - len(rows), _CHUNK)
            got = session.operations.lease(where, count, worker, length, fair, take, now)
            rows += got
            size += _fetch(session, got, values)
            if len(got) < count:
                break
    _write_leases(session, identifier, rows, values, now)
    return True


def _fetch(session: Session, rows: list[Row], values: list[bytes]) -> i64:
    """Add the values of rows; returns how many bytes they have."""
    size: i64 = 0
    for row in rows:
        value = row.value
        if value is None:
            value = session.engine.value(row)
        values.append(value)
        size += len(value)
    return size


def _write_leases(
    session: Session, identifier: i64, rows: list[Row], values: list[bytes], now: i64
) -> None:
    """The reply to a LEASE, straight from the rows."""
    longest: i64 = 0
    largest: i64 = 0
    sizes: list[i64] = []
    for at, row in enumerate(rows):
        more = row.rare
        worker = more.worker if row.stage == PROCESSING_ROW else b""
        size = leased_size(row.queue.name, worker, more.note, values[at])
        sizes.append(size)
        if size > largest:
            largest = size
        if len(row.key) > longest:
            longest = len(row.key)
    out = session.out
    write_lease_head(out, identifier, now, session.stable, len(rows), longest, largest)
    for at, row in enumerate(rows):
        write_leased_pair(out, longest, largest, row.key, sizes[at])
        _write_row(out, row, values[at])


def _write_row(out: BytesWriter, row: Row, value: bytes) -> None:
    more = row.rare
    policy = row.policy
    flags = policy.flags
    bits: i64 = 0
    if flags & FROM_WORKQ:
        bits = 1
    bits |= (flags >> SCHEMA_SHIFT & 15) << 2
    if flags & BY_SCHEDULE:
        bits |= 2
    until: i64 = 0
    start: i64 = 0
    worker = b""
    if row.stage == PROCESSING_ROW:
        until = more.until
        start = more.start
        worker = more.worker
    priority = row.rank
    if flags & FROM_WORKQ or row.queue.larger_first:
        priority = -priority
    write_leased(
        out, _LETTERS[row.stage], i64(row.kind), bits, row.id, more.attempts, until, row.rank,
        priority, row.due, row.inserted, row.modified, row.expires, policy.lease * MILLISECOND,
        start, policy.ttl * MILLISECOND, more.attempts, more.timeouts, more.fails,
        policy.max_attempts, policy.max_timeouts, policy.max_fails, row.queue.name, worker,
        more.note, value,
    )  # fmt: skip


def _lease(
    session: Session,
    where: Where,
    count: i64,
    length: int,
    take: bool,
    fair: bool,
    worker: bytes,
    last: bool,
    now: i64,
) -> list[Row]:
    """Lease; a consumer that waits passes over "nothing but slow ones" by asking once more."""
    operations = session.operations
    rows = operations.lease(where, count, worker, length, fair, take, now)
    if not rows and not last and 0 < operations.next_due <= now:
        rows = operations.lease(where, count, worker, length, fair, take, now)
    return rows


def done(session: Session, frame: FrameReader, now: i64) -> None:
    """Complete a job."""
    result: bytes | None = None
    token: int | None = None
    if frame.flags & EXTENDED:
        if frame.kind != NO_VALUE:
            result = frame.value()
        if frame.ttl:
            token = int(frame.ttl)
        try:
            session.operations.complete(frame.key, token, result, now)
        except RequestError:
            if not frame.flags & AGAIN or not _repeated(session, _COMPLETE, frame.key, frame.ttl):
                raise
    else:
        row = named_row(session.state, b"", frame.key, leased=True)
        if frame.kind == _INTEGER:
            token = decode_integer(frame.value())
        session.operations.complete(row.id, token, None, now)
    write_ok(session.out, frame.identifier, now, session.stable)


def fail(session: Session, request: Request, now: int) -> bytes:
    """Fail a job."""
    row = _find_row(session, request, leased=True)
    outcomes = SettleOutcomes()
    outcome = _fail(session, row.id, request.token, request.value, None, now)
    outcomes.add(outcome, session.settled_until)
    pair = Pair(b"", Type.BUFFER, outcomes.value())
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


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


def settle(session: Session, frame: FrameReader, now: i64) -> None:
    """End or prolong many leases; each has an outcome of its own."""
    reader = SettleReader(frame.data, frame.at, frame.end)
    again = frame.flags & AGAIN != 0
    outcomes = SettleOutcomes()
    while reader.next():
        try:
            outcome = _settle_one(session, reader, now)
        except JournalError as error:
            if again and _repeated(session, reader.action, reader.id, reader.token):
                outcomes.add(session.settled, session.settled_until)
            else:
                outcomes.refuse(error_text(error))
        else:
            outcomes.add(outcome, session.settled_until)
    outcomes.write(session.out, frame.identifier, now, session.stable)


def _settle_one(session: Session, item: SettleReader, now: i64) -> i64:
    """Settle a lease; returns the outcome, the instant of it is the session's `settled_until`."""
    operations = session.operations
    session.settled_until = 0
    job_id = item.id
    token: int | None = None
    if item.token:
        token = int(item.token)
    row: Row | None = None
    if item.key:
        row = named_row(session.state, b"", item.key, leased=True)
        job_id = row.id
    if item.action == _COMPLETE:
        operations.complete(job_id, token, item.result, now)
        return _DONE
    if item.action == _FAIL:
        delay: int | None = None
        if item.argument >= 0:
            delay = int(item.argument)
        return _fail(session, job_id, token, item.result or b"", delay, now)
    if token is None:
        token = 0 if row is None else int(row.attempts)
    argument = int(item.argument) if item.argument > 0 else 0
    if item.action == _RELEASE:
        operations.release(job_id, token, argument, now)
        row = session.state.rows.get(job_id)
        if row is None:
            return _DONE
        session.settled_until = row.due
        return _WAITING
    session.settled_until = operations.touch(job_id, token, argument, now)
    return _EXTENDED


def _fail(
    session: Session, job_id: bytes, token: int | None, why: bytes, delay: int | None, now: i64
) -> i64:
    session.settled_until = 0
    state = session.operations.fail(job_id, token, why, delay, now)
    if state is State.WAITING:
        session.settled_until = session.state.rows[job_id].due
        return _WAITING
    return _DEAD if state is State.FAILED else _DONE


def _repeated(session: Session, action: i64, job_id: bytes, token: i64) -> bool:
    """Whether this very request happened before, and not long ago.

    What became of it then are the session's `settled` and `settled_until`. Nobody but the holder of
    the token is told so: who lost the lease meanwhile stays refused.
    """
    if not token:
        return False
    if session.engine.volatile:
        session.promise(0)  # what is known of it may be in memory only
    session.settled_until = 0
    row = session.state.rows.get(job_id)
    if row is not None and row.attempts != token:
        row = None
    if row is not None and row.stage == COMPLETED_ROW:
        session.settled = _DONE
        return action == _COMPLETE
    end = session.state.endings.of_lease(job_id, int(token))
    outcome = None if end is None else _OUTCOMES.get((int(action), end))
    if outcome is None:
        return False
    session.settled = int(outcome)
    if outcome is Settling.WAITING and row is not None and row.stage == WAITING_ROW:
        session.settled_until = row.due
    return True


_OUTCOMES: Final[dict[tuple[int, End], Settling]] = {
    (Action.COMPLETE, End.DONE): Settling.DONE,
    (Action.FAIL, End.DEAD): Settling.DEAD,
    (Action.FAIL, End.RETRIED): Settling.WAITING,
    (Action.FAIL, End.DROPPED): Settling.DONE,
    (Action.RELEASE, End.RETURNED): Settling.WAITING,
    (Action.RELEASE, End.LEFT): Settling.DONE,
}
"""What was answered to an action that ended a lease so."""


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
        deleted = operations.delete(request.key, timestamp, purge=purge, by=session.writer())
    elif request.value:
        deleted = operations.delete_key(
            request.value, request.key, timestamp, purge=purge, by=session.writer()
        )
    else:
        deleted = delete_everywhere(session, request, session.writer())
    # D-20: a missing key is a success with count 0, an existing one with count 1.
    pair = Pair(b"", Type.INTEGER, encode_integer(deleted.found))
    flags = session.stable | (STALE if deleted.stale else 0)
    return encode_reply(request.identifier, now, flags=flags, pairs=(pair,))


def delete_everywhere(session: Session, request: Request, by: Writer) -> Deleted:
    """Remove the jobs of a key in all queues."""
    stamp = session.stamp(request.timestamp)
    purge = request.flags & OVERWRITE != 0
    return session.operations.delete_everywhere(request.key, stamp, purge=purge, by=by)


def get(session: Session, request: Request, now: int) -> bytes:
    """Read one job by its key: lease it, or let it live longer, or neither (D-27)."""
    flags, until = request.flags, deadline_of(request, now)
    leases = until > 0 and not flags & EXACT
    row = named_row(session.state, b"", request.key, leased=False)
    for other in session.state.keys.rows_of(row.queue.name, row.key):
        if other.stage == PROCESSING_ROW:
            row = other  # what waits behind it is not handed out before it ends
    worker = request.value or session.name or session.own_name
    by_key = session.operations.by_key
    if by_key.is_gone(row, now):
        raise NotFound(f"no job {quoted(request.key)}")
    busy = row.state is State.PROCESSING and row.rare.worker != worker
    if flags & WORKED_ON and row.state is State.PROCESSING:
        raise NotFound("the job is being worked on")
    session.engine.load(row)
    stable = 0
    if leases:
        if not session.may_take:
            session.deny("role does not allow GET with a lease of a job")
            raise Unauthorized("the token does not allow leasing jobs")
        busy = not by_key.lease(row, until, worker, now, session.writer())
        stable = 0 if busy else session.stable_for(row)
    elif flags & EXACT:
        by_key.prolong(row, until, now, session.writer())
        stable = session.stable_for(row)
    until = row.lease_until if leases else row.expires
    pair = short_of(lease_of(row))
    value = pair.value if flags & DATA else b""
    pair = Pair(b"", pair.type, value, row.expires if flags & EXTENDED else None)
    bits = (WORKED_ON if busy else 0) | (LOCKED if by_key.is_locked(row.key, now) else 0)
    return encode_reply(
        request.identifier, row.modified, flags=bits | stable | flags & DATA,
        timeout=until or None, pairs=(pair,),
    )  # fmt: skip


def result(session: Session, request: Request, now: int) -> bytes:
    """Wait for the result of a job."""
    if request.by_id and request.key not in session.state.rows:
        row_id = request.key  # it may be gone because it is done
    else:
        row_id = _find_row(session, request).id
    wait = _wait_of(request)
    reply = _ask_result(session, request, row_id, _no_wait(session, wait), now)
    if not reply:
        ask = functools.partial(_ask_result, session, request, row_id)
        _ask_later(session, request, ask, wait, None, row_id)
    return reply


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
    where: Where | None,
    row_id: bytes | None,
) -> None:
    """Let a request wait; `ask` is told whether it is the last time, and what the time is."""

    def retry(waiter: Waiter, now: int) -> bool:
        reply = ask(waiter.expired, now)
        session.out.write(reply)
        return bool(reply)

    session.wait(Waiter(session, request.identifier, retry, where, row_id), wait_ms / 1000)


def deadline(frame: FrameReader, now: i64) -> i64:
    """When what a request asks for is to end; 0: it does not say."""
    if not frame.flags & TIMEOUT:
        return 0
    if not frame.flags & LENGTH:
        return frame.timeout
    return now + frame.timeout if frame.timeout < MAX_INSTANT - now else MAX_INSTANT


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
    return named_row(
        session.state, request.key if request.by_id else b"", request.key, leased=leased
    )


def named_row(
    state: JournalState, job_id: bytes, key: bytes, *, leased: bool, queue: bytes = b""
) -> Row:
    """The job of this id, or else of this key."""
    if job_id:
        row = state.rows.get(job_id)
    else:
        rows = state.keys.find(queue, key) if queue else state.keys.everywhere(key)
        found = [row for row in rows if row.queue.name]
        wanted = State.PROCESSING if leased else State.WAITING
        found.sort(key=lambda row: (row.state is not wanted, row.state, row.queue.name))
        row = found[0] if found else None
    if row is None or row.state is State.DELETED:
        raise NotFound(f"no job {job_id.hex() if job_id else quoted(key)}")
    return row
