"""When a call is tried again, and after which pause: one rule for both clients.

Rules:

1. An error that passes by itself is met by trying again, until the time is over: the daemon cannot
   be reached or is lost (`Unavailable`), or is still loading (`Loading`).
2. A call whose earlier try may have happened is sent again only if it may be (`Call.again`), and
   then says so. One that never went out, or that was refused because the daemon is loading, did not
   happen: it may always be tried again.
3. The pauses grow and are jittered.
"""

from __future__ import annotations

import random

from fastjournal.errors import JournalError, Loading, Unavailable

__all__ = ["SILENCE", "Attempts", "is_passing"]

SILENCE = 15.0
"""Seconds without a word after which a listener asks whether its daemon is still there."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0


def is_passing(error: JournalError) -> bool:
    """Whether trying again later may help."""
    return isinstance(error, (Unavailable, Loading))


class Attempts:
    """The tries of one call; times are seconds of any clock that only goes forward."""

    def __init__(self, again: bool, limit: float, now: float) -> None:
        self._again = again
        self._give_up = now + limit
        self._pause = _FIRST_PAUSE
        self.out = False
        """This try went out; set by who sends it."""
        self.repeated = False
        """An earlier try went out, and nobody knows what became of it."""

    def failed(self, error: JournalError, now: float) -> float:
        """Seconds until the next try; raises the error if there is none."""
        if self.out and not isinstance(error, Loading):
            self.repeated = True
        self.out = False
        pause = self._pause * random.uniform(0.5, 1.5)
        late = now + pause > self._give_up
        if late or not is_passing(error) or (self.repeated and not self._again):
            raise error
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        return pause
