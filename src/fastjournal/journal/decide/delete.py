"""Decisions that delete jobs: by id, or by key.

Rules:

1. The newest timestamp wins, as it does between puts: a job that was written after the deletion
   stays. A deletion without a timestamp is the newest there is (D-09).
2. A tombstone stays behind for `gc_grace`, also where nothing was to be deleted: an older put may
   be on its way, in a spool or in a message that is sent again (D-20, transition 22). A tombstone
   of a key keeps older puts of that key away, one of an id alone the put of that id.
3. Of each (queue, key) there is one tombstone at most. None is left for a job that is finished or
   dead: its key has been free since; nor for jobs of Workq, which knows no tombstones.
4. A deletion of a key in all queues holds for queues that do not have it yet, too: its tombstone is
   that of an id made from the key (`everywhere_id`).
5. A purge leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fastjournal.errors import ClockSkew
from fastjournal.journal.decide.base import Deciding, everywhere_id, gone
from fastjournal.journal.language.commands import Command, Group, Purge, Tomb
from fastjournal.journal.state.row import Row
from fastjournal.model import State

__all__ = ["Deleted", "Deletes"]

_DELETED, _PROCESSING = State.DELETED, State.PROCESSING


class Deleted(NamedTuple):
    """What a deletion comes to; true if it found something to delete."""

    command: Command | None = None
    found: int = 0
    """Jobs that were there and go."""
    stale: bool = False
    """Nothing goes: what is there was written later."""

    def __bool__(self) -> bool:
        return self.found > 0


class Deletes(Deciding):
    """`delete`, `delete_key` and `delete_everywhere`."""

    def delete(
        self, row_id: bytes, now: int, timestamp: int = 0, *, purge: bool = False
    ) -> Deleted:
        """Remove the job of an id; a worker holding it gets `NotFound` later."""
        now = self._clock(now)
        row = self.state.rows.get(row_id)
        if row is None:
            when = self._when(timestamp, now, ())
            return Deleted() if purge else Deleted(Tomb(row_id, b"", b"", when))
        if row.state is _DELETED:
            return Deleted()
        when = self._when(timestamp, now, (row,))
        if when <= row.modified:
            return Deleted(stale=True)
        if purge or row.workq or row.state > _PROCESSING:
            return Deleted(gone(row), _is_there(row, now))
        queue, key = row.queue.name, row.key
        others = self.state.keys.twin(row) if key else ()
        ends = [_purge(other) for other in others if other.state is _DELETED]
        return Deleted(_together((*ends, Tomb(row.id, queue, key, when))), _is_there(row, now))

    def delete_key(
        self, queue: bytes, key: bytes, now: int, timestamp: int = 0, *, purge: bool = False
    ) -> Deleted:
        """Remove the waiting job of a key and the one being worked on."""
        if not key:
            return Deleted()
        now = self._clock(now)
        rows = list(self.state.keys.find(queue, key))
        return self._delete_rows(queue, key, rows, self._when(timestamp, now, rows), now, purge)

    def delete_everywhere(
        self, key: bytes, now: int, timestamp: int = 0, *, purge: bool = False
    ) -> Iterator[Deleted]:
        """Remove the jobs of a key in all queues, step by step; apply each before the next."""
        if not key:
            return
        now = self._clock(now)
        queues: dict[bytes, list[Row]] = {}
        for row in self.state.keys.everywhere(key):
            if row.queue.name:  # else it is an entry
                queues.setdefault(row.queue.name, []).append(row)
        tomb = self._tomb_everywhere(key)
        known = [row for rows in queues.values() for row in rows]
        when = self._when(timestamp, now, known if tomb is None else (*known, tomb))
        for queue in sorted(queues):
            yield self._delete_rows(queue, key, queues[queue], when, now, purge)
        if tomb is not None and when <= tomb.modified:
            yield Deleted(stale=True)
            return
        ends = () if tomb is None else (_purge(tomb),)  # so its records do not pile up
        tombs = () if purge else (Tomb(everywhere_id(key), b"", b"", when),)
        yield Deleted(_together((*ends, *tombs)))

    def _delete_rows(
        self, queue: bytes, key: bytes, rows: list[Row], when: int, now: int, purge: bool
    ) -> Deleted:
        """Remove the rows of a key in a queue that are older than this."""
        older = [row for row in rows if row.modified < when]
        going = [row for row in older if row.state is not _DELETED]
        found = sum(_is_there(row, now) for row in going)
        if len(older) < len(rows):  # what stays keeps older puts away by itself
            return Deleted(_together([gone(row) for row in going]), found, not going)
        if purge:
            return Deleted(_together([gone(row) for row in older]), found)
        bearer = min(older, key=lambda row: row.state, default=None)
        tomb = Tomb(self._ids() if bearer is None else bearer.id, queue, key, when)
        ends = [_purge(row) for row in older if row is not bearer]
        return Deleted(_together((*ends, tomb)), found)

    def _when(self, timestamp: int, now: int, rows: Iterable[Row]) -> int:
        """The time of a deletion; without one of its own it is newer than all that is there."""
        if timestamp > now + self.limits.max_skew:
            raise ClockSkew
        if timestamp:
            return timestamp
        return max(now, max((row.modified + 1 for row in rows), default=0))


def _is_there(row: Row, now: int) -> int:
    return int(not 0 < row.expires < now)


def _purge(row: Row) -> Purge:
    return Purge(row.id, row.queue.name, row.key, row.modified)


def _together(commands: Iterable[Command]) -> Command | None:
    members = tuple(commands)
    if len(members) < 2:
        return members[0] if members else None
    return Group(members)
