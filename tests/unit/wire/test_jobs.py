"""Values of type 6 and of the bulk functions: layouts, limits, faults."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fastjournal.buffers import BytesWriter
from fastjournal.errors import BadRequest, OutOfRange, RequestError, TooLarge
from fastjournal.model import Job, Lease, Mode, NewJob, Outcome, State
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj.bulk import (
    REFUSED,
    Action,
    LeaseRequest,
    Putting,
    Settle,
    SettleOutcome,
    Settling,
    decode_lease_request,
    decode_settle_outcomes,
    encode_lease_request,
    encode_settle,
    write_put_reply,
)
from fastjournal.wire.fj.functions import STABLE
from fastjournal.wire.fj.job_codec import (
    DELAY,
    LIFETIME,
    NO_ID,
    decode_leased,
    encode_job,
    encode_leased,
    fitting_request,
    read_job,
    read_jobs,
    short_of,
)
from fastjournal.wire.fj.replies import Pair, encode_reply
from wire_values import (
    PutOutcome,
    decode_put_outcomes,
    decode_settle,
    encode_jobs,
    encode_put_outcomes,
    encode_settle_outcomes,
    encode_short,
)

T = 1_700_000_000_000_000_000
ID = bytes(range(16))
FULL = NewJob(
    b"queue", b"data", b"key", Mode.UNIQUE, 5, T, T + 1, T + 2, 30, 3, 4, 5, 2, 90, ID,
)  # fmt: skip
INSTANTS = {"due": 28, "expires": 36, "timestamp": 44, "lease": 52, "ttl": 60}
LEASED = Lease(
    Job(
        ID, b"queue", b"key", b"data", State.PROCESSING, 7, T + 1, T + 2, T + 3, T + 4, 2, 70_000,
        70_001, 70_002, 9, 10, 11, 12, T - 5, T, b"worker", b"", b"note", False, True, True, 13, (),
        -7,
    ),
    70_000,
    T,
)  # fmt: skip


def request_of(job: NewJob) -> PutRequest:
    """The same without a check: anybody may send anything."""
    return PutRequest(*job)


def layout_2(job: NewJob, flags: int = 0) -> bytes:
    return encode_job(request_of(job), flags)


def decode_job(value: bytes, key: bytes = b"", timestamp: int = 0, now: int = 0) -> NewJob:
    return read_job(value, 0, len(value), key, timestamp, now).new_job()


def decode_jobs(value: bytes) -> list[NewJob]:
    jobs = read_jobs(value, 0, len(value))
    return [job.new_job() for job in jobs if isinstance(job, PutRequest)]


def past_2262(field: str) -> bytes:
    data = bytearray(layout_2(FULL))
    data[INSTANTS[field]] |= 0x80
    return bytes(data)


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
    assert decode_job(short(), b"k", 77) == NewJob(
        b"queue", b"data", b"k", Mode.MERGE, 200, T, 0, 77, 30 * 10**9, 0, 3
    )


def test_byte_3_of_layout_1_must_be_zero_in_set() -> None:
    """4.5."""
    with pytest.raises(BadRequest):
        decode_job(short(token=1))


def test_layout_2_says_all_that_a_put_can() -> None:
    assert decode_job(layout_2(FULL), b"key") == FULL


@pytest.mark.parametrize("mode", Mode)
def test_a_put_becomes_the_job_that_the_journal_takes(mode: Mode) -> None:
    key = b"" if mode is Mode.PLAIN else b"key"
    job = decode_job(layout_2(FULL._replace(mode=mode, key=key)))
    assert job == FULL._replace(mode=mode, key=key)
    assert job.mode is mode


def test_delay_and_lifetime_count_from_the_server_s_now() -> None:
    def read(job: NewJob) -> NewJob:
        return decode_job(layout_2(job, int(DELAY | LIFETIME)), now=1000)

    job = read(FULL._replace(due=100, expires=200))
    assert job == FULL._replace(due=1100, expires=1200)
    never = read(FULL._replace(due=0, expires=0))
    assert (never.due, never.expires) == (0, 0)
    for last in (2**63 - 1, 2**63 - 1000):
        late = read(FULL._replace(due=last, expires=last))
        assert (late.due, late.expires) == (2**63 - 1, 2**63 - 1)


def test_a_job_without_a_queue_goes_into_the_domain_of_its_key() -> None:
    job = decode_job(layout_2(FULL._replace(queue=b"", key=b"http://example.com/a")))
    assert job.queue == b"example.com"
    with pytest.raises(BadRequest, match="no domain"):
        decode_job(layout_2(FULL._replace(queue=b"", key=b"/a")))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"queue": b"", "key": b"", "mode": Mode.PLAIN}, TooLarge, "1 to 255 bytes"),
        ({"queue": b"q" * 256}, TooLarge, "1 to 255 bytes"),
        ({"queue": b"", "key": b":k"}, BadRequest, "no domain"),
        ({"priority": 256}, OutOfRange, "priority 256 is not in 0..255"),
        ({"priority": -1}, OutOfRange, "priority -1 is not in 0..255"),
        ({"key": b""}, BadRequest, "a unique job needs a key"),
        ({"mode": Mode.PLAIN}, BadRequest, "a plain job has no key"),
        ({"max_attempts": 2**31}, OutOfRange, "max_attempts 2147483648 is not in"),
        ({"max_timeouts": 2**31}, OutOfRange, "max_timeouts 2147483648 is not in"),
        ({"max_fails": 2**32 - 1}, OutOfRange, "max_fails 4294967295 is not in"),
    ],
)
def test_a_job_that_cannot_be_is_refused_by_itself(
    change: dict[str, Any], error: type[RequestError], text: str
) -> None:
    bad = layout_2(FULL._replace(**change))
    with pytest.raises(error, match=text):
        decode_job(bad)
    value = struct.pack(">I", 3) + layout_2(FULL) + bad + layout_2(FULL)
    first, refused, last = read_jobs(value, 0, len(value))
    assert isinstance(first, PutRequest) and isinstance(last, PutRequest)
    assert first.new_job() == last.new_job() == FULL
    assert type(refused) is error and text in str(refused)


def test_layout_2_takes_key_and_time_of_the_message_where_it_has_none() -> None:
    job = decode_job(layout_2(FULL._replace(key=b"", timestamp=0)), b"outer", 99)
    assert (job.key, job.timestamp) == (b"outer", 99)


def test_two_different_keys_for_one_job_are_refused() -> None:
    with pytest.raises(BadRequest):
        decode_job(layout_2(FULL), b"other")


def test_many_jobs_keep_their_order_and_own_keys() -> None:
    jobs = [FULL._replace(key=b"%d" % n, timestamp=n + 1) for n in range(1000)]
    assert decode_jobs(encode_jobs(map(request_of, jobs))) == jobs
    assert decode_jobs(encode_jobs([])) == []


def test_a_leased_job_carries_its_whole_token_and_deadline() -> None:
    pair = encode_leased(LEASED)
    assert pair.key == b"key"
    assert decode_leased(pair) == LEASED


def test_the_short_form_caps_the_token_at_255() -> None:
    """4.5: one byte, 255 = 255 or more."""
    found = decode_leased(short_of(LEASED), T)
    assert (found.token, found.until, found.job.id) == (255, T, NO_ID)
    assert (found.job.queue, found.job.payload, found.job.priority) == ("queue", b"data", 0)
    assert found.job.state is State.PROCESSING


@pytest.mark.parametrize("cut", range(1, len(layout_2(FULL))))
def test_a_job_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(BadRequest):
        decode_job(layout_2(FULL)[:cut])


@pytest.mark.parametrize("cut", range(len(encode_jobs([request_of(FULL)] * 2))))
def test_many_jobs_cut_short_are_refused_as_a_whole(cut: int) -> None:
    with pytest.raises(BadRequest):
        decode_jobs(encode_jobs([request_of(FULL)] * 2)[:cut])


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
        layout_2(FULL) + b"x",
        layout_2(FULL)[:3] + b"\1" + layout_2(FULL)[4:],
        b"\2\x10" + layout_2(FULL)[2:],
        b"\1\0\0\0" + bytes(12) + b"\xff\xff",
    ],
)
def test_a_job_of_no_known_layout_is_refused(value: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_job(value)


@pytest.mark.parametrize("field", ["due", "expires", "timestamp", "lease", "ttl"])
def test_an_instant_past_2262_is_refused(field: str) -> None:
    with pytest.raises(OutOfRange):
        decode_job(past_2262(field))


@pytest.mark.parametrize(
    "change",
    [
        {"id": b"short" * 9},
        {"priority": 1 << 63},
        {"lease": 1 << 64},
        {"max_fails": 1 << 32},
        {"due": -1},
        {"kind": 256},
        {"queue": b"q" * 65_536},
    ],
)
def test_a_job_that_does_not_fit_layout_2_is_not_written(change: dict[str, Any]) -> None:
    with pytest.raises(OutOfRange):
        fitting_request(FULL._replace(**change))
    with pytest.raises(BadRequest):
        fitting_request(FULL._replace(value="text"))  # type: ignore[arg-type]
    with pytest.raises(BadRequest):
        fitting_request(FULL._replace(due="tomorrow"))  # type: ignore[arg-type]


def test_what_layout_2_can_say_is_written_whether_it_can_be_or_not() -> None:
    for job in (FULL, FULL._replace(priority=-999), FULL._replace(mode=Mode.PLAIN, id=b"")):
        assert fitting_request(job).new_job() == job


def test_too_many_jobs_are_refused_by_count_before_they_are_read() -> None:
    with pytest.raises(BadRequest):
        decode_jobs(struct.pack(">I", 0xFFFFFFFF) + bytes(1000))


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
    out = BytesWriter()
    write_put_reply(out, 7, T, Putting.MERGED, ID, STABLE)
    assert out.getvalue() == encode_reply(7, T, flags=STABLE, pairs=[Pair(b"", 1, value)])
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
    for schema in range(16):
        wanted = LeaseRequest((b"q",), take=True, schema=schema)
        value = encode_lease_request(wanted)
        assert value[1] == 4 | 8 | schema << 4
        assert decode_lease_request(value) == wanted


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\2" + encode_lease_request(LeaseRequest())[1:],
        b"\1\x10" + encode_lease_request(LeaseRequest())[2:],
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
