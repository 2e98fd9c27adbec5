"""The state of a journal: what you get by applying its log.

Rules:

1. `apply(command, time)` uses nothing but the command, its row and the record's TIME. No clock, no
   choice, no randomness: the daemon, recovery, a follower and Spark get the same rows.
2. Rows do not touch each other: the fields of a row follow from its own records alone, so a replay
   may be split by row. Only places and indexes look sideways (a twin held back, a queue's turn).
3. A record of an unknown row changes nothing (WQ-CMD-12), nor does one that does not fit the row's
   state. `apply` does not raise.
4. PUT, ADD and SCHEDULE state the whole row, whatever it was before.
5. Moving a row from FUTURE to READY is not an event: it follows from the clock, `promote`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

from fastjournal.errors import CorruptCommand
from fastjournal.journal import kinds as k
from fastjournal.journal.changes import Changes
from fastjournal.journal.commands import decode, encode
from fastjournal.journal.image import get_fields
from fastjournal.journal.kinds import Command
from fastjournal.journal.places import dead_until
from fastjournal.journal.rows import Row, image
from fastjournal.journal.stored import value_of
from fastjournal.model import DEFAULT_SETTINGS, State

__all__ = ["JournalState"]

WAITING, PROCESSING = State.WAITING, State.PROCESSING


class JournalState(Changes):
    """All rows, and the ways to find them."""

    def __init__(self) -> None:
        super().__init__()
        self.applied = 0
        """TIME of the newest record applied; set when its effect is complete."""
        self.mark_at = 0
        """TIME of the newest MARK."""
        self.unstated: Row | None = None
        """A row of many records to be stated anew once its value is in memory."""
        self._appliers: dict[type, Callable[[Any, int], None]] = {
            k.Add: self._add,
            k.Schedule: self._add,
            k.Complete: self._complete,
            k.Fail: self._fail,
            k.Delete: self._remove,
            k.Expire: self._remove,
            k.Purge: self._remove,
            k.Start: self._start,
            k.Timeout: self._timeout,
            k.Put: self._put,
            k.Lease: self._lease,
            k.Renew: self._renew,
            k.Touch: self._touch,
            k.Tomb: self._tomb,
            k.Dead: self._dead,
            k.Keys: self._keys,
            k.Value: self._value,
            k.Group: self._group,
            k.Mark: self._mark,
            k.Queue: self._queue,
            k.Retry: self._retry,
            k.Redrive: self._redrive,
            k.Sender: self._sender,
            k.Ends: self._ends,
        }

    def apply(self, command: Command, time: int) -> None:
        """Carry out a command whose record has this TIME."""
        if time > self.now:
            self.now = time
        self._appliers[command.__class__](command, time)
        if time >= self.applied:
            self.applied = time
        else:
            self._late(command, time)

    def replay(self, payload: bytes, time: int) -> None:
        """Carry out the command of a record: decode and apply, with a short way for images."""
        if payload[:1] != b"\x20":
            self.apply(decode(payload), time)
            return
        try:
            fields = get_fields(payload)
        except (IndexError, struct.error, CorruptCommand):
            decode(payload)  # says what is wrong
            raise
        if time > self.now:
            self.now = time
        self._put(fields, time)
        if time > self.applied:
            self.applied = time

    def _late(self, command: Command, time: int) -> None:
        """A TIME that goes back, as in logs of other writers, must not look older than the image.

        Whoever judges records by their TIME would take it for spent.
        """
        members = command.members if isinstance(command, k.Group) else (command,)
        for member in members:
            row = self.rows.get(getattr(member, "id", b""))
            if row is not None and row.at > time:
                row.at = time

    def digest(self, values: Callable[[Row], bytes] = value_of) -> str:
        """A hash of everything replay must give again; `values` gives the values of rows."""
        total = blake2b(digest_size=16)
        for line in self.lines(values):
            total.update(line)
        return total.hexdigest()

    def lines(self, values: Callable[[Row], bytes] = value_of) -> Iterator[bytes]:
        """Settings, senders and row images as payloads, in a fixed order."""
        for command in self.commands(values):
            yield encode(command)

    def commands(self, values: Callable[[Row], bytes] = value_of) -> Iterator[Command]:
        """The commands that give this very state, but for rows that live in memory only."""
        yield from self.general_commands()
        for row_id in sorted(self.rows):
            row = self.rows[row_id]
            if row.policy.flags & k.PERSIST:
                yield from image(row, values(row))

    def general_commands(self) -> Iterator[Command]:
        """Those of them that concern no row: settings and senders."""
        for name in sorted(self.lanes):
            if self.lanes[name].settings_at:
                yield k.Queue(name, self.lanes[name].settings)
        for name in sorted(self.senders):
            yield k.Sender(name, self.mark_of(name))

    def _group(self, command: k.Group, time: int) -> None:
        for member in command.members:
            self._appliers[member.__class__](member, time)

    def _mark(self, command: k.Mark, time: int) -> None:
        self.mark_at = time

    def _sender(self, command: k.Sender, time: int) -> None:
        mark = self.mark_of(command.name)
        self.untold.pop(command.name, None)
        if command.mark:
            self.senders[command.name] = (max(mark, command.mark), time)
        else:
            self.senders.pop(command.name, None)

    def _queue(self, command: k.Queue, time: int) -> None:
        lane = self.lane(command.queue)
        plain = command.settings == DEFAULT_SETTINGS
        lane.settings = command.settings
        lane.settings_at = 0 if plain else time
        self.selection.detach(lane)
        self.selection.refresh(lane)
        for row in lane.dead.values():
            until = dead_until(row)
            if until:
                self.dead.add(row, until)
        if lane.open:
            self.woken.add(lane.name)
