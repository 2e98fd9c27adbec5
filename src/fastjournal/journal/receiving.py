"""A journal of this process as the receiver of numbered jobs, as a daemon is for forwarders.

Rules:

1. The rules of `forwarding` hold: a job whose mark is not above its sender's came before.
2. An answer means what the journal's sync policy promises.
"""

from __future__ import annotations

from collections.abc import Iterable

from fastjournal.journal.engine.forwarding import Taken
from fastjournal.journal.journal import Journal
from fastjournal.model import NewJob
from fastjournal.put_request import request_or_error

__all__ = ["Receiver"]


class Receiver:
    """Takes in the jobs of senders, each of them once."""

    def __init__(self, journal: Journal) -> None:
        self._engine = journal.engine
        self._operations = journal.operations

    def put_from(self, sender: bytes, jobs: Iterable[tuple[int, NewJob]]) -> Taken:
        """Take in those (mark, job) of a sender whose marks are new, however often they are sent.

        Marks grow and begin above 1. A refused job does not stop the rest, see `Taken.refused`.
        """
        engine = self._engine
        with engine.lock:
            pairs = [(mark, request_or_error(job)) for mark, job in jobs]
            taken = self._operations.forwarding.put_from(sender, pairs)
            time = engine.last_time
        engine.settle(time)
        return taken

    def mark_of(self, sender: bytes) -> int:
        """How far a sender has come; 0 for one that is not known."""
        with self._engine.lock:
            return self._engine.state.mark_of(sender)

    def forget_sender(self, sender: bytes) -> None:
        """Nothing of this sender will come again."""
        with self._engine.lock:
            self._operations.forwarding.forget_sender(sender)
