"""The rows that live, as one table small enough to ship to every task of a cleaning. No Spark.

Rules:

1. It holds what `journal.retention` asks of a state: for each living row the TIME of its newest
   whole record and its expiry; when queues and senders were last set; the newest MARK.
2. Retention's own `fate` judges what concerns no single row; for single rows the same rule is
   applied to whole columns, and the tests hold the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from fastjournal.journal.state import JournalState

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

__all__ = ["Facts", "LivePart", "LiveRows", "part_of"]


@dataclass(frozen=True, slots=True)
class Lane:
    """What retention asks of a queue."""

    settings_at: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What concerns no single row; every share has the same."""

    lanes: dict[bytes, int]
    senders: dict[bytes, tuple[int, int]]
    mark_at: int
    applied: int


@dataclass(frozen=True, slots=True)
class LivePart:
    """The living rows of one share: 16-byte ids, then 8-byte TIMEs and expiries, as raw bytes."""

    ids: bytes
    at: bytes
    expires: bytes
    facts: Facts


def part_of(state: JournalState) -> LivePart:
    """The living rows of a replayed share."""
    import numpy as np

    rows = list(state.rows.values())
    return LivePart(
        b"".join(row.id for row in rows),
        np.array([row.at for row in rows], dtype=np.int64).tobytes(),
        np.array([row.expires for row in rows], dtype=np.int64).tobytes(),
        Facts(
            {name: lane.settings_at for name, lane in state.lanes.items() if lane.settings_at},
            dict(state.senders),
            state.mark_at,
            state.applied,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    at: int
    expires: int


class LiveRows:
    """All living rows; stands for a `JournalState` before `journal.retention`."""

    ended = 0

    def __init__(self, parts: Iterable[LivePart]) -> None:
        import numpy as np

        found = list(parts)
        ids = np.frombuffer(b"".join(p.ids for p in found), dtype=np.uint64).reshape(-1, 2)
        self._lows = np.ascontiguousarray(ids[:, 0])
        self._highs = np.ascontiguousarray(ids[:, 1])
        self.at = np.frombuffer(b"".join(p.at for p in found), dtype=np.int64)
        self.expires = np.frombuffer(b"".join(p.expires for p in found), dtype=np.int64)
        facts = [p.facts for p in found]
        self.lanes = {name: Lane(at) for fact in facts for name, at in fact.lanes.items()}
        self.senders = {name: told for fact in facts for name, told in fact.senders.items()}
        self.mark_at = max((fact.mark_at for fact in facts), default=0)
        self.applied = max((fact.applied for fact in facts), default=0)
        self.rows = self
        self._table: Any = None

    def __len__(self) -> int:
        return len(self.at)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def get(self, row_id: bytes) -> _Row | None:
        """One row by its id, as `rows.get` of a state gives it."""
        import numpy as np

        if len(row_id) != 16:
            return None
        pair = np.frombuffer(row_id, dtype=np.uint64)
        at = int(self.find(pair[:1], pair[1:])[0])
        return None if at < 0 else _Row(int(self.at[at]), int(self.expires[at]))

    def find(self, lows: Array, highs: Array) -> Array:
        """For each id the number of its living row; -1 for none."""
        import numpy as np

        if find_spec("numba") is not None:
            from fastjournal.spark.fold_numba import build, lookup

            if self._table is None:
                size = 1 << max(4, (2 * len(self) + 1).bit_length())
                table = np.full(size, -1, dtype=np.int64)
                build(self._lows, self._highs, table)
                self._table = table
            return lookup(lows, highs, self._lows, self._highs, self._table)  # type: ignore[no-any-return]
        if self._table is None:
            pairs = zip(self._lows.tolist(), self._highs.tolist(), strict=True)
            self._table = {pair: n for n, pair in enumerate(pairs)}
        known = self._table
        pairs = zip(lows.tolist(), highs.tolist(), strict=True)
        return np.array([known.get(pair, -1) for pair in pairs], dtype=np.int64)
