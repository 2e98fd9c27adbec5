"""The compiled half of the fold: which records still matter, read from the end of the log.

The set of settled rows is open addressing over pairs of u64 (the 16 bytes of an id) with linear
probing; the caller keeps it less than half full.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["pick", "prune", "rehash"]


@njit(cache=True, nogil=True)
def pick(view, times, offsets, starts, sizes, lows, highs, kinds, rowless, index, count):
    """Move the records of a share to the front, with their ids; returns how many they are.

    So those that name no row. The columns are the caller's own; sizes become ends. One pass: the
    records of other shares are most of a log. The twin of `fold.route` and `Chunk.ids`.
    """
    found = 0
    shares = np.uint64(count)
    mine = np.uint64(index)
    for n in range(len(times)):
        low = np.uint64(0)
        high = np.uint64(0)
        start = starts[n]
        if sizes[n] >= 17:
            for k in range(8):
                low |= np.uint64(view[start + 1 + k]) << np.uint64(8 * k)
                high |= np.uint64(view[start + 9 + k]) << np.uint64(8 * k)
        if count > 1 and not rowless[kinds[n]]:
            mixed = (low ^ high) * np.uint64(0x9E3779B97F4A7C15)
            if (mixed >> np.uint64(32)) % shares != mine:
                continue
        times[found] = times[n]
        offsets[found] = offsets[n]
        starts[found] = start
        sizes[found] = start + sizes[n]
        lows[found] = low
        highs[found] = high
        kinds[found] = kinds[n]
        found += 1
    return found


@njit(cache=True, nogil=True, inline="always")
def _slot(low, high, mask):
    mixed = (low ^ (high >> np.uint64(32)) ^ (high << np.uint64(32))) * np.uint64(
        0x9E3779B97F4A7C15
    )
    return (mixed ^ (mixed >> np.uint64(29))) & mask


@njit(cache=True, nogil=True)
def prune(lows, highs, classes, used, set_lows, set_highs, keep, removals):
    """Mark in `keep` what matters, last record first; returns how many rows became settled.

    `removals`: whether a removal matters, because its row may exist before the first record.
    Classes: 0 changes a row, 1 states the whole row, 2 removes it, 3 concerns no single row.
    """
    mask = np.uint64(len(used) - 1)
    one = np.uint64(1)
    added = 0
    for i in range(len(lows) - 1, -1, -1):
        what = classes[i]
        if what == 3:
            keep[i] = True
            continue
        low = lows[i]
        high = highs[i]
        at = _slot(low, high, mask)
        settled = False
        while used[at]:
            if set_lows[at] == low and set_highs[at] == high:
                settled = True
                break
            at = (at + one) & mask
        if settled:
            keep[i] = False
            continue
        keep[i] = what != 2 or removals
        if what:
            used[at] = True
            set_lows[at] = low
            set_highs[at] = high
            added += 1
    return added


@njit(cache=True, nogil=True)
def rehash(used, set_lows, set_highs, new_used, new_lows, new_highs):
    """Copy the set into larger arrays."""
    mask = np.uint64(len(new_used) - 1)
    one = np.uint64(1)
    for i in range(len(used)):
        if used[i]:
            at = _slot(set_lows[i], set_highs[i], mask)
            while new_used[at]:
                at = (at + one) & mask
            new_used[at] = True
            new_lows[at] = set_lows[i]
            new_highs[at] = set_highs[i]
