"""A message of a bare interpreter is the message that the codecs make, byte for byte."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.put_request import PutRequest
from fastjournal.spool.frames import frame
from fastjournal.spool.sound_frames import Frame, plain_job
from fastjournal.wire.fj.functions import PERSIST, Function, Type
from fastjournal.wire.fj.job_codec import DELAY, encode_job
from fastjournal.wire.fj.put_message import encode_put
from fastjournal.wire.fj.requests import encode_request

INSTANTS = st.integers(0, 2**63 - 1)
TRIES = st.integers(0, 2**31 - 1)
JOBS = st.tuples(
    st.binary(min_size=1, max_size=255),
    st.one_of(st.binary(max_size=300), st.sampled_from([bytes(65_400), bytes(70_000)])),
    st.binary(max_size=300),
    st.integers(0, 2), st.integers(0, 255), INSTANTS, INSTANTS, INSTANTS, INSTANTS,
    TRIES, TRIES, TRIES, st.integers(0, 255), INSTANTS,
    st.one_of(st.just(b""), st.binary(min_size=16, max_size=16)),
)  # fmt: skip
NOW = 1_700_000_000_123_456_000


def message_of(job: bytes, flags: int = 0) -> bytes:
    """What the codec of messages makes of a job."""
    return encode_request(
        Function.SET, 1, flags=PERSIST | flags, timestamp=NOW, value_type=Type.JOB, value=job
    )


def framed(message: bytes) -> Frame:
    """A message in a spool."""
    data = frame(message)
    return Frame(0, len(data), data)


@given(JOBS)
def test_a_put_has_the_bytes_that_the_codecs_make(fields: tuple[Any, ...]) -> None:
    job = encode_job(PutRequest(*fields))
    message = encode_put(NOW, *fields)
    assert message == message_of(job)
    whole = not fields[2] or fields[7] > 0  # else the timestamp of the message counts
    if whole and not fields[7]:  # how old it is stands in the message alone
        job = job[:44] + (NOW // 1000 * 1000).to_bytes(8, "big") + job[52:]
    assert plain_job(framed(message)) == (job if whole else b"")


@pytest.mark.parametrize(
    "message",
    [
        message_of(encode_job(PutRequest(b"q"), DELAY)),
        message_of(b"\1" + encode_job(PutRequest(b"q"))[1:]),
        encode_request(Function.SET, 1, key=b"k", value_type=Type.JOB, value=bytes(100)),
        encode_request(Function.SET, 1, value_type=Type.BUFFER, value=b"\2" + bytes(100)),
        encode_request(Function.DELETE, 1, key=b"k"),
        b"",
    ],
    ids=["delay", "another layout", "a key", "another type", "another function", "nothing"],
)
def test_any_other_message_is_read_by_the_codecs(message: bytes) -> None:
    assert plain_job(framed(message)) == b""


@pytest.mark.parametrize("field", [{"priority": 2**63}, {"lease": -1}, {"max_fails": 2**32}])
def test_a_field_that_does_not_fit_is_an_error(field: dict[str, int]) -> None:
    with pytest.raises(struct.error):
        encode_put(
            NOW, **{"queue": b"q", "value": b"", "key": b"", "mode": 0, "priority": 1, **field}
        )
