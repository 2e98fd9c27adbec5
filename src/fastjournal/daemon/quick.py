"""The short way for the commonest requests: one of them alone in a read, nothing special about it.

A put, a completion and a lease of one job come one at a time from most clients. Taken apart here in
one step they pass over the parser, the group and the table of handlers.

Rules:

1. The effect and the bytes of the answer are those of the long way; a test compares them. Whatever
   is not exactly of the expected form returns None and goes the long way.
2. Only where an answer may leave at once: the policy is not `always` and nothing of this connection
   waits. And only while there are few connections: with many, one write for all of them is better.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from fastjournal.daemon.consuming import wanted_of
from fastjournal.errors import JournalError
from fastjournal.model import Outcome
from fastjournal.wire.bulk import encode_put_reply
from fastjournal.wire.errortext import error_text
from fastjournal.wire.fj import encode_error, encode_ok, encode_reply
from fastjournal.wire.functions import DATA, STALE
from fastjournal.wire.jobvalue import decode_plain, encode_leased

if TYPE_CHECKING:
    from fastjournal.daemon.fj import FjConnection

__all__ = ["FEW", "quick_answer"]

FEW = 3
"""Connections up to which the short way is the better one."""

_PUT = b"FJ\0\1\0\2"
_DONE = b"FJ\0\1\0\x0c"
_LEASE = b"FJ\0\1\0\x21"
_NO_TIME_NO_KEY = bytes(9)
_NO_TIME = bytes(8)
_U16 = struct.Struct(">H").unpack_from
_U32 = struct.Struct(">I").unpack_from
_STALE = Outcome.STALE


def quick_answer(session: FjConnection, data: bytes) -> bytes | None:
    """The answer to the only request in `data`; None: go the long way."""
    head = data[:6]
    if session.host.engine.log.failure is not None:
        return None
    if head == _PUT:
        if not session.may_put or data[10:19] != _NO_TIME_NO_KEY:
            return None
        at = _value_at(data)
        if not at or data[at] != 6:
            return None
        host = session.host
        job = decode_plain(data[at + 1 :], host.max_payload)
        if job is None:
            return None
        identifier = data[6] << 8 | data[7]
        now = host.engine.clock.now()
        lock = host.engine.lock
        lock.acquire()
        try:
            job_id, outcome = host.operations.put(job, now, checked=True)
        except JournalError as error:
            return _refused(session, identifier, error, now)
        finally:
            lock.release()
        stale = STALE if outcome is _STALE else 0
        return encode_put_reply(identifier, now, outcome, job_id, stale)
    if head == _DONE:
        return _done(session, data)
    return _lease(session, data) if head == _LEASE else None


def _done(session: FjConnection, data: bytes) -> bytes | None:
    if (
        len(data) != 39
        or not session.may_take
        or data[8:10] != b"\x20\0"
        or data[10:18] != _NO_TIME
        or data[22] != 16
    ):
        return None
    host = session.host
    identifier = data[6] << 8 | data[7]
    now = host.engine.clock.now()
    with host.engine.lock:
        try:
            host.operations.complete(data[23:], _U32(data, 18)[0] or None)
        except JournalError as error:
            return _refused(session, identifier, error, now)
    return encode_ok(identifier, now)


def _lease(session: FjConnection, data: bytes) -> bytes | None:
    if not session.may_take or data[10:19] != _NO_TIME_NO_KEY:
        return None
    at = _value_at(data)
    if not at or data[at] != 1 or data[at + 3 : at + 5] != b"\0\1":
        return None
    host = session.host
    identifier = data[6] << 8 | data[7]
    now = host.engine.clock.now()
    with host.engine.lock:
        try:
            wanted, where = wanted_of(data[at + 1 :])
            worker = wanted.worker or session.name
            leases = host.operations.lease(
                where, 1, worker, wanted.lease, wanted.fair, wanted.take
            ).leases
        except JournalError as error:
            return _refused(session, identifier, error, now)
    if not leases:
        return None
    pairs = (encode_leased(leases[0]),)
    return encode_reply(identifier, now, flags=DATA, pairs=pairs, several=True)


def _value_at(data: bytes) -> int:
    """Where the type of the value stands if the message ends with it and has no other field."""
    flags = data[9]
    if flags == 2:
        at = 20
        whole = len(data) > 20 and at + data[19] == len(data)
    elif flags == 4:
        at = 21
        whole = len(data) > 21 and at + _U16(data, 19)[0] == len(data)
    else:
        return 0
    return at if whole and not data[8] and (data[6] or data[7]) else 0


def _refused(session: FjConnection, identifier: int, error: JournalError, now: int) -> bytes:
    session.server.count_error(error.code)
    return encode_error(identifier, error_text(error), now)
