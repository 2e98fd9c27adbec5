"""Functions of producers: SET of a job, PUTS, FORWARD.

Rules: those of `requests`, and

1. A bulk request has one outcome per item; a refused item does not stop the others.
2. A put that is sent again (bit 4) and whose job has come to its end meanwhile is not a new job: it
   is answered like one whose id is there, STALE, as long as the state remembers the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.clock import MILLISECOND
from fastjournal.daemon.asking import deadline_of, stamp_of
from fastjournal.daemon.pushes import KEY, Subject
from fastjournal.errors import (
    JournalError,
)
from fastjournal.keys import domain
from fastjournal.model import NewJob, Outcome
from fastjournal.wire.fj.bulk import (
    REFUSED,
    PutOutcome,
    encode_put_outcomes,
    encode_put_reply,
)
from fastjournal.wire.fj.error_text import error_text
from fastjournal.wire.fj.forward import Forwarded, encode_forwarded
from fastjournal.wire.fj.functions import (
    AGAIN,
    EXTENDED,
    STALE,
    Function,
    Type,
)
from fastjournal.wire.fj.functions import LISTEN as LISTEN_BIT
from fastjournal.wire.fj.job_put import (
    JobPut,
    decode_forward,
    decode_job,
    decode_jobs,
    decode_plain,
    decode_plain_jobs,
)
from fastjournal.wire.fj.replies import Pair, encode_ok, encode_reply
from fastjournal.wire.fj.requests import Request

if TYPE_CHECKING:
    from fastjournal.daemon.fj import FjConnection


__all__ = ["forward", "puts", "set_job"]


_SPECIAL = LISTEN_BIT | EXTENDED
# Looking a member up in its enumeration costs more than the comparison.
_BUFFER, _STALE = int(Type.BUFFER), Outcome.STALE
_SET, _JOB = int(Function.SET), int(Type.JOB)


def _new_job(session: FjConnection, put: JobPut, now: int) -> NewJob:
    queue = put[0]
    if put.timestamp and session.ahead:
        put = put._replace(timestamp=stamp_of(session, put.timestamp))
    return put.new_job(now, b"" if queue else domain(put[2]) if put[2] else b"")


def set_job(session: FjConnection, request: Request, now: int) -> bytes:
    """Put one job; layout 2 is answered with its outcome and id."""
    host = session.host
    if not request[7] and not request[3] and request[4] is None and not request[2] & _SPECIAL:
        plain = decode_plain(request[10], 0, host.max_payload)
        if plain is not None:
            if request[2] & AGAIN and host.state.endings.of_job(plain.id):
                return encode_put_reply(request[1], now, _STALE, plain.id, session.stable | STALE)
            job_id, outcome = host.operations.put(plain, now, checked=True)
            stale = STALE if outcome is _STALE else 0
            return encode_put_reply(request[1], now, outcome, job_id, session.stable | stale)
    put = decode_job(request[10], request[7], request[3])
    if request.timeout is not None and not put.expires:
        put = put._replace(expires=deadline_of(request, now))
    if request.ttl and not put.ttl:
        put = put._replace(ttl=request.ttl * 1000 * MILLISECOND)
    if request[2] & AGAIN and put.id and host.state.endings.of_job(put.id):
        job_id, outcome = put.id, _STALE
    else:
        job_id, outcome = host.operations.put(_new_job(session, put, now), now)
    if request[2] & LISTEN_BIT and put.key:
        subject = Subject(KEY, put.key)
        session.server.pushes(session.host).listen(session, subject, request.identifier)
    if request[10][0] == 1:
        stale = STALE if outcome is _STALE else 0
        return encode_ok(request[1], now, session.stable | stale)
    flags = session.stable | (STALE if outcome is _STALE else 0)
    return encode_put_reply(request[1], now, outcome, job_id, flags)


def puts(session: FjConnection, request: Request, now: int) -> bytes:
    """Put many jobs."""
    host = session.host
    jobs = None if request[3] else decode_plain_jobs(request[10], host.max_payload)
    checked = jobs is not None
    if jobs is None:
        jobs = [_new_job(session, job, now) for job in decode_jobs(request[10], request[3])]
    ended: dict[int, bytes] = {}
    if request[2] & AGAIN:
        ended_by = host.state.endings.of_job
        ended = {n: job.id for n, job in enumerate(jobs) if job.id and ended_by(job.id)}
        jobs = [job for n, job in enumerate(jobs) if n not in ended]
    outcomes = [
        PutOutcome(REFUSED, error=error_text(got)) if isinstance(got, JournalError)
        else PutOutcome(got[1], got[0])
        for got in host.operations.put_each(jobs, now, checked=checked)
    ]  # fmt: skip
    for n, job_id in ended.items():  # in the order of their places
        outcomes.insert(n, PutOutcome(_STALE, job_id))
    pair = Pair(b"", Type.BUFFER, encode_put_outcomes(outcomes))
    return encode_reply(request.identifier, now, flags=session.stable, pairs=(pair,))


def forward(session: FjConnection, request: Request, now: int) -> bytes:
    """Take jobs of a spool in, each of them once."""
    marks, jobs, forget = decode_forward(request.value, now, request.key)
    operations = session.host.operations
    owner = session.owner
    if session.ahead:
        jobs = [job._replace(timestamp=stamp_of(session, job.timestamp)) for job in jobs]
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
