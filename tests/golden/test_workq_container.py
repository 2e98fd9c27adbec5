"""Segments written by the real Workq server: read record by record, written back byte for byte.

Holds WQ-FIL and WQ-REC to the server's own bytes: header, times, sizes, checksums.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fastjournal.log.record import FFFF_ZONE, decode, decode_many, encode, encode_time
from fastjournal.log.segment import HEADER_SIZE, WORKQ, Header, parse_name, segment_name

CASES = sorted(path.parent for path in (Path(__file__).parent / "workq").glob("*/expected.json"))


def expected(case: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((case / "expected.json").read_text())
    return facts


def as_ns(text: str) -> int:
    """`2026-11-15T02:04:48.493942879Z` as ns since 1970."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    seconds = int(datetime.fromisoformat(whole).replace(tzinfo=UTC).timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))


def test_all_nine_cases_are_here() -> None:
    assert [case.name for case in CASES] == [
        "all-types",
        "attempts",
        "cleaned",
        "multi-segment",
        "reordered",
        "restarts",
        "run-noise",
        "scheduled",
        "varint-edges",
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_segment_files_are_the_ones_the_server_left(case: Path) -> None:
    facts = expected(case)
    assert sorted(path.name for path in case.glob("*.log")) == [
        s["name"] for s in facts["segments"]
    ]
    for segment in facts["segments"]:
        data = (case / segment["name"]).read_bytes()
        assert len(data) == segment["size"]
        assert hashlib.sha256(data).hexdigest() == segment["sha256"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_names_and_headers_read_back(case: Path) -> None:
    """WQ-FIL-2."""
    for path in case.glob("*.log"):
        number = parse_name(path.name)
        assert number is not None
        assert segment_name(number) == path.name
        head = path.read_bytes()[:HEADER_SIZE]
        assert Header.decode(head) == WORKQ
        assert WORKQ.encode() == head


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_record_has_the_offset_length_time_and_crc_the_server_gave_it(case: Path) -> None:
    facts = expected(case)
    for segment in facts["segments"]:
        data = (case / segment["name"]).read_bytes()
        at = HEADER_SIZE
        records = [r for r in facts["records"] if r["segment"] == segment["name"]]
        assert len(records) == segment["records"]
        for record in records:
            assert at == record["offset"]
            time, _start, stop, after = decode(data, at, len(data))
            assert after - at == record["length"]
            assert time == as_ns(record["time"])
            assert encode_time(time, FFFF_ZONE).hex() == record["time_raw"]
            assert data[stop:after].hex() == record["crc"]
            at = after
        assert at == len(data)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_decoding_and_encoding_again_gives_the_file_byte_for_byte(case: Path) -> None:
    """M3-FMT-1."""
    for path in case.glob("*.log"):
        data = path.read_bytes()
        records, at, broken = decode_many(data, HEADER_SIZE, len(data), 1, 0)
        assert broken is None
        assert at == len(data)
        again = WORKQ.encode() + b"".join(encode(r.time, r.payload, FFFF_ZONE) for r in records)
        assert again == data
