"""Commands of the log as people and programs see them, for `fastjournal log dump`.

Rules:

1. A payload that is no command of ours stays bytes: the log carries other things too.
2. Fields that say nothing (0, empty) are left out. Values are told by their size, texts by their
   beginning.
"""

from __future__ import annotations

from typing import Any

from fastjournal.cli.output import instant, preview

__all__ = ["command_text", "command_values"]

_INSTANTS = ("due", "inserted", "modified", "expires", "until", "start", "when", "created", "time")
_TEXTS = ("queue", "name", "key", "worker", "note", "reason_text", "owner", "sender")
_NUMBERS = (
    "rank",
    "priority",
    "attempts",
    "attempt",
    "timeouts",
    "fails",
    "kind",
    "mark",
    "reason",
)
_CONTENTS = ("value", "payload", "result")
_WIDTH = 60


def command_values(payload: bytes) -> dict[str, Any] | None:
    """What a payload says; None: it is no command."""
    from fastjournal.errors import CorruptCommand
    from fastjournal.journal.language.codec import decode

    try:
        return _values(decode(payload))
    except CorruptCommand:
        return None


def _values(command: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"type": type(command).__name__.upper()}
    members = getattr(command, "members", None)
    if members is not None:
        return told | {"members": [_values(member) for member in members]}
    row_id = getattr(command, "id", b"")
    if isinstance(row_id, bytes) and any(row_id):
        told["id"] = row_id.hex()
    for name in (*_TEXTS, *_NUMBERS, *_INSTANTS, *_CONTENTS):
        value = getattr(command, name, None)
        if isinstance(value, bytes):
            if value and name in _CONTENTS:
                told[f"{name}_bytes"] = len(value)
            elif value:
                told[name] = value.decode("utf-8", "backslashreplace")
        elif isinstance(value, int) and value and not isinstance(value, bool):
            told[name] = int(value)
    return told


def command_text(told: dict[str, Any]) -> str:
    """The same in one line."""
    members = told.get("members")
    if members is not None:
        inside = "; ".join(command_text(member) for member in members[:3])
        more = f"; and {len(members) - 3} more" if len(members) > 3 else ""
        return f"{told['type']} of {len(members)}: {inside}{more}"
    words = [told["type"]]
    for name, value in told.items():
        if name == "id":
            words.append(value[:12])
        elif name in _INSTANTS:
            words.append(f"{name}={instant(value)[:19]}Z")
        elif name != "type":
            shown = preview(value.encode(), _WIDTH) if isinstance(value, str) else value
            words.append(f"{name}={shown}")
    return " ".join(map(str, words))
