"""The bytes of a spool (D-18, 5.5)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastjournal.spool.frames import (
    HEADER,
    check,
    crc,
    frame,
    hour_of,
    name_of,
    next_frame,
    sender_name,
    spool_tag,
)


def test_a_frame_is_magic_state_zero_length_checksum_message() -> None:
    """D-18, byte for byte; CRC-32C of "123456789" is E3069283."""
    assert frame(b"123456789") == bytes.fromhex("666a5200 00000009 e3069283") + b"123456789"
    assert HEADER == b"FJQ1\x00\x00\x00\x01"


@given(st.integers(0, 24 * 365 * 500))
def test_a_file_is_named_by_its_hour_utc(hour: int) -> None:
    """FJ-M2-5."""
    date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(hours=hour)
    assert name_of(hour) == date.strftime("%Y%m%dT%H.fjq")
    assert hour_of(name_of(hour)) == hour


@pytest.mark.parametrize(
    "name", ["20230229T00.fjq", "20231301T00.fjq", "20230101T24.fjq", "20230101T00.fjd",
             "2023010 T00.fjq", "20230101t00.fjq", "spool.id", "", "20230101T00.fjq.new",
             "19691231T23.fjq", "²0230101T00.fjq"],
)  # fmt: skip
def test_other_names_are_no_spool_files(name: str) -> None:
    assert hour_of(name) is None


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6), st.data())
def test_every_prefix_of_frames_is_whole_frames_and_a_torn_one(
    messages: list[bytes], data: st.DataObject
) -> None:
    """FJ-M1-2: the reader reads the stated size, and waits if short."""
    whole = b"".join(map(frame, messages))
    cut = data.draw(st.integers(0, len(whole)))
    at = count = 0
    while at < cut and (end := check(whole[:cut], at)) > 0:
        at, count = end, count + 1
    ends = [sum(12 + len(m) for m in messages[: n + 1]) for n in range(len(messages))]
    assert count == sum(end <= cut for end in ends)
    assert at == cut or check(whole[:cut], at) == 0


@given(st.binary(min_size=1, max_size=60), st.integers(0, 10_000))
def test_a_flipped_byte_is_found_and_the_next_frame_too(message: bytes, where: int) -> None:
    good = frame(message)
    at = where % len(good)
    bad = bytearray(good + frame(b"next"))
    bad[at] ^= 0x55
    assert check(bytes(bad), 0) != len(good)
    assert next_frame(bytes(bad), 0) == len(good)


def test_a_frame_inside_the_message_of_a_damaged_one_is_not_taken_for_a_frame() -> None:
    outer = bytearray(frame(b"before " + frame(b"inner") + b" after"))
    outer[-1] ^= 1
    assert next_frame(bytes(outer) + frame(b"next"), 0) == len(outer)


def test_a_sender_and_a_mark_look_like_a_uuid_of_version_8() -> None:
    tag = spool_tag(bytes(range(0xF0, 0x100)))
    name = sender_name(tag, 472_222)
    assert name == bytes.fromhex("f0f1f2f3f4f586f78007349e")
    assert name[6] >> 4 == 8 and name[8] >> 6 == 2


def test_the_checksum_is_crc_32c() -> None:
    assert crc(b"123456789") == 0xE3069283
