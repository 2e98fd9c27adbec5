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

from fastjournal.clock import SECOND
from fastjournal.errors import BadRequest, ClockSkew

__all__ = ["WINDOW", "Answer", "Operations", "made", "operation_of", "remembered"]

WINDOW = 600 * SECOND
"""How long a change may be asked for again."""
_LEAP = 60 * SECOND  # the longest time between two changes that is taken for what it is
_KEPT = WINDOW + 5 * _LEAP  # longer than asked for: five leaps, or a sender's clock that is ahead
_MOST = 16_384  # numbers of one row


def operation_of(sender: bytes, timestamp: int) -> bytes:
    """The number of a change."""
    if not sender or len(sender) > 255:
        raise BadRequest("a sender has a name of 1 to 255 bytes")
    if timestamp <= 0:
        raise BadRequest("a change that may be sent again needs its sender's timestamp")
    return timestamp.to_bytes(8, "big") + sender


Answer = tuple[int, int, bytes]
"""When a change was made, by the row's time, and the value it gave: its type and bytes."""
Operations = dict[bytes, Answer]
"""Answers by number, oldest first."""


def made(
    operations: Operations | None, operation: bytes, timestamp: int, now: int
) -> Answer | None:
    """The answer of a change that was made; refuses a number that may have been forgotten.

    `timestamp`: that of the number, by the journal's clock.
    """
    known = operations or {}
    if operation in known:
        return known[operation]
    first = next(iter(known.values()))[0] if len(known) >= _MOST else 0
    if timestamp < max(now - WINDOW, first):
        raise ClockSkew("the change is too old to tell whether it was made")
    return None


def remembered(operations: Operations | None, operation: bytes, answer: Answer) -> Operations:
    """The numbers to keep when this one was made: those of the window, and not too many."""
    if operations is None:
        return {operation: answer}
    leap = answer[0] - next(reversed(operations.values()))[0] - _LEAP
    if leap > 0:
        operations = {
            number: (when + leap, kind, data) for number, (when, kind, data) in operations.items()
        }
    operations[operation] = answer
    oldest = answer[0] - _KEPT
    while len(operations) > _MOST or next(iter(operations.values()))[0] < oldest:
        del operations[next(iter(operations))]
    return operations
