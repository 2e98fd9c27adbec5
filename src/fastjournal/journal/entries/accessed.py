"""When entries were read last: in memory only, of those read most lately.

Rules:

1. What is remembered is bounded: of more than so many entries those read longest ago are forgotten.
2. A restart forgets all. 0 means: not since then, or forgotten.
"""

from typing import Final, final

__all__ = ["Accessed"]

MOST: Final = 65_536


@final
class Accessed:
    """The instants by the ids of rows."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._at: dict[bytes, int] = {}

    def note(self, row_id: bytes, now: int) -> None:
        """The row was read."""
        at = self._at
        at.pop(row_id, None)  # so that the first of them is the one read longest ago
        at[row_id] = now
        if len(at) > self._most:
            del at[next(iter(at))]

    def of(self, row_id: bytes) -> int:
        """When it was read last."""
        return self._at.get(row_id, 0)
