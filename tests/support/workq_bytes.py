"""Commands of the Workq text protocol as bytes: what a client of it writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fastjournal.wire.workq.replies import text_id
from fastjournal.wire.workq.requests import (
    Add,
    Command,
    Complete,
    Delete,
    Fail,
    InspectJob,
    InspectJobs,
    InspectQueue,
    InspectQueues,
    Lease,
    Result,
    Run,
    Schedule,
)

__all__ = ["encode"]


def encode(command: Command) -> bytes:
    """The bytes of a command; `WorkqParser` reads an equal one back."""
    match command:
        case Add() | Schedule() | Run():
            return _encode_job(command)
        case Lease(names, wait):
            return b"lease %b %d\r\n" % (" ".join(names).encode(), wait)
        case Complete(job_id, result):
            return b"complete %b %d\r\n%b\r\n" % (text_id(job_id), len(result), result)
        case Fail(job_id, result):
            return b"fail %b %d\r\n%b\r\n" % (text_id(job_id), len(result), result)
        case Result(job_id, wait):
            return b"result %b %d\r\n" % (text_id(job_id), wait)
        case Delete(job_id):
            return b"delete %b\r\n" % text_id(job_id)
        case InspectJob(job_id):
            return b"inspect job %b\r\n" % text_id(job_id)
        case InspectJobs(name, offset, limit, scheduled):
            kind = b"scheduled-jobs" if scheduled else b"jobs"
            return b"inspect %b %b %d %d\r\n" % (kind, name.encode(), offset, limit)
        case InspectQueue(name):
            return b"inspect queue %b\r\n" % name.encode()
        case InspectQueues(offset, limit):
            return b"inspect queues %d %d\r\n" % (offset, limit)
        case _:
            return b"inspect server\r\n"


def _encode_job(job: Add | Schedule | Run) -> bytes:
    flags = b" -priority=%d" % job.priority if job.priority else b""
    if isinstance(job, Run):
        head = b"run %b %b %d %d" % (text_id(job.id), job.name.encode(), job.ttr_ms, job.wait_ms)
    else:
        flags += b" -max-attempts=%d" % job.max_attempts if job.max_attempts else b""
        flags += b" -max-fails=%d" % job.max_fails if job.max_fails else b""
        verb, when = b"add", b""
        if isinstance(job, Schedule):
            verb, when = b"schedule", b" " + _time(job.time)
        head = b"%b %b %b %d %d%b" % (
            verb, text_id(job.id), job.name.encode(), job.ttr_ms, job.ttl_ms, when,
        )  # fmt: skip
    return b"%b %d%b\r\n%b\r\n" % (head, len(job.payload), flags, job.payload)


def _time(instant: int) -> bytes:
    seconds, rest = divmod(instant, 1_000_000_000)
    when = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    fraction = f".{rest:09}" if rest else ""
    return when.strftime(f"%Y-%m-%dT%H:%M:%S{fraction}Z").encode()
