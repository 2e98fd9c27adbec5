"""Which rows an audit must look at closely: those whose records do not fit by the table alone.

Every row is followed through `journal.transitions.STEPS`: the states it may be in after each of its
records, without replaying any. No Spark.

Rules:

1. A row is sound when every record is a whole command, finds the row in a state that its kind may
   find, whichever of the possible ones it is, and carries no stale token. Everything else is doubt,
   not a finding: what is wrong is said by a replay of that row.
2. Rows in groups, and kinds that are rare, are always in doubt.
3. It starts where nothing is known: for a log that begins behind a snapshot it is not used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fastjournal.journal.language.transitions import STEPS
from fastjournal.log.scan.scan import Chunk
from fastjournal.model import State
from fastjournal.spark.kinds import SINGLE, among

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["ROOM", "Sift"]

_STATES: tuple[State | None, ...] = (None, *State)
ROOM = 1 << 12
"""Places for rows at the least; half of them are used."""


class Sift:
    """Fed with the records of a share in order; then tells which of them matter to an audit."""

    def __init__(self) -> None:
        import numpy as np

        self._np = np
        self._single = among(SINGLE)
        self._before = np.zeros(256, dtype=np.uint8)
        self._after = np.zeros((256, len(_STATES)), dtype=np.uint8)
        for kind, steps in STEPS.items():
            for before, after in steps:
                bit = _STATES.index(before)
                self._before[kind] |= 1 << bit
                self._after[kind, bit] |= 1 << _STATES.index(after)
        self._table = self._empty(ROOM)
        self._count = 0

    @property
    def room(self) -> int:
        """Places for rows; more are made for rows that live at the same time, not for all."""
        return len(self._table[0])

    def _empty(self, room: int) -> tuple[Array, ...]:
        np = self._np
        kinds = (bool, np.uint64, np.uint64, np.uint8, np.int64, bool)
        return tuple(np.zeros(room, dtype=kind) for kind in kinds)

    def _make_room(self, more: int) -> None:
        from fastjournal.spark.audit.prefilter_kernel import grow

        room = self.room
        if 2 * (self._count + more) <= room:
            return
        while 2 * (self._count + more) > room:
            room *= 2
        larger = self._empty(room)
        self._count = grow(self._table, larger)
        self._table = larger

    def feed(self, chunk: Chunk) -> None:
        """Follow the rows of these records."""
        from fastjournal.spark.audit.prefilter_kernel import run

        self._make_room(len(chunk))
        lows, highs = self._ids(chunk)
        self._count += run(
            chunk.bytes_view(),
            chunk.starts,
            chunk.sizes,
            chunk.kinds,
            lows,
            highs,
            self._single,
            self._before,
            self._after,
            self._table,
        )

    def doubt(self, ids: Iterable[bytes]) -> None:
        """Look at these rows closely, whatever their records say."""
        from fastjournal.spark.audit.prefilter_kernel import grow

        np = self._np
        pairs = np.frombuffer(b"".join(ids), dtype=np.uint64).reshape(-1, 2)
        if not len(pairs):
            return
        self._make_room(len(pairs))
        marked = self._empty(1 << (2 * len(pairs) + 1).bit_length())
        for n, (low, high) in enumerate(np.unique(pairs, axis=0)):
            for column, value in zip(marked, (True, low, high, 1, 0, True), strict=True):
                column[n] = value
        self._count += grow(marked, self._table)

    def closely(self, chunk: Chunk) -> Chunk:
        """The records that an audit must apply: of rows in doubt, and those that name no row."""
        from fastjournal.spark.audit.prefilter_kernel import doubtful

        found = self._np.zeros(len(chunk), dtype=bool)
        lows, highs = self._ids(chunk)
        doubtful(lows, highs, self._table, found)
        return chunk.select(found | ~self._single[chunk.kinds] | (chunk.sizes < 17))

    def _ids(self, chunk: Chunk) -> tuple[Array, Array]:
        ids = chunk.ids().view(self._np.uint64)
        return ids[:, 0], ids[:, 1]
