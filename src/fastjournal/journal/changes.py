"""What each command does to its row. The only code that changes rows.

Rules: those of `state`.
"""

from __future__ import annotations

from typing import Any

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.journal import kinds as k
from fastjournal.journal.ends import Endings
from fastjournal.journal.kinds import End, Put, policy_of
from fastjournal.journal.numbered import remembered
from fastjournal.journal.places import Places
from fastjournal.journal.rows import IDLE, LEASED, More, Row
from fastjournal.model import MAX_INSTANT, State

__all__ = ["Changes"]

WAITING, PROCESSING = State.WAITING, State.PROCESSING
_END_OF = {
    PROCESSING: End.DONE,
    State.COMPLETED: End.DONE,
    State.FAILED: End.DEAD,
}
_RETRY_END = {k.GAVE_UP: End.RETRIED, k.GAVE_BACK: End.RETURNED}


class Changes(Places):
    """Rows, changed by commands."""

    def __init__(self) -> None:
        super().__init__()
        self.last_inserted = 0
        self.restamped = 0
        """How many jobs have got another time of arrival in their old place."""
        self.ended = 0
        """How many rows have ended or been restated: how fast old records become worthless."""
        self.endings = Endings()
        """How leases ended, so that whoever ended one and did not hear of it can be told."""
        self.ends_at = 0
        """TIME of the newest ENDS."""
        self._settled = (b"", 0)  # row and TIME of the lease settled last: does it go with it?
        self.senders: dict[bytes, tuple[int, int]] = {}
        """For each sender its mark, and the TIME of the record that says so."""
        self.untold: dict[bytes, bytes] = {}
        """For senders whose newest mark stands in the id of a job only: that id.

        An id of version 8 that begins with the 12 bytes of a known sender ends with a mark: so the
        record of such a job tells by itself that it came, whatever a crash leaves behind it."""

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
        known = row = self.rows.get(row_id)
        if row is None:
            row = Row()
            row.id = row_id
            lane = self.lanes.get(queue) or self.lane(queue)
            lane.total += 1
            old_expires = 0
            if row_id[6] & 0xF0 == 0x80 and (sender := row_id[:12]) in self.senders:
                self.untold[sender] = row_id
        else:
            self.ended += 1
            if row.inserted != inserted and queue:
                self.restamped += 1
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
        if known is None:  # whole by now: upkeep looks without the lock
            self.rows[row_id] = row
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
        end = _RETRY_END.get(command.reason)
        if end is not None and row.state is PROCESSING:
            self._settle(row, end, time)
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
        if row.state is PROCESSING:
            self._settle(row, End.DEAD, time)
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
            last, untold = self.last_inserted, self.untold.get(command.id[:12])
            self._put(put, time)
            self.last_inserted = last  # the sender's clock, not ours
            if untold is None:
                self.untold.pop(command.id[:12], None)  # no job of the sender has come
            else:
                self.untold[command.id[:12]] = untold
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
        if command.__class__ is not k.Expire and row.lane.name:
            self._remember(row, command, time)
        self._unplace(row)
        self._unkey(row)
        self.leave(row.lane)

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
            if not row.lane.name:
                self._list(row)

    def _value(self, command: k.Value, time: int) -> None:
        row = self.rows.get(command.id)
        if row is not None and row.state <= PROCESSING:
            row.own().chain += 1
            row.kind = command.kind
            row.value = command.value
            row.modified = command.modified
            if command.operation:
                answer = (command.modified, command.kind, command.value)
                more = row.own()
                more.operations = remembered(more.operations, command.operation, answer)

    def _settle(self, row: Row, end: End, time: int) -> None:
        """A lease ends, the row stays, or goes by another command of the same record."""
        self.endings.settled(row.id, row.attempts, end)
        self._settled = (row.id, time)

    def _remember(self, row: Row, command: k.Delete | k.Expire | k.Purge, time: int) -> None:
        """Why a job goes."""
        end = _END_OF.get(row.state, End.GONE)
        if command.__class__ is k.Delete and row.state is PROCESSING:
            end = End.GONE
        if self._settled == (row.id, time):
            end = End.DROPPED if row.state is State.FAILED else End.LEFT
        self.endings.went(row.id, row.attempts, end)

    def _ends(self, command: k.Ends, time: int) -> None:
        self.endings.add(command)
        self.ends_at = time

    def mark_of(self, sender: bytes) -> int:
        """How far a sender has come; 0 if it is not known."""
        mark = self.senders.get(sender, (0, 0))[0]
        newest = self.untold.get(sender)
        return mark if newest is None else max(mark, int.from_bytes(newest[12:], "big"))
