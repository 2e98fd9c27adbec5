"""What callers may pass, and what it becomes: text, seconds and dates; bytes and nanoseconds.

Rules:

1. Names and keys may be text (UTF-8) or bytes; payloads are bytes, never text.
2. A length is seconds (int or float) or a `timedelta`; an instant is a `datetime` with a zone, or
   seconds since 1970.
3. What cannot be meant (negative, NaN, too large, naive dates) is refused here with a clear word.
   So these functions take anything, whatever their callers promise.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mypy_extensions import i64

from fastjournal.clock import SECOND, as_datetime
from fastjournal.errors import BadRequest, OutOfRange, TooLarge, because
from fastjournal.keys import MAX_KEY, MAX_QUEUE, domain
from fastjournal.model import DEFAULT_PRIORITY, MAX_INSTANT, Unchecked
from fastjournal.put_request import MERGE, PLAIN, UNIQUE, PutRequest

__all__ = [
    "MAX_VALUE",
    "NEVER",
    "PUT_ARGUMENTS",
    "Instant",
    "JobId",
    "Length",
    "Text",
    "as_datetime",
    "id_bytes",
    "instant",
    "is_host_name",
    "key_bytes",
    "last_words",
    "length",
    "length_text",
    "payload_bytes",
    "put_arguments",
    "put_request",
    "put_request_of",
    "queue_bytes",
    "result_bytes",
    "schema_number",
    "seconds_of",
    "token_number",
    "worker_bytes",
]

Text = str | bytes | Unchecked
JobId = bytes | str | Unchecked
Length = int | float | timedelta | str | Unchecked
Instant = datetime | int | float | Unchecked

MAX_VALUE: Final = 1024 * 1024
"""Largest payload, in bytes, unless a journal is told otherwise."""
_MAX_SCHEMA: Final = 15
NEVER: Final = timedelta(days=106_751)
"""As the delay of a failure: it is not tried again, the job is dead."""
PUT_ARGUMENTS: Final = frozenset(
    (
        "payload", "key", "queue", "priority", "delay", "due", "ttl", "expires", "lease",
        "max_attempts", "max_timeouts", "max_fails", "mode", "timestamp", "id",
    )
)  # fmt: skip
"""What `put` can be told."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_ID: Final = bytes(16)
_MODES: Final = {"merge": MERGE, "unique": UNIQUE, "plain": PLAIN}


def key_bytes(key: object) -> bytes:
    """A key as bytes, 1..65 535 of them."""
    data = _text(key, "a key")
    if not data:
        raise BadRequest("a key must not be empty")
    if len(data) > MAX_KEY:
        raise TooLarge(f"a key of {len(data)} bytes exceeds the limit of {MAX_KEY}")
    return data


def queue_bytes(queue: object) -> bytes:
    """A queue's name as bytes, 1..255 of them."""
    data = _text(queue, "a queue")
    if not data:
        raise BadRequest("a queue's name must not be empty")
    if len(data) > MAX_QUEUE:
        raise TooLarge(f"a queue's name of {len(data)} bytes exceeds the limit of {MAX_QUEUE}")
    return data


def id_bytes(job_id: object) -> bytes:
    """A job's id, checked: its 16 bytes, or their 32 hexadecimal digits; dashes do not matter."""
    if isinstance(job_id, str):
        try:
            job_id = bytes.fromhex(job_id.replace("-", ""))
        except ValueError:
            job_id = None
    if type(job_id) is not bytes or len(job_id) != 16:
        raise BadRequest("a job's id has 16 bytes, or 32 hexadecimal digits")
    return job_id


def worker_bytes(worker: object) -> bytes:
    """A consumer's name as bytes, at most 255 of them."""
    data = _text(worker, "a worker")
    if len(data) > MAX_QUEUE:
        raise TooLarge(f"a worker's name of {len(data)} bytes exceeds the limit of {MAX_QUEUE}")
    return data


