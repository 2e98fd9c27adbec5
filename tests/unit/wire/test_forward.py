"""The values of FORWARD."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastjournal.errors import BadRequest, JournalError, OutOfRange, RequestError, TooLarge
from fastjournal.model import Mode, NewJob
from fastjournal.put_request import PutRequest
from fastjournal.wire.fj.bulk import (
    Forwarded,
    ForwardRequest,
    decode_forwarded,
    encode_forget,
    encode_forward,
    encode_forwarded,
    read_forward,
)
from fastjournal.wire.fj.job_codec import DELAY, LIFETIME, encode_job

NOW = 1_700_000_000_000_000_000
SENDER = bytes(range(12))
JOB = encode_job(PutRequest(b"q", b"v", b"k"))

JOBS = st.builds(
    PutRequest,
    queue=st.binary(min_size=1, max_size=20),
    value=st.binary(max_size=50),
    key=st.binary(min_size=1, max_size=20),
    mode=st.sampled_from([Mode.MERGE, Mode.UNIQUE]),
    priority=st.integers(0, 255),
    due=st.integers(0, 2**62),
    expires=st.integers(0, 2**62),
    timestamp=st.integers(0, 2**62),
    lease=st.integers(0, 2**40),
    max_attempts=st.integers(0, 9),
    max_timeouts=st.integers(0, 9),
    max_fails=st.integers(0, 9),
    kind=st.integers(0, 5),
    ttl=st.integers(0, 2**40),
    job_id=st.one_of(st.just(b""), st.binary(min_size=16, max_size=16).filter(any)),
)


def decode_forward(value: bytes, sender: bytes = b"") -> ForwardRequest:
    return read_forward(value, 0, len(value), NOW, sender)


def jobs_of(read: ForwardRequest) -> list[NewJob]:
    return [job.new_job() for job in read.jobs if isinstance(job, PutRequest)]


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(2, 2**32 - 1), JOBS, max_size=4))
def test_jobs_and_marks_come_back(given_jobs: dict[int, PutRequest]) -> None:
    pairs = sorted(given_jobs.items())
    value = encode_forward([mark for mark, _ in pairs], [encode_job(job) for _, job in pairs])
    read = decode_forward(value)
    assert read.marks == [mark for mark, _ in pairs]
    assert jobs_of(read) == [job.new_job() for _, job in pairs]
    assert not read.forget


def test_a_job_without_an_id_gets_its_place() -> None:
    own = encode_job(PutRequest(b"q", job_id=bytes(range(16))))
    jobs = jobs_of(decode_forward(encode_forward([9, 300], [JOB, own]), SENDER))
    assert [job.id for job in jobs] == [SENDER + b"\0\0\0\x09", bytes(range(16))]
    (job,) = jobs_of(decode_forward(encode_forward([9], [JOB]), b"another name"))
    assert job.id == b"another name" + b"\0\0\0\x09"
    (job,) = jobs_of(decode_forward(encode_forward([9], [JOB]), b"short"))
    assert job.id == b""


def test_lengths_count_from_now_and_a_queue_follows_from_the_key() -> None:
    job = PutRequest(b"", b"", b"http://example.com/a", due=5, expires=7)
    data = encode_job(job, int(DELAY | LIFETIME))
    (found,) = jobs_of(decode_forward(encode_forward([2], [data])))
    assert found == NewJob(
        b"example.com", b"", b"http://example.com/a", due=NOW + 5, expires=NOW + 7
    )


def test_a_sender_is_ended_by_a_request_without_jobs() -> None:
    read = decode_forward(encode_forget())
    assert (read.marks, read.jobs, read.forget) == ([], [], True)


def test_a_job_that_cannot_be_is_refused_by_itself() -> None:
    for bad in (PutRequest(b"q", priority=256), PutRequest(b"", b"", b"/no/domain")):
        read = decode_forward(encode_forward([2, 3, 4], [JOB, encode_job(bad), JOB]), SENDER)
        first, refused, last = read.jobs
        assert isinstance(first, PutRequest) and isinstance(last, PutRequest)
        assert isinstance(refused, RequestError)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", BadRequest),
        (b"\2" + bytes(7), BadRequest),
        (b"\1\2" + bytes(6), BadRequest),
        (b"\1\0\0\1" + bytes(4), BadRequest),
        (b"\1\0\0\0\xff\xff\xff\xff", BadRequest),
        (encode_forward([2], [JOB])[:-1], BadRequest),
        (encode_forward([2], [JOB]) + b"x", BadRequest),
        (encode_forward([2], []), BadRequest),
        (encode_forward([0], [JOB]), BadRequest),
        (encode_forward([1], [JOB]), BadRequest),
        (encode_forward([5, 5], [JOB, JOB]), BadRequest),
        (encode_forward([5, 4], [JOB, JOB]), BadRequest),
        (encode_forward([5], [b"\3" + JOB[1:]]), BadRequest),
        (encode_forward([5], [JOB[:1] + b"\3" + JOB[2:]]), BadRequest),
        (encode_forward([5], [JOB[:28] + b"\xff" * 8 + JOB[36:]]), OutOfRange),
        (b"\1\1\0\0" + encode_forward([5], [JOB])[4:], BadRequest),
    ],
)
def test_malformed_ones_are_refused_whole(value: bytes, error: type[JournalError]) -> None:
    with pytest.raises(error):
        decode_forward(value, SENDER)


def test_too_many_jobs_are_refused_before_they_are_sent() -> None:
    with pytest.raises(TooLarge):
        encode_forward(range(65_536), [])


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6),
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.text(max_size=20)), max_size=5),
)
def test_outcomes_come_back(counts: list[int], errors: list[tuple[int, str]]) -> None:
    mark, new, merged, twin, stale, repeated = counts
    outcome = Forwarded(mark, new, merged, twin, stale, len(errors), repeated, tuple(errors))
    assert decode_forwarded(encode_forwarded(outcome)) == outcome


@pytest.mark.parametrize("cut", [0, 27, 29, 33, 36])
def test_outcomes_that_are_cut_off_are_refused(cut: int) -> None:
    value = encode_forwarded(Forwarded(1, refused=1, errors=((9, "TOO-LARGE"),)))
    with pytest.raises(BadRequest):
        decode_forwarded(value[:cut])
