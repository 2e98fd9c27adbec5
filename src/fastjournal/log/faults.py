"""What stands where no record stands, and where records go on.

Rules:

1. The search behind a fault goes to the end of the segment, at memory speed: a hole of any size
   does not hide what lies behind it. Only the number of false beginnings that are tried is bounded,
   so bytes made of them never hang a reader.
2. `log.record` has the words for a fault; only zeros to the very end have a name of their own.
"""

from __future__ import annotations

import contextlib
import re
from itertools import islice

from fastjournal.log.chunk import Buffer
from fastjournal.log.record import MAX_PAYLOAD, BrokenRecord, decode

__all__ = ["TRIES", "fault_reason", "next_valid"]

TRIES = 200_000  # beginnings of a record that are tried behind a faulty one: under a second
_BEGIN = re.compile(rb"\x01\0\0\0[\x0c-\x10]")  # of a record: version, seconds of 1678 to 2262
_CONTENT = re.compile(rb"[^\0]")


def next_valid(
    data: Buffer, at: int, end: int | None = None, max_payload: int = MAX_PAYLOAD
) -> int | None:
    """Offset of the first whole, CRC-valid record at or after `at`; None when none is found."""
    end = len(data) if end is None else end
    for begin in islice(_BEGIN.finditer(data, at, end), TRIES):
        with contextlib.suppress(BrokenRecord):
            decode(data, begin.start(), end, max_payload)  # type: ignore[arg-type]
            return begin.start()
    return None


def fault_reason(data: Buffer, at: int, end: int, max_payload: int = MAX_PAYLOAD) -> str:
    """Why the bytes at `at` are no record."""
    if _CONTENT.search(data, at, end) is None:
        return "zeros in place of a record"
    try:
        decode(data, at, end, max_payload)  # type: ignore[arg-type]
    except BrokenRecord as broken:
        return broken.reason
    raise AssertionError(f"an engine refused a valid record at offset {at}")
