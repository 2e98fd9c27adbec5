"""Values of type 6 and of the bulk functions: layouts, limits, faults."""

from __future__ import annotations

import struct

import pytest

from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.wire.bulk import (
    REFUSED,
    Action,
    LeaseRequest,
    PutOutcome,
    Putting,
    Settle,
    SettleOutcome,
    Settling,
    decode_lease_request,
    decode_put_outcomes,
    decode_settle,
    decode_settle_outcomes,
    encode_lease_request,
    encode_put_outcomes,
    encode_settle,
    encode_settle_outcomes,
)
from fastjournal.wire.fj import Pair
from fastjournal.wire.jobvalue import (
    DELAY,
    LIFETIME,
    NO_ID,
    JobPut,
    LeasedJob,
    Mode,
    ShortJob,
    decode_job,
    decode_jobs,
    decode_leased,
    encode_job,
    encode_jobs,
    encode_leased,
    encode_short,
    short_of,
)

T = 1_700_000_000_000_000_000
ID = bytes(range(16))
FULL = JobPut(
    b"data", b"key", b"queue", ID, -5, T, T + 1, T + 2, 30_000, 3, 4, 5,
    Mode.UNIQUE | DELAY | LIFETIME, 2,
)  # fmt: skip
LEASED = LeasedJob(
    ID, b"key", b"queue", b"data", 70_000, T, -7, T + 1, T + 2, T + 3, T + 4, 5, 70_000, 7, 8, 9,
    10, 11, ord("P"), 2,
)  # fmt: skip


def test_layout_1_is_byte_exact() -> None:
    """4.5."""
    value = encode_short(ShortJob(b"data", 200, 3, 0, T, 30_000, b"queue"))
    assert value == (
        b"\x01\xc8\x03\x00" + struct.pack(">QI", T // 1000, 30_000) + b"\x00\x05queuedata"
    )


def test_layout_1_of_set_becomes_a_put_under_the_message_key_and_time() -> None:
    """4.5, D-09."""
    value = encode_short(ShortJob(b"data", 200, 3, 0, T, 30_000, b"queue"))
    assert decode_job(value, b"k", 77) == JobPut(
        b"data", b"k", b"queue", NO_ID, 200, T, 0, 77, 30_000, 0, 3
    )


def test_byte_3_of_layout_1_must_be_zero_in_set() -> None:
    """4.5."""
    with pytest.raises(BadRequest):
        decode_job(encode_short(ShortJob(b"", token=1)))


def test_layout_2_says_all_that_a_put_can() -> None:
    job = decode_job(encode_job(FULL), b"key")
    assert job == FULL
    assert (job.mode, job.is_delay, job.is_ttl) == (Mode.UNIQUE, True, True)


def test_layout_2_takes_key_and_time_of_the_message_where_it_has_none() -> None:
    job = decode_job(encode_job(FULL._replace(key=b"", modified=0)), b"outer", 99)
    assert (job.key, job.modified) == (b"outer", 99)


def test_two_different_keys_for_one_job_are_refused() -> None:
    with pytest.raises(BadRequest):
        decode_job(encode_job(FULL), b"other")


def test_many_jobs_keep_their_order_and_own_keys() -> None:
    jobs = [FULL._replace(key=b"%d" % n, modified=n + 1) for n in range(1000)]
    assert decode_jobs(encode_jobs(jobs)) == jobs
    assert decode_jobs(encode_jobs([])) == []


def test_a_leased_job_carries_its_whole_token_and_deadline() -> None:
    pair = encode_leased(LEASED)
    assert pair.key == b"key"
    assert decode_leased(pair) == LEASED


def test_the_short_form_caps_the_token_at_255() -> None:
    """4.5: one byte, 255 = 255 or more."""
    short = decode_leased(short_of(LEASED), T)
    assert (short.token, short.lease_until, short.id) == (255, T, NO_ID)
    assert (short.queue, short.data, short.priority) == (b"queue", b"data", 0)


@pytest.mark.parametrize("cut", range(1, len(encode_job(FULL))))
def test_a_job_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(BadRequest):
        decode_job(encode_job(FULL)[:cut])


@pytest.mark.parametrize("cut", range(len(encode_jobs([FULL, FULL]))))
def test_many_jobs_cut_short_are_refused_as_a_whole(cut: int) -> None:
    with pytest.raises(BadRequest):
        decode_jobs(encode_jobs([FULL, FULL])[:cut])


@pytest.mark.parametrize("cut", range(len(encode_leased(LEASED).value)))
def test_a_leased_job_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(BadRequest):
        decode_leased(Pair(b"", 6, encode_leased(LEASED).value[:cut]))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00" + bytes(100),
        b"\x04" + bytes(100),
        encode_job(FULL) + b"x",
        encode_job(FULL)[:3] + b"\1" + encode_job(FULL)[4:],
        b"\2\x10" + encode_job(FULL)[2:],
        b"\1\0\0\0" + bytes(12) + b"\xff\xff",
    ],
)
def test_a_job_of_no_known_layout_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_job(value)


