"""The table of legal changes. Documentation and audit are made from it.

Rules:

1. `TRANSITIONS` says what may happen to a row and why: one line for each kind of event.
2. `STEPS` says what each record type may do to a row: (state before, state after), None being "no
   such row". A record that finds its row in another state changes nothing; in a log written by
   this package that does not happen, so an audit reports it.
"""

from __future__ import annotations

from typing import NamedTuple

from fastjournal.model import State

__all__ = ["STEPS", "TRANSITIONS", "Transition", "is_legal", "markdown"]

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
    Transition(1, (_NONE,), "add", "id free", (W,), "due = created", (1,)),
    Transition(2, (_NONE,), "schedule", "id free", (W,), "due = job time", (2,)),
    Transition(3, (_NONE,), "put", "key free, or keep_versions", (W,), "", (32,)),
    Transition(5, (W,), "put, same key", "newer, mode merge", (W,), "merged field by field", (32,)),
    Transition(6, (W, P, D), "put or delete, same key", "not newer", (W, P, D), "stale", ()),
    Transition(7, (P,), "put, same key", "no twin yet", (P,), "a new row, W, held back", (32,)),
    Transition(8, (W,), "clock reaches due", "in a queue", (W,), "ready; waiters woken", ()),
    Transition(
        9,
        (W,),
        "lease",
        "due, not expired, not held back, slow rule, queue open",
        (P,),
        "attempts + 1 = token",
        (34,),
    ),
    Transition(10, (W,), "lease of a Workq job", "as 9", (P,), "attempts + 1", (7,)),
    Transition(11, (W,), "take", "as 9", (_NONE,), "", (38,)),
    Transition(12, (P,), "touch", "token", (P,), "lease_until", (35,)),
    Transition(
        13, (W, P), "complete with a result", "token, or none by Workq", (C,), "result kept", (3,)
    ),
    Transition(14, (P,), "complete without a result", "token", (_NONE,), "", (38,)),
    Transition(
        15, (P, W), "fail", "fails + 1 < max_fails", (W,), "fails + 1, due after a wait", (47,)
    ),
    Transition(16, (P, W), "fail", "otherwise", (F,), "fails + 1, result", (4,)),
    Transition(
        17, (P,), "lease_until passed", "below the limits, no twin", (W,), "timeouts + 1", (8,)
    ),
    Transition(18, (P,), "lease_until passed", "a twin waits", (_NONE,), "", (8, 38)),
    Transition(19, (P,), "lease_until passed", "a limit is reached", (F,), "dead, reason", (8, 39)),
    Transition(20, _LIVE, "expires passed", "", (_NONE,), "", (6,)),
    Transition(21, _LIVE, "purge; delete of C or F", "newer", (_NONE,), "", (38,)),
    Transition(22, (W, P), "delete", "newer", (D,), "value freed, key kept", (37,)),
    Transition(23, (D,), "put, same key", "newer", (W,), "id and attempts kept", (32,)),
    Transition(24, (D,), "gc_grace over", "", (_NONE,), "", (38,)),
    Transition(25, (F,), "dead_keep over", "never expires", (_NONE,), "", (38,)),
    Transition(26, _LIVE, "use of a row with a ttl", "", _LIVE, "expires", (36,)),
    Transition(27, (W, P), "change of the value", "", (W, P), "value, operation id", (41,)),
    Transition(28, _LIVE, "rename, alias", "", _LIVE, "keys", (40,)),
    Transition(31, (P,), "release", "token, no twin", (W,), "due", (47,)),
    Transition(32, (P,), "release", "token, a twin waits", (_NONE,), "", (47, 38)),
    Transition(33, (P,), "lease_until passed", "backoff_timeouts", (W,), "due", (47,)),
    Transition(34, (F,), "redrive", "no row of the key waits", (W,), "counters 0", (48,)),
    Transition(36, (P,), "fail", "retries left, a twin waits", (_NONE,), "", (4, 38)),
    Transition(37, _LIVE, "delete or take of a Workq job", "", (_NONE,), "", (5,)),
    Transition(
        35, (W, P), "many changes since the last image", "", (W, P), "the row restated", (32, 34)
    ),
)

_ENDS = frozenset((state, _NONE) for state in _LIVE)
_STATED = frozenset((state, W) for state in (_NONE, *_LIVE))
_SAME = frozenset((state, state) for state in _LIVE)

STEPS: dict[int, frozenset[tuple[State | None, State | None]]] = {
    1: _STATED,
    2: _STATED,
    3: frozenset({(W, C), (P, C)}),
    4: frozenset({(W, F), (P, F)}),
    5: _ENDS,
    6: _ENDS,
    7: frozenset({(W, P), (P, P)}),
    8: frozenset({(P, W), (W, W), (P, F), (W, F)}),
    32: _STATED,
    34: frozenset({(W, P), (P, P)}),
    35: frozenset({(P, P)}),
    36: _SAME,
    37: frozenset((state, D) for state in (_NONE, *_LIVE)),
    38: _ENDS,
    39: frozenset({(W, F), (P, F), (F, F)}),
    40: _SAME,
    41: frozenset({(W, W), (P, P)}),
    47: frozenset({(P, W), (W, W)}),
    48: frozenset({(F, W)}),
}


def is_legal(before: State | None, record: int, after: State | None) -> bool:
    """A record of this type may have made this change."""
    return (before, after) in STEPS.get(record, frozenset())


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
