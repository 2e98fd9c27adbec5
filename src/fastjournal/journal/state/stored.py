"""Where a value lies that is not in memory.

Rules:

1. `Row.value` is bytes, or a `Stored` in their place. Nothing in the state or in a decision reads a
   file: what needs the bytes of a `Stored` raises `ValueNeeded`, and whoever called loads the value
   and asks again. A decision changes nothing, so asking twice is harmless.
2. TIME identifies the record. Segment and offset are where it was seen last: cleaning may have
   moved it since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from fastjournal.journal.state.row import Row

__all__ = ["Stored", "ValueNeeded", "value_of"]


@final
class Stored:
    """The place of a value: a record in a segment, or an image in a snapshot."""

    __slots__ = ("offset", "segment", "size", "time")

    def __init__(self, time: int, segment: int, offset: int, size: int) -> None:
        self.time = time
        """TIME of the record."""
        self.segment = segment
        """Number of its segment; -n in the snapshot of number n; 0: not written yet."""
        self.offset = offset
        """Where it begins; 0: not known."""
        self.size = size
        """Bytes of the value."""

    def __len__(self) -> int:
        return self.size

    def __repr__(self) -> str:
        return f"<{self.size} bytes at {self.segment}:{self.offset}>"


class ValueNeeded(Exception):
    """The bytes of this row's value are needed: load them and ask again."""

    def __init__(self, row: Row) -> None:
        super().__init__(row.id.hex())
        self.row = row


def value_of(row: Row) -> bytes:
    """The value of a row that is in memory."""
    value = row.value
    if type(value) is Stored:
        raise ValueNeeded(row)
    return value
