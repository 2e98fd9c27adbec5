"""Figures, times and bytes as people read them, and as they type them into forms.

Rules:

1. Whatever comes out can be shown: bytes that are no text are escaped, never refused.
2. A time is told as people say it ("3 min ago"); the exact instant goes into the title.
3. A length is a number of seconds or has a unit: 250ms, 5s, 10m, 2h, 7d. An instant is ISO 8601, in
   UTC unless it names a zone.
4. An empty field changes nothing. What cannot be read is a `BadRequest` that names the field.
5. Text comes from browsers with CR LF at the ends of lines; the bytes that are meant have LF.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote_from_bytes

from fastjournal.arguments import instant as parse_instant
from fastjournal.arguments import last_words, length, length_text, seconds_of
from fastjournal.clock import SECOND
from fastjournal.errors import BadRequest
from fastjournal.model import (
    DEFAULT_SETTINGS,
    MAX_INSTANT,
    SETTING_CHOICES,
    SETTING_LENGTHS,
    SETTING_NAMES,
    QueueSettings,
)

__all__ = [
    "SettingField",
    "Shown",
    "ago",
    "amount",
    "body_bytes",
    "instant",
    "percentile",
    "quoted",
    "read_due",
    "read_length",
    "read_number",
    "read_settings",
    "reason",
    "setting_fields",
    "share",
    "shown",
    "size",
    "span",
    "text",
]


_STEPS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_SHOWN = 16_384  # bytes of a value that are shown
_HEXED = 512
_LINE = 500  # characters of a reason


def text(data: bytes | str) -> str:
    """Bytes as text that any page can hold."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    return data.decode("utf-8", "backslashreplace")


def reason(data: bytes) -> str:
    """Why something failed, in one line: of a traceback the exception."""
    return last_words(data, _LINE)


def quoted(data: bytes | str) -> str:
    """Bytes as a part of a URL."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogateescape")
    return quote_from_bytes(data, safe="")


def instant(time: int) -> str:
    """An instant, to the millisecond; nothing for 0."""
    if not time:
        return ""
    moment = datetime.fromtimestamp(time // SECOND, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{time % SECOND // 1_000_000:03d} UTC"


def span(length: int) -> str:
    """A length of time in ns: two figures at most."""
    if length < 1000:
        return f"{max(0, length)} ns"
    if length < 1_000_000:
        return f"{length / 1000:.0f} µs"
    if length < SECOND:
        return f"{length / 1_000_000:.{0 if length >= 10_000_000 else 1}f} ms"
    if length < 60 * SECOND:
        return f"{length / SECOND:.{0 if length >= 10 * SECOND else 1}f} s"
    seconds = length // SECOND
    for (unit, name), (below, smaller) in pairwise(_STEPS):
        if seconds >= unit:
            rest = seconds % unit // below
            return f"{seconds // unit} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds} s"


def percentile(length: int) -> str:
    """A bound of latencies: 0 is none, -1 is above all."""
    if length < 0:
        return "> 1 d"
    return f"≤ {span(length).replace('.0 ', ' ')}" if length else "–"


def ago(time: int, now: int) -> str:
    """An instant as seen from now; a dash for 0."""
    if not time:
        return "–"
    distance = abs(now - time)
    if distance < SECOND:
        return "now"
    whole = distance // SECOND
    for unit, name in _STEPS:
        if whole >= unit:
            length = f"{whole // unit} {name}"
            return f"{length} ago" if time < now else f"in {length}"
    return "now"


def size(count: float) -> str:
    """A number of bytes."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def amount(count: float) -> str:
    """A count with its thousands apart; a rate with one digit behind the point if it is small."""
    if count < 100 and count != round(count):
        return f"{count:.1f}"
    return f"{round(count):,}"


def share(part: float, whole: float) -> str:
    """A share in percent."""
    if not whole:
        return "–"
    value = 100 * part / whole
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.1f} %"


class Shown(NamedTuple):
    """A value prepared for a page."""

    form: str
    """`text`, `JSON` or `bytes`."""
    text: str
    cut: bool
    """More of it is there than is shown."""


