"""What is encoded comes back; any other bytes give a record that was encoded, or a fault."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fastjournal.log.record import (
    FFFF_ZONE,
    BrokenRecord,
    Record,
    decode,
    decode_many,
    decode_time,
    encode,
    encode_many,
    encode_time,
    uvarint,
)
from fastjournal.log.scan.resync import next_valid

TIMES = st.integers(-9_223_372_035 * 10**9, 9_223_372_035 * 10**9)
ZONES = st.sampled_from([0, FFFF_ZONE])
EDGE_SIZES = st.sampled_from([0, 1, 126, 127, 128, 129, 255, 16_383, 16_384, 16_385])
PAYLOADS = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda size, byte: byte * size, EDGE_SIZES, st.binary(min_size=1, max_size=1)),
)


@given(
    time=TIMES,
    payload=PAYLOADS,
    zone=ZONES,
    before=st.binary(max_size=40),
    after=st.binary(max_size=40),
)
@example(time=0, payload=b"", zone=0, before=b"", after=b"")
@example(time=-1, payload=b"x" * 2_097_151, zone=FFFF_ZONE, before=b"", after=b"\x01")
@example(time=-1, payload=b"x" * 2_097_152, zone=0, before=b"\x01", after=b"")
def test_a_record_comes_back_from_wherever_it_stands(
    time: int, payload: bytes, zone: int, before: bytes, after: bytes
) -> None:
    """WQ-REC-1..6."""
    data = encode(time, payload, zone)
    assert len(data) == 15 + len(uvarint(len(payload))) + len(payload) + 4
    whole = before + data + after
    found, start, stop, end = decode(whole, len(before), len(whole))
    assert (found, whole[start:stop], end) == (time, payload, len(before) + len(data))
    records, at, broken = decode_many(data, 0, len(data), 3, 1000)
    assert (records, at, broken) == ([Record(time, payload, 3, 1000)], len(data), None)


@given(time=TIMES, zone=ZONES)
def test_a_time_comes_back(time: int, zone: int) -> None:
    """WQ-REC-3."""
    assert decode_time(encode_time(time, zone)) == time


@given(first=TIMES, payloads=st.lists(PAYLOADS, max_size=12), zone=ZONES)
@example(first=999_999_998, payloads=[b"a", b"a", b"a", b"a"], zone=0)
@example(first=999_999_999, payloads=[b"a", b"", b"abc" * 100], zone=FFFF_ZONE)
def test_a_batch_is_its_records_one_nanosecond_apart(
    first: int, payloads: list[bytes], zone: int
) -> None:
    data, count = encode_many(first, payloads, zone)
    assert count == len(payloads)
    assert data == b"".join(encode(first + i, p, zone) for i, p in enumerate(payloads))
    records, at, broken = decode_many(data, 0, len(data), 1, 0)
    assert [(r.time, r.payload) for r in records] == [
        (first + i, payload) for i, payload in enumerate(payloads)
    ]
    assert (at, broken) == (len(data), None)
    for record in records:
        assert decode(data, record.offset, len(data))[0] == record.time


@given(
    payloads=st.lists(st.binary(max_size=60), min_size=1, max_size=6),
    data=st.data(),
)
def test_changed_bytes_never_give_a_changed_record(
    payloads: list[bytes], data: st.DataObject
) -> None:
    """P-DETECT: what is read before the change is right, and the change is found at its record."""
    whole, _ = encode_many(1_700_000_000 * 10**9, payloads)
    good, _, _ = decode_many(whole, 0, len(whole), 1, 0)
    at = data.draw(st.integers(0, len(whole) - 1))
    length = data.draw(st.integers(1, min(4, len(whole) - at)))  # CRC-32C finds any such burst
    new = data.draw(st.binary(min_size=length, max_size=length))
    changed = whole[:at] + new + whole[at + length :]
    records, stop, broken = decode_many(changed, 0, len(changed), 1, 0)
    if changed == whole:
        assert (records, broken) == (good, None)
        return
    assert broken is not None
    assert records == good[: len(records)]
    assert stop <= at
    assert stop == (good[len(records)].offset)


@given(data=st.binary(max_size=400), at=st.integers(0, 50), limit=st.integers(1, 1000))
@settings(max_examples=300)
def test_any_bytes_give_a_record_or_a_fault(data: bytes, at: int, limit: int) -> None:
    at = min(at, len(data))
    records, stop, broken = decode_many(data, at, len(data), 1, 0, limit)
    assert at <= stop <= len(data)
    assert (broken is None) == (stop == len(data))
    if not records and at < len(data):
        assert broken is not None
        with pytest.raises(BrokenRecord) as caught:
            decode(data, at, len(data), limit)
        assert (caught.value.reason, caught.value.torn) == (broken.reason, broken.torn)
    found = next_valid(data, at, max_payload=limit)
    if found is not None:
        decode(data, found, len(data), limit)


@given(
    noise=st.binary(max_size=80),
    payload=st.binary(max_size=40),
    tail=st.binary(max_size=20),
)
def test_the_next_valid_record_is_found_behind_any_noise(
    noise: bytes, payload: bytes, tail: bytes
) -> None:
    record = encode(1_700_000_000 * 10**9, payload)
    data = noise + record + tail
    found = next_valid(data, 0, max_payload=100)
    assert found is not None
    assert found <= len(noise)
