"""Queue settings <-> bytes, as the QUEUE record holds them.

Rules:

1. A setting is known by its number, its place in `_SETTINGS`; numbers are never used twice, a new
   setting gets the next one.
2. Every value is written as a signed number: choices by position, shares in thousandths.
3. Only what differs from the defaults is written: a record without settings means the defaults.
"""

from typing import Final

from fastjournal.buffers import BytesWriter
from fastjournal.errors import CorruptCommand, SettingError
from fastjournal.journal.language.varint import Reader, put_sv, put_uv
from fastjournal.model import DEFAULT_SETTINGS, SETTING_CHOICES, QueueSettings

__all__ = ["SETTING_NUMBERS", "put_settings", "read_settings"]

_SETTINGS: Final = (
    "lease",
    "max_timeouts",
    "max_attempts",
    "max_fails",
    "max_wait",
    "backoff_base",
    "backoff_factor",
    "backoff_cap",
    "backoff_jitter",
    "backoff_timeouts",
    "slow_from",
    "keep_versions",
    "dead_keep",
    "result_ttl",
    "concurrency",
    "paused",
    "draining",
    "priority_order",
    "period",
    "file_management",
    "secure",
    "persist",
    "schema",
)
SETTING_NUMBERS: Final = {name: number for number, name in enumerate(_SETTINGS)}


def put_settings(out: BytesWriter, settings: QueueSettings) -> None:
    """Layout 1: how many settings, then number and value of each."""
    changed = [n for n in _SETTINGS if getattr(settings, n) != getattr(DEFAULT_SETTINGS, n)]
    out.append(1)
    put_uv(out, len(changed))
    for name in changed:
        put_uv(out, SETTING_NUMBERS[name])
        put_sv(out, _number(name, getattr(settings, name)))


def read_settings(reader: Reader) -> QueueSettings:
    """The settings that stand here."""
    layout = reader.byte()
    if layout != 1:
        raise CorruptCommand(f"settings layout {layout} is not known")
    changes: dict[str, object] = {}
    for _ in range(reader.uv()):
        number = reader.uv()
        value = reader.sv()
        if number >= len(_SETTINGS):
            raise CorruptCommand(f"setting {number} is not known")
        name = _SETTINGS[number]
        changes[name] = _setting(name, value)
    try:
        return DEFAULT_SETTINGS.changed(changes)
    except SettingError as fault:
        raise CorruptCommand(str(fault)) from None


def _number(name: str, value: object) -> int:
    if isinstance(value, str):
        return SETTING_CHOICES[name].index(value)
    if isinstance(value, float):
        return round(value * 1000)
    assert isinstance(value, int)
    return int(value)


def _setting(name: str, number: int) -> object:
    default: object = getattr(DEFAULT_SETTINGS, name)
    if isinstance(default, str):
        words = SETTING_CHOICES[name]
        if not 0 <= number < len(words):
            raise CorruptCommand(f"{name} cannot be {number}")
        return words[number]
    if isinstance(default, float):
        return number / 1000
    return bool(number) if isinstance(default, bool) else number