@pytest.mark.parametrize("field", ["due", "expires", "modified"])
def test_an_instant_past_2262_is_refused(field: str) -> None:
    with pytest.raises(OutOfRange):
        decode_job(encode_job(FULL._replace(**{field: 1 << 63})))


@pytest.mark.parametrize(
    "change",
    [
        {"id": b"short" * 9, "priority": 1 << 63},
        {"lease_ms": 1 << 32},
        {"max_fails": 65_536},
        {"due": -1},
        {"queue": b"q" * 65_536},
    ],
)
def test_a_job_that_does_not_fit_is_not_written(change: dict[str, object]) -> None:
    with pytest.raises(OutOfRange):
        encode_job(FULL._replace(**change))  # type: ignore[arg-type]
    with pytest.raises(OutOfRange):
        encode_short(ShortJob(b"", priority=256))


def test_too_many_jobs_are_refused_by_count_before_they_are_read() -> None:
    with pytest.raises(BadRequest):
        decode_jobs(struct.pack(">I", 0xFFFFFFFF) + bytes(1000))
    with pytest.raises(TooLarge):
        encode_jobs([JobPut(b"")] * 65_536)


def test_outcomes_of_puts_keep_order_id_and_error() -> None:
    outcomes = [
        PutOutcome(Putting.STORED, ID),
        PutOutcome(REFUSED, NO_ID, "TOO-LARGE payload"),
        PutOutcome(Putting.MERGED, ID),
        PutOutcome(REFUSED, NO_ID, "PAUSED"),
    ]
    assert decode_put_outcomes(encode_put_outcomes(outcomes)) == outcomes
    assert decode_put_outcomes(encode_put_outcomes([])) == []


def test_outcomes_of_settle_keep_order_instant_and_error() -> None:
    outcomes = [
        SettleOutcome(Settling.DONE),
        SettleOutcome(Settling.EXTENDED, T),
        SettleOutcome(REFUSED, 0, "LEASE-LOST"),
        SettleOutcome(Settling.WAITING, T + 1),
        SettleOutcome(Settling.DEAD),
    ]
    assert decode_settle_outcomes(encode_settle_outcomes(outcomes)) == outcomes


def test_leases_are_settled_by_id_or_by_key() -> None:
    items = [
        Settle(Action.COMPLETE, ID, 70_000, 0, b"", b"result"),
        Settle(Action.FAIL, ID, 1, 5, b"", b"Traceback"),
        Settle(Action.RELEASE, NO_ID, 0, 10**9, b"key"),
        Settle(Action.TOUCH, ID, 2, 30 * 10**9),
    ]
    assert decode_settle(encode_settle(items)) == items


@pytest.mark.parametrize(
    "value",
    [
        b"",
        struct.pack(">I", 2) + encode_settle([Settle(0, ID)])[4:],
        struct.pack(">I", 0xFFFFFFFF) + bytes(1000),
        encode_settle([Settle(0, ID)]) + b"x",
        encode_settle([Settle(4, ID)]),
        encode_settle([Settle(0, NO_ID)]),
        encode_settle([Settle(0, ID, result=b"abc")])[:-1],
    ],
)
def test_a_malformed_settle_is_refused_as_a_whole(value: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_settle(value)


def test_settle_refuses_what_does_not_fit() -> None:
    with pytest.raises(OutOfRange):
        decode_settle(encode_settle([Settle(0, ID, 0, 1 << 63)]))
    with pytest.raises(OutOfRange):
        encode_settle([Settle(0, ID, 1 << 32)])
    with pytest.raises(TooLarge):
        encode_settle([Settle(0, ID)] * 65_536)


def test_a_lease_request_round_trips() -> None:
    wanted = LeaseRequest((b"a", b"", b"c" * 300), 65_535, 1, 2, True, True, True, 3)
    assert decode_lease_request(encode_lease_request(wanted)) == wanted
    assert decode_lease_request(encode_lease_request(LeaseRequest())) == LeaseRequest()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\2" + encode_lease_request(LeaseRequest())[1:],
        b"\1\x08" + encode_lease_request(LeaseRequest())[2:],
        encode_lease_request(LeaseRequest((b"abc",)))[:-1],
        encode_lease_request(LeaseRequest((b"abc",)))[:-4],
        encode_lease_request(LeaseRequest((b"abc",))) + b"x",
    ],
)
def test_a_malformed_lease_request_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_lease_request(value)


def test_a_lease_of_no_job_is_refused() -> None:
    with pytest.raises(OutOfRange):
        decode_lease_request(encode_lease_request(LeaseRequest(limit=0)))
    with pytest.raises(OutOfRange):
        encode_lease_request(LeaseRequest(limit=65_536))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        struct.pack(">I", 1),
        struct.pack(">I", 1) + b"\xff" + ID,
        encode_put_outcomes([]) + b"x",
    ],
)
def test_malformed_outcomes_are_refused(value: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_put_outcomes(value)
