"""Where people's values become ours: text, seconds and dates in; bytes and nanoseconds inside.

Rules:

1. Names and keys may be text (UTF-8) or bytes; payloads are bytes, never text.
2. A length is seconds (int or float) or a `timedelta`; an instant is a `datetime` with a zone, or
   seconds since 1970.
3. What cannot be meant (negative, NaN, too large, naive dates) is refused here with a clear word.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from fastjournal.clock import SECOND
from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.keys import MAX_KEY, MAX_QUEUE, domain
from fastjournal.model import DEFAULT_PRIORITY, MAX_INSTANT, Mode, NewJob

__all__ = [
    "MAX_VALUE",
    "Instant",
    "Length",
    "Text",
    "as_datetime",
    "id_bytes",
    "instant",
    "key_bytes",
    "last_words",
    "length",
    "new_job",
    "payload_bytes",
    "queue_bytes",
    "worker_bytes",
]

Text = str | bytes
Length = int | float | timedelta
Instant = datetime | int | float

MAX_VALUE = 1024 * 1024
"""Largest payload, in bytes, unless a journal is told otherwise."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REST = NewJob(b"")[5:-1]
_new = tuple.__new__
_MODES = {"merge": Mode.MERGE, "unique": Mode.UNIQUE, "plain": Mode.PLAIN}


def key_bytes(key: Text) -> bytes:
    """A key as bytes, 1..65 535 of them."""
    data = _text(key, "a key")
    if not data:
        raise BadRequest("a key must not be empty")
    if len(data) > MAX_KEY:
        raise TooLarge(f"a key of {len(data)} bytes exceeds the limit of {MAX_KEY}")
    return data


def queue_bytes(queue: Text) -> bytes:
    """A queue's name as bytes, 1..255 of them."""
    data = _text(queue, "a queue")
    if not data:
        raise BadRequest("a queue's name must not be empty")
    if len(data) > MAX_QUEUE:
        raise TooLarge(f"a queue's name of {len(data)} bytes exceeds the limit of {MAX_QUEUE}")
    return data


def id_bytes(job_id: object) -> bytes:
    """A job's id, checked."""
    if type(job_id) is not bytes or len(job_id) != 16:
        raise BadRequest("a job's id has 16 bytes")
    return job_id


def worker_bytes(worker: Text) -> bytes:
    """A consumer's name as bytes, at most 255 of them."""
    data = _text(worker, "a worker")
    if len(data) > MAX_QUEUE:
        raise TooLarge(f"a worker's name of {len(data)} bytes exceeds the limit of {MAX_QUEUE}")
    return data


def payload_bytes(payload: object, limit: int = MAX_VALUE) -> bytes:
    """A payload, checked."""
    if type(payload) is not bytes:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise BadRequest(f"a payload must be bytes, not {type(payload).__name__}")
        payload = bytes(payload)
    if len(payload) > limit:
        raise TooLarge(f"a payload of {len(payload)} bytes exceeds the limit of {limit}")
    return payload


def length(value: Length, what: str) -> int:
    """A length in ns, not negative."""
    if isinstance(value, timedelta):
        ns = (value.days * 86_400 + value.seconds) * SECOND + value.microseconds * 1000
    elif type(value) is int:
        ns = value * SECOND
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(f"{what} must be finite, not {value}")
        ns = round(min(max(value, -1.0), 1e10) * SECOND)  # what lies outside is refused below
    else:
        raise BadRequest(f"{what} must be seconds or a timedelta, not {type(value).__name__}")
    if ns < 0:
        raise BadRequest(f"{what} must not be negative")
    if ns > MAX_INSTANT:
        raise OutOfRange(f"{what} is too long")
    return ns


