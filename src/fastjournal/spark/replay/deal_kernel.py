"""The compiled half of the deal: whole records laid together by share, each copied once."""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

from numba import njit

__all__ = ["lay", "measure"]


@njit(cache=True, nogil=True)
def measure(offsets, ends, records, shares, sizes, firsts, fresh):
    """How many bytes each share gets, and where in the segment its first record begins.

    `records` ascend. A record of which a share has several commands is `fresh` for the first.
    """
    last = firsts.copy()
    for n in range(len(records)):
        share = shares[n]
        record = records[n]
        fresh[n] = last[share] != record
        if fresh[n]:
            if firsts[share] < 0:
                firsts[share] = offsets[record]
            last[share] = record
            sizes[share] += ends[record] - offsets[record]


@njit(cache=True, nogil=True)
def lay(view, offsets, ends, records, shares, fresh, places, out):
    """Copy each record to the place of its share, which moves on behind it."""
    for n in range(len(records)):
        if fresh[n]:
            share = shares[n]
            at = places[share]
            start = offsets[records[n]]
            size = ends[records[n]] - start
            for k in range(size):
                out[at + k] = view[start + k]
            places[share] = at + size