def shown(data: bytes, end: bool = False) -> Shown:
    """A value as text, laid out if it is JSON, in hexadecimal if it is neither.

    Of what is too long the beginning is shown, or its `end`.
    """
    if len(data) <= _SHOWN and data[:1] in (b"{", b"["):
        try:
            return Shown("JSON", json.dumps(json.loads(data), indent=2, ensure_ascii=False), False)
        except (ValueError, RecursionError):
            pass
    piece = data[-_SHOWN:] if end else data[:_SHOWN]
    try:
        letters = piece.decode("utf-8", "strict" if len(piece) == len(data) else "ignore")
    except UnicodeDecodeError:
        letters = "\0"
    if all(letter.isprintable() or letter in "\n\r\t" for letter in letters):
        return Shown("text", letters, len(data) > _SHOWN)
    start = max(0, len(data) - _HEXED) if end else 0
    lines = [
        f"{at:06x}  {data[at : at + 16].hex(' ', 2):<40} {_plain(data[at : at + 16])}"
        for at in range(start, min(start + _HEXED, len(data)), 16)
    ]
    return Shown("bytes", "\n".join(lines), len(data) > _HEXED)


def _plain(data: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in data)


_LATEST = 10**11  # seconds; beyond it nothing can be stored


def read_length(text: str, name: str) -> int | None:
    """A length in ns; None: the field is empty."""
    if not text:
        return None
    seconds = seconds_of(text)
    if seconds is None or seconds > _LATEST:
        raise BadRequest(f"{name}: {text[:40]!r} is no length (seconds, or 250ms 5s 10m 2h 7d)")
    return length(seconds, name)


def read_due(text: str, now: int) -> int | None:
    """When: `now`, a length from now, or an instant of ISO 8601; None: the field is empty."""
    if not text:
        return None
    if text.lower() == "now":
        return now
    seconds = seconds_of(text)
    if seconds is not None:
        return now + (read_length(text, "due") or 0)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise BadRequest(
            f"due: {text[:40]!r} is not now, a length (5m) or an instant (2026-01-31T12:00)"
        ) from None
    return parse_instant(when if when.tzinfo else when.replace(tzinfo=UTC), "due")


def read_number(text: str, name: str) -> int | None:
    """A whole number; None: the field is empty."""
    if not text:
        return None
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise BadRequest(f"{name}: {text[:40]!r} is no whole number")
    number = int(text)
    if abs(number) > MAX_INSTANT:
        raise BadRequest(f"{name}: {text[:40]} is too large")
    return number


def body_bytes(data: bytes) -> bytes:
    """What was typed into a field of several lines."""
    return data.replace(b"\r\n", b"\n")


class SettingField(NamedTuple):
    """A setting of a queue as a page shows and asks for it."""

    name: str
    shown: str
    """In words."""
    typed: str
    """As it would be typed."""
    own: bool
    """It differs from the default."""
    choices: tuple[str, ...]
    """All there are; empty: it is typed."""
    is_length: bool


def setting_fields(settings: QueueSettings) -> list[SettingField]:
    """The settings of a queue; pause and drain have buttons of their own."""
    out = []
    for name in SETTING_NAMES:
        if name in ("paused", "draining"):
            continue
        value = getattr(settings, name)
        own = value != getattr(DEFAULT_SETTINGS, name)
        choices: tuple[str, ...] = SETTING_CHOICES.get(name, ())
        if isinstance(value, bool):
            choices = ("yes", "no")
            shown = typed = "yes" if value else "no"
        elif name in SETTING_LENGTHS:
            shown, typed = (span(value) if value else "none"), length_text(value)
        else:
            shown = typed = str(value)
        out.append(SettingField(name, shown, typed, own, choices, name in SETTING_LENGTHS))
    return out


def read_settings(typed: Mapping[str, str], was: Mapping[str, str]) -> dict[str, Any]:
    """What a form changes: what was typed for each setting, and what stood there before.

    So a form that lay open for long takes nothing back that others have changed.
    """
    known = [name for name in SETTING_NAMES if name not in ("paused", "draining")]
    for name in typed:
        if name not in known:
            raise BadRequest(f"unknown queue setting {name[:40]!r}; there are: {', '.join(known)}")
    return {
        name: _setting(name, text)
        for name, text in typed.items()
        if text and text != was.get(name, "")
    }


def _setting(name: str, text: str) -> Any:
    default = getattr(DEFAULT_SETTINGS, name)
    if isinstance(default, bool):
        if text not in ("yes", "no"):
            raise BadRequest(f"{name}: yes or no, not {text[:40]!r}")
        return text == "yes"
    if name in SETTING_CHOICES:
        return text
    if name in SETTING_LENGTHS:
        return read_length(text, name)
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise BadRequest(f"{name}: {text[:40]!r} is no number") from None
    return read_number(text, name)
