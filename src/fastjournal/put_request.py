"""A job that is to be put, as it travels inside: its fields are known to be in range.

Rules:

1. Whoever makes one has checked it: `arguments` of a caller, the wire's job codec, or
   `checked_request` for a `NewJob` that anybody may have filled. 64-bit fields wrap when compiled,
   so nothing behind this edge checks a range again.
2. Limits of a journal (largest payload, draining queues, clock skew) are decisions, not ranges.
3. `id` is empty or has 16 bytes; `queue` has 1 to 255.
"""

from typing import Any, Final, final

from mypy_extensions import i64, mypyc_attr

from fastjournal.errors import BadRequest, OutOfRange, RequestError, TooLarge
from fastjournal.model import DEFAULT_PRIORITY, MAX_INSTANT, Mode, NewJob, Priority

__all__ = ["MERGE", "PLAIN", "UNIQUE", "PutRequest", "checked_request", "request_or_error"]

MERGE: Final[i64] = 0
UNIQUE: Final[i64] = 1
PLAIN: Final[i64] = 2
"""`model.Mode` as a request keeps it."""

_MODES: Final = list(Mode)
_MOST_TRIES: Final = 2**31 - 1


@final
@mypyc_attr(acyclic=True, free_list_len=1)
class PutRequest:
    """All that a put can say; the fields of `NewJob`, instants and lengths in ns."""

    def __init__(
        self,
        queue: bytes,
        value: bytes = b"",
        key: bytes = b"",
        mode: i64 = MERGE,
        priority: i64 = DEFAULT_PRIORITY,
        due: i64 = 0,
        expires: i64 = 0,
        timestamp: i64 = 0,
        lease: i64 = 0,
        max_attempts: i64 = 0,
        max_timeouts: i64 = 0,
        max_fails: i64 = 0,
        kind: i64 = 1,
        ttl: i64 = 0,
        job_id: bytes = b"",
    ) -> None:
        self.queue = queue
        self.value = value
        self.key = key
        self.mode: i64 = mode
        self.priority: i64 = priority
        self.due: i64 = due
        self.expires: i64 = expires
        self.timestamp: i64 = timestamp
        self.lease: i64 = lease
        self.max_attempts: i64 = max_attempts
        self.max_timeouts: i64 = max_timeouts
        self.max_fails: i64 = max_fails
        self.kind: i64 = kind
        self.ttl: i64 = ttl
        self.id = job_id
        self.inserted: i64 = 0
        """When its producer put it, if that is to be its age; 0: when it comes."""
        self.persist = False
        """It is to be in the log, though its queue may live in memory."""

    def new_job(self) -> NewJob:
        """The same for people."""
        return NewJob(
            self.queue, self.value, self.key, _MODES[self.mode], self.priority, self.due,
            self.expires, self.timestamp, self.lease, self.max_attempts, self.max_timeouts,
            self.max_fails, self.kind, self.ttl, self.id,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"PutRequest of {self.new_job()!r}"


def checked_request(job: NewJob) -> PutRequest:
    """What a `NewJob` says, refused if a field is of another type or out of range."""
    fields: Any = job  # whatever its annotations say, anybody may have filled it
    queue, value, key, job_id = fields.queue, fields.value, fields.key, fields.id
    if type(queue) is not bytes or type(value) is not bytes or type(key) is not bytes:
        raise BadRequest("queue, key and value are bytes")
    if not 1 <= len(queue) <= 255:
        raise TooLarge("a queue name has 1 to 255 bytes")
    if len(key) > 65_535:
        raise TooLarge(f"a key of {len(key)} bytes exceeds the limit of 65535")
    priority = fields.priority
    if type(priority) is not int and type(priority) is not Priority:
        raise BadRequest("a priority is a whole number")
    if not 0 <= priority <= 255:
        raise OutOfRange(f"priority {priority} is not in 0..255")
    mode = fields.mode
    if mode not in _MODES:
        raise BadRequest(f"unknown mode {mode!r}")
    if mode == Mode.UNIQUE and not key:
        raise BadRequest("a unique job needs a key")
    if mode == Mode.PLAIN and key:
        raise BadRequest("a plain job has no key")
    if job_id and (type(job_id) is not bytes or len(job_id) != 16):
        raise BadRequest("an id has 16 bytes")
    return PutRequest(
        queue,
        value,
        key,
        int(mode),
        int(priority),
        _number(fields.due, "due", MAX_INSTANT),
        _number(fields.expires, "expires", MAX_INSTANT),
        _number(fields.timestamp, "timestamp", MAX_INSTANT),
        _number(fields.lease, "lease", MAX_INSTANT),
        _number(fields.max_attempts, "max_attempts", _MOST_TRIES),
        _number(fields.max_timeouts, "max_timeouts", _MOST_TRIES),
        _number(fields.max_fails, "max_fails", _MOST_TRIES),
        _number(fields.kind, "kind", 255),
        _number(fields.ttl, "ttl", MAX_INSTANT),
        job_id,
    )


def _number(value: object, name: str, high: int) -> int:
    if type(value) is not int:
        raise BadRequest(f"{name} is a whole number")
    if not 0 <= value <= high:
        raise OutOfRange(f"{name} {value} is not in 0..{high}")
    return value


def request_or_error(job: NewJob) -> PutRequest | RequestError:
    """The same for one of many: what refuses it in its place."""
    try:
        return checked_request(job)
    except RequestError as error:
        return error
