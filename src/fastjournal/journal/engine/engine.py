"""Decide, log, apply: the one place where requests become records and records become state.

Rules:

1. Everything happens under `lock`: one writer, one order. Whoever calls holds it.
2. `commit` logs, then applies: a refused write leaves the state as it was. Whatever strikes between
   the two, an interrupt say, stops the log: the state would no longer follow it.
3. A `batch` is a turn of many: each command is encoded into the turn's buffer and applied before
   the next is decided, and all are logged with one write at its end, still under the lock, so
   nobody sees an effect before its record is appended. Should the disk be full, the reserve makes
   room for exactly this write; a batch never holds more than half of it, and without a reserve
   there are no batches. Nor does it make room for a record larger than that: what is left would not
   do for the others. A batch inside a batch is part of it. What strikes while a command is being
   applied stops the log, as above.
4. `settle` waits, without the lock, until a TIME is as safe as the sync policy promises. So does
   `settle_reading`, for who was only shown something: what is shown is safe, too. After a stop
   reading goes on with what is there.
5. Values may lie in the log only. `load` sees to it that a row has its value, until another value
   comes; `value` reads it without keeping it. Whoever shows a row calls one of them first, under
   the lock. A decision that needs a value is asked again once it is there: `ask`.
6. Where a value lies is only ever written down once its record is in the log.
7. A row of many records whose value is not in memory is stated anew right after the command that
   asked for it, as far as that can be done.
8. The wall clock was stepped forward: leases keep their length. Every lease that runs is renewed by
   the length of the step, each with a record of its own: so its end is an instant in the log as
   ever, and a restart moves it by nothing; locks, which live in memory, are moved there. Only then
   does the journal's clock take the step. Due dates and expiries are instants of the wall clock:
   they come nearer by it. Without space for the records the step waits: time goes on evenly
   meanwhile.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar, final

from mypy_extensions import i64

from fastjournal.buffers import BytesWriter
from fastjournal.clock import SteadyClock
from fastjournal.errors import JournalError, NoSpace, Stopped
from fastjournal.journal.decide.ground import Ground, instant_after
from fastjournal.journal.decide.lease import Leases
from fastjournal.journal.decide.operator import Operator
from fastjournal.journal.decide.put import Puts
from fastjournal.journal.decide.timers import NEVER, Timers
from fastjournal.journal.engine.counting import JobCounts
from fastjournal.journal.engine.events import Event, Subscription
from fastjournal.journal.engine.reserve import RESERVE_SIZE, Reserve
from fastjournal.journal.engine.wakeups import Wakeups
from fastjournal.journal.entries.locks import Locks
from fastjournal.journal.language.codec import is_own, write_command
from fastjournal.journal.language.commands import (
    PERSIST,
    Command,
    Complete,
    Dead,
    Delete,
    Ends,
    Expire,
    Fail,
    Group,
    Lease,
    Mark,
    Purge,
    Put,
    Renew,
    Sender,
    Timeout,
)
from fastjournal.journal.spill.fetching import Fetching
from fastjournal.journal.state.row import (
    COMPLETED_ROW,
    DELETED_ROW,
    FAILED_ROW,
    FUTURE,
    LEASED,
    PROCESSING_ROW,
    READY,
    Row,
    ValueNeeded,
    image,
    lease_of,
)
from fastjournal.log.record import add_record, record_size
from fastjournal.log.write.commit_queue import unknown
from fastjournal.log.write.log_writer import LogWriter
from fastjournal.model import Lease as LeaseView

__all__ = ["NEVER", "Batch", "Engine", "leases_of"]

_BATCH_BYTES: Final[i64] = RESERVE_SIZE // 2
_Answer = TypeVar("_Answer")


@final
class _Notice:
    """A command of a batch that somebody is to be told of, with queue and keys of its rows."""

    def __init__(self, command: Command, time: i64, names: dict[bytes, tuple[bytes, ...]]) -> None:
        self.command = command
        self.time: i64 = time
        self.names = names


@final
class Engine:
    """State, decisions and log of one journal."""

    def __init__(
        self,
        ground: Ground,
        log: LogWriter,
        clock: SteadyClock,
        reserve: Reserve,
        fetching: Fetching,
    ) -> None:
        self.ground = ground
        """What all who decide stand on:"""
        self.puts = Puts(ground)
        self.leases = Leases(ground)
        self.timers = Timers(ground)
        self.operator = Operator(ground)
        state = ground.state
        self.state = state
        self.log = log
        self.clock = clock
        self.reserve = reserve
        self.lock: Any = threading.RLock()
        self.wakeups = Wakeups(state.selection.has_version)
        self.counts = JobCounts()
        self.subscriptions: list[Subscription] = []
        self.locks = Locks()
        """Who holds which keys, of entries and of jobs."""
        self.moved_by_steps: list[Callable[[int], None]] = []
        """Told by how much the clock is to step forward: what they hold in memory keeps its
        length."""
        self.timer_at: i64 = self.timers.next_deadline() or NEVER
        """When time has work to do next, or earlier; the timer thread looks then."""
        self.timer = threading.Event()
        """Set to make it look earlier."""
        self.values = state.values
        """Which values are in memory."""
        self.fetching = fetching
        self.own = False
        """Whether the log holds anything that the Workq server cannot read."""
        self.read_until: Callable[[int], int] | None = None
        """Asked with the time: up to when all that had arrived was carried out. If that is not now,
        it has more read and sets `timer` then. None: nothing waits anywhere to be read."""
        self.volatile = False
        """There may be jobs that live in memory only."""
        self.memory_effects: i64 = 0
        """Effects of requests on such jobs so far: no sync brings them to stable storage."""
        self.last_time: i64 = 0
        """TIME of the newest record logged through this engine."""
        self.batching: Batch | None = None
        """The batch under way."""
        self._announced: set[bytes] = set()
        """Queues whose subscribers know that work is due."""
        self._must_wait = log.options.sync == "always"
        self.zone: i64 = log.stream.zone
        """The zone bytes of records."""
        self._written: i64 = log.written_time
        """TIME of the newest record in the log whose command is applied."""
        self._payload = BytesWriter()
        self._record = BytesWriter()
        self.scratch = BytesWriter()
        """Where a record is put together; an interrupt may leave something in it."""
        self._whole = Batch(self, True)
        self._part = Batch(self, False)
        log.on_stop = self.timer.set  # whose thread tells those who wait

    # A command becomes a record, and the record state.

    def ask(self, decide: Callable[..., _Answer], *given: Any, **how: Any) -> _Answer:
        """Decide; once more, as if it had been asked once, with the value it needs in memory."""
        ground = self.ground
        stamp = ground.stamp
        try:
            return decide(*given, **how)
        except ValueNeeded as needed:
            self.load(needed.row)
        ground.stamp = stamp
        return decide(*given, **how)

    def commit(self, command: Command, now: i64 = 0) -> i64:
        """Log one command and apply it; returns the TIME of its record.

        `now`: the clock, if it was just read.
        """
        if self.volatile:
            kept = self._part_in_memory(command)
            if kept is None:
                return self.last_time
            command = kept
        batch = self.batching
        payload = self.encode(command)
        if batch is not None:
            time = batch.add(command, payload, now)
        else:
            time = self.log_now(command, payload, now)
        if self.state.unstated is not None:
            self._restate()
        return time

    def encode(self, command: Command) -> bytes:
        """A command's payload, with the zone bytes of this log."""
        out = self._payload
        out.truncate(0)
        if self.zone:
            write_command(out, command, self.zone)
        else:
            command.write(out)
        return out.getvalue()

    def next_time(self, now: i64, last: i64) -> i64:
        """The TIME of a record that follows one of TIME `last`."""
        if not now:
            now = self.clock.now()
        if last < self._written:
            last = self._written
        return now if now > last else last + 1

    def log_now(self, command: Command, payload: bytes, now: i64) -> i64:
        """Log a command by itself, then apply it."""
        time = self.next_time(now, 0)
        names = self._names(command) if self.subscriptions else None
        try:
            self.append(self._one_record(time, payload), 1, time, time)
            self._apply(command, payload, time)
            self._after(command, time, names)
            self._written = time
        except BaseException as error:
            if self.log.written_time != self._written:
                self.log.stop(error)
            raise
        return time

    def _one_record(self, time: i64, payload: bytes) -> bytes:
        out = self._record
        out.truncate(0)
        self.scratch.truncate(0)
        add_record(out, self.scratch, time, payload, self.zone)
        return out.getvalue()

    def append(self, data: bytes, count: i64, first: i64, last: i64) -> None:
        """Write encoded records; on a full disk with the help of the reserve."""
        log = self.log
        try:
            log.append_encoded(data, count, first, last)
        except NoSpace:
            if log.failure is not None or len(data) > _BATCH_BYTES:
                raise
            if not self.reserve.give_up():
                raise
            log.append_encoded(data, count, first, last)

    def _apply(self, command: Command, payload: bytes, time: i64) -> None:
        """Apply the command of the record that was just written."""
        if not self.own:
            self.own = is_own(payload)
        self.last_time = time
        values = self.values
        values.record = 0
        self.state.apply(command, time)
        if values.fresh:
            values.written(self.log.began_in, self.log.began_at)

    def _restate(self) -> None:
        row = self.state.unstated
        self.state.unstated = None
        if row is None or self.state.rows.get(row.id) is not row:
            return
        try:
            value = self.value(row)
        except JournalError:
            return  # whoever wants the value is told
        with suppress(NoSpace):  # the row stays as it is; who writes next is told
            self.commit(Group(tuple(image(row, value))))

    def note(self, command: Command) -> None:
        """Log and apply a command that is not worth the reserve: `NoSpace` if there is no room.

        Nothing, where the log is kept readable for the Workq server.
        """
        if not self.own:
            return
        payload = self.encode(command)
        time = self.next_time(0, 0)
        try:
            self.log.append_encoded(self._one_record(time, payload), 1, time, time)
            self._apply(command, payload, time)
            self._written = time
        except BaseException as error:
            if self.log.written_time != self._written:
                self.log.stop(error)
            raise

    def remember(self, command: Command) -> None:
        """Apply a command without logging it: its row lives in memory only and dies with us."""
        try:
            time = self.state.applied
            names = self._names(command) if self.subscriptions else None
            self.state.apply(command, time)
            self._after(command, time, names)
        except BaseException as error:
            self.log.stop(error)
            raise

    def _part_in_memory(self, command: Command) -> Command | None:
        """Apply what concerns rows that live in memory only; returns what is to be logged."""
        kept: list[Command] = []
        volatile: list[Command] = []
        for member in _members(command):
            if isinstance(member, Put):
                lasts = member.policy.flags & PERSIST != 0
            else:
                row = self.state.rows.get(member.id) if member.id else None
                lasts = row is None or row.policy.flags & PERSIST != 0
            (kept if lasts else volatile).append(member)
        if not volatile:
            return command
        self.memory_effects += 1
        for member in volatile:
            self.check_room(member)
        for member in volatile:
            self.remember(member)
        if not kept:
            return None
        return kept[0] if len(kept) == 1 else Group(tuple(kept))

    def batch(self) -> "Batch":
        """Commands committed inside are logged together; see rule 3."""
        return self._whole if self.batching is None and self.reserve.is_kept else self._part

    def wrote(self, last: i64) -> None:
        """All that was applied is in the log, the newest record with this TIME."""
        self._written = self.last_time = last

    def begin(self) -> None:
        """At the start of a request: what must be seen to before anything is decided.

        A step of the wall clock; and a batch that is still there was kept from ending: an interrupt
        may strike at the first step of `Batch.__exit__`.
        """
        if self.batching is not None:
            self.batching = None
            self.log.stop(KeyboardInterrupt("a batch was interrupted at its end"))
            self.fail_waiters()
        if self.clock.stepped:
            self._follow_step()

    def check_room_to_grow(self) -> None:
        """Refuse what makes the log grow while the disk is full."""
        if not self.reserve.is_kept:
            self.reserve.check()

    # Values, and how safe what was written is.

    def load(self, row: Row) -> None:
        """Let a row have its value until another one comes; call it before a row is shown."""
        if row.value is None:
            self.fetching.load(row)
        else:
            self.values.use(row)

    def value(self, row: Row) -> bytes:
        """A row's value, which is not kept if it was not there."""
        value = row.value
        return self.fetching.value(row) if value is None else value

    def check_room(self, command: Command) -> None:
        """Refuse a command that is to be remembered if there is no room for it."""
        self.values.check(self.state.rows, command)

    def stamp_of(self, timestamp: i64) -> i64:
        """A timestamp of this machine's clock, ns, by the journal's; 0 stays 0."""
        return self.clock.of_wall(timestamp, self.ground.limits.max_skew) if timestamp else 0

    def settle(self, time: i64) -> None:
        """Wait until the record of that TIME is as safe as the policy promises."""
        if self._must_wait and time:
            self.log.wait_synced(time)

    def settle_reading(self, time: i64) -> None:
        """Wait until what was shown as of that TIME is as safe; not once the log has stopped."""
        if self._must_wait and self.log.synced_time < time and self.log.failure is None:
            self.log.wait_synced(time)

    # Time.

    def tick(self, limit: i64 = 1000) -> i64:
        """Let time do its work: due rows, lost leases, expiry; returns how many commands it took.

        Bounded, so that requests get their turn in between; call again while it returns `limit`.
        """
        count: i64 = 0
        if self.log.failure is not None:
            return 0
        timers = self.timers
        now: i64 = self.clock.now()
        read_until = NEVER
        if self.read_until is not None and timers.lease_overdue(now):
            read_until = self.read_until(now)
        with self.batch():
            for command in timers.passed(now, limit, read_until):
                if self._in_memory(command):
                    self.remember(command)
                else:
                    self.commit(command)
                self.counts.passed(command)
                count += 1
        if count < limit:
            self.timer_at = timers.next_deadline() or NEVER
        self.notify()
        return count

    def holds_back(self) -> bool:
        """Whether a lease has ended that may not be noticed yet: more must be read first."""
        if self.read_until is None or self.log.failure is not None:
            return False
        now: i64 = self.clock.now()
        return self.timers.lease_overdue(now) and self.read_until(now) < now

    def _in_memory(self, command: Command) -> bool:
        """The command concerns a row that is not on disk."""
        row_id = command.members[0].id if isinstance(command, Group) else command.id
        row = self.state.rows.get(row_id)
        return row is not None and not row.policy.flags & PERSIST

    def _follow_step(self) -> None:
        """Take the step that the clock holds back; outside of any batch (rule 8)."""
        clock = self.clock
        step = clock.step()
        if not step:
            return
        if self.log.failure is None:
            try:
                with self.batch():
                    for row in self._leased():
                        until = instant_after(row.when, step)
                        renew = Renew(row.id, until, row.attempts)
                        if row.policy.flags & PERSIST:
                            self.commit(renew)
                        else:
                            self.remember(renew)
            except NoSpace:
                return
        for move in self.moved_by_steps:
            move(step)
        clock.take_step(step)

    def _leased(self) -> list[Row]:
        """Looks through all rows, which is quick enough for something so rare."""
        state = self.state
        for queue in state.queues.values():
            if queue.counts[LEASED]:
                return [row for row in state.rows.values() if row.place == LEASED]
        return []

    # Who is told.

    def notify(self) -> None:
        """Wake consumers and subscribers of queues that got something to give."""
        woken = self.state.woken
        if not woken:
            return
        if self.wakeups.consumers or self.subscriptions:
            queues = self.state.queues
            ready: list[tuple[bytes, int]] = []
            for name in woken:
                queue = queues.get(name)
                if queue is not None and queue.open:
                    ready.append((name, queue.counts[READY]))
            self.wakeups.ready(ready)
            for name, _ in ready:
                if self.subscriptions and name not in self._announced:
                    self._announced.add(name)
                    self._publish(Event("due", name, at=self.state.now))
        woken.clear()

    def pass_on(self) -> None:
        """A consumer has asked: if it left what another was to be woken for, wake that one."""
        wakeups, queues = self.wakeups, self.state.queues
        ready: list[tuple[bytes, int]] = []
        if wakeups.consumers:
            for name in wakeups.called:
                queue = queues.get(name)
                if queue is not None and queue.open:
                    ready.append((name, 1))
        wakeups.called.clear()
        wakeups.ready(ready)

    def forget(self, subscription: Subscription) -> None:
        """Send it no more events; any thread may ask."""
        with self.lock:
            if subscription in self.subscriptions:
                self.subscriptions.remove(subscription)

    def subscribe(self, subscription: Subscription) -> None:
        """Send events from now on; what is due already is told at once."""
        self.subscriptions.append(subscription)
        if "due" in subscription.kinds:
            now = self.state.promote(self.clock.now())
            for queue in self.state.queues.values():
                if queue.open:
                    subscription.push(Event("due", queue.name, at=now))
                    self._announced.add(queue.name)

    def asked(self, queue: bytes) -> None:
        """A consumer leased from this queue: tell subscribers again when more is due."""
        if self._announced:
            self._announced.discard(queue)

    def fail_waiters(self) -> None:
        """Wake everybody: the journal closes or has stopped."""
        self.wakeups.all()
        for subscription in self.subscriptions:
            subscription.end()

    def make_notice(self, command: Command, time: i64) -> _Notice | None:
        """What is to be told of a command of a batch once it is logged; None: there is nobody."""
        if self.subscriptions or self.wakeups.callers:
            return _Notice(command, time, self._names(command))
        return None

    def send_notice(self, notice: _Notice) -> None:
        """Send what was made."""
        self._send_events(notice.command, notice.time, notice.names)

    def _after(
        self, command: Command, time: i64, names: dict[bytes, tuple[bytes, ...]] | None
    ) -> None:
        """Tell whoever is concerned by a command that was just applied."""
        self.remind(command, time)
        wakeups, woken = self.wakeups, self.state.woken
        if wakeups.callers or self.subscriptions:
            self._send_events(command, time, names)
        if woken:
            if wakeups.consumers or self.subscriptions:
                self.notify()
            else:
                woken.clear()

    def remind(self, command: Command, time: i64) -> None:
        """Let the timer know if something is to happen before it would look again."""
        deadline = self._deadline(command, time)
        if deadline < self.timer_at:
            self.timer_at = deadline
            self.timer.set()

    def _deadline(self, command: Command, time: i64) -> i64:
        """The first instant at which this command makes something happen, or an earlier one."""
        first = NEVER
        if isinstance(command, Put):
            if command.due > time:
                first = command.due
            return min(first, command.expires) if command.expires else first
        if isinstance(command, Lease):
            return command.until
        if isinstance(command, (Purge, Complete, Delete, Expire, Mark, Sender, Ends)):
            return NEVER
        if isinstance(command, Group):
            for member in command.members:
                first = min(first, self._deadline(member, time))
            return first
        row = self.state.rows.get(command.id)
        if row is None:
            return 0
        if row.stage == DELETED_ROW:
            return instant_after(row.modified, self.ground.limits.gc_grace)
        if row.stage > COMPLETED_ROW:
            return 0  # dead rows have an end of their own
        if row.place == FUTURE:
            first = row.due
        elif row.stage == PROCESSING_ROW:
            first = row.when
        return min(first, row.expires) if row.expires else first

    def _send_events(
        self, command: Command, time: i64, names: dict[bytes, tuple[bytes, ...]] | None
    ) -> None:
        """One event for each row that the command names."""
        named_rows: dict[bytes, bool] = {}
        for member in _members(command):
            if member.id:
                dying = isinstance(member, (Fail, Dead, Timeout))
                named_rows[member.id] = named_rows.get(member.id, False) or dying
        for row_id, dying in named_rows.items():
            row = self.state.rows.get(row_id)
            if row is None or row.stage > PROCESSING_ROW:
                self.wakeups.ended(row_id)
            if not self.subscriptions:
                continue
            if row is not None:
                named: tuple[bytes, ...] = (row.queue.name, row.key)
            else:
                named = (b"", b"") if names is None else names.get(row_id, (b"", b""))
            dead = dying and row is not None and row.stage == FAILED_ROW
            for key in named[1:]:
                self._publish(Event("dead" if dead else "changed", named[0], key, row_id, time))

    def _names(self, command: Command) -> dict[bytes, tuple[bytes, ...]]:
        """Queue and keys of the rows a command names, which it may remove."""
        found: dict[bytes, tuple[bytes, ...]] = {}
        for member in _members(command):
            row = self.state.rows.get(member.id)
            if row is not None:
                found[row.id] = (row.queue.name, row.key, *row.rare.aliases)
            elif isinstance(member, (Put, Purge)):
                found[member.id] = (member.queue, member.key)
        return found

    def _publish(self, event: Event) -> None:
        for subscription in self.subscriptions:
            if event.kind in subscription.kinds:
                subscription.push(event)


