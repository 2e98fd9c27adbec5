"""Decide, log, apply: the one place where requests become records and records become state.

Rules:

1. Everything happens under `lock`: one writer, one order. Whoever calls holds it.
2. `commit` logs, then applies: a refused write leaves the state as it was. Whatever strikes between
   the two, an interrupt say, stops the log: the state would no longer follow it.
3. A `batch` applies each command before the next is decided and logs them with one write at its
   end, still under the lock, so nobody sees an effect before its record is appended. Should the
   disk be full, the reserve makes room for exactly this write; a batch never holds more than half
   of it, and without a reserve there are no batches. A batch inside a batch is part of it. What
   strikes while a command is being applied stops the log, as above.
4. `settle` waits, without the lock, until a TIME is as safe as the sync policy promises. So does
   `settle_reading`, for who was only shown something: what is shown is safe, too. After a stop
   reading goes on with what is there.
5. Values may lie in the log only. `load` sees to it that a row has its value, until another value
   comes; `value` reads it without keeping it. Whoever shows a row calls one of them first, under
   the lock. A decision that needs a value is asked again once it is there: `ask`.
6. Where a value lies is only ever written down once its record is in the log. While it is not known
   for sure, it is the oldest segment in which the record may be.
7. A row of many records whose value is not in memory is stated anew right after the command that
   asked for it, as far as that can be done.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from fastjournal.clock import SteadyClock
from fastjournal.errors import JournalError, NoSpace, Stopped
from fastjournal.journal.decide.jobs import Jobs
from fastjournal.journal.engine.counting import JobCounts
from fastjournal.journal.engine.events import Event, Subscription
from fastjournal.journal.engine.reserve import RESERVE_SIZE, Reserve
from fastjournal.journal.engine.stepping import follow_step
from fastjournal.journal.engine.wakeups import Wakeups
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode, is_own
from fastjournal.journal.language.commands import Command
from fastjournal.journal.spill.fetching import Fetching
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import FUTURE, READY, Row, ValueNeeded, image, lease_of
from fastjournal.journal.state.values import Values
from fastjournal.log.record import record_size
from fastjournal.log.segment import HEADER_SIZE
from fastjournal.log.write.log_writer import LogWriter
from fastjournal.model import Lease, State

__all__ = ["Batch", "Engine", "leases_of"]

_BATCH_BYTES = RESERVE_SIZE // 2
_DEATHS = (k.Fail, k.Dead, k.Timeout)
_NO_DEADLINE = frozenset((k.Complete, k.Delete, k.Expire, k.Purge, k.Mark, k.Sender, k.Ends))
_NO_BATCH: AbstractContextManager[None] = nullcontext()
Names = Mapping[bytes, tuple[bytes, ...]]
"""Queue and key of rows, as they were."""
NEVER = 2**63 - 1
_Answer = TypeVar("_Answer")


class Engine:
    """State, decisions and log of one journal."""

    def __init__(
        self,
        state: JournalState,
        jobs: Jobs,
        log: LogWriter,
        clock: SteadyClock,
        reserve: Reserve,
        fetching: Fetching,
    ) -> None:
        self.state = state
        self.jobs = jobs
        self.log = log
        self.clock = clock
        self.reserve = reserve
        self.lock = threading.RLock()
        self.wakeups = Wakeups()
        self.counts = JobCounts()
        self.subscriptions: list[Subscription] = []
        self.moved_by_steps: list[Callable[[int], None]] = []
        """Told by how much the clock is to step forward: what they hold in memory keeps its
        length."""
        self.timer_at = jobs.timers.next_deadline() or NEVER
        """When time has work to do next, or earlier; the timer thread looks then."""
        self.timer = threading.Event()
        """Set to make it look earlier."""
        self.values: Values = state.values
        """Which values are in memory."""
        self.fetching = fetching
        self.own = False
        """Whether the log holds anything that the Workq server cannot read."""
        self.read_until: Callable[[int], int] | None = None
        """Asked with the time: up to when all that had arrived was carried out. If that is not now,
        it has more read and sets `timer` then. None: nothing waits anywhere to be read."""
        self.last_time = 0
        """TIME of the newest record logged through this engine."""
        self._announced: set[bytes] = set()  # queues whose subscribers know that work is due
        self._batch: Batch | None = None
        self._must_wait = log.options.sync == "always"
        log.on_stop = self.timer.set  # whose thread tells those who wait
        zone = log.stream.zone
        self.encode: Callable[[Command], bytes] = partial(encode, zone=zone) if zone else encode
        """A command's payload, with the zone bytes of this log."""
        self._segment = log.position.segment  # none of the records to come is in an older one

    def ask(self, decide: Callable[..., _Answer], *given: Any, **how: Any) -> _Answer:
        """Decide; once more, as if it had been asked once, with the value it needs in memory."""
        ground = self.jobs.ground
        stamp = ground.stamp
        try:
            return decide(*given, **how)
        except ValueNeeded as needed:
            self.load(needed.row)
        ground.stamp = stamp
        return decide(*given, **how)

    def commit(self, command: Command, now: int = 0) -> int:
        """Log one command and apply it; returns the TIME of its record."""
        time = self._log(command, now)
        if self.state.unstated is not None:
            self._restate()
        return time

    def _log(self, command: Command, now: int = 0) -> int:
        if self._batch is not None:
            return self._batch.add(command)
        return self._commit(command, self.encode(command), now)

    def _restate(self) -> None:
        row, self.state.unstated = self.state.unstated, None
        if row is None or self.state.rows.get(row.id) is not row:
            return
        try:
            value = self.value(row)
        except JournalError:
            return  # whoever wants the value is told
        with contextlib.suppress(NoSpace):  # the row stays as it is; who writes next is told
            self._log(k.Group(tuple(image(row, value))))

    def _commit(self, command: Command, payload: bytes, now: int = 0) -> int:
        log = self.log
        before = log.written_time
        try:
            try:
                time = log.append_one(payload, now)
            except NoSpace:
                if log.failure is not None or not self.reserve.give_up():
                    raise
                time = log.append_one(payload, now)
            self.own = self.own or is_own(payload)
            self.last_time = time
            names = self._names(command) if self.subscriptions else None
            self.values.record = 0
            self.state.apply(command, time)
            self.written(record_size(len(payload)))
            self._after(command, time, names)
        except BaseException as error:
            if log.written_time != before:
                log.stop(error)
            raise
        return time

    def stamp_of(self, timestamp: int) -> int:
        """A timestamp of this machine's clock, ns, by the journal's; 0 stays 0."""
        return self.clock.of_wall(timestamp, self.jobs.ground.limits.max_skew) if timestamp else 0

    def note(self, command: Command) -> bool:
        """Log and apply a command that is not worth the reserve.

        False: there is no room for it, or the log is kept readable for the Workq server.
        """
        if not self.own:
            return False
        log = self.log
        before = log.written_time
        try:
            time = log.append_one(self.encode(command))
            self.last_time = time
            self.state.apply(command, time)
        except NoSpace:
            return False
        except BaseException as error:
            if log.written_time != before:
                log.stop(error)
            raise
        return True

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

    def batch(self) -> AbstractContextManager[Batch | None]:
        """Commands committed inside are logged together; see rule 3."""
        if self._batch is not None or not self.reserve.held:
            return _NO_BATCH
        return Batch(self)

    def begin(self) -> None:
        """At the start of a request: what must be seen to before anything is decided.

        A step of the wall clock; and a batch that is still there was kept from ending: an interrupt
        may strike at the first step of `Batch.__exit__`.
        """
        if self._batch is not None:
            self._batch = None
            self.log.stop(KeyboardInterrupt("a batch was interrupted at its end"))
            self.fail_waiters()
        if self.clock.stepped:
            follow_step(self)

    @property
    def batching(self) -> Batch | None:
        """The batch under way."""
        return self._batch

    def check_room_to_grow(self) -> None:
        """Refuse what makes the log grow while the disk is full."""
        if not self.reserve.held:
            self.reserve.check()

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

    def written(self, size: int) -> None:
        """So many bytes of records were written: note where they stand."""
        if not self.values.fresh:
            return
        at = self.log.position
        start = at.offset - size
        if start >= HEADER_SIZE:
            self._segment = at.segment
            self.values.written(at.segment, start)
        else:  # another thread has gone on to the next segment meanwhile
            self.values.written(self._segment, 0)

    def settle(self, time: int) -> None:
        """Wait until the record of that TIME is as safe as the policy promises."""
        if self._must_wait and time:
            self.log.wait_synced(time)

    def settle_reading(self, time: int) -> None:
        """Wait until what was shown as of that TIME is as safe; not once the log has stopped."""
        if self._must_wait and self.log.synced_time < time and self.log.failure is None:
            self.log.wait_synced(time)

    def tick(self, limit: int = 1000) -> int:
        """Let time do its work: due rows, lost leases, expiry; returns how many commands it took.

        Bounded, so that requests get their turn in between; call again while it returns `limit`.
        """
        count = 0
        if self.log.failure is not None:
            return 0
        now = self.clock.now()
        read_until = now
        if self.read_until is not None and self.jobs.timers.lease_overdue(now):
            read_until = self.read_until(now)
        with self.batch():
            for command in self.jobs.timers.passed(now, limit, read_until):
                if self._in_memory(command):
                    self.remember(command)
                else:
                    self.commit(command)
                self.counts.passed(command)
                count += 1
        if count < limit:
            self.timer_at = self.jobs.timers.next_deadline() or NEVER
        self.notify()
        return count

    def holds_back(self) -> bool:
        """Whether a lease has ended that may not be noticed yet: more must be read first."""
        if self.read_until is None or self.log.failure is not None:
            return False
        now = self.clock.now()
        return self.jobs.timers.lease_overdue(now) and self.read_until(now) < now

    def _in_memory(self, command: Command) -> bool:
        """The command concerns a row that is not on disk."""
        row = self.state.rows.get(getattr(_members(command)[0], "id", b""))
        return row is not None and not row.policy.flags & k.PERSIST

    def notify(self) -> None:
        """Wake consumers and subscribers of queues that got something to give."""
        woken = self.state.woken
        if not woken:
            return
        if self.wakeups.consumers or self.subscriptions:
            lanes = self.state.queues
            found = [lane for name in woken if (lane := lanes.get(name)) is not None]
            ready = [(lane.name, lane.counts[READY]) for lane in found if lane.open]
            self.wakeups.ready(ready)
            for name, _ in ready:
                if self.subscriptions and name not in self._announced:
                    self._announced.add(name)
                    self._publish(Event("due", name, at=self.state.now))
        woken.clear()

    def pass_on(self) -> None:
        """A consumer has asked: if it left what another was to be woken for, wake that one."""
        wakeups, lanes = self.wakeups, self.state.queues
        if wakeups.consumers:
            open_now = [n for n in wakeups.called if n in lanes and lanes[n].open]
            wakeups.called.clear()
            wakeups.ready((name, 1) for name in open_now)
        else:
            wakeups.called.clear()

    def subscribe(self, subscription: Subscription) -> None:
        """Send events from now on; what is due already is told at once."""
        self.subscriptions.append(subscription)
        if "due" in subscription.kinds:
            now = self.state.promote(self.clock.now())
            for lane in self.state.queues.values():
                if lane.open:
                    subscription.push(Event("due", lane.name, at=now))
                    self._announced.add(lane.name)

    def asked(self, queue: bytes) -> None:
        """A consumer leased from this queue: tell subscribers again when more is due."""
        self._announced.discard(queue)

    def fail_waiters(self) -> None:
        """Wake everybody: the journal closes or has stopped."""
        self.wakeups.all()
        for subscription in self.subscriptions:
            subscription.end()

    def _after(self, command: Command, time: int, names: Names | None = None) -> None:
        """Tell whoever is concerned by a command that was just applied."""
        self._remind(command, time)
        wakeups, woken = self.wakeups, self.state.woken
        if wakeups.callers or self.subscriptions:
            self._tell(command, time, names or {})
        if woken:
            if wakeups.consumers or self.subscriptions:
                self.notify()
            else:
                woken.clear()

    def _remind(self, command: Command, time: int) -> None:
        """Let the timer know if something is to happen before it would look again."""
        if isinstance(command, k.Put) and command.due <= time and not command.expires:
            return  # due already, never expires
        deadline = self._deadline(command, time)
        if deadline < self.timer_at:
            self.timer_at = deadline
            self.timer.set()

    def _tell(self, command: Command, time: int, names: Names) -> None:
        """One event for each row that the command names."""
        told: dict[bytes, bool] = {}
        for member in _members(command):
            row_id = getattr(member, "id", b"")
            if row_id:
                told[row_id] = told.get(row_id, False) or isinstance(member, _DEATHS)
        for row_id, dying in told.items():
            row = self.state.rows.get(row_id)
            if row is None or row.state > State.PROCESSING:
                self.wakeups.ended(row_id)
            if not self.subscriptions:
                continue
            if row is not None:
                queue, *keys = row.queue.name, row.key
            else:
                queue, *keys = names.get(row_id, (b"", b""))
            dead = dying and row is not None and row.state is State.FAILED
            for key in keys:
                self._publish(Event("dead" if dead else "changed", queue, key, row_id, time))

    def _names(self, command: Command) -> Names:
        """Queue and key of the rows a command names, which it may remove."""
        found = {}
        for member in _members(command):
            row = self.state.rows.get(getattr(member, "id", b""))
            if row is not None:
                found[row.id] = row.queue.name, row.key, *row.rare.aliases
            elif isinstance(member, (k.Put, k.Purge)):
                found[member.id] = member.queue, member.key
        return found

    def _deadline(self, command: Command, time: int) -> int:
        """The first instant at which this command makes something happen, or an earlier one."""
        if isinstance(command, k.Put):
            first = int(command.due) if command.due > time else NEVER
            return min(first, int(command.expires)) if command.expires else first
        if isinstance(command, k.Lease):
            return command.until
        if command.__class__ in _NO_DEADLINE:
            return NEVER
        if isinstance(command, k.Group):
            return min(self._deadline(member, time) for member in command.members)
        row = self.state.rows.get(command.id)
        if row is None or row.state > State.COMPLETED:
            return 0  # dead rows and tombstones have ends of their own
        if row.state is State.DELETED:
            return row.modified + self.jobs.ground.limits.gc_grace
        first = row.due if row.place == FUTURE else row.lease_until or NEVER
        return min(first, row.expires) if row.expires else first

    def _publish(self, event: Event) -> None:
        for subscription in self.subscriptions:
            if event.kind in subscription.kinds:
                subscription.push(event)


