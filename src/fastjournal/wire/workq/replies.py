"""The answers of the Workq text protocol, byte for byte.

Rules:

1. Every line ends in CR LF. Payloads and results are raw: their size stands before them.
2. Instants are printed in whole seconds, `YYYY-MM-DDTHH:MM:SSZ`; those that fall between are
   rounded down.
3. `inspect server` says `server 2` and gives three lines, as the Workq server does: clients that
   were written against it rely on the bytes, not on the number.
4. `error` is the only place where our errors become Workq's texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from fastjournal.errors import (
    AlreadyExists,
    JournalError,
    NotFound,
    ReadOnly,
    RequestError,
    TimedOut,
)

__all__ = [
    "NOT_FOUND",
    "OK",
    "TIMEOUT",
    "JobView",
    "QueueView",
    "client_error",
    "error",
    "inspect_jobs",
    "inspect_queues",
    "inspect_server",
    "leased",
    "result",
    "server_error",
]

OK = b"+OK\r\n"
TIMEOUT = b"-TIMEOUT\r\n"
NOT_FOUND = b"-NOT-FOUND\r\n"


class JobView(NamedTuple):
    """A job as `inspect` shows it; `state` 0 new, 1 completed, 2 failed, 3 pending, 4 leased."""

    id: bytes
    name: str
    ttr_ms: int
    ttl_ms: int
    payload: bytes
    max_attempts: int
    attempts: int
    max_fails: int
    fails: int
    priority: int
    """Workq's: larger first."""
    state: int
    created: int
    """Ns."""
    time: int | None = None
    """Ns; None = not scheduled."""


class QueueView(NamedTuple):
    """A queue as `inspect` shows it."""

    name: str
    ready: int
    scheduled: int


def client_error(text: str) -> bytes:
    """The client did something wrong."""
    return b"-CLIENT-ERROR %b\r\n" % _line(text)


def server_error(text: str) -> bytes:
    """The server is in trouble."""
    return b"-SERVER-ERROR %b\r\n" % _line(text)


def error(fault: BaseException) -> bytes:
    """The answer for an exception.

    A foreign exception shows its class only. `AlreadyExists` is a duplicate job; where it means a
    result the caller says so with `client_error`.
    """
    if isinstance(fault, NotFound):
        return NOT_FOUND
    if isinstance(fault, TimedOut):
        return TIMEOUT
    if isinstance(fault, AlreadyExists):
        return client_error("Duplicate job")
    if isinstance(fault, RequestError):
        return client_error(str(fault))
    if isinstance(fault, ReadOnly):
        return server_error("Server is read-only")
    if isinstance(fault, JournalError):
        return server_error(str(fault))
    return server_error(type(fault).__name__)


def leased(job_id: bytes, name: str, ttr_ms: int, payload: bytes) -> bytes:
    """The job that `lease` gives."""
    return b"+OK 1\r\n%b %b %d %d\r\n%b\r\n" % (
        text_id(job_id), name.encode(), ttr_ms, len(payload), payload,
    )  # fmt: skip


def result(job_id: bytes, success: bool, outcome: bytes) -> bytes:
    """The result that `result` and `run` give."""
    return b"+OK 1\r\n%b %d %d\r\n%b\r\n" % (text_id(job_id), success, len(outcome), outcome)


def inspect_jobs(jobs: Sequence[JobView]) -> bytes:
    """The answer to `inspect job`, `jobs` and `scheduled-jobs`."""
    return b"".join([b"+OK %d\r\n" % len(jobs), *map(_job, jobs)])


def inspect_queues(queues: Sequence[QueueView]) -> bytes:
    """The answer to `inspect queue` and `queues`."""
    blocks = [
        b"%b 2\r\nready-len %d\r\nscheduled-len %d\r\n"
        % (queue.name.encode(), queue.ready, queue.scheduled)
        for queue in queues
    ]
    return b"".join([b"+OK %d\r\n" % len(queues), *blocks])


def inspect_server(active_clients: int, evicted_jobs: int, started: int) -> bytes:
    """The answer to `inspect server`; `started` in ns."""
    return b"+OK 1\r\nserver 2\r\nactive-clients %d\r\nevicted-jobs %d\r\nstarted %b\r\n" % (
        active_clients,
        evicted_jobs,
        text_time(started),
    )


def text_id(job_id: bytes) -> bytes:
    """An id in its canonical form."""
    return str(UUID(bytes=job_id)).encode()


def text_time(instant: int) -> bytes:
    """An instant in whole seconds."""
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=instant // 1_000_000_000)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ").encode()


def _job(job: JobView) -> bytes:
    block = (
        b"%b %d\r\nname %b\r\nttr %d\r\nttl %d\r\npayload-size %d\r\npayload %b\r\n"
        b"max-attempts %d\r\nattempts %d\r\nmax-fails %d\r\nfails %d\r\npriority %d\r\n"
        b"state %d\r\ncreated %b\r\n"
    ) % (
        text_id(job.id), 12 if job.time is None else 13, job.name.encode(), job.ttr_ms, job.ttl_ms,
        len(job.payload), job.payload, job.max_attempts, job.attempts, job.max_fails, job.fails,
        job.priority, job.state, text_time(job.created),
    )  # fmt: skip
    return block if job.time is None else block + b"time %b\r\n" % text_time(job.time)


def _line(text: str) -> bytes:
    """One line: an error text must not end the reply early."""
    return " ".join(text.split())[:1000].encode("utf-8", "replace")
