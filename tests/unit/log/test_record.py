"""The record codec: exact bytes, limits before allocation, torn told from damaged."""

from __future__ import annotations

import google_crc32c
import pytest

from fastjournal.log.record import (
    FFFF_ZONE,
    MAX_PAYLOAD,
    MIN_RECORD,
    YEAR_1,
    BrokenRecord,
    decode,
    decode_many,
    decode_time,
    encode,
    encode_many,
    encode_time,
    uvarint,
)

NOW = 1_700_000_000_123_456_789
# Payload sizes on both sides of each length of the SIZE field.
EDGES = (0, 1, 127, 128, 129, 16_383, 16_384, 2_097_151, 2_097_152)


def with_crc(body: bytes) -> bytes:
    return body + google_crc32c.value(body).to_bytes(4, "big")


def fault_of(data: bytes, max_payload: int = MAX_PAYLOAD) -> BrokenRecord:
    """What both decoders say about a record that is not whole."""
    with pytest.raises(BrokenRecord) as caught:
        decode(data, 0, len(data), max_payload)
    records, at, broken = decode_many(data, 0, len(data), 1, 0, max_payload)
    assert (records, at) == ([], 0)
    assert broken is not None
    assert (broken.reason, broken.torn) == (caught.value.reason, caught.value.torn)
    # With another record behind, as in the middle of a segment, it is no record either.
    more = data + encode(NOW + 5, b"behind" * 10)
    records, at, broken = decode_many(more, 0, len(more), 1, 0, max_payload)
    assert (records, at) == ([], 0)
    assert broken is not None
    return caught.value


def test_a_record_is_time_size_payload_and_crc() -> None:
    """CPT-FIL-3, WQ-REC-1..6: big endian, seconds from year 1, zone 0, CRC-32C."""
    data = encode(NOW, b"hello")
    assert (
        data[:15]
        == bytes.fromhex("01")
        + (1_700_000_000 + YEAR_1).to_bytes(8, "big")
        + (123_456_789).to_bytes(4, "big")
        + b"\0\0"
    )
    assert data[15:21] == b"\x05hello"
    assert data[21:] == google_crc32c.value(data[:21]).to_bytes(4, "big")
    assert google_crc32c.value(b"123456789") == 0xE3069283


def test_an_empty_payload_is_a_record_of_the_shortest_length() -> None:
    """CPT-APP-9."""
    data = encode(NOW, b"")
    assert len(data) == MIN_RECORD == 20
    assert decode(data, 0, 20) == (NOW, 16, 16, 20)


@pytest.mark.parametrize("size", EDGES)
@pytest.mark.parametrize("zone", [0, FFFF_ZONE])
def test_every_length_of_the_size_field_comes_back(size: int, zone: int) -> None:
    """WQ-REC-4, D-02."""
    payload = bytes(size)
    data = encode(NOW, payload, zone)
    time, start, stop, after = decode(data, 0, len(data))
    assert (time, stop - start, after) == (NOW, size, len(data))
    assert data[13:15] == zone.to_bytes(2, "big")
    records, at, broken = decode_many(data, 0, len(data), 7, 100)
    assert [(r.time, r.payload, r.segment, r.offset) for r in records] == [(NOW, payload, 7, 100)]
    assert (at, broken) == (len(data), None)
    assert encode_many(NOW, [payload], zone) == (data, 1)


def test_uvarint_is_the_shortest_leb128() -> None:
    assert [uvarint(n).hex() for n in (0, 1, 127, 128, 300, 16_383, 16_384, (1 << 32) - 1)] == [
        "00", "01", "7f", "8001", "ac02", "ff7f", "808001", "ffffffff0f",
    ]  # fmt: skip


@pytest.mark.parametrize("payload", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_any_bytes_like_payload_gives_the_same_bytes(payload: bytes) -> None:
    assert encode(NOW, payload) == encode(NOW, b"x")
    assert encode_many(NOW, [payload, b"yy"]) == encode_many(NOW, [b"x", b"yy"])


def test_records_made_together_are_one_nanosecond_apart() -> None:
    data, count = encode_many(NOW, [b"a", b"b" * 200, b"", b"d"])
    assert count == 4
    assert data == b"".join(
        [
            encode(NOW, b"a"),
            encode(NOW + 1, b"b" * 200),
            encode(NOW + 2, b""),
            encode(NOW + 3, b"d"),
        ]
    )
    assert encode_many(NOW, []) == (b"", 0)
    assert encode_many(NOW, iter([b"a"])) == (encode(NOW, b"a"), 1)


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(3, 3, 3, 3), (3, 0, 130, 3)])
def test_a_batch_may_cross_the_full_second(before: int, sizes: tuple[int, ...]) -> None:
    first = 1_700_000_001_000_000_000 - before
    payloads = [b"p" * size for size in sizes]
    data, _ = encode_many(first, payloads)
    assert data == b"".join(encode(first + i, payload) for i, payload in enumerate(payloads))
    records, _, _ = decode_many(data, 0, len(data), 1, 0)
    assert [record.time for record in records] == list(range(first, first + 4))


