"""Names and headers of segments."""

from __future__ import annotations

import pytest

from fastjournal.errors import SegmentError, SettingError, VersionMismatch
from fastjournal.log.segment import (
    CAPTAIN,
    WORKQ,
    Header,
    Position,
    parse_name,
    segment_name,
)


def test_the_header_is_magic_and_version() -> None:
    """WQ-FIL-3, CPT-STR-1, CPT-FIL-2."""
    assert WORKQ.encode() == bytes.fromhex("7771777100000001")
    assert CAPTAIN.encode() == bytes.fromhex("6370746e00000001")
    assert Header(b"mine", 7).encode() == b"mine\0\0\0\x07"
    assert Header.decode(b"mine\0\0\0\x07rest") == Header(b"mine", 7)


@pytest.mark.parametrize("magic", [b"", b"abc", b"abcde"])
def test_a_magic_has_four_bytes(magic: bytes) -> None:
    with pytest.raises(SettingError) as caught:
        Header(magic)
    assert caught.value.name == "magic"


def test_a_version_fits_32_bits() -> None:
    assert Header(b"abcd", 0).version == 0
    assert Header(b"abcd", 0xFFFFFFFF).version == 0xFFFFFFFF
    for version in (-1, 1 << 32):
        with pytest.raises(SettingError) as caught:
            Header(b"abcd", version)
        assert caught.value.name == "version"


def test_another_header_is_refused_with_both_sides_named() -> None:
    """F27."""
    CAPTAIN.check(b"cptn\0\0\0\x01", "here")
    with pytest.raises(SegmentError, match=r"here: magic b'wqwq', expected b'cptn'"):
        CAPTAIN.check(WORKQ.encode(), "here")
    with pytest.raises(VersionMismatch, match="here: version 2, expected 1"):
        CAPTAIN.check(b"cptn\0\0\0\x02", "here")


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("000000000.log", 0),
        ("000000001.log", 1),
        ("999999999.log", 999_999_999),
        ("1000000000.log", 1_000_000_000),
        ("12345678901234567.log", 12_345_678_901_234_567),
    ],
)
def test_a_name_is_its_number(name: str, number: int) -> None:
    """CPT-FIL-1, WQ-FIL-1: nine digits, more once the counter passes them."""
    assert parse_name(name) == number
    assert segment_name(number) == name


@pytest.mark.parametrize(
    "name",
    [
        "1.log",
        "00000001.log",
        "0000000001.log",
        "00000000a.log",
        "000000001.LOG",
        "000000001",
        "000000001.log.rw",
        "000000001.log.new",
        "000000001.log.torn-1",
        "x000000001.log",
        "000000001.log\n",
        "-00000001.log",
        "٠٠٠٠٠٠٠٠١.log",
        "000000001.log ",
        ".log",
        "append.lock",
        "synced.pos",
    ],
)
def test_any_other_name_is_foreign(name: str) -> None:
    """WQ-FIL-1, F26."""
    assert parse_name(name) is None


def test_positions_order_by_segment_then_offset() -> None:
    assert Position(1, 900) < Position(2, 8) < Position(2, 9) < Position(10, 8)
