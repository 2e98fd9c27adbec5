"""Changes that must be made once though they may be asked for twice: their numbers.

    operation = the sender's timestamp, u64 big endian, then the sender's name

Rules:

1. The numbers of the changes made to a row within the window stand in the row and in its images,
   each with the value that the change gave: so they survive restarts, snapshots and cleaning, and
   whoever asks again hears what it would have heard the first time (D-21).
2. Which numbers are kept follows from the records alone, never from a clock: replay keeps the same.
   It goes by the times of the changes, for senders' clocks may differ.
   More than a minute between two changes counts as a minute: nobody can tell rest from a clock
   that has leapt, and whoever asks again after a leap must still be known.
3. A number too old to be told from a forgotten one is refused, never guessed.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from fastjournal.clock import SECOND
from fastjournal.errors import BadRequest, ClockSkew

__all__ = ["Answer", "Numbered", "made", "operation_of"]

_WINDOW: Final[i64] = 600 * SECOND
"""How long a change may be asked for again."""
_LEAP: Final[i64] = 60 * SECOND  # the longest time between two changes that is taken for what it is
_KEPT: Final[i64] = 900 * SECOND  # the window and five leaps, or a sender's clock that is ahead
_MOST: Final = 16_384  # numbers of one row


def operation_of(sender: bytes, timestamp: int) -> bytes:
    """The number of a change."""
    if not sender or len(sender) > 255:
        raise BadRequest("a sender has a name of 1 to 255 bytes")
    if timestamp <= 0:
        raise BadRequest("a change that may be sent again needs its sender's timestamp")
    return timestamp.to_bytes(8, "big") + sender


@final
@mypyc_attr(acyclic=True)
class Answer:
    """When a change was made, by the row's time, and the value it gave."""

    def __init__(self, when: i64, kind: i64, value: bytes) -> None:
        self.when: i64 = when
        self.kind: i64 = kind
        self.value = value


@final
@mypyc_attr(acyclic=True)
class Numbered:
    """The changes of one row that are known by their numbers, oldest first."""

    def __init__(self) -> None:
        self.answers: dict[bytes, Answer] = {}
        self.first: i64 = 0
        """When the first of them was made."""
        self.last: i64 = 0
        """When the last of them was."""

    def __len__(self) -> int:
        return len(self.answers)

    def add(self, operation: bytes, answer: Answer) -> None:
        """This change was made: keep those of the window, and not too many."""
        answers = self.answers
        known = len(answers)
        if known and answer.when - self.last > _LEAP:
            self._follow(answer.when - self.last - _LEAP)
        answers[operation] = answer
        if not known:
            self.first = answer.when
        if len(answers) > known:
            self.last = answer.when
        else:  # a number that was known keeps its place
            self._look()
        while len(answers) > _MOST or self.first < answer.when - _KEPT:
            del answers[next(iter(answers))]
            self.first = next(iter(answers.values())).when

    def _follow(self, leap: i64) -> None:
        """The time between the last change and the next counts for less than it was."""
        for answer in self.answers.values():
            answer.when += leap
        self.first += leap
        self.last += leap

    def _look(self) -> None:
        whens = [answer.when for answer in self.answers.values()]
        self.first = whens[0]
        self.last = whens[-1]


def made(numbered: Numbered | None, operation: bytes, timestamp: i64, now: i64) -> Answer | None:
    """The answer of a change that was made; refuses a number that may have been forgotten.

    `timestamp`: that of the number, by the journal's clock.
    """
    oldest = now - _WINDOW
    if numbered is not None:
        answer = numbered.answers.get(operation)
        if answer is not None:
            return answer
        if len(numbered.answers) >= _MOST and numbered.first > oldest:
            oldest = numbered.first
    if timestamp < oldest:
        raise ClockSkew("the change is too old to tell whether it was made")
    return None
