"""Kinds of record by number and by name, as SQL users write them.

Rules:

1. Numbers 1 to 8 are Workq's, ours start at 32. An unknown number keeps its digits as its name.
2. A broadcast kind names no single row: the 16 bytes after its type byte are not an id.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastjournal.errors import SettingError

__all__ = ["BROADCAST", "KINDS", "kind_name", "kind_number"]

KINDS: Mapping[int, str] = {
    1: "add",
    2: "schedule",
    3: "complete",
    4: "fail",
    5: "delete",
    6: "expire",
    7: "start-attempt",
    8: "timeout-attempt",
    32: "put",
    34: "lease",
    35: "renew",
    36: "touch",
    37: "tomb",
    38: "purge",
    39: "dead",
    40: "keys",
    41: "value",
    44: "group",
    45: "mark",
}

BROADCAST = frozenset({44, 45})

_NUMBERS = {name: number for number, name in KINDS.items()}


def kind_name(number: int) -> str:
    """The name of a kind; its digits when it is not known."""
    return KINDS.get(number, str(number))


def kind_number(word: str) -> int:
    """The number of a kind given by name or by number."""
    text = word.strip().lower().replace("_", "-")
    if text.isdecimal() and int(text) < 256:
        return int(text)
    if text not in _NUMBERS:
        raise SettingError(
            f"commands: unknown kind {word!r}; known: {', '.join(_NUMBERS)}", name="commands"
        )
    return _NUMBERS[text]
