"""The state of a journal: what you get by applying its log. The only code that changes rows.

Rules:

1. `apply(command, time)` uses nothing but the command, its row and the record's TIME. No clock, no
   choice, no randomness: the daemon, recovery, a follower and Spark get the same rows.
2. Rows do not touch each other: the fields of a row follow from its own records alone, so a replay
   may be split by row. Only places and indexes look sideways (a twin held back, a queue's turn).
3. A record of an unknown row changes nothing (WQ-CMD-12), nor does one that does not fit the row's
   state. `apply` does not raise.
4. PUT, ADD and SCHEDULE state the whole row, whatever it was before.
"""

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Final

from mypy_extensions import i64, u8

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.language.commands import (
    BY_SCHEDULE,
    FAILED,
    FROM_WORKQ,
    GAVE_BACK,
    GAVE_UP,
    PERSIST,
    SNAPSHOT_NOTE,
    TOO_MANY_ATTEMPTS,
    Add,
    Command,
    Complete,
    Dead,
    Delete,
    Ends,
    Expire,
    Fail,
    Group,
    Keys,
    Lease,
    Mark,
    Purge,
    Put,
    Queue,
    Redrive,
    Renew,
    Retry,
    Schedule,
    Sender,
    Start,
    Timeout,
    Tomb,
    Touch,
    Value,
    WorkqJob,
    policy_of,
)
from fastjournal.journal.state.ends import Endings
from fastjournal.journal.state.numbered import Answer, Numbered
from fastjournal.journal.state.placement import Placement
from fastjournal.journal.state.queue_rows import QueueRows
from fastjournal.journal.state.row import (
    COMPLETED_ROW,
    DEAD,
    DELETED_ROW,
    FAILED_ROW,
    IDLE,
    PROCESSING_ROW,
    WAITING_ROW,
    More,
    Row,
    image,
    value_of,
)
from fastjournal.journal.state.values import Values

__all__ = ["JournalState"]

_DONE: Final[i64] = 1
_DEAD: Final[i64] = 2
_GONE: Final[i64] = 3
_DROPPED: Final[i64] = 4
_LEFT: Final[i64] = 5
_RETRIED: Final[i64] = 6
_RETURNED: Final[i64] = 7
"""`End`, as numbers."""
_FIRST_INSTANT: Final[i64] = 1
_LAST_INSTANT: Final[i64] = 9_223_372_036_854_775_807
_MOST: Final[i64] = 9_223_372_036_854_775_807
_MOST_TRIES: Final[i64] = 2_147_483_647
"""What a counter can hold: it stays there, in both builds."""


