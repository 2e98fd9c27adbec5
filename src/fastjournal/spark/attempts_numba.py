"""The kernels of `attempts`: members of groups, fields of the rarer commands, lives of rows.

Compiled where numba is installed; without it the same functions run as plain Python, slower and
equal. The rules are those of `attempts`.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

try:
    from numba import njit
except ImportError:  # the same functions, not compiled

    def njit(**_):
        return lambda function: function


__all__ = ["expand", "group_sizes", "live", "more_fields"]

# Columns of `numbers` in `more_fields`, then of `rows` in `live`; named in `attempts` too.
(REASON, DUE, START, UNTIL, ATTEMPT, TIMEOUTS, FAILS, MAX_ATTEMPTS, LEASE_MS) = range(9)
(STATE, SINCE, R_DUE, LEASED, R_ATTEMPT, R_TIMEOUTS, R_FAILS, R_MAX, R_LEASE) = range(9)
(RENEWALS, R_UNTIL, QUEUE, WORKER, PUTS, BORN) = range(9, 15)
(
    NOTHING, NEW, MERGED, RESTATED, REVIVED, HANDED, RENEWED, DONE, RETRIED, RELEASED, TIMED_OUT,
    DEAD, EXPIRED, DELETED, REDRIVEN, CHANGED, NOTED, SUPERSEDED,
) = range(18)  # fmt: skip
W, P, C, F, D = range(5)
_MS = 1_000_000
_DEFAULT_LEASE = 60_000


@njit(cache=True, nogil=True)
def _uv(view, at, end):
    """Unsigned LEB128 up to 63 bits: value, next position; position -1 when it is not one."""
    value = 0
    shift = 0
    while True:
        if at < 0 or at >= end or shift > 56:
            return 0, -1
        byte = int(view[at])
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


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


@njit(cache=True, nogil=True)
def _end(ends, count, n, lease_row, row, time, outcome, dead, source, reason):
    """One attempt is over."""
    ends[0, count] = n
    ends[1, count] = lease_row
    ends[2, count] = source
    ends[3, count] = row[R_ATTEMPT]
    ends[4, count] = max(row[R_DUE], row[SINCE])
    ends[5, count] = row[LEASED]
    ends[6, count] = time
    ends[7, count] = outcome
    ends[8, count] = dead
    ends[9, count] = row[RENEWALS]
    ends[10, count] = row[QUEUE]
    ends[11, count] = row[WORKER]
    ends[12, count] = row[PUTS]
    ends[13, count] = row[BORN]
    ends[14, count] = reason
    return count + 1


@njit(cache=True, nogil=True)
def live(
    order, first, carried, kinds, times, members, numbers, queues, workers, has_key,
    rows, row_keys, row_last, before, after, effects, out_queue, out_key, ends,
):  # fmt: skip
    """Walk the commands of each row in order; returns how many rows live on, and attempts ended.

    `order` sorts carried rows and commands by row; `first` marks where a row begins. The first
    `carried` entries are rows as they stood before. What lives on goes to the front of `rows`.
    """
    total = len(order)
    alive = 0
    ended = 0
    row = rows[:, 0].copy()
    kept = rows.copy()
    state = -1
    source = -1
    lease_row = -1
    last = -1
    n = 0
    while n < total:
        i = order[n]
        if first[n]:
            state = -1
            source = -1
            lease_row = -1
            row[:] = 0
            row[QUEUE] = -1
            row[WORKER] = -1
        last = i
        if i < carried:
            row[:] = rows[:, i]
            state = row[STATE]
            source = i
            lease_row = i
        else:
            c = i - carried
            kind = kinds[c]
            time = times[c]
            before[c] = state
            effect = NOTHING
            if kind == 1 or kind == 2 or kind == 32:
                effect = NEW
                if members[c] >= 0 and (state in (W, P)):
                    # The whole row restated in place of a renewal or of a return.
                    effect = RESTATED
                    same = False
                    stop = n + 1
                    while stop < total and not first[stop]:
                        o = order[stop] - carried
                        if times[o] != time or members[o] < 0:
                            break
                        same = same or kinds[o] == 34
                        stop += 1
                    if state == P and not same:
                        effect = RELEASED
                        if numbers[TIMEOUTS, c] > row[R_TIMEOUTS]:
                            effect = TIMED_OUT
                        elif numbers[FAILS, c] > row[R_FAILS]:
                            effect = RETRIED
                        ended = _end(ends, ended, c, lease_row, row, time, effect, 0, source, 0)
                        state = W
                        row[SINCE] = time
                    elif state == P:
                        row[RENEWALS] += 1
                        effect = RENEWED
                    source = i
                    row[R_DUE] = numbers[DUE, c]
                    row[R_TIMEOUTS] = numbers[TIMEOUTS, c]
                    row[R_FAILS] = numbers[FAILS, c]
                    for m in range(n + 1, stop):
                        o = order[m] - carried
                        before[o] = state
                        after[o] = state
                        effects[o] = RESTATED
                        out_queue[o] = row[QUEUE]
                        out_key[o] = source
                        if kinds[o] == 34:
                            row[R_UNTIL] = numbers[UNTIL, o]
                        last = o + carried
                    n = stop - 1
                else:
                    if state == W:
                        effect = MERGED
                    elif state == D:
                        effect = REVIVED
                    elif state == P:
                        ended = _end(ends, ended, c, lease_row, row, time, RELEASED, 0, source, 0)
                    if effect == MERGED:
                        row[PUTS] += 1
                    else:
                        row[PUTS] = 1
                        row[BORN] = time
                        row[SINCE] = time
                    row[QUEUE] = queues[c]
                    row[R_DUE] = numbers[DUE, c]
                    row[R_ATTEMPT] = numbers[ATTEMPT, c]
                    row[R_TIMEOUTS] = numbers[TIMEOUTS, c]
                    row[R_FAILS] = numbers[FAILS, c]
                    row[R_MAX] = numbers[MAX_ATTEMPTS, c]
                    row[R_LEASE] = numbers[LEASE_MS, c]
                    state = W
                    source = i
            elif kind == 34 or kind == 7:
                if state in (W, P):
                    attempt = numbers[ATTEMPT, c] if kind == 34 else row[R_ATTEMPT] + 1
                    again = state == P and kind == 34 and attempt == row[R_ATTEMPT]
                    if state == P and not again:
                        ended = _end(ends, ended, c, lease_row, row, time, RELEASED, 0, source, 0)
                    effect = RESTATED if again else HANDED
                    state = P
                    if not again:
                        row[LEASED] = time
                        row[R_ATTEMPT] = attempt
                        row[RENEWALS] = 0
                        row[WORKER] = workers[c]
                        lease_row = i
                    if kind == 34:
                        row[R_UNTIL] = numbers[UNTIL, c]
                    else:
                        lease = row[R_LEASE] if row[R_LEASE] > 0 else _DEFAULT_LEASE
                        row[R_UNTIL] = time + lease * _MS
            elif kind == 35:
                if state == P:
                    effect = RENEWED
                    row[RENEWALS] += 1
                    row[R_UNTIL] = numbers[UNTIL, c]
            elif kind == 3:
                if state in (W, P):
                    effect = DONE
                    if state == P:
                        ended = _end(ends, ended, c, lease_row, row, time, DONE, 0, source, 0)
                    state = C
            elif kind == 4:
                if state in (W, P):
                    effect = DEAD
                    if n + 1 < total and not first[n + 1]:
                        o = order[n + 1] - carried
                        if times[o] == time and (kinds[o] == 38 or kinds[o] == 5):
                            effect = SUPERSEDED
                    if state == P:
                        ended = _end(
                            ends, ended, c, lease_row, row, time, RETRIED,
                            1 if effect == DEAD else 0, source, 3,
                        )  # fmt: skip
                    row[R_FAILS] += 1
                    state = F
            elif kind == 5 or kind == 6 or kind == 38:
                if state >= 0:
                    effect = DELETED
                    if kind == 6:
                        effect = EXPIRED
                    elif state == P and kind == 38:
                        effect = DONE
                    elif state != P and members[c] > 0 and n > 0 and not first[n]:
                        o = order[n - 1] - carried
                        if o >= 0 and times[o] == time:
                            effect = SUPERSEDED
                    if state == P:
                        ended = _end(ends, ended, c, lease_row, row, time, effect, 0, source, 0)
                    state = -1
                elif has_key[c]:
                    source = i
                    row[QUEUE] = queues[c]
            elif kind == 8:
                if state in (W, P):
                    effect = TIMED_OUT
                    row[R_TIMEOUTS] += 1
                    dead = 0
                    if 0 < row[R_MAX] <= row[R_ATTEMPT]:
                        dead = 1
                        effect = DEAD
                    elif n + 1 < total and not first[n + 1]:
                        o = order[n + 1] - carried
                        if times[o] == time and kinds[o] == 39:
                            dead = 1
                    if state == P:
                        ended = _end(
                            ends, ended, c, lease_row, row, time, TIMED_OUT, dead, source, 0
                        )
                    state = F if effect == DEAD else W
                    row[SINCE] = time
            elif kind == 47:
                if state in (W, P):
                    reason = numbers[REASON, c]
                    effect = RETRIED
                    if reason == 2:
                        effect = RELEASED
                    elif reason == 3:
                        effect = TIMED_OUT
                    if state == P:
                        ended = _end(ends, ended, c, lease_row, row, time, effect, 0, source, 0)
                    state = W
                    row[SINCE] = time
                    row[R_DUE] = numbers[DUE, c]
                    row[R_TIMEOUTS] = numbers[TIMEOUTS, c]
                    row[R_FAILS] = numbers[FAILS, c]
            elif kind == 39:
                if state in (W, P, F):
                    if state == P:
                        ended = _end(
                            ends, ended, c, lease_row, row, time, TIMED_OUT, 1, source,
                            numbers[REASON, c],
                        )  # fmt: skip
                    effect = CHANGED if state == F else DEAD
                    state = F
            elif kind == 48:
                if state == F:
                    effect = REDRIVEN
                    state = W
                    row[SINCE] = time
                    row[R_DUE] = numbers[DUE, c]
                    row[R_TIMEOUTS] = 0
                    row[R_FAILS] = 0
                    row[R_MAX] = numbers[MAX_ATTEMPTS, c]
            elif kind == 37:
                if state == P:
                    ended = _end(ends, ended, c, lease_row, row, time, DELETED, 0, source, 0)
                if state < 0:
                    row[QUEUE] = queues[c]
                    source = i
                effect = DELETED
                state = D
            elif state >= 0 and (kind == 36 or kind == 40 or (kind == 41 and state <= P)):
                effect = CHANGED
                if kind == 40:
                    source = i
            after[c] = state
            effects[c] = effect
            out_queue[c] = row[QUEUE]
            out_key[c] = source
        n += 1
        if (n == total or first[n]) and state >= 0:
            row[STATE] = state
            kept[:, alive] = row
            row_keys[alive] = source
            row_last[alive] = last
            alive += 1
    rows[:] = kept
    return alive, ended
