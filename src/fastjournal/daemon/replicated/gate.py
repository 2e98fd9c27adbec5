"""What the journal of a reign waits for before it answers.

Rules:

1. Answers wait for `safe_time`: what `journal.sync` promises on this node, and as many nodes as
   `replica.ack` says. Without the lease nothing is answered but by a majority asked since.
2. A snapshot counts when a majority has all that it tells, and those who are there have had a
   chance to get it too: they need not fetch the snapshot then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.errors import ReadOnly
from fastjournal.replica.node import ReplicaNode

__all__ = ["Gate"]

_SAFE = 30.0  # seconds that a snapshot waits for a majority; then the next one tries it
_ALL = 5.0  # seconds more that it waits for the others


class Gate:
    """What a journal's loop asks before it answers."""

    def __init__(self, node: ReplicaNode, level: str) -> None:
        self._node = node
        self._level = level
        self._journal_loop: JournalLoop | None = None
        self._writer: JournalLoop | None = None
        """Whose log it is, though it answers no more: others still ask how far it is."""
        self._round = 0
        self._closed = False
        self._moved = threading.Condition()
        self._waiting = 0  # threads, for that

    def open(self, journal_loop: JournalLoop) -> None:
        """The journal is open: its answers go through here."""
        self._journal_loop = self._writer = journal_loop
        journal_loop.gate = journal_loop.subscriptions.gate = self

    def close(self) -> None:
        """Nothing is answered any more."""
        self._journal_loop = None
        self.end_waits()

    def end_waits(self) -> None:
        """The journal is about to close: no snapshot waits any more."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting:  # who comes later looks first
            with self._moved:
                self._moved.notify_all()

    def wait_safe(self, time: int) -> None:
        """Return when a snapshot that tells of records up to a TIME may count (rule 2).

        On a thread of the journal.
        """
        member = self._node.member
        with self._moved:
            self._waiting += 1
            try:
                committed = self._moved.wait_for(
                    lambda: self._closed or member.is_committed(time), _SAFE
                )
                if self._closed or not committed:
                    raise ReadOnly("a majority does not have what the snapshot tells")
                self._moved.wait_for(lambda: self._closed or member.is_everywhere(time), _ALL)
            finally:
                self._waiting -= 1

    def stored_time(self) -> int:
        """TIME of the newest record that is as safe as the sync policy says."""
        assert self._writer is not None
        log = self._writer.engine.log
        return log.synced_time if self._writer.always else log.written_time

    def written_time(self) -> int:
        """TIME of the newest record in the log."""
        assert self._writer is not None
        return self._writer.engine.log.written_time

    def tell_writes(self, on_write: Callable[[int, bytes, int, bool], object]) -> None:
        """Tell every write of the journal."""
        assert self._writer is not None
        self._writer.engine.log.tell_writes(on_write)

    def wrote(self) -> None:
        """A turn has ended: ship what it wrote."""
        self._round = self._node.member.read_round
        if self._journal_loop is not None:
            self._node.do(self._node.member.wrote, tells=False)

    def synced(self) -> None:
        """What was written is as safe here as the sync policy says."""
        if self._journal_loop is not None:
            self._node.member.synced()

    def safe_time(self) -> int:
        """Up to where may be answered at this moment; -1: nothing may."""
        if self._journal_loop is None:
            return -1
        member = self._node.member
        if not member.may_answer(self._round):
            return -1
        return min(self.stored_time(), member.acknowledged_time(self._level))

    def changed(self) -> None:
        """Something has happened to the member."""
        self._wake()
        if self._journal_loop is not None:
            self._journal_loop.release()
