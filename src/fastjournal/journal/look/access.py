"""What all parts of an open journal share."""

from __future__ import annotations

from fastjournal.clock import SteadyClock
from fastjournal.errors import Closed
from fastjournal.journal.disk.background import Background
from fastjournal.journal.disk.replay import Replayed
from fastjournal.journal.disk.upkeep import Upkeep
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.engine.operations import Operations
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.write.log_writer import LogWriter

__all__ = ["Access"]


class Access:
    """The open journal's insides, set by `Journal`."""

    _engine: Engine
    _state: JournalState
    _operations: Operations
    _log: LogWriter
    _clock: SteadyClock
    _upkeep: Upkeep
    _background: Background
    _closed: bool
    replayed: Replayed
    replay_seconds: float

    @property
    def engine(self) -> Engine:
        """State, log and lock, for whoever serves the journal to others (the daemon)."""
        return self._engine

    @property
    def operations(self) -> Operations:
        """The requests themselves, to be called under `engine.lock`."""
        return self._operations

    def _check_open(self) -> None:
        """First of all in a request, under the lock."""
        if self._closed:
            raise Closed("the journal is closed")
        self._engine.begin()
