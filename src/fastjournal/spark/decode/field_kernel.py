"""The compiled twin of `fields`: one pass over the payloads of a chunk, the same answers.

Imported only when numba is installed; the rules are those of `fields`, the tests hold both equal.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

from numba import njit

from fastjournal.log.record import YEAR_1

__all__ = ["parse"]

_SECOND = 1_000_000_000
_MILLISECOND = 1_000_000
_MAX_UNIX = 9_223_372_035
_MAX_INSTANT = 2**63 - 1

# Places in `numbers`, then in `slices`, as `fields.NUMBERS` and `fields.SLICES` name them.
_RANK, _DUE, _INSERTED, _EXPIRES, _LEASE, _ATTEMPTS, _FAILS = range(7)
_QUEUE, _KEY, _VALUE, _RESULT = range(4)


@njit(cache=True, nogil=True, inline="always")
def _uv(view, at, end):
    """Unsigned LEB128 up to 63 bits, shortest form: value, next position; -1 when it is not one.

    A position of -1 gives -1 again, so that a row of calls is checked once, at its end.
    """
    value = 0
    shift = 0
    while True:
        if at < 0 or at >= end or shift > 56:
            return 0, -1
        byte = int(view[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                return 0, -1
            return value, at
        shift += 7


@njit(cache=True, nogil=True, inline="always")
def _big(view, at, width):
    value = 0
    for n in range(width):
        value = (value << 8) | int(view[at + n])
    return value


@njit(cache=True, nogil=True)
def _go_time(view, at, end):
    """15 bytes of TIME: ns since 1970 (0 for the zero time), and whether they are one."""
    if at + 15 > end or view[at] != 1:
        return 0, False
    seconds = _big(view, at + 1, 8)
    nanos = _big(view, at + 9, 4)
    zone = _big(view, at + 13, 2)
    if nanos >= _SECOND or (zone != 0 and zone != 0xFFFF):
        return 0, False
    if seconds == 0 and nanos == 0:
        return 0, True
    unix = seconds - YEAR_1
    if unix > _MAX_UNIX or unix < -_MAX_UNIX:
        return 0, False
    return unix * _SECOND + nanos, True


@njit(cache=True, nogil=True)
def _job(view, at, end, n, numbers, starts, sizes):
    size, at = _uv(view, at, end)
    if at < 0 or size > end - at:
        return False
    starts[_QUEUE, n], sizes[_QUEUE, n] = at, size
    at += size
    lease, at = _uv(view, at, end)
    if at < 0:
        return False
    ttl, at = _uv(view, at, end)
    if at < 0:
        return False
    zigzag, at = _uv(view, at, end)
    if at < 0:
        return False
    attempts, at = _uv(view, at, end)
    if at < 0:
        return False
    fails, at = _uv(view, at, end)
    if at < 0:
        return False
    size, at = _uv(view, at, end)
    if at < 0 or size > end - at:
        return False
    starts[_VALUE, n], sizes[_VALUE, n] = at, size
    at += size
    if at + 30 != end:
        return False
    scheduled, fine = _go_time(view, at, end)
    if not fine:
        return False
    created, fine = _go_time(view, at + 15, end)
    if not fine:
        return False
    due = scheduled if scheduled != 0 else created
    numbers[_RANK, n] = -((zigzag >> 1) ^ -(zigzag & 1))
    numbers[_DUE, n] = due
    numbers[_INSERTED, n] = created
    if ttl > (_MAX_INSTANT - due) // _MILLISECOND:
        numbers[_EXPIRES, n] = _MAX_INSTANT
    elif ttl > 0:
        numbers[_EXPIRES, n] = due + ttl * _MILLISECOND
    numbers[_LEASE, n] = lease
    numbers[_ATTEMPTS, n] = attempts
    numbers[_FAILS, n] = fails
    return True


@njit(cache=True, nogil=True)
def _result(view, at, end, n, starts, sizes):
    if at == end:
        starts[_RESULT, n], sizes[_RESULT, n] = at, 0
        return True
    size, at = _uv(view, at, end)
    if at < 0 or at + size != end:
        return False
    starts[_RESULT, n], sizes[_RESULT, n] = at, size
    return True


@njit(cache=True, nogil=True)
def _put(view, at, end, n, numbers, starts, sizes):
    if at >= end or view[at] != 1:
        return False
    at += 1
    for which in (_QUEUE, _KEY):
        size, at = _uv(view, at, end)
        if at < 0 or size > end - at:
            return False
        starts[which, n], sizes[which, n] = at, size
        at += size
    aliases, at = _uv(view, at, end)
    if at < 0:
        return False
    while aliases > 0:
        size, at = _uv(view, at, end)
        if at < 0 or size > end - at:
            return False
        at += size
        aliases -= 1
    zigzag, at = _uv(view, at, end)
    if at < 0 or at + 32 > end:
        return False
    numbers[_RANK, n] = (zigzag >> 1) ^ -(zigzag & 1)
    numbers[_DUE, n] = _big(view, at, 8)
    numbers[_INSERTED, n] = _big(view, at + 8, 8)
    numbers[_EXPIRES, n] = _big(view, at + 24, 8)
    _, at = _uv(view, at + 32, end)
    if at < 0 or at >= end:
        return False
    size, at = _uv(view, at + 1, end)
    if at < 0 or size > end - at:
        return False
    starts[_VALUE, n], sizes[_VALUE, n] = at, size
    at += size
    if at >= end:
        return False
    at += 1
    for which in range(7):
        value, at = _uv(view, at, end)
        if at < 0:
            return False
        if which == 0:
            numbers[_LEASE, n] = value
        elif which == 4:
            numbers[_ATTEMPTS, n] = value
        elif which == 6:
            numbers[_FAILS, n] = value
    return at == end


@njit(cache=True, nogil=True)
def parse(view, payloads, lengths, kinds, numbers, starts, sizes, missing, bad):
    """Fill the columns of a chunk; `missing` has a row for each number, then for each slice."""
    for n in range(len(payloads)):
        kind = kinds[n]
        begin = payloads[n]
        end = begin + lengths[n]
        what = 0
        if kind == 1 or kind == 2:
            what = 1
        elif kind == 3 or kind == 4:
            what = 2
        elif kind == 32:
            what = 3
        if what == 0:
            continue
        fine = lengths[n] >= 17
        if fine and what == 1:
            fine = _job(view, begin + 17, end, n, numbers, starts, sizes)
        elif fine and what == 2:
            fine = _result(view, begin + 17, end, n, starts, sizes)
        elif fine:
            fine = _put(view, begin + 17, end, n, numbers, starts, sizes)
        if not fine:
            bad[n] = True
            for which in range(4):
                starts[which, n] = begin
                sizes[which, n] = 0
            continue
        if what == 2:
            missing[7 + _RESULT, n] = False
            continue
        for which in (_RANK, _LEASE, _ATTEMPTS, _FAILS, 7 + _QUEUE, 7 + _VALUE):
            missing[which, n] = False
        for which in (_DUE, _INSERTED, _EXPIRES):
            missing[which, n] = numbers[which, n] == 0
        if what == 3:
            missing[7 + _KEY, n] = False
