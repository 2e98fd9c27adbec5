"""Values of type 6 and of the bulk functions: layouts, limits, faults."""

from __future__ import annotations

import struct

import pytest

from fastjournal.errors import BadRequest, OutOfRange, TooLarge
from fastjournal.model import Job, Lease, Mode, NewJob, Outcome, State
from fastjournal.wire.fj.bulk import (
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
    encode_put_reply,
    encode_settle,
    encode_settle_outcomes,
)
from fastjournal.wire.fj.functions import STABLE
from fastjournal.wire.fj.job_codec import (
    DELAY,
    LIFETIME,
    NO_ID,
    JobPut,
    decode_job,
    decode_jobs,
    encode_job,
    encode_jobs,
    encode_short,
)
from fastjournal.wire.fj.lease_codec import decode_leased, encode_leased, short_of
from fastjournal.wire.fj.replies import Pair, encode_reply

T = 1_700_000_000_000_000_000
ID = bytes(range(16))
FULL = JobPut(
    b"queue", b"data", b"key", Mode.UNIQUE, -5, T, T + 1, T + 2, 30, 3, 4, 5, 2, 90, ID,
    DELAY | LIFETIME,
)  # fmt: skip
LEASED = Lease(
    Job(
        ID, b"queue", b"key", b"data", State.PROCESSING, 7, T + 1, T + 2, T + 3, T + 4, 2, 70_000,
        70_001, 70_002, 9, 10, 11, 12, T - 5, T, b"worker", b"", b"note", False, True, True, 13, (),
        -7,
    ),
    70_000,
    T,
)  # fmt: skip


def short(token: int = 0) -> bytes:
    return encode_short(
        b"data", queue=b"queue", priority=200, max_timeouts=3, token=token, due=T, lease=30 * 10**9
    )


