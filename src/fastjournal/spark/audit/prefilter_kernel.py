"""The compiled half of the sift: an automaton for each row, run over the records in file order.

The table of rows is open addressing over pairs of u64 (the 16 bytes of an id) with linear probing;
the caller keeps it less than half full. Imported only when numba is installed.

A payload passes here only if `journal.commands.decode` takes it; what is refused here is looked at
again by `decode`, which has the last word.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

import numpy as np
from numba import njit

from fastjournal.spark.decode.field_kernel import _go_time, _uv
from fastjournal.spark.replay.fold_kernel import _slot

__all__ = ["doubtful", "grow", "run"]

_NONE, _PROCESSING = 1, 4  # bits of the states in which a row may be


@njit(cache=True, nogil=True, inline="always")
def _blob(view, at, end):
    """Behind counted bytes, or -1."""
    size, at = _uv(view, at, end)
    if at < 0 or size > end - at:
        return -1
    return at + size


@njit(cache=True, nogil=True)
def _job(view, at, end):
    at = _blob(view, at, end)
    for _ in range(5):
        _, at = _uv(view, at, end)
    at = _blob(view, at, end)
    if at < 0 or at + 30 != end:
        return False
    _, fine = _go_time(view, at, end)
    created, known = _go_time(view, at + 15, end)
    return fine and known and created != 0


@njit(cache=True, nogil=True)
def _image(view, at, end):
    """Whether a row image is whole, and its token."""
    if at >= end or view[at] != 1:
        return False, 0
    at = _blob(view, at + 1, end)
    at = _blob(view, at, end)
    aliases, at = _uv(view, at, end)
    while aliases > 0 and at >= 0:
        at = _blob(view, at, end)
        aliases -= 1
    _, at = _uv(view, at, end)
    if at < 0:
        return False, 0
    _, at = _uv(view, at + 32, end)
    if at < 0:
        return False, 0
    at = _blob(view, at + 1, end)
    if at < 0 or at >= end:
        return False, 0
    at += 1
    token = 0
    for which in range(7):
        value, at = _uv(view, at, end)
        if which == 1:
            token = value
    return at == end, token


@njit(cache=True, nogil=True)
def _whole(view, kind, begin, end):
    """Whether a payload is one that `decode` takes, and the token it carries."""
    size = end - begin
    at = begin + 17
    if kind >= 5 and kind <= 8:
        return size == 17, 0
    if kind == 1 or kind == 2:
        return _job(view, at, end), 0
    if kind == 3 or kind == 4:
        return size == 17 or _blob(view, at, end) == end, 0
    if kind == 32:
        return _image(view, at, end)
    if kind == 34:
        token, at = _uv(view, at + 16, end)
        return at > 0 and _blob(view, at, end) == end, token
    if kind == 35:
        token, at = _uv(view, at + 8, end)
        return at == end, token
    if kind == 36:
        return size == 25, 0
    if kind == 38:
        at = _blob(view, at, end)
        at = _blob(view, at, end)
        return at > 0 and at + 8 == end, 0
    if kind == 39:
        return size == 26 and view[at] >= 1 and view[at] <= 3, 0
    if kind == 47:
        if size < 27 or view[at] < 1 or view[at] > 3:
            return False, 0
        _, at = _uv(view, at + 9, end)
        _, at = _uv(view, at, end)
        return at > 0 and _blob(view, at, end) == end, 0
    if kind == 48:
        _, at = _uv(view, at + 8, end)
        return at == end, 0
    return False, 0


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
        fine, token = _whole(view, kind, starts[n], starts[n] + sizes[n])
        state = states[at]
        held = tokens[at]
        if not fine or (state & ~before[kind]) != 0:
            doubts[at] = True
            continue
        least = held + 1 if kind == 34 and state & _PROCESSING else held
        stale = token != held if kind == 35 else (kind == 32 or kind == 34) and token < least
        if stale and state != _NONE:
            doubts[at] = True
        if kind == 32 or kind == 34:
            tokens[at] = token
        elif kind == 7:
            tokens[at] = held + 1
        elif kind == 1 or kind == 2:
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
