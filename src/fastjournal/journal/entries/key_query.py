"""A query of keys: a range of them, or those that match a pattern; and the cursor where it goes on.

The cursor is a string that tells all, so nobody has to remember it:

    kind u8 | page size u16 | size of the last key u32 | last key | bound or pattern | CRC-32C u32

Rules:

1. It is opaque to its bearer, valid over restarts, and goes on strictly after the last key: a key
   is never told twice, and one that stood throughout is never missed (D-26).
2. A cursor that was damaged is refused.
3. A pattern is a regular expression of RE2: no back references, and time linear in the key (D-25).
"""

from functools import lru_cache
from importlib import import_module
from struct import Struct
from typing import Any, Final, final

import google_crc32c
from mypy_extensions import mypyc_attr

from fastjournal.errors import BadCursor, BadPattern, TooLarge

__all__ = ["MAX_PATTERN", "PATTERN", "RANGE", "KeyQuery", "compiled_pattern"]

RANGE: Final = 1
PATTERN: Final = 2
MAX_PATTERN: Final = 1024
"""Bytes of a pattern."""
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
        """The rest of a query."""
        body, crc = cursor[:-_CRC_SIZE], cursor[-_CRC_SIZE:]
        if len(body) < _HEAD_SIZE or _CRC.pack(google_crc32c.value(body)) != crc:
            raise BadCursor
        kind, limit, size = _HEAD.unpack_from(body)
        end = _HEAD_SIZE + size
        if kind not in (RANGE, PATTERN) or end > len(body):
            raise BadCursor
        return KeyQuery(kind, body[_HEAD_SIZE:end], body[end:], limit, after=True)


@lru_cache(maxsize=64)
def compiled_pattern(pattern: bytes) -> Any:
    """A pattern over bytes, ready to search."""
    if len(pattern) > MAX_PATTERN:
        raise BadPattern(f"a pattern has at most {MAX_PATTERN} bytes")
    try:
        re2: Any = import_module("re2")
    except ImportError:
        raise BadPattern("patterns need: pip install 'fastjournal[daemon]'") from None
    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        what = error.args[0] if error.args else ""
        text = what.decode("utf-8", "replace") if isinstance(what, bytes) else str(what)
        raise BadPattern(f"not a pattern: {text}") from None