def test_layout_1_is_byte_exact() -> None:
    """4.5."""
    assert short() == (
        b"\x01\xc8\x03\x00" + struct.pack(">QI", T // 1000, 30_000) + b"\x00\x05queuedata"
    )


def test_layout_1_of_set_becomes_a_put_under_the_message_key_and_time() -> None:
    """4.5, D-09."""
    assert decode_job(short(), b"k", 77) == JobPut(
        b"queue", b"data", b"k", Mode.MERGE, 200, T, 0, 77, 30 * 10**9, 0, 3
    )


def test_byte_3_of_layout_1_must_be_zero_in_set() -> None:
    """4.5."""
    with pytest.raises(BadRequest):
        decode_job(short(token=1))


def test_layout_2_says_all_that_a_put_can() -> None:
    assert decode_job(encode_job(FULL), b"key") == FULL
    assert JobPut._fields[: len(NewJob._fields)] == NewJob._fields
    assert JobPut()[1:14] == NewJob(b"")[1:14]


@pytest.mark.parametrize("mode", Mode)
def test_a_put_becomes_the_job_that_the_journal_takes(mode: Mode) -> None:
    job = decode_job(encode_job(FULL._replace(flags=0, mode=mode)))
    assert job.new_job(5, b"other") == NewJob(*FULL[:15])._replace(mode=mode)
    assert job.new_job(5, b"other").mode is mode


def test_delay_and_lifetime_count_from_the_server_s_now() -> None:
    job = FULL._replace(due=100, expires=200, queue=b"")
    assert job.new_job(1000, b"domain")[:8] == (
        b"domain", b"data", b"key", Mode.UNIQUE, -5, 1100, 1200, T + 2,
    )  # fmt: skip
    never = FULL._replace(due=0, expires=0).new_job(1000, b"")
    assert (never.due, never.expires) == (0, 0)
    late = FULL._replace(due=2**63 - 1, expires=2**63 - 1).new_job(1000, b"")
    assert (late.due, late.expires) == (2**63 - 1, 2**63 - 1)


def test_layout_2_takes_key_and_time_of_the_message_where_it_has_none() -> None:
    job = decode_job(encode_job(FULL._replace(key=b"", timestamp=0)), b"outer", 99)
    assert (job.key, job.timestamp) == (b"outer", 99)


def test_two_different_keys_for_one_job_are_refused() -> None:
    with pytest.raises(BadRequest):
        decode_job(encode_job(FULL), b"other")


def test_many_jobs_keep_their_order_and_own_keys() -> None:
    jobs = [FULL._replace(key=b"%d" % n, timestamp=n + 1) for n in range(1000)]
    assert decode_jobs(encode_jobs(jobs)) == jobs
    assert decode_jobs(encode_jobs([])) == []


def test_a_leased_job_carries_its_whole_token_and_deadline() -> None:
    pair = encode_leased(LEASED)
    assert pair.key == b"key"
    assert decode_leased(pair) == LEASED


def test_the_short_form_caps_the_token_at_255() -> None:
    """4.5: one byte, 255 = 255 or more."""
    found = decode_leased(short_of(LEASED), T)
    assert (found.token, found.until, found.job.id) == (255, T, NO_ID)
    assert (found.job.queue, found.job.value, found.job.priority) == (b"queue", b"data", 0)
    assert found.job.state is State.PROCESSING


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


@pytest.mark.parametrize("field", ["due", "expires", "timestamp", "lease", "ttl"])
def test_an_instant_past_2262_is_refused(field: str) -> None:
    with pytest.raises(OutOfRange):
        decode_job(encode_job(FULL._replace(**{field: 1 << 63})))


@pytest.mark.parametrize(
    "change",
    [
        {"id": b"short" * 9, "priority": 1 << 63},
        {"lease": 1 << 64},
        {"max_fails": 1 << 32},
        {"due": -1},
        {"queue": b"q" * 65_536},
    ],
)
def test_a_job_that_does_not_fit_is_not_written(change: dict[str, object]) -> None:
    with pytest.raises(OutOfRange):
        encode_job(FULL._replace(**change))  # type: ignore[arg-type]
    with pytest.raises(OutOfRange):
        encode_short(b"", priority=256)


def test_too_many_jobs_are_refused_by_count_before_they_are_read() -> None:
    with pytest.raises(BadRequest):
        decode_jobs(struct.pack(">I", 0xFFFFFFFF) + bytes(1000))
    with pytest.raises(TooLarge):
        encode_jobs([JobPut()] * 65_536)


def test_outcomes_of_puts_keep_order_id_and_error() -> None:
    outcomes = [
        PutOutcome(Putting.NEW, ID),
        PutOutcome(REFUSED, NO_ID, "TOO-LARGE payload"),
        PutOutcome(Putting.MERGED, ID),
        PutOutcome(REFUSED, NO_ID, "PAUSED"),
    ]
    assert decode_put_outcomes(encode_put_outcomes(outcomes)) == outcomes
    assert decode_put_outcomes(encode_put_outcomes([])) == []


def test_the_short_cut_for_one_put_writes_the_same_reply() -> None:
    value = encode_put_outcomes([PutOutcome(Putting.MERGED, ID)])
    assert encode_put_reply(7, T, Putting.MERGED, ID, STABLE) == encode_reply(
        7, T, flags=STABLE, pairs=[Pair(b"", 1, value)]
    )
    assert decode_put_outcomes(value) == [PutOutcome(Putting.MERGED, ID)]


def test_outcomes_of_put_are_the_model_s() -> None:
    assert {o.name: int(o) for o in Outcome} == {
        o.name: int(o) for o in Putting if o is not Putting.REFUSED
    }


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
        Settle(Action.COMPLETE, ID, 70_000, None, b"", b"result"),
        Settle(Action.COMPLETE, ID, 70_000, None, b"", b""),
        Settle(Action.COMPLETE, ID, 70_000),
        Settle(Action.FAIL, ID, 1, 0, b"", b"Traceback"),
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
        encode_settle([Settle(16, ID)]),
        encode_settle([Settle(Action.COMPLETE, ID, 0, 5)]),
        encode_settle([Settle(Action.TOUCH, ID, 0, 5)]).replace(b"\x43", b"\x03"),
        encode_settle([Settle(Action.FAIL, ID, result=b"x")]).replace(b"\x81", b"\x01"),
        encode_settle([Settle(0, NO_ID)]),
        encode_settle([Settle(0, ID, result=b"abc")])[:-1],
    ],
)
def test_a_malformed_settle_is_refused_as_a_whole(value: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_settle(value)


def test_settle_refuses_what_does_not_fit() -> None:
    with pytest.raises(OutOfRange):
        decode_settle(encode_settle([Settle(3, ID, 0, 1 << 63)]))
    with pytest.raises(OutOfRange):
        encode_settle([Settle(0, ID, 1 << 32)])
    with pytest.raises(TooLarge):
        encode_settle([Settle(0, ID)] * 65_536)


def test_a_lease_request_round_trips() -> None:
    wanted = LeaseRequest((b"a", b"", b"c" * 300), 65_535, 1, 2, False, True, True, 3, b"worker")
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
        encode_lease_request(LeaseRequest(worker=b"abc"))[:-1],
        encode_lease_request(LeaseRequest(prefix=True)),
        encode_lease_request(LeaseRequest((b"a", b"b"), prefix=True)),
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
