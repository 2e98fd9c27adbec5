"""The compiled half of the stamps: what the writer alone knows is put into PUTs, in place."""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

from numba import njit

__all__ = ["stamp"]


@njit(cache=True, nogil=True, inline="always")
def _set(data, at, width, number):
    for k in range(width):
        data[at + k] = (number >> (8 * (width - 1 - k))) & 0xFF


@njit(cache=True, nogil=True)
def stamp(data, starts, ranks, sender, mark, now):
    """Give each row its id, and the instants at which it came and is due.

    `starts`: where its payload begins; `ranks`: where its rank stands, and behind it due, inserted
    and modified. `mark` and `now` are those of the first row.
    """
    for n in range(len(starts)):
        at = starts[n] + 1
        for k in range(len(sender)):
            data[at + k] = sender[k]
        _set(data, at + 12, 4, mark + n)
        at = ranks[n] + 1
        if data[ranks[n]] >= 0x80:  # 255 at most, so two bytes at most
            at += 1
        due = 0
        for k in range(8):
            due = (due << 8) | int(data[at + k])
        _set(data, at, 8, max(due, now + n))
        _set(data, at + 8, 8, now + n)
        _set(data, at + 16, 8, now + n)