def leases_of(engine: Engine, rows: list[Row]) -> list[LeaseView]:
    """What was leased, for those who are shown it."""
    leases = []
    for row in rows:
        engine.load(row)
        leases.append(lease_of(row))
    return leases


def _members(command: Command) -> tuple[Command, ...]:
    return command.members if isinstance(command, Group) else (command,)


@final
class Batch:
    """Commands that are applied and wait to be logged together.

    An engine has one for all its turns, and one that does nothing.
    """

    def __init__(self, engine: Engine, leads: bool) -> None:
        """`leads`: else it is part of the batch under way, or there is none (rule 3)."""
        self._engine = engine
        self._leads = leads
        self._notices: list[_Notice] = []
        self._out = BytesWriter()
        self._scratch = engine.scratch
        self._count: i64 = 0
        self._first: i64 = 0
        self._last: i64 = 0
        self._since: i64 = 0
        """TIME of the newest record in the log when it began."""
        self._applying = False
        """A command is in the buffer, and not wholly applied."""

    def __enter__(self) -> "Batch":
        if self._leads:
            self._scratch.truncate(0)
            self._out.truncate(0)
            self._count = 0
            self._last = 0
            self._applying = False
            if self._notices:
                self._notices = []
            self._since = self._engine._written
            self._engine.batching = self
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._leads:
            return
        engine = self._engine
        try:
            if self._applying and error is not None:
                engine.log.stop(error)
                engine.fail_waiters()
            else:
                self.flush()
        except BaseException as fault:
            engine.log.stop(fault)  # which a flush that failed has done, if it came so far
            engine.batching = None
            raise
        engine.batching = None

    def add(self, command: Command, payload: bytes, now: i64) -> i64:
        """Apply a command; it is logged at the latest when the batch ends."""
        engine = self._engine
        out = self._out
        size: i64 = record_size(len(payload))
        if len(out) + size > _BATCH_BYTES:
            self.flush()
        if size > _BATCH_BYTES or not engine.reserve.is_kept:
            return engine.log_now(command, payload, now)
        time = engine.next_time(now, self._last)
        self._applying = True
        notice = engine.make_notice(command, time)
        if notice is not None:
            self._notices.append(notice)
        engine.values.record = len(out)
        add_record(out, self._scratch, time, payload, engine.zone)
        if not self._count:
            self._first = time
        self._count += 1
        self._last = time
        if not engine.own:
            engine.own = is_own(payload)
        engine.state.apply(command, time)
        engine.remind(command, time)
        self._applying = False
        return time

    def flush(self) -> None:
        """Log what was applied."""
        if not self._count:
            return
        engine = self._engine
        try:
            data = self._out.getvalue()
            self._out.truncate(0)
            count = self._count
            self._count = 0
            notices = self._notices
            if notices:
                self._notices = []
            engine.append(data, count, self._first, self._last)
            engine.wrote(self._last)
            if engine.values.fresh:
                engine.values.written(engine.log.began_in, engine.log.began_at)
            for notice in notices:
                engine.send_notice(notice)
            engine.notify()
        except BaseException as error:
            # The state is ahead of the log and cannot be taken back: stop.
            failure = engine.log.stop(error)
            engine.fail_waiters()
            if not isinstance(error, JournalError):
                raise
            if engine._written != self._since:  # an earlier part of the batch is there
                raise unknown(failure) from error
            if not isinstance(error, Stopped):
                raise failure from error
            raise
