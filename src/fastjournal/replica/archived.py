"""What a node that is behind may have from the archive instead of its primary.

What is asked for is named by the primary, with size and CRC; the archive is a second place where
the same bytes lie, and is not believed. Whoever drives a member answers, or says that it cannot.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["Archived", "ArchivedPart"]


class ArchivedPart(NamedTuple):
    """The bytes of a snapshot from an offset on: what its primary says of it, and where."""

    epoch: int
    base: int
    size: int
    crc: int
    checkpoint: str
    """Hex, as in the offer."""
    at: int


class Archived(Protocol):
    """An archive, as a node reads it; each call may block, and raise."""

    def read_part(self, size: int, crc: int, checkpoint: bytes, at: int) -> bytes:
        """Bytes of the snapshot of which this is said, from an offset on; empty: it is not here."""
