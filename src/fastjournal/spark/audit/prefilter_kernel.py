"""The compiled half of the sift: an automaton for each row, run over the records in file order.

The table of rows is open addressing over pairs of u64 (the 16 bytes of an id) with linear probing;
the caller keeps it less than half full.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

import numpy as np
from numba import njit

from fastjournal.journal.language import commands as language
from fastjournal.spark.decode.field_kernel import ATTEMPT, NUMBERS, SLICES, read
from fastjournal.spark.replay.fold_kernel import _slot

__all__ = ["doubtful", "grow", "run"]

_NONE, _PROCESSING = 1, 4  # bits of the states in which a row may be
_UNFOLLOWED = (language.TOMB, language.KEYS, language.VALUE)
_NUMBERS, _SLICES = len(NUMBERS), len(SLICES)


@njit(cache=True, nogil=True, inline="always")
def _find(low, high, used, lows, highs):
    """Where a row stands in the table, or where it would."""
    mask = np.uint64(len(used) - 1)
    at = _slot(low, high, mask)
    while used[at] and not (lows[at] == low and highs[at] == high):
        at = (at + np.uint64(1)) & mask
    return at


@njit(cache=True, nogil=True)
def run(view, starts, sizes, kinds, row_lows, row_highs, single, before, after, table):
    """Take records in order; returns how many rows are new in the table.

    `single`: which kinds name one row. `before`: for each kind the states it may find, as bits.
    `after`: for each kind and state the states it may leave.
    """
    used, lows, highs, states, tokens, doubts = table
    numbers = np.zeros((_NUMBERS, 1), np.int64)
    spans = np.zeros((2, _SLICES, 1), np.int64)
    added = 0
    for n in range(len(starts)):
        kind = kinds[n]
        if not single[kind] or sizes[n] < 17:
            continue
        at = _find(row_lows[n], row_highs[n], used, lows, highs)
        if not used[at]:
            used[at] = True
            lows[at] = row_lows[n]
            highs[at] = row_highs[n]
            states[at] = _NONE
            tokens[at] = 0
            doubts[at] = False
            added += 1
        if doubts[at]:
            continue
        end = starts[n] + sizes[n]
        fine = read(view, kind, starts[n], end, 0, numbers, spans[0], spans[1])
        token = numbers[ATTEMPT, 0]
        state = states[at]
        held = tokens[at]
        if not fine or kind in _UNFOLLOWED or (state & ~before[kind]) != 0:
            doubts[at] = True
            continue
        least = held + 1 if kind == language.LEASE and state & _PROCESSING else held
        stale = (
            token != held
            if kind == language.RENEW
            else (kind == language.PUT or kind == language.LEASE) and token < least
        )
        if stale and state != _NONE:
            doubts[at] = True
        if kind == language.PUT or kind == language.LEASE:
            tokens[at] = token
        elif kind == language.START:
            tokens[at] = held + 1
        elif kind == language.ADD or kind == language.SCHEDULE:
            tokens[at] = 0
        left = 0
        for bit in range(6):
            if state & (1 << bit):
                left |= after[kind, bit]
        states[at] = left
    return added


@njit(cache=True, nogil=True)
def grow(old, new):
    """Copy the rows that are there or in doubt; one that is gone and sound is as one never seen."""
    used, lows, highs, states, tokens, doubts = old
    count = 0
    for n in range(len(used)):
        if used[n] and (states[n] != _NONE or doubts[n]):
            at = _find(lows[n], highs[n], new[0], new[1], new[2])
            new[0][at] = True
            new[1][at] = lows[n]
            new[2][at] = highs[n]
            new[3][at] = states[n]
            new[4][at] = tokens[n]
            new[5][at] = doubts[n]
            count += 1
    return count


@njit(cache=True, nogil=True)
def doubtful(row_lows, row_highs, table, found):
    """Mark in `found` the records of rows in doubt."""
    used, lows, highs, _, _, doubts = table
    for n in range(len(row_lows)):
        at = _find(row_lows[n], row_highs[n], used, lows, highs)
        found[n] = used[at] and doubts[at]
