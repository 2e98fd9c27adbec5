"""The compiled half of `row_files`: facts about rows folded into one each, and found again.

The table is open addressing with linear probing; the caller keeps it less than half full.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

import numpy as np
from numba import njit

__all__ = [
    "CHANGE", "FACT", "FOUND", "GONE", "STATED",
    "fold", "gather", "mixed", "move", "place", "search",
]  # fmt: skip

FACT = np.dtype(
    [("low", "<u8"), ("high", "<u8"), ("at", "<i8"), ("expires", "<i8"), ("what", "<i8")]
)
"""A row by the two halves of its id, a TIME, an expiry, and which of the four below."""

STATED, GONE, CHANGE, FOUND = range(4)
"""The row is there since `at`; it is gone; if it is there it expires then; the same, and if it is
not there it is from now on."""


@njit(cache=True, nogil=True, inline="always")
def _mix(low, high):
    return (low ^ (high >> np.uint64(32)) ^ (high << np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def mixed(lows, highs):
    """A number for each row by which rows are sorted and parted: even, whatever ids look like."""
    found = np.empty(len(lows), np.uint64)
    for n in range(len(lows)):
        found[n] = _mix(lows[n], highs[n])
    return found


@njit(cache=True, nogil=True)
def place(facts, bound):
    """Where in sorted facts those begin whose number is not below `bound`."""
    low, high = 0, len(facts)
    while low < high:
        middle = (low + high) >> 1
        if _mix(facts[middle].low, facts[middle].high) < bound:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True, inline="always")
def _slot(low, high, used, table):
    mask = np.uint64(len(used) - 1)
    number = _mix(low, high)
    at = (number ^ (number >> np.uint64(29))) & mask
    while used[at] and not (table[at].low == low and table[at].high == high):
        at = (at + np.uint64(1)) & mask
    return at


@njit(cache=True, nogil=True)
def move(used, table, new_used, new_table):
    """Copy the rows into a larger table."""
    for n in range(len(used)):
        if used[n]:
            at = _slot(table[n].low, table[n].high, new_used, new_table)
            new_used[at] = True
            new_table[at] = table[n]


@njit(cache=True, nogil=True)
def fold(facts, used, table, overlap):
    """Take facts in the order of the log; returns how many rows are new in the table.

    Up to TIME `overlap` a row may be stated by something later already: then an earlier fact is
    passed by.
    """
    added = 0
    for n in range(len(facts)):
        fact = facts[n]
        at = _slot(fact.low, fact.high, used, table)
        row = table[at]
        if not used[at]:
            used[at] = True
            table[at] = fact
            added += 1
            continue
        known = row.what
        if fact.at <= overlap and row.at > fact.at and known in (STATED, FOUND):
            continue
        if fact.what in (STATED, GONE):
            table[at] = fact
        elif known != GONE:
            table[at].expires = fact.expires
            if known == CHANGE:
                table[at].at = fact.at
                table[at].what = fact.what
        elif fact.what == FOUND:
            table[at] = fact
            table[at].what = STATED
    return added


@njit(cache=True, nogil=True)
def search(lows, highs, which, facts, known, at, expires):
    """Look up the ids of the places `which`, in the order of their numbers, in sorted facts."""
    count = len(facts)
    i = 0
    for n in which:
        low, high = lows[n], highs[n]
        number = _mix(low, high)
        # Leap ahead, twice as far each time, then look between the last two places.
        step = 1
        while i + step < count and _mix(facts[i + step].low, facts[i + step].high) < number:
            i += step
            step *= 2
        i += place(facts[i : i + step + 1], number)
        found = i
        while found < count and _mix(facts[found].low, facts[found].high) == number:
            if facts[found].low == low and facts[found].high == high:
                known[n] = True
                at[n] = facts[found].at
                expires[n] = facts[found].expires
                break
            found += 1


@njit(cache=True, nogil=True)
def gather(view, starts, ends, made, at):
    """Copy stretches of bytes one behind the other, from a place on."""
    for n in range(len(starts)):
        for i in range(starts[n], ends[n]):
            made[at] = view[i]
            at += 1
