"""Decide, log, apply, with a bounded memory: values that were let go are read back from the log.

Rules: those of `engine`, and

1. `load` sees to it that a row has its value, until another value comes; `value` reads it without
   keeping it. Whoever shows a row calls one of them first, under the lock. How they are read:
   `fetching`.
2. A place is only ever written down once its record is in the log. While it is not known for sure
   it names the oldest segment in which the record may be.
3. A row of many records whose value is not in memory is stated anew right after the command that
   asked for it, as far as that can be done.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from fastjournal.clock import SteadyClock
from fastjournal.errors import (
    JournalError,
    NoSpace,
)
from fastjournal.journal.decide.jobs import Jobs, Placed
from fastjournal.journal.engine.engine import Engine
from fastjournal.journal.engine.reserve import Reserve
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.commands import Command
from fastjournal.journal.spill.cache import Values
from fastjournal.journal.spill.fetching import Fetching
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row, image
from fastjournal.journal.state.stored import ValueNeeded
from fastjournal.log.record import record_size
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.stream import Stream
from fastjournal.log.write.log_writer import LogWriter
from fastjournal.model import NewJob

__all__ = ["BoundedEngine", "Moved"]

_AT_A_TIME = 1000  # rows moved under the lock
_AROUND = 512

Moved = tuple[bytes, int, int, int]
"""Row, TIME, segment and offset of a record that holds its value."""


class BoundedEngine(Engine):
    """State, decisions and log of a journal that may be larger than memory."""

    def __init__(
        self,
        state: JournalState,
        jobs: Jobs,
        log: LogWriter,
        clock: SteadyClock,
        reserve: Reserve,
        snapshot_path: Callable[[Stream, int], Path],
    ) -> None:
        """`snapshot_path`: where the snapshot of a number lies."""
        super().__init__(state, jobs, log, clock, reserve)
        self.values: Values = state.values
        self.put = self._put
        self.fetching = Fetching(log.stream, state.values, snapshot_path)
        self._segment = log.position.segment  # none of the records to come is in an older one

    def commit(self, command: Command, now: int = 0) -> int:
        """Log one command and apply it; returns the TIME of its record."""
        time = super().commit(command, now)
        if self.state.unstated is not None:
            self._restate()
        return time

    def written(self, first: int, payloads: Sequence[bytes]) -> None:
        """Note where the records just written stand."""
        if not self.values.fresh:
            return
        at = self.log.position
        start = at.offset - sum(record_size(len(payload)) for payload in payloads)
        if start >= HEADER_SIZE:
            self._segment = at.segment
            self.values.written(first, at.segment, start, payloads)
        else:  # another thread has gone on to the next segment meanwhile
            self.values.written(first, self._segment, 0, payloads)

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes."""
        self.fetching.load(row)

    def value(self, row: Row) -> bytes:
        """A row's value, which is not kept if it was not there."""
        return self.fetching.value(row)

    def check_room(self, command: Command) -> None:
        """Refuse what would take more memory than there may be."""
        self.values.check(command)

    def moved(self, records: Iterable[Moved], below: int | None = None) -> None:
        """Note where records stand that another file has taken in.

        With `below` all values that lie below this segment, or in an older snapshot, move there;
        without it only those of the very record.
        """
        left = iter(records)
        while some := list(islice(left, _AT_A_TIME)):
            with self.lock:
                for row_id, time, segment, offset in some:
                    row = self.state.rows.get(row_id)
                    place = None if row is None else self.values.place_of(row)
                    if place is None or not place.segment:
                        continue
                    if below is None:
                        if place.time == time and place.segment == segment:
                            place.offset = offset
                    elif place.segment < below:
                        place.time, place.segment, place.offset = time, segment, offset

    def _put(self, job: NewJob, now: int, **how: Any) -> Placed:
        jobs = self.jobs
        stamp = jobs._stamp
        try:
            return jobs.put(job, now, **how)
        except ValueNeeded as needed:
            self.load(needed.row)
        jobs._stamp = stamp  # as if it had been asked once
        return jobs.put(job, now, **how)

    def _restate(self) -> None:
        row, self.state.unstated = self.state.unstated, None
        if row is None or self.state.rows.get(row.id) is not row:
            return
        try:
            value = self.value(row)
        except JournalError:
            return  # whoever wants the value is told
        with contextlib.suppress(NoSpace):  # the row stays as it is; who writes next is told
            super().commit(k.Group(tuple(image(row, value))))