def payload_bytes(payload: object, limit: i64 = MAX_VALUE) -> bytes:
    """A payload, checked."""
    if type(payload) is not bytes:
        if not isinstance(payload, (bytes, bytearray, memoryview)):
            raise BadRequest(f"a payload must be bytes, not {_instead_of_bytes(payload)}")
        payload = bytes(payload)
    if len(payload) > limit:
        raise TooLarge(f"a payload of {len(payload)} bytes exceeds the limit of {limit}")
    return payload


def is_host_name(host: str) -> bool:
    """Whether a name can be looked up; else the resolver would end in a `UnicodeError`."""
    if host.isascii() and host.replace(".", "").replace("-", "").isalnum() and ".." not in host:
        return len(host) < 64 or all(len(label) < 64 for label in host.split("."))
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def _instead_of_bytes(payload: object) -> str:
    """What was given, and what to do about it."""
    if isinstance(payload, str):
        return "str: encode it, payload.encode()"
    return f"{type(payload).__name__}: encode it, or call a task (fastjournal.Tasks)"


_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds_of(text: str) -> float | None:
    """Seconds of `90`, `1.5`, `250ms`, `5s`, `10m`, `2h`, `7d`; None: it is no length."""
    typed = text.strip().lower()
    number = typed.rstrip("mshd")
    seconds = _UNITS.get(typed[len(number) :])
    whole, point, part = number.strip().partition(".")
    for digits in [whole, part] if point else [whole]:
        if not (digits.isascii() and digits.isdigit()):
            return None
    return None if seconds is None else float(number) * seconds


def length_text(ns: int) -> str:
    """A length in ns as people type it: `90s`, `5m`, `2h`; read back it is the same."""
    for unit, name in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if ns and ns % (unit * SECOND) == 0:
            return f"{ns // (unit * SECOND)}{name}"
    return f"{ns / SECOND:.9f}".rstrip("0").rstrip(".")


def length(value: object, what: str) -> int:
    """A length in ns, not negative."""
    if isinstance(value, str):
        seconds = seconds_of(value)
        if seconds is None:
            raise BadRequest(f"{what} is no length: {value!r} (seconds, or 250ms 5s 10m 2h 7d)")
        value = seconds
    if isinstance(value, timedelta):
        ns = (value.days * 86_400 + value.seconds) * SECOND + value.microseconds * 1000
    elif type(value) is int:
        ns = value * SECOND
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadRequest(f"{what} must be finite, not {value}")
        ns = round(min(max(value, -1.0), 1e10) * SECOND)  # what lies outside is refused below
    else:
        raise BadRequest(
            f"{what} must be seconds, a timedelta or a text (5m), not {type(value).__name__}"
        )
    if ns < 0:
        raise BadRequest(f"{what} must not be negative")
    if ns > MAX_INSTANT:
        raise OutOfRange(f"{what} is too long")
    return ns


