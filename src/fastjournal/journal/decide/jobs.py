"""All decisions about jobs, in one object.

Rules: those of `deciding`, `puts`, `leasing`, `deleting` and `timers`, and

1. Every method returns the command to log and apply; None, where it may, means nothing to do.
2. Bulk requests are loops of single ones, each applied before the next is decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fastjournal.errors import AlreadyExists, BadRequest, NotFound
from fastjournal.journal.decide.base import Limits, instant_after, random_ids
from fastjournal.journal.decide.delete import Deleted, Deletes
from fastjournal.journal.decide.lease import Granted, Leasing, Nothing
from fastjournal.journal.decide.put import Placed, Puts
from fastjournal.journal.decide.timers import Timers
from fastjournal.journal.language.commands import KEEP_VERSIONS, Command, Queue, Redrive
from fastjournal.model import State

__all__ = ["Deleted", "Granted", "Jobs", "Limits", "Nothing", "Placed", "random_ids"]


class Jobs(Puts, Leasing, Deletes, Timers):
    """Decides; `state.apply` does."""

    def redrive(self, row_id: bytes, now: int, delay: int = 0) -> Command:
        """Let a dead row wait again, its counters at 0."""
        now = self._clock(now)
        row = self._find(row_id, now)
        if row.state is not State.FAILED:
            raise BadRequest("the job is not dead")
        if not row.policy.flags & KEEP_VERSIONS:
            for other in self.state.keys.find(row.queue.name, row.key) if row.key else ():
                if other.state is State.WAITING and not 0 < other.expires < now:
                    raise AlreadyExists("a newer job of this key is waiting")
        settings, limit = row.queue.settings, row.policy.max_attempts
        if not row.workq:
            limit = limit or settings.max_attempts
        if 0 < limit <= row.attempts:  # as many attempts again
            limit += row.attempts
        else:
            limit = row.policy.max_attempts
        return self._alone(row, Redrive(row.id, instant_after(now, delay), limit), now)

    def dead_ids(self, queue: bytes) -> list[bytes]:
        """The dead rows of a queue, in the order of their deaths."""
        lane = self.state.queues.get(queue)
        return [] if lane is None else list(lane.dead)

    def redrive_all(self, queue: bytes, now: int) -> Iterator[Command]:
        """Redrive the dead rows of a queue, except where a newer row of the key waits.

        Log and apply each command before asking for the next.
        """
        for row_id in self.dead_ids(queue):
            try:
                yield self.redrive(row_id, now)
            except (AlreadyExists, NotFound):
                continue

    def set_queue(self, queue: bytes, changes: Mapping[str, Any]) -> Command | None:
        """Change settings of a queue; None if they are so already."""
        if type(queue) is not bytes or not 1 <= len(queue) <= 255:
            raise BadRequest("a queue name has 1 to 255 bytes")
        old = self._settings(queue)
        new = old.changed(changes)
        return None if new == old else Queue(queue, new)
