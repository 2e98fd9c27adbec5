"""The fields of commands as columns: payloads of a chunk read all at once (`field_kernel`).

Rules:

1. A payload that does not parse to its last byte has no fields: its row is marked in `bad`.
2. What a kind does not carry is marked missing, never zero.
3. `number` and `slice_of` tell of the kinds that state a row, and of results. What the
   others say is read if `every` kind is asked for, and stands in `numbers` and `text`; its meaning
   is the state machine's.
4. Times come out as ns since 1970; a zero time is missing. A job with no time to live never
   expires; one whose end does not fit 64 bits expires at the last instant that does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastjournal.journal.language import commands as language
from fastjournal.log.scan.scan import Chunk, slices_to_binary
from fastjournal.spark.kinds import STATING, among

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

__all__ = ["NUMBERS", "SLICES", "Fields"]

NUMBERS = ("priority", "due", "inserted", "expires", "lease_ms", "max_attempts", "max_fails")
SLICES = ("queue", "key", "payload", "result")
_TIMES = frozenset({"due", "inserted", "expires"})


class Fields:
    """Decoded columns of one chunk."""

    def __init__(self, chunk: Chunk, *, every: bool = False) -> None:
        import numpy as np

        from fastjournal.spark.decode import field_kernel as kernel

        rows = len(chunk)
        self._chunk = chunk
        self._stated = among(STATING)[chunk.kinds]
        self._number_places, self._slice_places = (
            {name: place for place, name in enumerate(names)}
            for names in (kernel.NUMBERS, kernel.SLICES)
        )
        self.numbers = np.zeros((len(kernel.NUMBERS), rows), dtype=np.int64)
        """All that any kind says, by the places of `field_kernel`; 0 where it says nothing."""
        # All zeros: columns that nobody writes or reads cost no memory.
        self._starts, self._sizes = (
            np.zeros((len(kernel.SLICES), rows), dtype=np.int64) for _ in range(2)
        )
        self.bad = np.zeros(rows, dtype=bool)
        """Rows whose payload does not parse."""
        wanted = np.full(256, every)
        wanted[[*STATING, language.COMPLETE, language.FAIL]] = True
        kernel.parse(
            chunk.bytes_view(), chunk.starts, chunk.sizes, chunk.kinds, wanted,
            self.numbers, self._starts, self._sizes, self.bad,
        )  # fmt: skip

    def number(self, name: str) -> tuple[Array, Array]:
        """Values and the mask of missing ones."""
        values = self.numbers[self._number_places[name]]
        missing = ~self._stated | self.bad
        return values, missing | (values == 0) if name in _TIMES else missing

    def slice_of(self, name: str) -> tuple[Array, Array, Array]:
        """Starts and sizes in the segment, and the mask of missing ones."""
        starts, sizes, missing = self._slice(name)
        return starts, sizes, missing if name == "result" else missing | ~self._stated

    def _slice(self, name: str) -> tuple[Array, Array, Array]:
        import numpy as np

        place = self._slice_places[name]
        sizes = self._sizes[place]
        return self._starts[place], np.maximum(sizes - 1, 0), sizes == 0

    def text(self, name: str) -> pa.Array:
        """What any kind says by this name, as bytes; null where that is nothing, or empty."""
        starts, sizes, _ = self._slice(name)
        return slices_to_binary(self._chunk.data, starts, sizes, sizes == 0)
