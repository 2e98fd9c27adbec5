"""What the handlers of requests share: naming a job, asking and waiting.

Rules:

1. A job is named by its id, or by its key: of several rows of a key the one is meant that fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastjournal.daemon.waiters import Waiter
from fastjournal.errors import (
    NotFound,
    OutOfRange,
)
from fastjournal.journal.state.row import Row
from fastjournal.model import MAX_INSTANT, State, Where
from fastjournal.wire.fj.frames import decode_integer
from fastjournal.wire.fj.functions import LENGTH
from fastjournal.wire.fj.requests import Request

if TYPE_CHECKING:
    from fastjournal.daemon.fj import FjConnection


__all__ = [
    "ask_later",
    "deadline_of",
    "find_row",
    "named_row",
    "no_wait",
    "stamp_of",
    "wait_of",
]

_MAX_WAIT = 24 * 3600 * 1000  # ms


def no_wait(session: FjConnection, wait_ms: int) -> bool:
    """Whether a request must be answered at once."""
    if wait_ms > _MAX_WAIT:
        raise OutOfRange(f"a wait of {wait_ms} ms is longer than a day")
    return not wait_ms or session.leaving


def ask_later(
    session: FjConnection,
    request: Request,
    ask: Callable[[bool, int], bytes],
    wait_ms: int,
    *,
    where: Where | None = None,
    row_id: bytes | None = None,
) -> bytes:
    """Let a request wait; `ask` is told whether it is the last time, and what the time is."""
    waiter = Waiter(
        session.host,
        session,
        request,
        lambda waiter, now: ask(waiter.expired, now),
        where=where,
        row_id=row_id,
    )
    return session.wait(waiter, wait_ms / 1000)


def deadline_of(request: Request, now: int) -> int:
    """When what a request asks for is to end; 0: it does not say."""
    if request.timeout is None:
        return 0
    if request.flags & LENGTH:
        return min(now + request.timeout, MAX_INSTANT)
    return request.timeout


def stamp_of(session: FjConnection, timestamp: int) -> int:
    """A client's timestamp by the journal's clock; 0 stays 0.

    Where the two clocks differ by more than they may, what counts is how long ago it was by the
    client's own, which it told with HELLO.
    """
    return min(max(1, timestamp + session.ahead), MAX_INSTANT) if timestamp else 0


def wait_of(request: Request) -> int:
    """How long a request is ready to wait, ms."""
    if request.value_type is None:
        return 0
    wait = decode_integer(request.value)
    if wait < 0:
        raise OutOfRange("a wait cannot be negative")
    return wait


def find_row(session: FjConnection, request: Request, *, leased: bool = False) -> Row:
    """The job that a request names by id or by key."""
    return named_row(session, request.key if request.by_id else b"", request.key, leased=leased)


def named_row(
    session: FjConnection, job_id: bytes, key: bytes, *, leased: bool, queue: bytes = b""
) -> Row:
    """The job of this id, or else of this key."""
    state = session.host.state
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
