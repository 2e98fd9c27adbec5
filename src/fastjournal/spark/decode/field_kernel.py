"""The one reader of payloads as columns: every kind that names a row, and the members of groups.

The layouts are those of `journal.language.codec`; the tests hold both readers to the same answers.
A payload passes here only if `decode` takes it; what is refused here is looked at again by
`decode`, which has the last word.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

from numba import njit

from fastjournal.journal.language import commands as language
from fastjournal.log.record import YEAR_1
from fastjournal.spark.kinds import SINGLE, among

__all__ = ["NUMBERS", "SLICES", "expand", "group_sizes", "parse", "read"]

NUMBERS = (
    "priority", "due", "inserted", "expires", "lease_ms", "max_attempts", "max_fails", "attempt",
    "timeouts", "fails", "reason", "until",
)  # fmt: skip
SLICES = ("queue", "key", "payload", "result", "worker", "note")

_SECOND = 1_000_000_000
_MILLISECOND = 1_000_000
_MAX_UNIX = 9_223_372_035
_MAX_INSTANT = 2**63 - 1
_NAMES_A_ROW = among(SINGLE)

(
    PRIORITY, DUE, INSERTED, EXPIRES, LEASE_MS, MAX_ATTEMPTS, MAX_FAILS, ATTEMPT,
    TIMEOUTS, FAILS, REASON, UNTIL,
) = range(12)  # fmt: skip
QUEUE, KEY, PAYLOAD, RESULT, WORKER, NOTE = range(6)


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
def _blob(view, at, end, which, n, starts, sizes):
    """Keep where counted bytes stand, if `which` says for what; the position behind them, or -1."""
    size, at = _uv(view, at, end)
    if at < 0 or size > end - at:
        return -1
    if which >= 0:
        starts[which, n] = at
        sizes[which, n] = size + 1
    return at + size


@njit(cache=True, nogil=True, inline="always")
def _big(view, at, width):
    value = 0
    for n in range(width):
        value = (value << 8) | int(view[at + n])
    return value


@njit(cache=True, nogil=True, inline="always")
def _instant(view, at, end):
    """Eight bytes of ns since 1970, and the position behind them, or -1."""
    if at < 0 or at + 8 > end:
        return 0, -1
    value = _big(view, at, 8)
    return (_MAX_INSTANT if value < 0 else value), at + 8


@njit(cache=True, nogil=True)
def _go_time(view, at):
    """15 bytes of TIME: ns since 1970 (0 for the zero time), and whether they are one."""
    if view[at] != 1:
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
    at = _blob(view, at, end, QUEUE, n, starts, sizes)
    lease, at = _uv(view, at, end)
    ttl, at = _uv(view, at, end)
    zigzag, at = _uv(view, at, end)
    attempts, at = _uv(view, at, end)
    fails, at = _uv(view, at, end)
    at = _blob(view, at, end, PAYLOAD, n, starts, sizes)
    if at < 0 or at + 30 != end:
        return -1
    scheduled, fine = _go_time(view, at)
    created, known = _go_time(view, at + 15)
    if not fine or not known:
        return -1
    due = scheduled if scheduled != 0 else created
    numbers[PRIORITY, n] = -((zigzag >> 1) ^ -(zigzag & 1))
    numbers[DUE, n] = due
    numbers[INSERTED, n] = created
    if ttl > (_MAX_INSTANT - due) // _MILLISECOND:
        numbers[EXPIRES, n] = _MAX_INSTANT
    elif ttl > 0:
        numbers[EXPIRES, n] = due + ttl * _MILLISECOND
    numbers[LEASE_MS, n] = lease
    numbers[MAX_ATTEMPTS, n] = attempts
    numbers[MAX_FAILS, n] = fails
    return end


@njit(cache=True, nogil=True)
def _aliases(view, at, end, starts, sizes):
    count, at = _uv(view, at, end)
    while count > 0 and at >= 0:
        at = _blob(view, at, end, -1, 0, starts, sizes)
        count -= 1
    return at


@njit(cache=True, nogil=True)
def _put(view, at, end, n, numbers, starts, sizes):
    if at >= end or view[at] != 1:
        return -1
    at = _blob(view, at + 1, end, QUEUE, n, starts, sizes)
    at = _blob(view, at, end, KEY, n, starts, sizes)
    at = _aliases(view, at, end, starts, sizes)
    zigzag, at = _uv(view, at, end)
    numbers[PRIORITY, n] = (zigzag >> 1) ^ -(zigzag & 1)
    numbers[DUE, n], at = _instant(view, at, end)
    numbers[INSERTED, n], at = _instant(view, at, end)
    _, at = _instant(view, at, end)
    numbers[EXPIRES, n], at = _instant(view, at, end)
    _, at = _uv(view, at, end)
    if at < 0:
        return -1
    at = _blob(view, at + 1, end, PAYLOAD, n, starts, sizes)
    if at < 0 or at >= end:
        return -1
    numbers[LEASE_MS, n], at = _uv(view, at + 1, end)
    numbers[ATTEMPT, n], at = _uv(view, at, end)
    numbers[TIMEOUTS, n], at = _uv(view, at, end)
    numbers[FAILS, n], at = _uv(view, at, end)
    numbers[MAX_ATTEMPTS, n], at = _uv(view, at, end)
    _, at = _uv(view, at, end)
    numbers[MAX_FAILS, n], at = _uv(view, at, end)
    return at


@njit(cache=True, nogil=True)
def _reason(view, at, end, n, numbers):
    if at >= end or view[at] < 1 or view[at] > 3:
        return -1
    numbers[REASON, n] = view[at]
    return at + 1


@njit(cache=True, nogil=True)
def _rarer(view, kind, at, end, n, numbers, starts, sizes):
    if kind == language.RENEW:
        numbers[UNTIL, n], at = _instant(view, at, end)
        numbers[ATTEMPT, n], at = _uv(view, at, end)
    elif kind == language.TOUCH:
        numbers[EXPIRES, n], at = _instant(view, at, end)
    elif kind == language.DEAD:
        at = _reason(view, at, end, n, numbers)
        _, at = _instant(view, at, end)
    elif kind == language.KEYS:
        at = _blob(view, at, end, KEY, n, starts, sizes)
        at = _aliases(view, at, end, starts, sizes)
        _, at = _instant(view, at, end)
    elif kind == language.VALUE:
        at = _blob(view, at + 1, end, -1, n, starts, sizes)
        _, at = _instant(view, at, end)
        at = _blob(view, at, end, -1, n, starts, sizes)
    elif kind == language.RETRY:
        at = _reason(view, at, end, n, numbers)
        numbers[DUE, n], at = _instant(view, at, end)
        numbers[TIMEOUTS, n], at = _uv(view, at, end)
        numbers[FAILS, n], at = _uv(view, at, end)
        at = _blob(view, at, end, NOTE, n, starts, sizes)
    elif kind == language.REDRIVE:
        numbers[DUE, n], at = _instant(view, at, end)
        numbers[MAX_ATTEMPTS, n], at = _uv(view, at, end)
    return at


@njit(cache=True, nogil=True)
def read(view, kind, begin, end, n, numbers, starts, sizes):
    """Fill column `n` with what a payload says; False if it is none of its kind.

    Kinds that are not known, and those that name no row, say nothing and are taken as they are.
    """
    at = begin + 17
    if not _NAMES_A_ROW[kind]:
        return True
    if at > end:
        return False
    if kind == language.ADD or kind == language.SCHEDULE:
        at = _job(view, at, end, n, numbers, starts, sizes)
    elif kind == language.COMPLETE or kind == language.FAIL:
        if at == end:  # the documented form stands for an empty result
            starts[RESULT, n], sizes[RESULT, n] = at, 1
        else:
            at = _blob(view, at, end, RESULT, n, starts, sizes)
    elif kind == language.PUT:
        at = _put(view, at, end, n, numbers, starts, sizes)
    elif kind == language.LEASE:
        _, at = _instant(view, at, end)
        numbers[UNTIL, n], at = _instant(view, at, end)
        numbers[ATTEMPT, n], at = _uv(view, at, end)
        at = _blob(view, at, end, WORKER, n, starts, sizes)
    elif kind == language.TOMB or kind == language.PURGE:
        at = _blob(view, at, end, QUEUE, n, starts, sizes)
        at = _blob(view, at, end, KEY, n, starts, sizes)
        _, at = _instant(view, at, end)
    else:
        at = _rarer(view, kind, at, end, n, numbers, starts, sizes)
    return at == end


@njit(cache=True, nogil=True)
def parse(view, payloads, lengths, kinds, wanted, numbers, starts, sizes, bad):
    """Fill the columns of a chunk with what kinds say that are wanted.

    Sizes are one more than they are: 0, as in all columns, where a kind says nothing.
    """
    for n in range(len(payloads)):
        begin = payloads[n]
        if not wanted[kinds[n]]:
            continue
        if not read(view, kinds[n], begin, begin + lengths[n], n, numbers, starts, sizes):
            bad[n] = True
            for which in range(len(numbers)):
                numbers[which, n] = 0
            for which in range(len(sizes)):
                sizes[which, n] = 0


@njit(cache=True, nogil=True)
def group_sizes(view, starts, sizes, kinds, counts):
    """How many commands each record holds: 1, or the members of a GROUP; -1: not a group."""
    for n in range(len(starts)):
        counts[n] = 1
        if kinds[n] != language.GROUP:
            continue
        end = starts[n] + sizes[n]
        count, at = _uv(view, starts[n] + 1, end)
        if at < 0 or count == 0 or count > end - at:
            counts[n] = -1
            continue
        for _ in range(count):
            size, at = _uv(view, at, end)
            if at < 0 or size == 0 or size > end - at or view[at] == language.GROUP:
                at = -1
                break
            at += size
        counts[n] = count if at == end else -1


@njit(cache=True, nogil=True)
def expand(view, starts, sizes, kinds, counts, record, member, out_starts, out_sizes, out_kinds):
    """Put the members of each GROUP in its place."""
    at_out = 0
    for n in range(len(starts)):
        if kinds[n] != language.GROUP:
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
