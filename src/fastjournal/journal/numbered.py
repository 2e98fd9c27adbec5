"""Changes that must be made once though they may be asked for twice: their numbers.

    operation = the sender's timestamp, u64 big endian, then the sender's name

Rules:

1. The numbers of the changes made to a row within the window stand in the row and in its images, so
   they survive restarts, snapshots and cleaning (D-21).
2. Which numbers are kept follows from the numbers alone, never from a clock: replay keeps the same.
3. A number too old to be told from a forgotten one is refused, never guessed.
"""

from __future__ import annotations

from fastjournal.clock import SECOND
from fastjournal.errors import BadRequest, ClockSkew

__all__ = ["WINDOW", "is_known", "operation_of", "remembered"]

WINDOW = 600 * SECOND
"""How long a change may be asked for again."""
_KEPT = WINDOW + 10 * SECOND  # longer than asked for, by more than a sender's clock may be ahead
_MOST = 16_384  # numbers of one row


def operation_of(sender: bytes, timestamp: int) -> bytes:
    """The number of a change."""
    if not sender or len(sender) > 255:
        raise BadRequest("a sender has a name of 1 to 255 bytes")
    if timestamp <= 0:
        raise BadRequest("a change that may be sent again needs its sender's timestamp")
    return timestamp.to_bytes(8, "big") + sender


def is_known(operations: dict[bytes, None] | None, operation: bytes, now: int) -> bool:
    """Whether this change was made; refuses a number that may have been forgotten."""
    known = operations or {}
    if operation in known:
        return True
    first = next(iter(known)) if len(known) >= _MOST else b""
    if int.from_bytes(operation[:8], "big") < now - WINDOW or operation[:8] < first[:8]:
        raise ClockSkew("the change is too old to tell whether it was made")
    return False


def remembered(operations: dict[bytes, None] | None, operation: bytes) -> dict[bytes, None]:
    """The numbers to keep when this one was made: those of the window, and not too many."""
    if operations is None:
        return {operation: None}
    operations[operation] = None
    oldest = max(0, int.from_bytes(operation[:8], "big") - _KEPT).to_bytes(8, "big")
    while len(operations) > _MOST or next(iter(operations))[:8] < oldest:
        del operations[next(iter(operations))]
    return operations
