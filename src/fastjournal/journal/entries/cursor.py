"""Where a scan over many entries goes on: a string that tells all, so nobody has to remember it.

    kind u8 | page size u16 | size of the last key u32 | last key | bound or pattern | CRC-32C u32

Rules:

1. It is opaque to its bearer, valid over restarts, and goes on strictly after the last key: a key
   is never told twice, and one that stood throughout is never missed (D-26).
2. A cursor that was damaged is refused.
"""

from struct import Struct
from typing import Final, final

import google_crc32c
from mypy_extensions import mypyc_attr

from fastjournal.errors import BadCursor, TooLarge

__all__ = ["PATTERN", "RANGE", "KeyQuery"]

RANGE: Final = 1
PATTERN: Final = 2
_HEAD: Final = Struct(">BHI")
_HEAD_SIZE: Final = 7
_CRC: Final = Struct(">I")
_CRC_SIZE: Final = 4
_MAX: Final = 65_535


@final
@mypyc_attr(acyclic=True)
class KeyQuery:
    """What to look through: from `start` on, up to a bound or for a pattern."""

    def __init__(
        self, kind: int, start: bytes, also: bytes = b"", limit: int = 0, after: bool = False
    ) -> None:
        self.kind = kind
        self.start = start
        self.also = also
        """The upper bound, itself included, empty for none; or the pattern."""
        self.limit = limit
        """Most entries to tell at once; 0: as many as fit."""
        self.after = after
        """Strictly after `start`."""

    def cursor(self, last: bytes) -> bytes:
        """How to go on after this key."""
        body = _HEAD.pack(self.kind, self.limit, len(last)) + last + self.also
        if len(body) + _CRC_SIZE > _MAX:
            raise TooLarge("the keys are too long for a cursor; ask for less at a time")
        return body + _CRC.pack(google_crc32c.value(body))

    @staticmethod
    def resume(cursor: bytes) -> "KeyQuery":
        """The rest of a scan."""
        body, crc = cursor[:-_CRC_SIZE], cursor[-_CRC_SIZE:]
        if len(body) < _HEAD_SIZE or _CRC.pack(google_crc32c.value(body)) != crc:
            raise BadCursor
        kind, limit, size = _HEAD.unpack_from(body)
        end = _HEAD_SIZE + size
        if kind not in (RANGE, PATTERN) or end > len(body):
            raise BadCursor
        return KeyQuery(kind, body[_HEAD_SIZE:end], body[end:], limit, after=True)
