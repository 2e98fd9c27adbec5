"""Where a scan over many entries goes on: a string that tells all, so nobody has to remember it.

    kind u8 | page size u16 | size of the last key u32 | last key | bound or pattern | CRC-32C u32

Rules:

1. It is opaque to its bearer, valid over restarts, and goes on strictly after the last key: a key
   is never told twice, and one that stood throughout is never missed (D-26).
2. A cursor that was damaged is refused.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import google_crc32c

from fastjournal.errors import BadCursor, TooLarge

__all__ = ["PATTERN", "RANGE", "Scan"]

RANGE, PATTERN = 1, 2
_HEAD = Struct(">BHI")
_CRC = Struct(">I")
_MAX = 65_535


class Scan(NamedTuple):
    """What to look through: from `start` on, up to a bound or for a pattern."""

    kind: int
    start: bytes
    also: bytes = b""
    """The upper bound, itself included, empty for none; or the pattern."""
    limit: int = 0
    """Most entries to tell at once; 0: as many as fit."""
    after: bool = False
    """Strictly after `start`."""

    def cursor(self, last: bytes) -> bytes:
        """How to go on after this key."""
        body = _HEAD.pack(self.kind, self.limit, len(last)) + last + self.also
        if len(body) + _CRC.size > _MAX:
            raise TooLarge("the keys are too long for a cursor; ask for less at a time")
        return body + _CRC.pack(google_crc32c.value(body))

    @classmethod
    def resume(cls, cursor: bytes) -> Scan:
        """The rest of a scan."""
        body, crc = cursor[: -_CRC.size], cursor[-_CRC.size :]
        if len(body) < _HEAD.size or _CRC.pack(google_crc32c.value(body)) != crc:
            raise BadCursor
        kind, limit, size = _HEAD.unpack_from(body)
        end = _HEAD.size + size
        if kind not in (RANGE, PATTERN) or end > len(body):
            raise BadCursor
        return cls(kind, body[_HEAD.size : end], body[end:], limit, after=True)