@pytest.mark.parametrize("payload", [b"", b"short", b"long" * 60])
def test_every_cut_of_a_record_is_torn(payload: bytes) -> None:
    data = encode(NOW, payload)
    for cut in range(len(data)):
        fault = None
        try:
            decode(data[:cut], 0, cut)
        except BrokenRecord as broken:
            fault = broken
        assert fault is not None
        assert fault.torn, cut
        records, at, broken_many = decode_many(data[:cut], 0, cut, 1, 0)
        assert (records, at) == ([], 0)
        assert (broken_many is None) == (cut == 0)
        assert broken_many is None or broken_many.torn


def test_the_end_given_bounds_what_is_read() -> None:
    data = encode(NOW, b"first") + encode(NOW + 1, b"second")
    first = len(encode(NOW, b"first"))
    records, at, broken = decode_many(data, 0, first, 1, 0)
    assert ([record.payload for record in records], at, broken) == ([b"first"], first, None)
    with pytest.raises(BrokenRecord) as caught:
        decode(data, first, first + 10)
    assert caught.value.torn


def test_every_flipped_bit_is_noticed() -> None:
    """CPT-FEA-2, F21."""
    data = encode(NOW, b"payload" * 20)
    for at in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[at] ^= 1 << bit
            fault_of(bytes(changed))


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ("8000", "shortest"),
        ("ff00", "shortest"),
        ("808000", "shortest"),
        ("ffffffffff01", "five bytes"),
        ("80808080808080808001", "five bytes"),  # 2**63
        ("ffffffffffffffff7f", "five bytes"),
        ("ffffffff7f", "exceeds"),
        ("ffffffff0f", "exceeds"),
        ("81808008", "exceeds"),  # one more than 16 MiB
    ],
)
def test_a_bad_size_is_damage_before_anything_is_allocated(size: str, reason: str) -> None:
    """WQ-REC-4, F22, F38: also with a right CRC behind it."""
    fault = fault_of(with_crc(encode_time(NOW) + bytes.fromhex(size)) + bytes(40))
    assert reason in fault.reason
    assert not fault.torn


def test_the_largest_payload_is_read_and_one_more_byte_is_refused() -> None:
    for limit in (1, 100, 127, 128, 1000, 20_000):
        data = encode(NOW, bytes(limit))
        assert decode(data, 0, len(data), limit)[3] == len(data)
        assert decode_many(data, 0, len(data), 1, 0, limit)[2] is None
        over = fault_of(encode(NOW, bytes(limit + 1)), limit)
        assert not over.torn
        assert str(limit) in over.reason


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"\x02" + encode_time(NOW)[1:], "version 2"),
        (b"\x00" + encode_time(NOW)[1:], "version 0"),
        (encode_time(NOW)[:9] + (1_000_000_000).to_bytes(4, "big") + b"\0\0", "nanoseconds"),
        (encode_time(NOW)[:13] + b"\x00\x3c", "zone"),
        (encode_time(NOW)[:13] + b"\xff\x00", "zone"),
        (b"\x01" + (1 << 63).to_bytes(8, "big") + bytes(6), "range"),
        (b"\x01" + bytes(8) + bytes(6), "range"),
    ],
)
def test_a_time_that_is_none_is_damage_even_with_a_right_crc(head: bytes, reason: str) -> None:
    """WQ-REC-3."""
    fault = fault_of(with_crc(head + b"\x01x"))
    assert reason in fault.reason
    assert not fault.torn
    with pytest.raises(BrokenRecord, match=reason):
        decode_time(head)


@pytest.mark.parametrize("time", [0, 1, -1, NOW, -9_000_000_000 * 10**9, 9_000_000_000 * 10**9])
def test_a_time_comes_back(time: int) -> None:
    for zone in (0, FFFF_ZONE):
        assert decode_time(encode_time(time, zone)) == time
        assert decode_time(b"--" + encode_time(time, zone), 2) == time


def test_decoding_stops_at_the_first_fault_and_names_it() -> None:
    good, _ = encode_many(NOW, [b"a", b"b"])
    bad = bytearray(encode(NOW + 2, b"c"))
    bad[-1] ^= 1
    data = good + bytes(bad) + encode(NOW + 3, b"d")
    records, at, broken = decode_many(data, 0, len(data), 3, 8)
    assert [record.payload for record in records] == [b"a", b"b"]
    assert at == len(good)
    assert broken is not None
    assert (broken.reason, broken.torn) == ("crc mismatch", False)
    assert [record.offset for record in records] == [8, 8 + len(good) // 2]


def test_fewer_bytes_than_a_record_are_damage_if_they_cannot_begin_one() -> None:
    assert not fault_of(b"\0\0\0").torn
    assert fault_of(b"\x01\0\0").torn
