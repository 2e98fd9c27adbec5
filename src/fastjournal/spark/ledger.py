"""The journal's state without its indexes: the rows a replay gives, at half the cost.

Rules:

1. Every change of a row is made by the journal's own `apply`; nothing is decided here.
2. The fields of a row follow from its own records alone (`journal.state`, rule 2): so what finds
   rows, orders them and wakes consumers may be left out. Places and counts mean nothing here.
"""

from __future__ import annotations

from fastjournal.journal.lanes import Lane, Moment
from fastjournal.journal.rows import IDLE, Row
from fastjournal.journal.state import JournalState

__all__ = ["Ledger"]

_NEVER: Moment = (0, 0, b"")


class _Nothing:
    """Stands for any index: takes everything, holds nothing."""

    def add(self, *_: object) -> Moment:
        return _NEVER

    def alone(self, row: Row) -> bool:
        return True

    def twin(self, row: Row) -> tuple[Row, ...]:
        return ()

    def _ignore(self, *_: object) -> None:
        return None

    attach = detach = pushed = refresh = remove = served = woke = _ignore


class _Lane(Lane):
    """A queue of which only the name and the settings matter."""

    __slots__ = ()

    def push(self, row: Row) -> None:
        """Nothing is handed out from here."""

    def add_wake(self, moment: Moment) -> None:
        """Nobody waits here."""


class Ledger(JournalState):
    """Rows only."""

    def __init__(self) -> None:
        super().__init__()
        nothing = _Nothing()
        for name in ("keys", "selection", "future", "leases", "expiry", "dead", "tombs"):
            setattr(self, name, nothing)

    def lane(self, name: bytes) -> Lane:
        """The queue of this name, made if need be."""
        lane = self.lanes.get(name)
        if lane is None:
            lane = self.lanes[name] = _Lane(name, self.rows)
        return lane

    def _place(self, row: Row) -> None:
        row.place = IDLE
