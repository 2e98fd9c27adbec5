"""The table of legal changes. Documentation and audit are made from it.

Rules:

1. `TRANSITIONS` says what may happen to a row and why: one line for each kind of event.
2. `STEPS` says what each record type may do to a row: (state before, state after), None being "no
   such row". A record that finds its row in another state changes nothing; in a log written by
   this package that does not happen, so an audit reports it.
"""

from __future__ import annotations

from typing import NamedTuple

from fastjournal.journal.language import commands as k
from fastjournal.model import State

__all__ = ["STEPS", "TRANSITIONS", "Transition", "markdown"]

W, P, C, F, D = State
_NONE: State | None = None


class Transition(NamedTuple):
    """One line of the table."""

    number: int
    before: tuple[State | None, ...]
    event: str
    guard: str
    after: tuple[State | None, ...]
    effects: str
    records: tuple[int, ...]
    """Types of the records that say so, in order; more than one stand in a GROUP."""


_LIVE = (W, P, C, F, D)

TRANSITIONS: tuple[Transition, ...] = (
    Transition(1, (_NONE,), "add", "id free", (W,), "due = created", (k.ADD,)),
    Transition(2, (_NONE,), "schedule", "id free", (W,), "due = job time", (k.SCHEDULE,)),
    Transition(3, (_NONE,), "put", "key free, or keep_versions", (W,), "", (k.PUT,)),
    Transition(
        5, (W,), "put, same key", "newer, mode merge", (W,), "merged field by field", (k.PUT,)
    ),
    Transition(6, (W, P, D), "put or delete, same key", "not newer", (W, P, D), "stale", ()),
    Transition(7, (P,), "put, same key", "no twin yet", (P,), "a new row, W, held back", (k.PUT,)),
    Transition(8, (W,), "clock reaches due", "in a queue", (W,), "ready; waiters woken", ()),
    Transition(
        9,
        (W,),
        "lease",
        "due, not expired, not held back, slow rule, queue open",
        (P,),
        "attempts + 1 = token",
        (k.LEASE,),
    ),
    Transition(10, (W,), "lease of a Workq job", "as 9", (P,), "attempts + 1", (k.START,)),
    Transition(11, (W,), "take", "as 9", (_NONE,), "", (k.PURGE,)),
    Transition(12, (P,), "touch", "token", (P,), "lease_until", (k.RENEW,)),
    Transition(
        13,
        (W, P),
        "complete with a result",
        "token, or none by Workq",
        (C,),
        "result kept",
        (k.COMPLETE,),
    ),
    Transition(14, (P,), "complete without a result", "token", (_NONE,), "", (k.PURGE,)),
    Transition(
        15, (P, W), "fail", "fails + 1 < max_fails", (W,), "fails + 1, due after a wait", (k.RETRY,)
    ),
    Transition(16, (P, W), "fail", "otherwise", (F,), "fails + 1, result", (k.FAIL,)),
    Transition(
        17,
        (P,),
        "lease_until passed",
        "below the limits, no twin",
        (W,),
        "timeouts + 1",
        (k.TIMEOUT,),
    ),
    Transition(18, (P,), "lease_until passed", "a twin waits", (_NONE,), "", (k.TIMEOUT, k.PURGE)),
    Transition(
        19,
        (P,),
        "lease_until passed",
        "a limit is reached",
        (F,),
        "dead, reason",
        (k.TIMEOUT, k.DEAD),
    ),
    Transition(20, _LIVE, "expires passed", "", (_NONE,), "", (k.EXPIRE,)),
    Transition(21, _LIVE, "purge; delete of C or F", "newer", (_NONE,), "", (k.PURGE,)),
    Transition(22, (W, P), "delete", "newer", (D,), "value freed, key kept", (k.TOMB,)),
    Transition(23, (D,), "put, same key", "newer", (W,), "id and attempts kept", (k.PUT,)),
    Transition(24, (D,), "gc_grace over", "", (_NONE,), "", (k.PURGE,)),
    Transition(25, (F,), "dead_keep over", "never expires", (_NONE,), "", (k.PURGE,)),
    Transition(26, _LIVE, "use of a row with a ttl", "", _LIVE, "expires", (k.TOUCH,)),
    Transition(27, (W, P), "change of the value", "", (W, P), "value, operation id", (k.VALUE,)),
    Transition(28, _LIVE, "rename, alias", "", _LIVE, "keys", (k.KEYS,)),
    Transition(31, (P,), "release", "token, no twin", (W,), "due", (k.RETRY,)),
    Transition(32, (P,), "release", "token, a twin waits", (_NONE,), "", (k.RETRY, k.PURGE)),
    Transition(33, (P,), "lease_until passed", "backoff_timeouts", (W,), "due", (k.RETRY,)),
    Transition(34, (F,), "redrive", "no row of the key waits", (W,), "counters 0", (k.REDRIVE,)),
    Transition(36, (P,), "fail", "retries left, a twin waits", (_NONE,), "", (k.FAIL, k.PURGE)),
    Transition(37, _LIVE, "delete or take of a Workq job", "", (_NONE,), "", (k.DELETE,)),
    Transition(
        35,
        (W, P),
        "many changes since the last image",
        "",
        (W, P),
        "the row restated",
        (k.PUT, k.LEASE),
    ),
)

_ENDS = frozenset((state, _NONE) for state in _LIVE)
_STATED = frozenset((state, W) for state in (_NONE, *_LIVE))
_SAME = frozenset((state, state) for state in _LIVE)

STEPS: dict[int, frozenset[tuple[State | None, State | None]]] = {
    k.ADD: _STATED,
    k.SCHEDULE: _STATED,
    k.COMPLETE: frozenset({(W, C), (P, C)}),
    k.FAIL: frozenset({(W, F), (P, F)}),
    k.DELETE: _ENDS,
    k.EXPIRE: _ENDS,
    k.START: frozenset({(W, P), (P, P)}),
    k.TIMEOUT: frozenset({(P, W), (W, W), (P, F), (W, F)}),
    k.PUT: _STATED,
    k.LEASE: frozenset({(W, P), (P, P)}),
    k.RENEW: frozenset({(P, P)}),
    k.TOUCH: _SAME,
    k.TOMB: frozenset((state, D) for state in (_NONE, *_LIVE)),
    k.PURGE: _ENDS,
    k.DEAD: frozenset({(W, F), (P, F), (F, F)}),
    k.KEYS: _SAME,
    k.VALUE: frozenset({(W, W), (P, P)}),
    k.RETRY: frozenset({(P, W), (W, W)}),
    k.REDRIVE: frozenset({(F, W)}),
}


def markdown() -> str:
    """The table for people."""

    def states(some: tuple[State | None, ...]) -> str:
        if some == _LIVE:
            return "any"
        return ", ".join("none" if state is None else state.letter for state in some)

    lines = ["| # | from | event | guard | to | effects | records |", "|" + " --- |" * 7]
    for line in TRANSITIONS:
        cells = (
            str(line.number),
            states(line.before),
            line.event,
            line.guard,
            "same" if line.after == line.before else states(line.after),
            line.effects,
            ", ".join(map(str, line.records)) or "none",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
