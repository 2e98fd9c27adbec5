"""What is kept of an exception: the beginning, the end, and always its last line."""

from __future__ import annotations

import pytest

from fastjournal.errors import failure_text


def deep(depth: int, error: Exception) -> None:
    if depth:
        deep(depth - 1, error) if depth % 2 else _other(depth, error)
    raise error


def _other(depth: int, error: Exception) -> None:
    deep(depth - 1, error)


def caught(depth: int, error: Exception) -> Exception:
    try:
        deep(depth, error)
    except Exception as raised:
        return raised
    raise AssertionError


def test_a_short_traceback_is_kept_whole() -> None:
    text = failure_text(caught(3, ValueError("why")))
    assert text.startswith(b"Traceback (most recent call last):\n")
    assert text.endswith(b"ValueError: why\n")
    assert b"left out" not in text


@pytest.mark.parametrize("limit", [400, 1000, 8192])
@pytest.mark.parametrize("message", ["why", "ä" * 150, "x" * 100_000, "many\nlines\n" * 5000, ""])
def test_a_long_one_keeps_its_beginning_and_its_last_line(limit: int, message: str) -> None:
    text = failure_text(caught(400, ValueError(message)), limit)
    assert len(text) <= limit
    assert text.startswith(b"Traceback (most recent call last):\n")
    assert b"bytes left out" in text
    last = b"ValueError: " if message else b"ValueError"
    assert last in text[-limit // 2 - 1 :]
    if len(message) < 100:
        assert text.endswith(f"ValueError: {message}\n".encode() if message else b"ValueError\n")
