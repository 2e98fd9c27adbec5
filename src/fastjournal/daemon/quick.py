"""The short way for the commonest requests: one of them alone in a read, nothing special about it.

A put, a completion, a lease of one job, an entry set, read or added to come one at a time from most
clients. Taken apart here in one step they pass over the parser and the table of handlers.

Rules:

1. The effect and the bytes of the answer are those of the long way; a test compares them. Whatever
   is not exactly of the expected form returns None and goes the long way.
2. Where an answer may leave at once (the policy is not `always`, nothing of this connection waits)
   and there are few connections, it passes over the group too. With many connections, one write to
   the log for all of them is better.
3. `is_quick` looks at the frame only: what it accepts is one whole message.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from fastjournal.daemon.consuming import wanted_of
from fastjournal.daemon.quick_entries import (
    add_entry,
    get_entry,
    is_add,
    is_get,
    is_set,
    set_entry,
)
from fastjournal.errors import JournalError
from fastjournal.model import Outcome
from fastjournal.wire.fj.bulk import encode_put_reply
from fastjournal.wire.fj.error_text import error_text
from fastjournal.wire.fj.functions import STALE
from fastjournal.wire.fj.job_put import decode_plain
from fastjournal.wire.fj.lease_codec import encode_lease_reply
from fastjournal.wire.fj.replies import encode_error, encode_ok

if TYPE_CHECKING:
    from fastjournal.daemon.fj import FjConnection

__all__ = ["FEW", "is_quick", "quick_answer"]

FEW = 3
"""Connections up to which the short way is the better one."""

_PUT = b"FJ\0\1\0\2"
_GET = b"FJ\0\1\0\3"
_ADD = b"FJ\0\1\0\5"
_DONE = b"FJ\0\1\0\x0c"
_LEASE = b"FJ\0\1\0\x21"
_NO_TIME_NO_KEY = bytes(9)
_BY_ID = b"\x20\0" + bytes(8)  # flags and timestamp
_U16 = struct.Struct(">H").unpack_from
_U32 = struct.Struct(">I").unpack_from
_STALE = Outcome.STALE


def is_quick(session: FjConnection, data: bytes) -> bool:
    """Whether `data` is one whole message of a kind that `quick_answer` knows."""
    head = data[:6]
    if head == _PUT:
        return session.may_put and (_value_at(data) > 0 or is_set(data))
    if head == _GET:
        return (session.may_put or session.may_take) and is_get(data)
    if head == _ADD:
        return session.may_put and not session.ahead and is_add(data)
    if not session.may_take:
        return False
    if head == _DONE:
        return len(data) == 39 and data[8:18] == _BY_ID and data[22] == 16
    return head == _LEASE and _value_at(data) > 0


def quick_answer(session: FjConnection, data: bytes, now: int, stable: int = 0) -> bytes | None:
    """The answer to a request that `is_quick`, under the lock; None: go the long way.

    `stable`: bit 9 of the reply.
    """
    host = session.host
    if host.engine.log.failure is not None:
        return None
    function = data[5]
    try:
        if function == 3:
            return get_entry(session, data, now)
        if function == 5:
            return add_entry(session, data, now, stable)
        if function == 2:
            if data[18]:
                return set_entry(session, data, now, stable)
            at = 20 if data[9] == 2 else 21
            if data[at] != 6:
                return None
            job = decode_plain(data, at + 1, host.max_payload)
            if job is None:
                return None
            job_id, outcome = host.operations.put(job, now, checked=True)
            if outcome is _STALE:
                stable |= STALE
            return encode_put_reply(data[6] << 8 | data[7], now, outcome, job_id, stable)
        if function == 12:
            host.operations.complete(data[23:], _U32(data, 18)[0] or None)
            return encode_ok(data[6] << 8 | data[7], now, stable)
        at = 20 if data[9] == 2 else 21
        if data[at] != 1 or data[at + 3 : at + 5] != b"\0\1":
            return None
        wanted, where = wanted_of(data[at + 1 :])
        if len(where.names) == 1:
            lane = host.state.queues.get(where.names[0])
            if lane is None or not lane.total:
                return None  # whoever waits for a job asks once, not twice
        worker = wanted.worker or session.name
        leases = host.operations.lease(
            where, 1, worker, wanted.lease, wanted.fair, wanted.take
        ).leases
    except JournalError as error:
        session.server.count_error(error.code)
        return encode_error(data[6] << 8 | data[7], error_text(error), now)
    except Exception as error:  # a bug must not take the other connections down
        session.server.report(error)
        return encode_error(data[6] << 8 | data[7], error_text(error), now)
    if not leases:
        return None
    return encode_lease_reply(data[6] << 8 | data[7], now, leases[0], stable)


def _value_at(data: bytes) -> int:
    """Where the type of the value stands if the message ends with it and has no other field."""
    if data[10:19] != _NO_TIME_NO_KEY or data[8] or not (data[6] or data[7]):
        return 0
    flags = data[9]
    if flags == 2:
        return 20 if len(data) > 20 and 20 + data[19] == len(data) else 0
    if flags == 4:
        return 21 if len(data) > 21 and 21 + _U16(data, 19)[0] == len(data) else 0
    return 0
