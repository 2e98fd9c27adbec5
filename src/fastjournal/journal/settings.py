"""Queue settings <-> bytes: the QUEUE record.

Rules:

1. A setting is known by its number, its place in `_SETTINGS`; numbers are never used twice.
2. Every value is written as a signed number: choices by position, shares in thousandths.
3. Only what differs from the defaults is written: a record without settings means the defaults.
"""

from __future__ import annotations

from fastjournal.errors import CorruptCommand, SettingError
from fastjournal.journal.kinds import Queue
from fastjournal.journal.varint import blob, get_blob, get_sv, get_uv, sv, uv
from fastjournal.model import DEFAULT_SETTINGS

__all__ = ["SETTING_NUMBERS", "get_queue", "put_queue"]

_SETTINGS: tuple[str, ...] = (
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
)
SETTING_NUMBERS = {name: number for number, name in enumerate(_SETTINGS)}
_WORDS = {
    "priority_order": ("smaller", "larger"),
    "period": ("none", "hour", "day", "month"),
    "file_management": ("delete", "truncate", "keep"),
}


def put_queue(command: Queue) -> bytes:
    parts = []
    for number, name in enumerate(_SETTINGS):
        value = getattr(command.settings, name)
        if value != getattr(DEFAULT_SETTINGS, name):
            parts.append(uv(number) + sv(_number(name, value)))
    return b"".join((b"\x2e", blob(command.queue), b"\x01", uv(len(parts)), *parts))


def _number(name: str, value: object) -> int:
    if isinstance(value, str):
        return _WORDS[name].index(value)
    if isinstance(value, float):
        return round(value * 1000)
    assert isinstance(value, int)
    return int(value)


def get_queue(data: bytes) -> tuple[Queue, int]:
    queue, at = get_blob(data, 1)
    if data[at] != 1:
        raise CorruptCommand(f"settings layout {data[at]} is not known")
    count, at = get_uv(data, at + 1)
    changes: dict[str, object] = {}
    for _ in range(count):
        number, at = get_uv(data, at)
        value, at = get_sv(data, at)
        if number >= len(_SETTINGS):
            raise CorruptCommand(f"setting {number} is not known")
        name = _SETTINGS[number]
        changes[name] = _setting(name, value)
    try:
        return Queue(queue, DEFAULT_SETTINGS.changed(changes)), at
    except SettingError as fault:
        raise CorruptCommand(str(fault)) from None


def _setting(name: str, number: int) -> object:
    default = getattr(DEFAULT_SETTINGS, name)
    if isinstance(default, str):
        words = _WORDS[name]
        if not 0 <= number < len(words):
            raise CorruptCommand(f"{name} cannot be {number}")
        return words[number]
    if isinstance(default, float):
        return number / 1000
    return bool(number) if isinstance(default, bool) else number
