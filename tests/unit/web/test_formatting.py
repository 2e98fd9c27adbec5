"""Figures, times, bytes and phases as the dashboard tells them."""

from __future__ import annotations

import pytest

from fastjournal.clock import SECOND
from fastjournal.journal.look.history import Step
from fastjournal.model import State
from fastjournal.web.formatting import (
    ago,
    amount,
    instant,
    quoted,
    reason,
    share,
    shown,
    size,
    span,
    text,
)
from fastjournal.web.job_lookup import phases_of

NOW = 1_700_000_000 * SECOND


@pytest.mark.parametrize(
    ("length", "told"),
    [
        (0, "0 ns"),
        (1500, "2 µs"),
        (2_500_000, "2.5 ms"),
        (48_000_000, "48 ms"),
        (1_500_000_000, "1.5 s"),
        (59 * SECOND, "59 s"),
        (60 * SECOND, "1 min"),
        (3725 * SECOND, "1 h 2 min"),
        (90_000 * SECOND, "1 d 1 h"),
    ],
)
def test_a_length_of_time_has_two_figures_at_most(length: int, told: str) -> None:
    assert span(length) == told


def test_an_instant_is_told_from_now_and_exactly() -> None:
    assert ago(0, NOW) == "–"
    assert ago(NOW, NOW) == ago(NOW - 1, NOW) == "now"
    assert ago(NOW - 3 * SECOND, NOW) == "3 s ago"
    assert ago(NOW + 7300 * SECOND, NOW) == "in 2 h"
    assert instant(NOW + 7_000_000) == "2023-11-14 22:13:20.007 UTC"
    assert instant(0) == ""


def test_amounts_sizes_and_shares() -> None:
    assert [amount(n) for n in (0, 12, 3.25, 99.96, 1234567, 1234.5)] == [
        "0", "12", "3.2", "100.0", "1,234,567", "1,234",
    ]  # fmt: skip
    assert [size(n) for n in (0, 1023, 1536, 200 << 20, 3 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "200 MiB", "3.0 TiB",
    ]  # fmt: skip
    assert [share(*pair) for pair in ((0, 0), (0, 9), (1, 3), (1, 300))] == [
        "–", "0 %", "33 %", "0.3 %",
    ]  # fmt: skip


def test_any_bytes_become_text_and_a_part_of_an_address() -> None:
    assert text(b"a\xff") == text("a\udcff") == "a\\xff"
    assert quoted(b"a/b \xff") == quoted("a/b \udcff") == "a%2Fb%20%FF"


def test_a_value_is_shown_by_what_it_is() -> None:
    assert shown(b'{"a":[1]}') == ("JSON", '{\n  "a": [\n    1\n  ]\n}', False)
    assert shown(b"plain\n") == ("text", "plain\n", False)
    assert shown(b"{broken") == ("text", "{broken", False)
    assert shown(b"[" * 10_000).form == "text"
    form, told, cut = shown(bytes(range(256)) * 3)
    assert (form, cut) == ("bytes", True)
    assert told.splitlines()[2].startswith("000020  2021 2223")
    assert told.splitlines()[2].endswith(" !\"#$%&'()*+,-./")
    assert shown("ü".encode() * 20_000).cut


def test_of_a_reason_the_last_line_is_told() -> None:
    assert reason(b"Traceback:\n  File\nValueError: x\xff\n\n") == "ValueError: x\\xff"
    assert reason(b"boom") == "boom"
    assert reason(b"") == ""
    assert reason(b"a\n" + b"b" * 5000) == "b" * 500


def test_of_a_long_reason_the_end_is_shown() -> None:
    data = "ü".encode() * 20_000 + b"ValueError"
    form, told, cut = shown(data, end=True)
    assert (form, cut) == ("text", True)
    assert told.endswith("üüValueError")
    assert shown(bytes(600) + b"\xffend", end=True).text.endswith("·end")


def test_phases_are_shares_of_a_life() -> None:
    steps = [
        Step(NOW, "put", State.WAITING, "PUT"),
        Step(NOW + 2 * SECOND, "merged", State.WAITING, "PUT"),
        Step(NOW + 6 * SECOND, "leased", State.PROCESSING, "LEASE"),
        Step(NOW + 8 * SECOND, "completed or deleted", None, "PURGE"),
    ]
    told = phases_of(steps, 0)
    assert [(phase.word, phase.length // SECOND) for phase in told] == [
        ("waiting", 6),
        ("leased", 2),
    ]
    assert [phase.width for phase in told] == [750, 250]
    going_on = phases_of(steps[:3], NOW + 14 * SECOND)
    assert going_on[-1].length == 8 * SECOND
    assert sum(phase.width for phase in going_on) == pytest.approx(1000)
    assert phases_of([], NOW) == []
    assert phases_of(steps[:1], 0) == []