def instant(value: object, what: str) -> int:
    """An instant in ns since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise BadRequest(f"{what} must be a datetime with a time zone")
        return length(value - _EPOCH, what)
    if isinstance(value, str):
        raise BadRequest(f"{what} must be a datetime or seconds since 1970, not str")
    return length(value, what)


def result_bytes(result: object) -> bytes:
    """A result, or the reason of a failure."""
    if type(result) is not bytes:
        raise BadRequest("a result is bytes")
    return result


def schema_number(schema: object) -> int:
    """A version of payloads."""
    if type(schema) is not int:
        raise BadRequest(f"schema must be a whole number, not {type(schema).__name__}")
    if not 0 <= schema <= _MAX_SCHEMA:
        raise OutOfRange(f"schema must be 0..{_MAX_SCHEMA}, not {schema}")
    return schema


def token_number(token: object) -> int | None:
    """The token of a lease; None: the caller has none. What can be none becomes one of no lease."""
    if token is None or type(token) is int:
        return token
    return int(token) if isinstance(token, int) else 0


def put_arguments(job: Any) -> dict[str, Any]:
    """The arguments of `put` in a mapping, none of them unknown."""
    if type(job) is not dict and not isinstance(job, Mapping):
        raise BadRequest(f"a job is a NewJob or a mapping, not {type(job).__name__}")
    given: dict[Any, Any] = job if type(job) is dict else dict(job)
    for name in given:
        if name not in PUT_ARGUMENTS:
            unknown = set(map(str, given)) - PUT_ARGUMENTS
            words = ", ".join(map(repr, sorted(unknown)))
            raise BadRequest(f"put has no argument {words}")
    return given


def put_request_of(now: i64, given: dict[str, Any], limit: i64 = MAX_VALUE) -> PutRequest:
    """A job from `put_arguments`; `now` as in `put_request`."""
    return put_request(
        now, given.get("payload", b""), given.get("key"), given.get("queue"),
        given.get("priority", DEFAULT_PRIORITY), given.get("delay"), given.get("due"),
        given.get("ttl"), given.get("expires"), given.get("lease"), given.get("max_attempts", 0),
        given.get("max_timeouts", 0), given.get("max_fails", 0), given.get("mode"),
        given.get("timestamp"), limit, given.get("id", b""),
    )  # fmt: skip


def put_request(
    now: i64,
    payload: object = b"",
    key: object = None,
    queue: object = None,
    priority: object = DEFAULT_PRIORITY,
    delay: object = None,
    due: object = None,
    ttl: object = None,
    expires: object = None,
    lease: object = None,
    max_attempts: object = 0,
    max_timeouts: object = 0,
    max_fails: object = 0,
    mode: object = None,
    timestamp: object = None,
    limit: i64 = MAX_VALUE,
    id: object = b"",  # noqa: A002 - the name of the field
) -> PutRequest:
    """A job from the arguments of `put`; `now` turns lengths into instants."""
    value = payload_bytes(payload, limit)
    key_data = b"" if key is None else key_bytes(key)
    if queue is not None:
        queue_data = queue_bytes(queue)
    elif key_data:
        queue_data = domain(key_data)
    else:
        raise BadRequest("name a queue, or give a key that has a domain")
    rank = _number(priority, "priority", 255)
    how = _mode(mode, key_data)
    request = PutRequest(queue_data, value, key_data, how, rank)
    if id:
        if not isinstance(id, bytes) or len(id) != 16 or id == _NO_ID:
            raise BadRequest("an id is 16 bytes, not all of them 0")
        request.id = id
    if delay is not None:
        if due is not None:
            raise BadRequest("give delay or due, not both")
        request.due = _sum(now, length(delay, "delay"), "delay")
    elif due is not None:
        request.due = instant(due, "due")
    if ttl is not None:
        if expires is not None:
            raise BadRequest("give ttl or expires, not both")
        lives = _positive(length(ttl, "ttl"), "ttl")
        request.expires = _sum(max(now, request.due), lives, "ttl")
    elif expires is not None:
        request.expires = instant(expires, "expires")
    if timestamp is not None:
        request.timestamp = instant(timestamp, "timestamp")
    if lease is not None:
        request.lease = _positive(length(lease, "lease"), "lease")
    if max_attempts != 0:
        request.max_attempts = _number(max_attempts, "max_attempts", 2**31 - 1)
    if max_timeouts != 0:
        request.max_timeouts = _number(max_timeouts, "max_timeouts", 255)
    if max_fails != 0:
        request.max_fails = _number(max_fails, "max_fails", 2**31 - 1)
    return request


def _text(value: object, what: str) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise because(BadRequest(f"{what} is not valid text: {error}"), error) from error
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise BadRequest(f"{what} must be text or bytes, not {type(value).__name__}")


def _mode(mode: object, key: bytes) -> i64:
    if mode is None:
        return MERGE if key else PLAIN
    found = _MODES.get(mode) if isinstance(mode, str) else None
    if found is None:
        raise BadRequest(f"mode must be one of {', '.join(_MODES)}, not {mode!r}")
    if found == PLAIN and key:
        raise BadRequest("a plain job has no key")
    if found != PLAIN and not key:
        raise BadRequest(f"mode {mode!r} needs a key")
    return found


def _number(value: object, what: str, largest: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequest(f"{what} must be a whole number, not {value!r}")
    if not 0 <= value <= largest:
        raise OutOfRange(f"{what} must be 0..{largest}, not {value}")
    return value if type(value) is int else int(value)


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
