"""The kernels of `attempts` that read bytes: members of groups, fields of the rarer commands.

Compiled where numba is installed; without it the same functions run as plain Python, slower and
equal. The rules are those of `attempts`.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

from fastjournal.spark.decode.field_kernel import _uv

try:
    from numba import njit
except ImportError:  # the same functions, not compiled

    def njit(**_):
        return lambda function: function


__all__ = ["expand", "group_sizes", "more_fields"]

# Columns of `numbers`.
(REASON, DUE, START, UNTIL, ATTEMPT, TIMEOUTS, FAILS, MAX_ATTEMPTS, LEASE_MS) = range(9)


@njit(cache=True, nogil=True)
def _big(view, at):
    value = 0
    for n in range(8):
        value = (value << 8) | int(view[at + n])
    return value


@njit(cache=True, nogil=True)
def group_sizes(view, starts, sizes, kinds, counts):
    """How many commands each record holds: 1, or the members of a GROUP; -1: not a group."""
    for n in range(len(starts)):
        counts[n] = 1
        if kinds[n] != 44:
            continue
        end = starts[n] + sizes[n]
        count, at = _uv(view, starts[n] + 1, end)
        if at < 0 or count == 0 or count > end - at:
            counts[n] = -1
            continue
        for _ in range(count):
            size, at = _uv(view, at, end)
            if at < 0 or size == 0 or size > end - at:
                at = -1
                break
            at += size
        counts[n] = count if at == end else -1


@njit(cache=True, nogil=True)
def expand(view, starts, sizes, kinds, counts, record, member, out_starts, out_sizes, out_kinds):
    """Put the members of each GROUP in its place."""
    at_out = 0
    for n in range(len(starts)):
        if kinds[n] != 44:
            record[at_out] = n
            member[at_out] = -1
            out_starts[at_out] = starts[n]
            out_sizes[at_out] = sizes[n]
            out_kinds[at_out] = kinds[n]
            at_out += 1
            continue
        end = starts[n] + sizes[n]
        _, at = _uv(view, starts[n] + 1, end)
        for m in range(counts[n]):
            size, at = _uv(view, at, end)
            record[at_out] = n
            member[at_out] = m
            out_starts[at_out] = at
            out_sizes[at_out] = size
            out_kinds[at_out] = view[at]
            at += size
            at_out += 1


@njit(cache=True, nogil=True)
def more_fields(view, starts, sizes, kinds, tails, numbers, slices, lengths):
    """What `fields` does not read: leases, retries, ends, and the counters of a PUT.

    `slices` and `lengths` have rows for queue, key, worker, note; a length of -1 means none.
    `tails` is where a PUT goes on behind its value, 0 elsewhere.
    """
    for n in range(len(starts)):
        kind = kinds[n]
        at = starts[n] + 17
        end = starts[n] + sizes[n]
        if kind == 32:
            at = tails[n]
            if at == 0 or at >= end:
                continue
            at += 1
            lease, at = _uv(view, at, end)
            attempts, at = _uv(view, at, end)
            timeouts, at = _uv(view, at, end)
            fails, at = _uv(view, at, end)
            limit, at = _uv(view, at, end)
            if at < 0:
                continue
            numbers[LEASE_MS, n] = lease
            numbers[ATTEMPT, n] = attempts
            numbers[TIMEOUTS, n] = timeouts
            numbers[FAILS, n] = fails
            numbers[MAX_ATTEMPTS, n] = limit
        elif kind == 34:
            if at + 16 > end:
                continue
            numbers[START, n] = _big(view, at)
            numbers[UNTIL, n] = _big(view, at + 8)
            attempt, at = _uv(view, at + 16, end)
            size, at = _uv(view, at, end)
            if at < 0 or at + size > end:
                continue
            numbers[ATTEMPT, n] = attempt
            slices[2, n] = at
            lengths[2, n] = size
        elif kind == 35:
            if at + 8 > end:
                continue
            numbers[UNTIL, n] = _big(view, at)
            attempt, at = _uv(view, at + 8, end)
            numbers[ATTEMPT, n] = attempt
        elif kind == 37 or kind == 38:
            size, at = _uv(view, at, end)
            if at < 0 or at + size > end:
                continue
            slices[0, n] = at
            lengths[0, n] = size
            more, at = _uv(view, at + size, end)
            if at < 0 or at + more > end:
                continue
            slices[1, n] = at
            lengths[1, n] = more
        elif kind == 39:
            if at + 9 <= end:
                numbers[REASON, n] = view[at]
        elif kind == 40:
            size, at = _uv(view, at, end)
            if at < 0 or at + size > end:
                continue
            slices[1, n] = at
            lengths[1, n] = size
        elif kind == 47:
            if at + 9 > end:
                continue
            numbers[REASON, n] = view[at]
            numbers[DUE, n] = _big(view, at + 1)
            timeouts, at = _uv(view, at + 9, end)
            fails, at = _uv(view, at, end)
            size, at = _uv(view, at, end)
            if at < 0 or at + size > end:
                continue
            numbers[TIMEOUTS, n] = timeouts
            numbers[FAILS, n] = fails
            slices[3, n] = at
            lengths[3, n] = size
        elif kind == 48:
            if at + 8 > end:
                continue
            numbers[DUE, n] = _big(view, at)
            limit, at = _uv(view, at + 8, end)
            numbers[MAX_ATTEMPTS, n] = limit
