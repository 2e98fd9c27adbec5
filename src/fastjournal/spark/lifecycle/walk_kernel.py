"""The kernel of `walk` that follows the lives of rows.

The rules are those of `walk`.
"""

# Decorators here replace the signature that is written with another: types say nothing true.
# mypy: ignore-errors
from __future__ import annotations

import numpy as np
from numba import njit

from fastjournal.journal.language import commands as language
from fastjournal.spark.decode.field_kernel import (
    ATTEMPT,
    DUE,
    FAILS,
    LEASE_MS,
    MAX_ATTEMPTS,
    REASON,
    TIMEOUTS,
    UNTIL,
)

__all__ = ["live"]

# Columns of `rows`, then the effects; named in `attempts` too.
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
    rows, kept, row_keys, row_last, before, after, effects, out_queue, out_key, ends,
):  # fmt: skip
    """Walk the commands of each row in order; returns how many rows live on, and attempts ended.

    `order` sorts carried rows and commands by row; `first` marks where a row begins. The first
    `carried` entries are rows as they stood before. What lives on goes to the front of `kept`.
    """
    total = len(order)
    alive = 0
    ended = 0
    width = len(rows)
    row = np.zeros(width, np.int64)
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
            for m in range(width):
                row[m] = 0
            row[QUEUE] = -1
            row[WORKER] = -1
        last = i
        if i < carried:
            for m in range(width):
                row[m] = rows[m, i]
            state = row[STATE]
            source = i
            lease_row = i
        else:
            c = i - carried
            kind = kinds[c]
            time = times[c]
            before[c] = state
            effect = NOTHING
            if kind == language.ADD or kind == language.SCHEDULE or kind == language.PUT:
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
                        same = same or kinds[o] == language.LEASE
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
                        if kinds[o] == language.LEASE:
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
            elif kind == language.LEASE or kind == language.START:
                if state in (W, P):
                    attempt = numbers[ATTEMPT, c] if kind == language.LEASE else row[R_ATTEMPT] + 1
                    again = state == P and kind == language.LEASE and attempt == row[R_ATTEMPT]
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
                    if kind == language.LEASE:
                        row[R_UNTIL] = numbers[UNTIL, c]
                    else:
                        lease = row[R_LEASE] if row[R_LEASE] > 0 else _DEFAULT_LEASE
                        row[R_UNTIL] = time + lease * _MS
            elif kind == language.RENEW:
                if state == P:
                    effect = RENEWED
                    row[RENEWALS] += 1
                    row[R_UNTIL] = numbers[UNTIL, c]
            elif kind == language.COMPLETE:
                if state in (W, P):
                    effect = DONE
                    if state == P:
                        ended = _end(ends, ended, c, lease_row, row, time, DONE, 0, source, 0)
                    state = C
            elif kind == language.FAIL:
                if state in (W, P):
                    effect = DEAD
                    if n + 1 < total and not first[n + 1]:
                        o = order[n + 1] - carried
                        if times[o] == time and (
                            kinds[o] == language.PURGE or kinds[o] == language.DELETE
                        ):
                            effect = SUPERSEDED
                    if state == P:
                        ended = _end(
                            ends, ended, c, lease_row, row, time, RETRIED,
                            1 if effect == DEAD else 0, source, 3,
                        )  # fmt: skip
                    row[R_FAILS] += 1
                    state = F
            elif kind == language.DELETE or kind == language.EXPIRE or kind == language.PURGE:
                if state >= 0:
                    effect = DELETED
                    if kind == language.EXPIRE:
                        effect = EXPIRED
                    elif state == P and kind == language.PURGE:
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
            elif kind == language.TIMEOUT:
                if state in (W, P):
                    effect = TIMED_OUT
                    row[R_TIMEOUTS] += 1
                    dead = 0
                    if 0 < row[R_MAX] <= row[R_ATTEMPT]:
                        dead = 1
                        effect = DEAD
                    elif n + 1 < total and not first[n + 1]:
                        o = order[n + 1] - carried
                        if times[o] == time and kinds[o] == language.DEAD:
                            dead = 1
                    if state == P:
                        ended = _end(
                            ends, ended, c, lease_row, row, time, TIMED_OUT, dead, source, 0
                        )
                    state = F if effect == DEAD else W
                    row[SINCE] = time
            elif kind == language.RETRY:
                if state in (W, P):
                    reason = numbers[REASON, c]
                    effect = RETRIED
                    if reason == language.GAVE_BACK:
                        effect = RELEASED
                    elif reason == language.TIMED_OUT:
                        effect = TIMED_OUT
                    if state == P:
                        ended = _end(ends, ended, c, lease_row, row, time, effect, 0, source, 0)
                    state = W
                    row[SINCE] = time
                    row[R_DUE] = numbers[DUE, c]
                    row[R_TIMEOUTS] = numbers[TIMEOUTS, c]
                    row[R_FAILS] = numbers[FAILS, c]
            elif kind == language.DEAD:
                if state in (W, P, F):
                    if state == P:
                        ended = _end(
                            ends, ended, c, lease_row, row, time, TIMED_OUT, 1, source,
                            numbers[REASON, c],
                        )  # fmt: skip
                    effect = CHANGED if state == F else DEAD
                    state = F
            elif kind == language.REDRIVE:
                if state == F:
                    effect = REDRIVEN
                    state = W
                    row[SINCE] = time
                    row[R_DUE] = numbers[DUE, c]
                    row[R_TIMEOUTS] = 0
                    row[R_FAILS] = 0
                    row[R_MAX] = numbers[MAX_ATTEMPTS, c]
            elif kind == language.TOMB:
                if state == P:
                    ended = _end(ends, ended, c, lease_row, row, time, DELETED, 0, source, 0)
                if state < 0:
                    row[QUEUE] = queues[c]
                    source = i
                effect = DELETED
                state = D
            elif state >= 0 and (
                kind == language.TOUCH
                or kind == language.KEYS
                or (kind == language.VALUE and state <= P)
            ):
                effect = CHANGED
                if kind == language.KEYS:
                    source = i
            after[c] = state
            effects[c] = effect
            out_queue[c] = row[QUEUE]
            out_key[c] = source
        n += 1
        if (n == total or first[n]) and state >= 0:
            row[STATE] = state
            for m in range(width):
                kept[m, alive] = row[m]
            row_keys[alive] = source
            row_last[alive] = last
            alive += 1
    return alive, ended
