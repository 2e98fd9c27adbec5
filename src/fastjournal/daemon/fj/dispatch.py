"""The functions of the FJ protocol, carried out on a journal: a request in, the reply out.

Rules:

1. Every handler runs under the journal's lock inside a batch and waits for nothing. Empty bytes
   mean: answered later.
2. A `JournalError` becomes the reply; the handler has then changed nothing.
3. A bulk request has one outcome per item; a refused item does not stop the others.
4. Bit 9 of a reply is set by the session's `stable`.
5. HELLO belongs to the connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from fastjournal.daemon.auth import function_bits
from fastjournal.daemon.fj import admin, entries, jobs
from fastjournal.daemon.session import KEY, QUEUE, RANGE, Session, Subject
from fastjournal.errors import BadFunction, BadRequest
from fastjournal.wire.fj.functions import WORKED_ON, Function, Query, Type
from fastjournal.wire.fj.replies import encode_ok, write_ok
from fastjournal.wire.fj.requests import FrameReader, Request, request_of

__all__ = ["SERVED", "carry_out"]

_NOP: Final[i64] = int(Function.NOP)
_SET: Final[i64] = int(Function.SET)
_GET: Final[i64] = int(Function.GET)
_ADD: Final[i64] = int(Function.ADD)
_DONE: Final[i64] = int(Function.DONE)
_PING: Final[i64] = int(Function.PING)
_PUTS: Final[i64] = int(Function.PUTS)
_LEASE: Final[i64] = int(Function.LEASE)
_SETTLE: Final[i64] = int(Function.SETTLE)
_FORWARD: Final[i64] = int(Function.FORWARD)
_JOB: Final[i64] = int(Type.JOB)

Handler = Callable[[Session, Request, int], bytes]


def carry_out(session: Session, frame: FrameReader, now: i64) -> None:
    """Carry out a function and write the answer, unless it comes later."""
    function = frame.function
    if function == _SET:
        if frame.kind == _JOB:
            jobs.set_job(session, frame, now)
        else:
            entries.set_entry(session, frame, now)
    elif function == _LEASE:
        jobs.lease_many(session, frame, now)
    elif function == _DONE:
        jobs.done(session, frame, now)
    elif function == _SETTLE:
        jobs.settle(session, frame, now)
    elif function == _PUTS:
        jobs.puts(session, frame, now)
    elif function == _FORWARD:
        jobs.forward(session, frame, now)
    elif function == _GET:
        entries.get_any(session, frame, now)
    elif function == _ADD:
        entries.add(session, frame, now)
    elif function in (_PING, _NOP):
        write_ok(session.out, frame.identifier, now)
    elif int(function) in _ENTRIES:
        _ENTRIES[int(function)](session, frame, now)
    else:
        handler = _RARE.get(int(function))
        if handler is None:
            raise BadFunction(f"{Function(int(function)).name} is not served yet")
        session.out.write(handler(session, request_of(frame), now))


def _quit(session: Session, request: Request, now: int) -> bytes:
    session.quit()
    return encode_ok(request.identifier, now)


def _listen(session: Session, request: Request, now: int) -> bytes:
    """Begin or end a subscription."""
    if request.query is Query.RANGE:
        subject = Subject(RANGE, request.key, request.upper or b"")
    elif request.flags & WORKED_ON:
        subject = Subject(QUEUE, request.key)
    elif request.key:
        subject = Subject(KEY, request.key)
    else:
        raise BadRequest("LISTEN needs a key, a range, or a queue with bit 6")
    if request.function == Function.LISTEN:
        session.listen(subject, request.identifier)
    else:
        session.unlisten(subject)
    return encode_ok(request.identifier, now)


_ENTRIES: Final[dict[int, Callable[[Session, FrameReader, i64], None]]] = {
    Function.DELETE: entries.delete_any,
    Function.NOT: entries.flip,
    Function.TRUNCATE: entries.truncate,
    Function.LOCK: entries.lock,
    Function.UNLOCK: entries.unlock,
    Function.RENAME: entries.rename,
    Function.ALIAS: entries.alias,
}

_RARE: Final[dict[int, Handler]] = {
    Function.QUIT: _quit,
    Function.NEXT: jobs.next_job,
    Function.FAIL: jobs.fail,
    Function.LISTEN: _listen,
    Function.UNLISTEN: _listen,
    Function.STATUS: admin.status,
    Function.TOUCH: jobs.touch,
    Function.RELEASE: jobs.release,
    Function.RESULT: jobs.result,
    Function.QUEUE: admin.queue,
    Function.PAUSE: admin.pause,
    Function.RESUME: admin.resume,
    Function.REDRIVE: admin.redrive,
    Function.INSPECT: admin.inspect,
    Function.LIST: admin.list_jobs,
    Function.MAINTAIN: admin.maintain,
}

SERVED: Final[i64] = function_bits(
    (
        *_RARE, *_ENTRIES, Function.NOP, Function.SET, Function.GET, Function.ADD, Function.DONE,
        Function.PING, Function.PUTS, Function.LEASE, Function.SETTLE, Function.FORWARD,
        Function.HELLO,
    )
)  # fmt: skip
"""The functions that are carried out, as bits."""
