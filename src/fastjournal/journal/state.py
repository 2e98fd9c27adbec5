"""The state of a journal: what you get by applying its log. The only code that changes rows.

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

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.errors import CorruptCommand
from fastjournal.journal import kinds as k
from fastjournal.journal.commands import decode, encode
from fastjournal.journal.image import get_fields
from fastjournal.journal.kinds import Command, Put, policy_of
from fastjournal.journal.places import Places, dead_until
from fastjournal.journal.rows import (
    IDLE,
    LEASED,
    More,
    Row,
    image,
)
from fastjournal.model import DEFAULT_SETTINGS, MAX_INSTANT, State

__all__ = ["JournalState"]

WAITING, PROCESSING = State.WAITING, State.PROCESSING


class JournalState(Places):
    """All rows, and the ways to find them."""

    def __init__(self) -> None:
        super().__init__()
        self.last_inserted = 0
        self.applied = 0
        """TIME of the newest record applied; set when its effect is complete."""
        self.ended = 0
        """How many rows have ended or been restated: how fast old records become worthless."""
        self.mark_at = 0
        """TIME of the newest MARK."""
        self.senders: dict[bytes, tuple[int, int]] = {}
        """For each sender its mark, and the TIME of the SENDER record that was the last to tell it.

        An id of version 8 that begins with the 12 bytes of a known sender ends with its mark: so
        the record of such a job tells by itself that it came, whatever a crash leaves behind it."""
        self.untold: set[bytes] = set()
        """Senders whose mark stands in the id of a job only, and not yet in a SENDER record."""
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
        }

    def apply(self, command: Command, time: int) -> None:
        """Carry out a command whose record has this TIME."""
        if time > self.now:
            self.now = time
        self._appliers[command.__class__](command, time)
        self.applied = time

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
        self.applied = time

    def digest(self) -> str:
        """A hash of everything replay must give again."""
        total = blake2b(digest_size=16)
        for line in self.lines():
            total.update(line)
        return total.hexdigest()

    def lines(self) -> Iterator[bytes]:
        """Settings, senders and row images as payloads, in a fixed order."""
        for command in self.commands():
            yield encode(command)

    def commands(self) -> Iterator[Command]:
        """The commands that give this very state when applied to an empty one."""
        yield from self.general_commands()
        for row_id in sorted(self.rows):
            yield from image(self.rows[row_id])

    def general_commands(self) -> Iterator[Command]:
        """Those of them that concern no row: settings and senders."""
        for name in sorted(self.lanes):
            if self.lanes[name].settings_at:
                yield k.Queue(name, self.lanes[name].settings)
        for name in sorted(self.senders):
            yield k.Sender(name, self.senders[name][0])

    def _put(self, command: tuple[Any, ...], time: int) -> None:
        (
            row_id,
            queue,
            key,
            rank,
            due,
            inserted,
            modified,
            expires,
            kind,
            value,
            policy,
            attempts,
            timeouts,
            fails,
            aliases,
        ) = command
        row = self.rows.get(row_id)
        if row is None:
            row = self.rows[row_id] = Row()
            row.id = row_id
            lane = self.lanes.get(queue) or self.lane(queue)
            lane.total += 1
            old_expires = 0
            if row_id[6] & 0xF0 == 0x80 and row_id[:12] in self.senders:
                self._sent(row_id)
        else:
            self.ended += 1
            self._unplace(row)
            self._unkey(row)
            lane = self._move(row, queue)
            old_expires = row.expires
        row.lane = lane
        row.key = key
        row.rank = rank
        row.due = due
        row.inserted = inserted
        row.modified = modified
        row.expires = expires
        row.kind = kind
        row.value = value
        row.policy = policy
        row.attempts = attempts
        row.state = WAITING
        row.lease_until = 0
        row.at = time
        row.holder = row.more = None
        if timeouts or fails or aliases:
            more = row.more = More()
            more.timeouts = timeouts
            more.fails = fails
            more.aliases = aliases
        if inserted > self.last_inserted:
            self.last_inserted = inserted
        if expires and expires != old_expires:
            self.expiry.add(row, expires)
        if key or aliases:
            self.keys.add(row)
        self._place(row)

    def _add(self, job: k.Add | k.Schedule, time: int) -> None:
        start = job.time or job.created
        flags = k.PERSIST | k.FROM_WORKQ
        if type(job) is k.Schedule:
            flags |= k.BY_SCHEDULE
        expires = min(start + job.ttl * MILLISECOND, MAX_INSTANT) if job.ttl else 0
        policy = policy_of(flags, 0, job.ttr, job.max_attempts, 0, job.max_fails)
        created = job.created
        put = Put(
            job.id,
            job.name,
            b"",
            -job.priority,
            start,
            created,
            created,
            expires,
            1,
            job.payload,
            policy,
        )
        self._put(put, time)

    def _lease(self, command: k.Lease, time: int) -> None:
        row = self.rows.get(command.id)
        if row is not None and row.state <= PROCESSING:
            row.attempts = command.attempt
            self._hand_out(row, command.start, command.until, command.worker)

    def _start(self, command: k.Start, time: int) -> None:
        row = self.rows.get(command.id)
        if row is not None and row.state <= PROCESSING:
            row.attempts += 1
            length = row.policy.lease * MILLISECOND or 60 * SECOND
            self._hand_out(row, time, time + length, b"")

    def _hand_out(self, row: Row, start: int, until: int, worker: bytes) -> None:
        if row.place == LEASED:  # a start without an end: the log of a careless writer
            row.lane.counts[LEASED] -= 1
        else:
            self._unplace(row)
        if row.more is not None:
            row.more.chain += 1
        row.holder = (start, worker)
        row.state = PROCESSING
        row.lease_until = until
        row.place = LEASED
        lane = row.lane
        lane.counts[LEASED] += 1
        if row.key and not self.keys.alone(row):
            self._hold_twin(row)
        self.leases.add(row, until)
        selection = self.selection
        if lane.settings.concurrency:
            selection.refresh(lane)
        selection.served(lane)

    def _renew(self, command: k.Renew, time: int) -> None:
        row = self.rows.get(command.id)
        if row is not None and row.state is PROCESSING:
            row.own().chain += 1
            row.lease_until = command.until
            self.leases.add(row, command.until)

    def _timeout(self, command: k.Timeout, time: int) -> None:
        row = self.rows.get(command.id)
        if row is None or row.state > PROCESSING:
            return
        more = row.own()
        more.timeouts += 1
        if 0 < row.policy.max_attempts <= row.attempts:
            self._bury(row, k.TOO_MANY_ATTEMPTS, time)
        else:
            self._back(row)

    def _retry(self, command: k.Retry, time: int) -> None:
        row = self.rows.get(command.id)
        if row is None or row.state > PROCESSING:
            return
        more = row.own()
        more.timeouts = command.timeouts
        more.fails = command.fails
        more.reason = command.reason
        more.note = command.note
        self._back(row, command.due)

    def _redrive(self, command: k.Redrive, time: int) -> None:
        row = self.rows.get(command.id)
        if row is None or row.state is not State.FAILED:
            return
        self._unplace(row)
        aliases = row.rare.aliases
        row.more = None
        if aliases:
            row.own().aliases = aliases
        if command.max_attempts != row.policy.max_attempts:
            row.policy = policy_of(*row.policy._replace(max_attempts=command.max_attempts))
        row.state = WAITING
        row.due = command.due
        self.keys.add(row)
        self._place(row)

    def _back(self, row: Row, due: int = 0) -> None:
        """The row waits again."""
        self._unplace(row)
        row.state = WAITING
        row.own().chain += 1
        if due:
            row.due = due
        self._place(row)

    def _complete(self, command: k.Complete, time: int) -> None:
        row = self.rows.get(command.id)
        if row is None or row.state > PROCESSING:
            return
        self._unplace(row)
        self._unkey(row)
        if command.result or row.more is not None:
            row.own().result = command.result
        row.state = State.COMPLETED
        self._stand(row)

    def _fail(self, command: k.Fail, time: int) -> None:
        row = self.rows.get(command.id)
        if row is None or row.state > PROCESSING:
            return
        more = row.own()
        more.fails += 1
        more.result = command.result
        self._bury(row, k.FAILED, time)

    def _dead(self, command: k.Dead, time: int) -> None:
        row = self.rows.get(command.id)
        if row is not None and (row.state <= PROCESSING or row.state is State.FAILED):
            self._bury(row, command.reason, command.when)

    def _bury(self, row: Row, reason: int, when: int) -> None:
        self._unplace(row)
        self._unkey(row)
        more = row.own()
        more.reason = reason
        more.when = when
        more.note = b""
        row.state = State.FAILED
        self._stand(row)

    def _touch(self, command: k.Touch, time: int) -> None:
        row = self.rows.get(command.id)
        if row is None:
            return
        row.own().chain += 1
        if command.expires != row.expires:
            row.expires = command.expires
            if row.expires:
                self.expiry.add(row, row.expires)
        if row.place == IDLE and row.lane.name:
            row.lane.counts[IDLE] -= 1
            self._place(row)

    def _tomb(self, command: k.Tomb, time: int) -> None:
        row = self.rows.get(command.id)
        if row is None:
            put = Put(
                command.id, command.queue, command.key, 0, *(command.modified,) * 3, 0, 0, b""
            )
            last = self.last_inserted
            self._put(put, time)
            self.last_inserted = last  # the sender's clock, not ours
            row = self.rows[command.id]
        self._unplace(row)
        self._unkey(row)
        aliases = row.rare.aliases
        row.more = None
        if aliases:
            row.own().aliases = aliases
        row.value = b""
        row.kind = 0
        row.expires = 0
        row.modified = command.modified
        row.state = State.DELETED
        self.keys.add(row)
        self._stand(row)

    def _remove(self, command: k.Delete | k.Expire | k.Purge, time: int) -> None:
        row = self.rows.pop(command.id, None)
        if row is None:
            return
        self.ended += 1
        self._unplace(row)
        self._unkey(row)
        self._leave(row.lane)

    def _keys(self, command: k.Keys, time: int) -> None:
        row = self.rows.get(command.id)
        if row is None:
            return
        keyed = row.state <= PROCESSING or row.state is State.DELETED
        if keyed:
            self.keys.remove(row)
        row.key = command.key
        more = row.own()
        more.aliases = command.aliases
        more.chain += 1
        row.modified = command.modified
        if keyed:
            self.keys.add(row)

    def _value(self, command: k.Value, time: int) -> None:
        row = self.rows.get(command.id)
        if row is not None and row.state <= PROCESSING:
            row.own().chain += 1
            row.kind = command.kind
            row.value = command.value
            row.modified = command.modified

    def _group(self, command: k.Group, time: int) -> None:
        for member in command.members:
            self._appliers[member.__class__](member, time)

    def _mark(self, command: k.Mark, time: int) -> None:
        self.mark_at = time

    def _sender(self, command: k.Sender, time: int) -> None:
        self.untold.discard(command.name)
        if not command.mark:
            self.senders.pop(command.name, None)
            return
        mark = self.senders.get(command.name, (0, 0))[0]
        self.senders[command.name] = (max(mark, command.mark), time)

    def _sent(self, row_id: bytes) -> None:
        name, mark = row_id[:12], int.from_bytes(row_id[12:], "big")
        known, told = self.senders[name]
        if mark > known:
            self.senders[name] = (mark, told)
            self.untold.add(name)

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
