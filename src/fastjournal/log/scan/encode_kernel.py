"""The compiled engine of `frames`: payloads to records, byte by byte.

Imported only by `log.frames`, and only when numba is installed.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

import numpy as np
from numba import njit

from fastjournal.log.scan.kernel import crc32c

__all__ = ["frame"]

_EPOCH = 62_135_596_800  # seconds from the year 1 to 1970
_SECOND = 1_000_000_000


@njit(cache=True, nogil=True)
def frame(values, offsets, first_time, zone, out):
    """Write one record for each payload; returns where they end."""
    at = 0
    seconds = first_time // _SECOND
    nanos = first_time - seconds * _SECOND
    for n in range(len(offsets) - 1):
        start = at
        out[at] = 1
        whole = np.uint64(seconds + _EPOCH)
        for k in range(8):
            out[at + 1 + k] = (whole >> np.uint64(56 - 8 * k)) & np.uint64(255)
        for k in range(4):
            out[at + 9 + k] = (nanos >> (24 - 8 * k)) & 255
        out[at + 13] = zone >> 8
        out[at + 14] = zone & 255
        at += 15
        size = offsets[n + 1] - offsets[n]
        left = size
        while left >= 0x80:
            out[at] = left & 0x7F | 0x80
            left >>= 7
            at += 1
        out[at] = left
        at += 1
        first = offsets[n]
        out[at : at + size] = values[first : first + size]
        at += size
        crc = crc32c(out, start, at)
        for k in range(4):
            out[at + k] = (crc >> np.uint32(24 - 8 * k)) & np.uint32(255)
        at += 4
        nanos += 1
        if nanos == _SECOND:
            nanos = 0
            seconds += 1
    return at
