"""The steps of a job's life as lengths of time: how long it waited, was worked on, lay dead.

Rules:

1. A phase lasts from one change of state to the next; the last one until now, if the job is there.
2. Widths are shares of the whole in thousandths; a phase that is over at once stays visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fastjournal.journal.look.history import Step
from fastjournal.model import State

__all__ = ["Phase", "phases_of"]

_WORDS = {
    State.WAITING: "waiting",
    State.PROCESSING: "leased",
    State.COMPLETED: "completed",
    State.FAILED: "dead",
}
_LEAST = 4  # thousandths


class Phase(NamedTuple):
    """One stretch of a life."""

    word: str
    start: int
    length: int
    left: float
    """Where it begins, in thousandths of the whole."""
    width: float


def phases_of(steps: Sequence[Step], now: int) -> list[Phase]:
    """The phases of a life; `now` is 0 if it is over."""
    spans: list[tuple[str, int, int]] = []
    for number, step in enumerate(steps):
        word = _WORDS.get(step.after) if step.after is not None else None
        if word is None:
            continue
        last = number == len(steps) - 1
        end = max(step.time, now) if last and now else step.time if last else steps[number + 1].time
        if spans and spans[-1][0] == word:
            spans[-1] = (word, spans[-1][1], end)
        else:
            spans.append((word, step.time, end))
    whole = sum(end - start for _, start, end in spans)
    if not spans or whole <= 0:
        return []
    widths = [max(_LEAST, 1000 * (end - start) / whole) for _, start, end in spans]
    scale = 1000 / sum(widths)
    out, left = [], 0.0
    for (word, start, end), width in zip(spans, widths, strict=True):
        out.append(Phase(word, start, end - start, round(left, 2), round(width * scale, 2)))
        left += width * scale
    return out
