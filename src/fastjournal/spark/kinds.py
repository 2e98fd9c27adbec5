"""Kinds of record by number and by name, as SQL users write them.

Rules:

1. The numbers and names are those of `journal.commands`, in lower case. An unknown number keeps its
   digits as its name.
2. A broadcast kind names no single row: the 16 bytes after its type byte are not an id.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from fastjournal.errors import SettingError
from fastjournal.journal.language.codec import BROADCAST, TYPE_NAMES
from fastjournal.journal.language.commands import ADD, DELETE, EXPIRE, GROUP, PURGE, PUT, SCHEDULE

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "BROADCAST",
    "GROUP",
    "KINDS",
    "REMOVING",
    "SINGLE",
    "STATING",
    "among",
    "kind_name",
    "kind_number",
]

KINDS: Mapping[int, str] = {number: name.lower() for number, name in TYPE_NAMES.items()}
"""Every known kind: 1 `add`, 2 `schedule`, 3 `complete` and so on."""

SINGLE = frozenset(KINDS) - BROADCAST
"""The kinds that name one row by the 16 bytes after their type byte."""

STATING: frozenset[int] = frozenset({ADD, SCHEDULE, PUT})
"""The kinds that state a whole row."""

REMOVING: frozenset[int] = frozenset({DELETE, EXPIRE, PURGE})
"""The kinds that remove one."""

_NUMBERS = {name: number for number, name in KINDS.items()}


@cache
def among(numbers: frozenset[int]) -> np.ndarray[Any, Any]:
    """For each number of a kind whether it is one of these."""
    import numpy as np

    table = np.zeros(256, dtype=bool)
    table[list(numbers)] = True
    table.flags.writeable = False
    return table


def kind_name(number: int) -> str:
    """The name of a kind; its digits when it is not known."""
    return KINDS.get(number, str(number))


def kind_number(word: str) -> int:
    """The number of a kind given by name or by number."""
    text = word.strip().lower()
    if text.isdecimal() and int(text) < 256:
        return int(text)
    if text not in _NUMBERS:
        raise SettingError(
            f"commands: unknown kind {word!r}; known: {', '.join(_NUMBERS)}", name="commands"
        )
    return _NUMBERS[text]
