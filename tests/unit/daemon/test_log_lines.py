"""The daemon's log lines."""

from __future__ import annotations

import io
import json
import logging

import pytest

from fastjournal.daemon.log_lines import LibraryLines, Lines
from fastjournal.testing import ManualClock

AT = 1_700_000_000_123_456_789


def test_a_line_of_text_tells_time_level_event_and_fields() -> None:
    out = io.StringIO()
    Lines(out, clock=ManualClock(AT)).info("ready", fj=["127.0.0.1:1"], tls=False, text="two words")
    assert out.getvalue() == (
        "2023-11-14T22:13:20.123456Z [info   ] ready                    "
        "fj=['127.0.0.1:1'] tls=False text='two words'\n"
    )


def test_a_line_of_json_has_the_same_names() -> None:
    out = io.StringIO()
    Lines(out, form="json", clock=ManualClock(AT)).warning("denied", peer="1.2.3.4:5", key=b"\xff")
    assert json.loads(out.getvalue()) == {
        "event": "denied", "level": "warning", "timestamp": "2023-11-14T22:13:20.123456Z",
        "peer": "1.2.3.4:5", "key": "b'\\xff'",
    }  # fmt: skip


def test_what_is_below_the_level_is_not_written() -> None:
    out = io.StringIO()
    lines = Lines(out, level="warning")
    lines.debug("a")
    lines.info("b")
    assert not out.getvalue()
    lines.error("c")
    assert " c" in out.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_is_told_in_full(form: str) -> None:
    out = io.StringIO()
    try:
        raise ValueError("bad value")
    except ValueError as error:
        Lines(out, form=form).error("internal error", exc_info=error)
    assert "Traceback" in out.getvalue()
    assert "ValueError: bad value" in out.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_field_cannot_begin_a_new_line(form: str) -> None:
    out = io.StringIO()
    Lines(out, form=form).info("cut", text="x\n2023 [error] forged", peer="a\x1b[31m")
    assert out.getvalue().count("\n") == 1
    assert "\x1b" not in out.getvalue()


def test_a_stream_that_is_closed_does_not_stop_the_daemon() -> None:
    out = io.StringIO()
    out.close()
    Lines(out).error("nobody hears this")
    assert out.closed


@pytest.mark.parametrize("form", ["text", "json"])
def test_what_the_library_logs_is_a_line_like_the_others(form: str) -> None:
    """That writing has stopped is told by the log's own module."""
    out = io.StringIO()
    handler = LibraryLines(Lines(out, form=form, clock=ManualClock(AT)))
    told = ("fastjournal.log", logging.CRITICAL, __file__, 1, "%s: writing has stopped", ("/j",))
    handler.emit(logging.LogRecord(*told, exc_info=None))
    if form == "json":
        assert json.loads(out.getvalue()) == {
            "event": "/j: writing has stopped", "level": "error", "from": "fastjournal.log",
            "timestamp": "2023-11-14T22:13:20.123456Z",
        }  # fmt: skip
    else:
        assert "[error  ] /j: writing has stopped" in out.getvalue()
