"""What people type into forms: lengths, instants, numbers, settings of queues.

Rules:

1. A length is a number of seconds or has a unit: 250ms, 5s, 10m, 2h, 7d. An instant is ISO 8601, in
   UTC unless it names a zone.
2. An empty field changes nothing. What cannot be read is a `BadRequest` that names the field.
3. Text comes from browsers with CR LF at the ends of lines; the bytes that are meant have LF.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fastjournal.arguments import instant, length, seconds_of
from fastjournal.errors import BadRequest
from fastjournal.model import (
    DEFAULT_SETTINGS,
    MAX_INSTANT,
    SETTING_CHOICES,
    SETTING_LENGTHS,
    SETTING_NAMES,
    QueueSettings,
)
from fastjournal.web.formatting import length_text, span

__all__ = [
    "SettingField",
    "body_bytes",
    "read_due",
    "read_length",
    "read_number",
    "read_settings",
    "setting_fields",
]

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
    return instant(when if when.tzinfo else when.replace(tzinfo=UTC), "due")


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
