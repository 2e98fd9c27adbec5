"""Results for people and for programs."""

from __future__ import annotations

import json

import pytest

from fastjournal.cli.output import bytes_text, json_line, preview
from fastjournal.clock import instant_text


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (0, "-"),
        (1, "1970-01-01T00:00:00.000000001Z"),
        (1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
    ],
)
def test_an_instant_is_shown_with_all_nine_decimals(time: int, text: str) -> None:
    assert instant_text(time) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (64 << 20, "64.0 MiB"), (5 << 40, "5.0 TiB")],
)
def test_a_size_is_shown_in_the_unit_people_read(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (b"", ""),
        (b"hello", "hello"),
        ("grüße".encode(), "grüße"),
        (b"\x01\x02", "01 02"),
        (b"a\nb", "61 0a 62"),
        (b"x" * 30, "x" * 9 + "…"),
        (bytes(30), "00 00 00 …"),
    ],
)
def test_a_payload_is_shown_as_text_if_it_is_text(payload: bytes, shown: str) -> None:
    assert preview(payload, 10) == shown


def test_a_json_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    json_line({"a": 1, "text": "two\nlines"})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": 1, "text": "two\nlines"}
