"""Where people's values become ours."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from fastjournal.arguments import (
    as_datetime,
    id_bytes,
    instant,
    key_bytes,
    length,
    length_text,
    payload_bytes,
    put_request,
    queue_bytes,
    worker_bytes,
)
from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.keys import domain
from fastjournal.model import MAX_INSTANT, Mode, NewJob, Priority

NOW = 1_700_000_000_000_000_000
S = 1_000_000_000


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (0, 0),
        (5, 5 * S),
        (0.5, S // 2),
        (1e-9, 1),
        (timedelta(days=2, microseconds=3), 172_800 * S + 3000),
        (9_223_372_036, 9_223_372_036 * S),
    ],
)
def test_lengths_are_seconds_or_timedeltas(value: Any, ns: int) -> None:
    assert length(value, "x") == ns


@pytest.mark.parametrize("value", [-1, -0.5, -1e300, math.nan, math.inf, "soon", None, True, [5]])
def test_what_is_no_length_is_refused(value: Any) -> None:
    with pytest.raises(BadRequest, match="delay"):
        length(value, "delay")


@pytest.mark.parametrize("text", ["0", "0.25", "90s", "5m", "2h", "7d", "1.5"])
def test_a_length_is_told_as_it_is_typed(text: str) -> None:
    assert length_text(length(text, "delay")) == text


@pytest.mark.parametrize("value", [9_223_372_037, 1e300, timedelta.max])
def test_lengths_beyond_the_year_2262_are_refused(value: Any) -> None:
    with pytest.raises(OutOfRange):
        length(value, "delay")


def test_instants_are_dates_with_a_zone_or_seconds() -> None:
    zone = timezone(timedelta(hours=2))
    assert instant(datetime(1970, 1, 1, 2, 0, 1, 5, tzinfo=zone), "due") == S + 5000
    assert instant(1.5, "due") == S + S // 2
    with pytest.raises(BadRequest, match="time zone"):
        instant(datetime(2030, 1, 1), "due")  # noqa: DTZ001 - that is the point
    with pytest.raises(BadRequest):
        instant(datetime(1969, 1, 1, tzinfo=UTC), "due")
    with pytest.raises(OutOfRange):
        instant(datetime.max.replace(tzinfo=UTC), "due")


def test_instants_come_back_as_dates() -> None:
    assert as_datetime(0) is None
    assert as_datetime(NOW + 1999) == datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC)


def test_names_are_text_or_bytes() -> None:
    """FJ-SQL-3."""
    assert key_bytes("ü") == b"\xc3\xbc"
    assert key_bytes(bytearray(b"k")) == b"k"
    assert queue_bytes(memoryview(b"q")) == b"q"
    assert worker_bytes("") == b""
    assert len(key_bytes("k" * 65_535)) == 65_535
    assert len(queue_bytes(b"q" * 255)) == 255


@pytest.mark.parametrize(
    ("function", "value", "error"),
    [
        (key_bytes, "", BadRequest),
        (key_bytes, "k" * 65_536, TooLarge),
        (key_bytes, 7, BadRequest),
        (key_bytes, "\ud800", BadRequest),
        (queue_bytes, b"", BadRequest),
        (queue_bytes, "ü" * 128, TooLarge),
        (queue_bytes, None, BadRequest),
        (worker_bytes, "w" * 256, TooLarge),
        (worker_bytes, 7, BadRequest),
        (id_bytes, b"short", BadRequest),
        (id_bytes, "i" * 16, BadRequest),
        (id_bytes, bytearray(16), BadRequest),
        (payload_bytes, "text", BadRequest),
        (payload_bytes, None, BadRequest),
    ],
)
def test_odd_names_and_payloads_are_refused(function: Any, value: Any, error: Any) -> None:
    """SNAP-COL-12."""
    with pytest.raises(error):
        function(value)


def test_payloads_are_bytes_up_to_a_limit() -> None:
    """SNAP-COL-13."""
    assert payload_bytes(bytearray(b"x")) == b"x"
    assert payload_bytes(memoryview(b"xy"), 2) == b"xy"
    with pytest.raises(TooLarge):
        payload_bytes(b"xyz", 2)


def new_job(*given: Any, **named: Any) -> NewJob:
    return put_request(*given, **named).new_job()


def test_a_plain_job_and_a_keyed_one() -> None:
    assert new_job(NOW, b"p", None, "q") == NewJob(b"q", b"p", b"", Mode.PLAIN)
    keyed = new_job(NOW, b"p", "http://example.com:80/x", priority=Priority.SLOW)
    key = b"http://example.com:80/x"
    assert keyed == NewJob(domain(key), b"p", key, Mode.MERGE, 200)
    assert type(keyed.priority) is int


def test_a_job_with_everything() -> None:
    job = new_job(
        NOW, b"p", "k", "q", 5, 10, None, 20, None, 30, 1, 2, 3, "unique", NOW // S, 100
    )  # fmt: skip
    assert job == NewJob(
        b"q", b"p", b"k", Mode.UNIQUE, 5, NOW + 10 * S, NOW + 30 * S, NOW, 30 * S, 1, 2, 3
    )


def test_a_lifetime_counts_from_the_due_time() -> None:
    """D-34."""
    assert new_job(NOW, b"", None, "q", ttl=5).expires == NOW + 5 * S
    assert new_job(NOW, b"", None, "q", delay=60, ttl=5).expires == NOW + 65 * S
    assert new_job(NOW, b"", None, "q", due=1, ttl=5).expires == NOW + 5 * S


def test_sums_that_cannot_be_stored_are_refused() -> None:
    for how in ({"delay": 9e9}, {"ttl": 9e9}):
        with pytest.raises(OutOfRange):
            new_job(NOW, b"", None, "q", **how)
    assert new_job(0, b"", None, "q", due=MAX_INSTANT // S).due <= MAX_INSTANT