def instant(value: Instant, what: str) -> int:
    """An instant in ns since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadRequest(f"{what} must be a datetime with a time zone")
        return length(value - _EPOCH, what)
    return length(value, what)


def as_datetime(ns: int) -> datetime | None:
    """An instant as a date in UTC, to the microsecond; None for 0 (not set)."""
    return _EPOCH + timedelta(microseconds=ns // 1000) if ns else None


def new_job(
    now: int,
    payload: bytes = b"",
    key: Text | None = None,
    queue: Text | None = None,
    priority: int = DEFAULT_PRIORITY,
    delay: Length | None = None,
    due: Instant | None = None,
    ttl: Length | None = None,
    expires: Instant | None = None,
    lease: Length | None = None,
    max_attempts: int = 0,
    max_timeouts: int = 0,
    max_fails: int = 0,
    mode: str | None = None,
    timestamp: Instant | None = None,
    limit: int = MAX_VALUE,
    id: bytes = b"",  # noqa: A002 - the name of the field
) -> NewJob:
    """A job from the arguments of `put`; `now` turns lengths into instants."""
    if type(payload) is not bytes or len(payload) > limit:
        payload = payload_bytes(payload, limit)
    key_data = b"" if key is None else key_bytes(key)
    if queue is None:
        if not key_data:
            raise BadRequest("name a queue, or give a key that has a domain")
        queue_data = domain(key_data)
    else:
        queue_data = queue_bytes(queue)
    if type(priority) is not int:
        priority = _whole(priority, "priority")
    if not 0 <= priority <= 255:
        raise OutOfRange(f"priority must be 0..255, not {priority}")
    if mode is None:
        how = Mode.MERGE if key_data else Mode.PLAIN
    else:
        how = _mode(mode, key_data)
    if id and (type(id) is not bytes or len(id) != 16 or not any(id)):
        raise BadRequest("an id is 16 bytes, not all of them 0")
    usual = delay is None and due is None and ttl is None and expires is None and lease is None
    if usual and not (max_attempts or max_timeouts or max_fails or timestamp):
        return _new(NewJob, (queue_data, payload, key_data, how, priority, *_REST, id))
    if delay is not None and due is not None:
        raise BadRequest("give delay or due, not both")
    if ttl is not None and expires is not None:
        raise BadRequest("give ttl or expires, not both")
    due_at = 0
    if delay is not None:
        due_at = _sum(now, length(delay, "delay"), "delay")
    elif due is not None:
        due_at = instant(due, "due")
    expires_at = 0
    if ttl is not None:
        expires_at = _sum(max(now, due_at), _positive(length(ttl, "ttl"), "ttl"), "ttl")
    elif expires is not None:
        expires_at = instant(expires, "expires")
    return NewJob(
        queue_data,
        payload,
        key_data,
        how,
        priority,
        due_at,
        expires_at,
        0 if timestamp is None else instant(timestamp, "timestamp"),
        0 if lease is None else _positive(length(lease, "lease"), "lease"),
        _limit(max_attempts, "max_attempts"),
        _limit(max_timeouts, "max_timeouts", 255),
        _limit(max_fails, "max_fails"),
        id=id,
    )


def _text(value: object, what: str) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(f"{what} is not valid text: {error}") from error
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise BadRequest(f"{what} must be text or bytes, not {type(value).__name__}")


def _mode(mode: str, key: bytes) -> Mode:
    found = _MODES.get(mode)
    if found is None:
        raise BadRequest(f"mode must be one of {', '.join(_MODES)}, not {mode!r}")
    if found is Mode.PLAIN and key:
        raise BadRequest("a plain job has no key")
    if found is not Mode.PLAIN and not key:
        raise BadRequest(f"mode {mode!r} needs a key")
    return found


def _limit(value: int, what: str, largest: int = 2**31 - 1) -> int:
    number = _whole(value, what)
    if not 0 <= number <= largest:
        raise OutOfRange(f"{what} must be 0..{largest}, not {number}")
    return number


def _whole(value: object, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"{what} must be a whole number, not {value!r}")
    return int(value)


def _positive(ns: int, what: str) -> int:
    if ns == 0:
        raise BadRequest(f"{what} must be longer than nothing")
    return ns


def _sum(now: int, ns: int, what: str) -> int:
    if now + ns > MAX_INSTANT:
        raise OutOfRange(f"{what} reaches beyond the year 2262")
    return now + ns


def last_words(reason: bytes, most: int) -> str:
    """The last line of a reason, at most so many characters: of a traceback the exception."""
    text = reason.decode("utf-8", "backslashreplace").strip()
    return text[text.rfind("\n") + 1 :][:most]
