"""What stands where no record stands, and where records go on.

Rules:

1. The search behind a fault goes to the end of the segment, at memory speed: a hole of any size
   does not hide what lies behind it. Only the number of false beginnings that are tried is bounded,
   so bytes made of them never hang a reader.
2. `log.record` has the words for a fault; only zeros to the very end have a name of their own. In
   the newest segment, behind what was synced, they are no fault: room reserved ahead. Zeros from a
   record's beginning to the end of a page, and something behind them, are such room in a file that
   was copied while it was written.
"""

from __future__ import annotations

import contextlib
import re
from itertools import islice

from fastjournal.log.record import MAX_PAYLOAD, BrokenRecord, decode
from fastjournal.log.scan.columns import Buffer

__all__ = ["TRIES", "fault_reason", "is_blank", "is_reserved", "next_valid"]

_SOME = 4096  # bytes
TRIES = 200_000  # beginnings of a record that are tried behind a faulty one: under a second
_BEGIN = re.compile(rb"\x01\0\0\0[\x0c-\x10]")  # of a record: version, seconds of 1678 to 2262
_BLANK = bytes(1 << 16)
_PAGE = 4096  # bytes
_LEAST = 4  # zeros: fewer may be anything


def next_valid(
    data: Buffer, at: int, end: int | None = None, max_payload: int = MAX_PAYLOAD
) -> int | None:
    """Offset of the first whole, CRC-valid record at or after `at`; None when none is found."""
    end = len(data) if end is None else end
    for begin in islice(_BEGIN.finditer(data, at, end), TRIES):
        with contextlib.suppress(BrokenRecord):
            _decode_at(data, begin.start(), end, max_payload)
            return begin.start()
    return None


def is_blank(data: Buffer, at: int, end: int) -> bool:
    """Whether there is nothing but zeros."""
    step = len(_BLANK)
    return all(
        bytes(data[start : min(start + step, end)]) == _BLANK[: min(step, end - start)]
        for start in range(at, end, step)
    )


def is_reserved(data: Buffer, at: int, end: int, base: int = 0) -> bool:
    """Whether the zeros of reserved room begin here; `base`: where `data` stands in its file."""
    page = -(-(base + at + _LEAST) // _PAGE) * _PAGE - base
    return is_blank(data, at, min(page, end))


def fault_reason(data: Buffer, at: int, end: int, max_payload: int = MAX_PAYLOAD) -> str:
    """Why the bytes at `at` are no record."""
    if is_blank(data, at, end):
        return "zeros in place of a record"
    try:
        _decode_at(data, at, end, max_payload)
    except BrokenRecord as broken:
        return broken.reason
    raise AssertionError(f"an engine refused a valid record at offset {at}")


def _decode_at(data: Buffer, at: int, end: int, max_payload: int) -> None:
    """`decode` for any buffer: it takes bytes alone, so a few are copied, then all it needs."""
    for size in (_SOME, max_payload + _SOME):
        part = bytes(data[at : min(end, at + size)])
        try:
            decode(part, 0, len(part), max_payload)
        except BrokenRecord as broken:
            if broken.torn and at + len(part) < end:
                continue
            raise
        return