def leases_of(engine: Engine, rows: list[Row]) -> list[Lease]:
    """What was leased, for those who are shown it."""
    leases = []
    for row in rows:
        engine.load(row)
        leases.append(lease_of(row))
    return leases


def _members(command: Command) -> tuple[Command, ...]:
    return command.members if isinstance(command, k.Group) else (command,)


class Batch:
    """Commands that are applied and wait to be logged together."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._untold: list[tuple[Command, int, Names]] = []  # if there is anybody to tell
        self._payloads: list[bytes] = []
        self._bytes = 0
        self._first = 0
        self._applying = False  # a command is listed, and not wholly applied

    def __enter__(self) -> Self:
        self._engine._batch = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        engine = self._engine
        try:
            if self._applying and error is not None:
                engine.log.stop(error)
                engine.fail_waiters()
            else:
                self.flush()
        except BaseException as fault:
            engine.log.stop(fault)  # which a flush that failed has done, if it came so far
            engine._batch = None
            raise
        engine._batch = None

    def add(self, command: Command) -> int:
        """Apply a command; it is logged at the latest when the batch ends."""
        engine = self._engine
        payload = engine.encode(command)
        size = record_size(len(payload))
        if self._bytes + size > _BATCH_BYTES:
            self.flush()
        if size > _BATCH_BYTES or not engine.reserve.held:
            return engine._commit(command, payload)
        if not self._payloads:
            self._first = max(engine.clock.now(), engine.log.written_time + 1)
        time = self._first + len(self._payloads)
        self._applying = True
        if engine.subscriptions or engine.wakeups.callers:
            self._untold.append((command, time, engine._names(command)))
        self._payloads.append(payload)
        engine.values.record = self._bytes
        self._bytes += size
        engine.state.apply(command, time)
        if command.__class__ not in _NO_DEADLINE:
            engine._remind(command, time)
        self._applying = False
        return time

    def flush(self) -> None:
        """Log what was applied."""
        if not self._payloads:
            return
        engine, payloads, first, size = self._engine, self._payloads, self._first, self._bytes
        log = engine.log
        try:
            untold, self._untold, self._payloads, self._bytes = self._untold, [], [], 0
            try:
                engine.last_time = log.append(payloads, first)
            except NoSpace:
                if log.failure is not None or not engine.reserve.give_up():
                    raise
                engine.last_time = log.append(payloads, first)
            engine.own = engine.own or any(map(is_own, payloads))
            engine.written(size)
            for told in untold:
                engine._tell(*told)
            engine.notify()
        except BaseException as error:
            # The state is ahead of the log and cannot be taken back: stop.
            failure = log.stop(error)
            engine.fail_waiters()
            if isinstance(error, JournalError) and not isinstance(error, Stopped):
                raise failure from error
            raise