class JournalState:
    """All rows, and the ways to find them."""

    def __init__(self, values: Values | None = None) -> None:
        """`values`: which of them are in memory; all of them unless it is given."""
        places = Placement()
        self.places = places
        self.rows = places.rows
        self.queues = places.queues
        self.keys = places.keys
        self.entry_keys = places.entry_keys
        self.selection = places.selection
        self.future = places.future
        self.leases = places.leases
        self.expiry = places.expiry
        self.dead = places.dead
        self.tombs = places.tombs
        self.woken = places.woken
        self.values = Values() if values is None else values
        """Told of each value that comes and goes."""
        self.applied: i64 = 0
        """TIME of the newest record applied; set when its effect is complete."""
        self.mark_at: i64 = 0
        """TIME of the newest MARK."""
        self.snapshot_at: i64 = 0
        """TIME of the newest MARK behind a snapshot."""
        self.last_inserted: i64 = 0
        self.restamped: i64 = 0
        """How many jobs have got another time of arrival in their old place."""
        self.ended: i64 = 0
        """How many rows have ended or been restated: how fast old records become worthless."""
        self.unstated: Row | None = None
        """A row of many records to be stated anew once its value is in memory."""
        self.senders: dict[bytes, tuple[int, int]] = {}
        """For each sender its mark, and the TIME of the record that says so."""
        self.unwritten_marks: dict[bytes, bytes] = {}
        """For senders whose newest mark stands in the id of a job only: that id.

        The record of a job of a sender tells by itself that it came, whatever a crash leaves behind
        it: see `learn_mark`."""
        self.endings = Endings()
        """How leases ended, so that whoever ended one and did not hear of it can be told."""
        self.ends_at: i64 = 0
        """TIME of the newest ENDS."""
        self._settled_row = b""
        self._settled_at: i64 = 0
        """Row and TIME of the lease settled last: does the row go with it?"""

    @property
    def now(self) -> int:
        """The state's own time: that of the newest record, or later."""
        return self.places.now

    def promote(self, now: i64) -> i64:
        """Make the rows ready that have become due; returns the state's time."""
        return self.places.promote(now)

    def queue(self, name: bytes) -> QueueRows:
        """The queue of this name, made if need be."""
        return self.places.queue(name)

    def apply(self, command: Command, time: i64) -> None:
        """Carry out a command that is a record of the log by itself, with this TIME."""
        if self.senders and isinstance(command, Put) and command.id not in self.rows:
            self.learn_mark(command.id, time)
        self.apply_part(command, time)

    def apply_part(self, command: Command, time: i64) -> None:
        """Carry out a member of a GROUP or an image of a snapshot: their ids tell no marks."""
        places = self.places
        if time > places.now:
            places.now = time
        self._carry_out(command, time)
        if time >= self.applied:
            self.applied = time
        else:
            self._apply_late(command, time)

    def replay(self, payload: bytes, time: int) -> None:
        """Carry out the command of a record."""
        self.apply(decode(payload), time)

    def _carry_out(self, command: Command, time: i64) -> None:
        if isinstance(command, Put):
            self._put(command, time)
        elif isinstance(command, Lease):
            self._lease(command)
        elif isinstance(command, (Purge, Delete, Expire)):
            self._remove(command, time)
        elif isinstance(command, Complete):
            self._complete(command)
        elif isinstance(command, Retry):
            self._retry(command, time)
        elif isinstance(command, Group):
            for member in command.members:
                self._carry_out(member, time)
        elif isinstance(command, Timeout):
            self._timeout(command, time)
        elif isinstance(command, Renew):
            self._renew(command)
        elif isinstance(command, Value):
            self._value(command, time)
        elif isinstance(command, Touch):
            self._touch(command)
        elif isinstance(command, Add):
            self._add(command, time, 0)
        elif isinstance(command, Schedule):
            self._add(command, time, BY_SCHEDULE)
        elif isinstance(command, Start):
            self._start(command, time)
        elif isinstance(command, Fail):
            self._fail(command, time)
        elif isinstance(command, Dead):
            self._dead(command)
        elif isinstance(command, Tomb):
            self._tomb(command, time)
        elif isinstance(command, Keys):
            self._keys(command)
        elif isinstance(command, Redrive):
            self._redrive(command)
        elif isinstance(command, Sender):
            self._sender(command, time)
        elif isinstance(command, Queue):
            self._queue(command, time)
        elif isinstance(command, Ends):
            self._ends(command, time)
        elif isinstance(command, Mark):
            self.mark_at = time
            if command.note == SNAPSHOT_NOTE:
                self.snapshot_at = time

    def _apply_late(self, command: Command, time: i64) -> None:
        """A TIME that goes back, as in logs of other writers, must not look older than the image.

        Whoever judges records by their TIME would take it for spent.
        """
        members: tuple[Command, ...] = (command,)
        if isinstance(command, Group):
            members = command.members
        for member in members:
            row = self.rows.get(member.id)
            if row is not None and row.at > time:
                row.own().value_at = row.value_at
                row.at = time

    # The row as a whole.

    def _put(self, command: Put, time: i64) -> None:
        places = self.places
        row_id = command.id
        known = row = self.rows.seek(row_id)
        queue = places.queue(command.queue)
        if row is None:
            row = Row(row_id, queue.rules, command.key, command.value)
            queue.total += 1
        else:
            self.ended += 1
            if row.inserted != command.inserted and queue.name:
                self.restamped += 1
            self.values.go(row)
            places.unplace(row)
            places.unkey(row)
            if row.queue is not queue.rules:
                places.leave(self.queues[row.queue.name])
                queue.total += 1
                row.queue = queue.rules
            row.key = command.key
            row.value = command.value
            row.stage = WAITING_ROW
            row.more = None
            places.set_expiry(row, 0)
        row.rank = command.rank
        row.due = command.due
        row.inserted = command.inserted
        row.modified = command.modified
        row.kind = u8(command.kind)
        row.policy = command.policy
        row.at = time
        if command.attempts | command.timeouts | command.fails or command.aliases:
            more = row.more = More()
            more.attempts = min(command.attempts, _MOST_TRIES)
            more.timeouts = command.timeouts
            more.fails = command.fails
            more.aliases = command.aliases
        if known is None:  # whole by now: upkeep looks without the lock
            self.rows.add(row)
        if command.inserted > self.last_inserted:
            self.last_inserted = command.inserted
        if command.expires:
            places.set_expiry(row, command.expires)
        if row.key or command.aliases:
            places.keys.add(row)
        places.place(row)
        self.values.come(row)

    def _add(self, job: WorkqJob, time: i64, more_flags: i64) -> None:
        created = max(job.created, _FIRST_INSTANT)
        start = max(job.time, _FIRST_INSTANT) if job.time else created
        expires = _later(start, job.ttl) if job.ttl else 0
        flags: i64 = PERSIST | FROM_WORKQ | more_flags
        policy = policy_of(flags, 0, job.ttr, job.max_attempts, 0, job.max_fails)
        self._put(
            Put(
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
            ),
            time,
        )

    def _remove(self, command: Command, time: i64) -> None:
        row = self.rows.get(command.id)
        if row is None:
            return
        if row.queue.name and not isinstance(command, Expire):
            self._remember(row, command, time)
        self._drop(row)

    def _drop(self, row: Row) -> None:
        self.rows.remove(row)
        self.ended += 1
        self.values.go(row)
        places = self.places
        queue = places.queue_of(row)
        places.unplace(row)
        places.unkey(row)
        places.set_expiry(row, 0)
        places.leave(queue)

    def _tomb(self, command: Tomb, time: i64) -> None:
        places = self.places
        row = self.rows.get(command.id)
        if row is not None and row.queue.name and not (command.queue or command.key):
            # Of an id alone: the job was gone; cleaning may have left its PUT and not its end.
            self._drop(row)
            row = None
        if row is None:
            modified = command.modified
            last = self.last_inserted
            self._put(
                Put(
                    command.id, command.queue, command.key, 0, modified, modified, modified, 0, 0,
                    b"",
                ),
                time,
            )  # fmt: skip
            self.last_inserted = last  # the sender's clock, not ours
            row = self.rows[command.id]
        self.values.go(row)
        places.unplace(row)
        places.unkey(row)
        row.shed()
        row.value = b""
        row.kind = 0
        places.set_expiry(row, 0)
        row.modified = command.modified
        row.stage = DELETED_ROW
        places.keys.add(row)
        places.stand(row)

    # Handing out and giving back.

    def _lease(self, command: Lease) -> None:
        row = self.rows.get(command.id)
        if row is not None and row.stage <= PROCESSING_ROW:
            row.own().attempts = min(command.attempt, _MOST_TRIES)
            self._hand_out(row, command.start, command.until, command.worker)

    def _start(self, command: Start, time: i64) -> None:
        row = self.rows.get(command.id)
        if row is not None and row.stage <= PROCESSING_ROW:
            row.own().attempts = min(row.attempts + 1, _MOST_TRIES)
            length = row.policy.lease or 60 * SECOND // MILLISECOND
            self._hand_out(row, time, _later(time, length), b"")

    def _hand_out(self, row: Row, start: i64, until: i64, worker: bytes) -> None:
        self.places.unplace(row)
        more = row.own()
        more.chain += 1
        more.start = start
        more.worker = worker
        self.places.hand_out(row, until)

    def _renew(self, command: Renew) -> None:
        row = self.rows.get(command.id)
        if row is not None and row.stage == PROCESSING_ROW:
            row.own().chain += 1
            self.places.renew(row, command.until)

    def _timeout(self, command: Timeout, time: i64) -> None:
        row = self.rows.get(command.id)
        if row is None or row.stage > PROCESSING_ROW:
            return
        more = row.own()
        if more.timeouts < _MOST:
            more.timeouts += 1
        if 0 < row.policy.max_attempts <= row.attempts:
            self._bury(row, TOO_MANY_ATTEMPTS, time)
        else:
            self._wait_again(row, row.due)

    def _retry(self, command: Retry, time: i64) -> None:
        row = self.rows.get(command.id)
        if row is None or row.stage > PROCESSING_ROW:
            return
        more = row.own()
        more.timeouts = command.timeouts
        more.fails = command.fails
        more.reason = command.reason
        more.note = command.note
        if row.stage == PROCESSING_ROW:
            if command.reason == GAVE_UP:
                self._settle(row, _RETRIED, time)
            elif command.reason == GAVE_BACK:
                self._settle(row, _RETURNED, time)
        self._wait_again(row, command.due or row.due)

    def _redrive(self, command: Redrive) -> None:
        row = self.rows.get(command.id)
        if row is None or row.stage != FAILED_ROW:
            return
        places = self.places
        places.unplace(row)
        row.shed()
        if command.max_attempts != row.policy.max_attempts:
            row.policy = row.policy.changed(max_attempts=command.max_attempts)
        row.stage = WAITING_ROW
        row.due = command.due
        places.keys.add(row)
        places.place(row)

    def _wait_again(self, row: Row, due: i64) -> None:
        self.places.unplace(row)
        row.stage = WAITING_ROW
        more = row.own()
        more.chain += 1
        more.start = 0
        more.worker = b""
        row.due = due
        self.places.place(row)

    # Ends.

    def _complete(self, command: Complete) -> None:
        row = self.rows.get(command.id)
        if row is None or row.stage > PROCESSING_ROW:
            return
        self.places.unplace(row)
        self.places.unkey(row)
        if command.result or row.more is not None:
            row.own().result = command.result
        row.stage = COMPLETED_ROW
        self.places.stand(row)

    def _fail(self, command: Fail, time: i64) -> None:
        row = self.rows.get(command.id)
        if row is None or row.stage > PROCESSING_ROW:
            return
        more = row.own()
        if more.fails < _MOST:
            more.fails += 1
        more.result = command.result
        if row.stage == PROCESSING_ROW:
            self._settle(row, _DEAD, time)
        self._bury(row, FAILED, time)

    def _dead(self, command: Dead) -> None:
        row = self.rows.get(command.id)
        if row is not None and (row.stage <= PROCESSING_ROW or row.stage == FAILED_ROW):
            self._bury(row, command.reason, command.when)

    def _bury(self, row: Row, reason: i64, when: i64) -> None:
        self.places.unplace(row)
        self.places.unkey(row)
        more = row.own()
        more.reason = reason
        more.when = when
        more.note = b""
        row.stage = FAILED_ROW
        self.places.stand(row)

    # Single fields.

    def _touch(self, command: Touch) -> None:
        row = self.rows.get(command.id)
        if row is None:
            return
        row.own().chain += 1
        places = self.places
        if row.place == DEAD and command.expires != row.expires:
            places.unplace(row)
            places.set_expiry(row, command.expires)
            places.stand(row)
            return
        places.set_expiry(row, command.expires)
        if row.place == IDLE and row.queue.name:
            places.queue_of(row).tally(IDLE, -1)
            places.place(row)

    def _keys(self, command: Keys) -> None:
        row = self.rows.get(command.id)
        if row is None:
            return
        keys = self.places.keys
        keyed = row.stage <= PROCESSING_ROW or row.stage == DELETED_ROW
        if keyed:
            keys.remove(row)
        row.key = command.key
        more = row.own()
        more.aliases = command.aliases
        more.chain += 1
        if row.stage == DELETED_ROW:
            self.places.unplace(row)
            row.modified = command.modified
            self.places.stand(row)
        row.modified = command.modified
        if keyed:
            keys.add(row)
            if not row.queue.name:
                self.places.list_entry(row)

    def _value(self, command: Value, time: i64) -> None:
        row = self.rows.get(command.id)
        if row is None or row.stage > PROCESSING_ROW:
            return
        self.values.go(row)
        more = row.own()
        more.chain += 1
        row.kind = u8(command.kind)
        row.value = command.value
        row.modified = command.modified
        more.value_at = time
        if command.operation:
            numbered = more.operations
            if numbered is None:
                numbered = more.operations = Numbered()
            answer = Answer(command.modified, command.kind, command.value)
            numbered.add(command.operation, answer)
        self.values.come(row)

    # What concerns no row.

    def learn_mark(self, row_id: bytes, time: i64) -> None:
        """The mark that stands in the id of a new row whose PUT is a record by itself.

        An id of version 8 that begins with the 12 bytes of a sender ends with a mark. Only its
        forwarder writes such records once the sender is known; whoever else states a row with such
        an id does so in a GROUP (see `Puts`).
        """
        if row_id[6] & 0xF0 != 0x80:
            return
        sender = row_id[:12]
        known = self.senders.get(sender)
        if known is None or time < known[1]:
            return
        newest = self.unwritten_marks.get(sender)
        if newest is None or newest < row_id:
            self.unwritten_marks[sender] = row_id

    def _sender(self, command: Sender, time: i64) -> None:
        mark = self.mark_of(command.name)
        self.unwritten_marks.pop(command.name, None)
        if command.mark:
            self.senders[command.name] = (max(mark, int(command.mark)), time)
        else:
            self.senders.pop(command.name, None)

    def _queue(self, command: Queue, time: i64) -> None:
        places = self.places
        queue = places.queue(command.queue)
        for row in queue.dead.values():
            if row.when:
                places.dead.remove(row)
        queue.rules.change(command.settings, time)
        for row in queue.dead.values():
            places.keep_dead(row)
        places.selection.detach(queue)
        places.selection.refresh(queue)
        if queue.open:
            places.woken.add(queue.name)

    # What is remembered of rows that are gone.

    def _ends(self, command: Ends, time: i64) -> None:
        self.endings.add(command)
        self.ends_at = time

    def _settle(self, row: Row, end: i64, time: i64) -> None:
        """A lease ends, the row stays, or goes by another command of the same record."""
        self.endings.settled(row.id, row.attempts, end)
        self._settled_row = row.id
        self._settled_at = time

    def _remember(self, row: Row, command: Command, time: i64) -> None:
        """Why a job goes."""
        end: i64 = _GONE
        if row.stage == COMPLETED_ROW:
            end = _DONE
        elif row.stage == FAILED_ROW:
            end = _DEAD
        elif row.stage == PROCESSING_ROW and not isinstance(command, Delete):
            end = _DONE
        if self._settled_at == time and self._settled_row == command.id:
            end = _DROPPED if row.stage == FAILED_ROW else _LEFT
        self.endings.went(command.id, row.attempts, end)

    def mark_of(self, sender: bytes) -> int:
        """How far a sender has come; 0 if it is not known."""
        mark = self.senders.get(sender, (0, 0))[0]
        newest = self.unwritten_marks.get(sender)
        return mark if newest is None else max(mark, int.from_bytes(newest[12:], "big"))

    # The state as commands.

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
        for command in self.general_commands():
            yield command
        for row_id in sorted(self.rows):
            row = self.rows[row_id]
            if row.policy.flags & PERSIST:
                for command in image(row, values(row)):
                    yield command

    def general_commands(self) -> list[Command]:
        """Those of them that concern no row: settings and senders."""
        found: list[Command] = []
        for name in sorted(self.queues):
            queue = self.queues[name]
            if queue.settings_at:
                found.append(Queue(name, queue.settings))
        for name in sorted(self.senders):
            found.append(Sender(name, self.mark_of(name)))
        return found


def _later(start: i64, length: i64) -> i64:
    """So many ms after an instant, or the last instant there is."""
    left = (_LAST_INSTANT - max(start, 0)) // MILLISECOND
    return start + length * MILLISECOND if length < left else _LAST_INSTANT
