"""Records encoded many at once are the records encoded one by one."""

from __future__ import annotations

import pytest

from fastjournal.log.record import decode_many, encode, encode_many

NEAR_THE_SECOND = 1_699_999_999_999_999_990


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 40])
@pytest.mark.parametrize("sizes", [(7,), (0,), (0, 1, 127, 128, 200, 20_000)])
@pytest.mark.parametrize("zone", [0, 0xFFFF])
def test_a_batch_equals_its_records_also_over_the_end_of_a_second(
    count: int, sizes: tuple[int, ...], zone: int
) -> None:
    payloads = [bytes([n % 251]) * sizes[n % len(sizes)] for n in range(count)]
    one_by_one = b"".join(encode(NEAR_THE_SECOND + n, p, zone) for n, p in enumerate(payloads))
    assert encode_many(NEAR_THE_SECOND, payloads, zone) == (one_by_one, count)
    assert encode_many(NEAR_THE_SECOND, iter(payloads), zone) == (one_by_one, count)


def test_any_buffer_may_be_a_payload() -> None:
    payloads = [b"one", bytearray(b"two"), memoryview(b"three")]
    plain = [bytes(payload) for payload in payloads]
    assert encode_many(1, payloads) == encode_many(1, plain)  # type: ignore[arg-type]
    assert encode(1, memoryview(b"three")) == encode(1, b"three")  # type: ignore[arg-type]


def test_a_batch_reads_back_as_it_was_written() -> None:
    payloads = [b"x" * n for n in range(300)]
    data, count = encode_many(NEAR_THE_SECOND, payloads)
    records, stop, broken = decode_many(data, 0, len(data), 5, 100)
    assert broken is None
    assert (stop, len(records)) == (len(data), count)
    assert [record.payload for record in records] == payloads
    assert [record.time for record in records] == [NEAR_THE_SECOND + n for n in range(300)]
    assert {record.segment for record in records} == {5}
    assert records[0].offset == 100
