"""Decide, log, apply: the one place where requests become records and records become state.

Rules:

1. Everything happens under `lock`: one writer, one order. Whoever calls holds it.
2. `commit` logs, then applies: a refused write leaves the state as it was.
3. A `batch` applies each command before the next is decided and logs them with one write at its
   end, still under the lock, so nobody sees an effect before its record is appended. Should the
   disk be full, the reserve makes room for exactly this write; a batch never holds more than half
   of it.
4. `settle` waits, without the lock, until a TIME is as safe as the sync policy promises.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fastjournal.clock import SteadyClock
from fastjournal.errors import JournalError, NoSpace
from fastjournal.journal import kinds as k
from fastjournal.journal.commands import encode
from fastjournal.journal.events import Event, Subscription
from fastjournal.journal.jobs import Jobs
from fastjournal.journal.kinds import Command
from fastjournal.journal.reserve import RESERVE_SIZE, Reserve
from fastjournal.journal.rows import READY
from fastjournal.journal.state import JournalState
from fastjournal.journal.wakeups import Wakeups
from fastjournal.log.commitlog import CommitLog

__all__ = ["Batch", "Engine"]

_BATCH_BYTES = RESERVE_SIZE // 2
_ENDS = (k.Complete, k.Fail, k.Dead, k.Delete, k.Expire, k.Purge)
_NO_DEADLINE = frozenset((k.Complete, k.Delete, k.Expire, k.Purge, k.Mark, k.Sender))
NEVER = 2**63


class Engine:
    """State, decisions and log of one journal."""

    def __init__(
        self, state: JournalState, jobs: Jobs, log: CommitLog, clock: SteadyClock, reserve: Reserve
    ) -> None:
        self.state = state
        self.jobs = jobs
        self.log = log
        self.clock = clock
        self.reserve = reserve
        self.lock = threading.RLock()
        self.wakeups = Wakeups()
        self.subscriptions: list[Subscription] = []
        self.timer_at = NEVER
        """When the timer thread will look next."""
        self.timer = threading.Event()
        """Set to make it look earlier."""
        self.last_time = 0
        """TIME of the newest record logged through this engine."""
        self._announced: set[bytes] = set()  # queues whose subscribers know that work is due
        self._batch: Batch | None = None
        self._must_wait = log.options.sync == "always"

    def commit(self, command: Command, now: int = 0) -> int:
        """Log one command and apply it; returns the TIME of its record."""
        batch = self._batch
        if batch is not None:
            return batch.add(command)
        log = self.log
        payload = encode(command)
        try:
            time = log.append_one(payload, now)
        except NoSpace:
            if not self.reserve.give_up():
                raise
            time = log.append_one(payload, now)
        self.last_time = time
        self.state.apply(command, time)
        self._after(command, time)
        return time

    def remember(self, command: Command) -> None:
        """Apply a command without logging it: its row lives in memory only and dies with us."""
        time = self.state.applied
        self.state.apply(command, time)
        self._after(command, time)

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Commands committed inside are logged together; see rule 3."""
        batch = self._batch = Batch(self)
        try:
            yield batch
        finally:
            self._batch = None
            batch.flush()

    def settle(self, time: int) -> None:
        """Wait until the record of that TIME is as safe as the policy promises."""
        if self._must_wait and time:
            self.log.wait_synced(time)

    def tick(self, limit: int = 1000) -> int:
        """Let time do its work: due rows, lost leases, expiry; returns how many commands it took.

        Bounded, so that requests get their turn in between; call again while it returns `limit`.
        """
        count = 0
        if self.log.failure is not None:
            return 0
        with self.batch():
            for command in self.jobs.timers(self.clock.now(), limit):
                self.commit(command)
                count += 1
        self.notify()
        return count

    def notify(self) -> None:
        """Wake consumers and subscribers of queues that got something to give."""
        woken = self.state.woken
        if not woken:
            return
        if self.wakeups.consumers or self.subscriptions:
            lanes = self.state.lanes
            ready = [(name, lanes[name].counts[READY]) for name in woken if name in lanes]
            self.wakeups.ready(ready)
            for name, count in ready:
                if count and self.subscriptions and name not in self._announced:
                    self._announced.add(name)
                    self._publish(Event("due", name, at=self.state.now))
        woken.clear()

    def asked(self, queue: bytes) -> None:
        """A consumer leased from this queue: tell subscribers again when more is due."""
        self._announced.discard(queue)

    def fail_waiters(self) -> None:
        """Wake everybody: the journal closes or has stopped."""
        self.wakeups.all()
        for subscription in self.subscriptions:
            subscription.end()

    def _after(self, command: Command, time: int) -> None:
        """Tell whoever is concerned by a command that was just applied."""
        if _deadline(command, time) < self.timer_at and not self.timer.is_set():
            self.timer.set()
        if self.wakeups.callers or self.subscriptions:
            members = command.members if isinstance(command, k.Group) else (command,)
            for member in members:
                self._tell(member, time)
        if self.state.woken:
            self.notify()

    def _tell(self, command: Command, time: int) -> None:
        row_id = getattr(command, "id", b"")
        if isinstance(command, _ENDS):
            self.wakeups.ended(row_id)
        if not self.subscriptions or not row_id:
            return
        row = self.state.rows.get(row_id)
        queue = row.lane.name if row is not None else getattr(command, "queue", b"")
        key = row.key if row is not None else getattr(command, "key", b"")
        dead = isinstance(command, (k.Dead, k.Fail))
        self._publish(Event("dead" if dead else "changed", queue, key, row_id, time))

    def _publish(self, event: Event) -> None:
        for subscription in self.subscriptions:
            if event.kind in subscription.kinds:
                subscription.push(event)


def _deadline(command: Command, time: int) -> int:
    """The first instant at which this command makes something happen, or an earlier one."""
    kind = command.__class__
    if kind is k.Put:
        due, expires = command.due, command.expires  # type: ignore[union-attr]
        first = due if due > time else NEVER
        return min(first, expires) if expires else first
    if kind is k.Lease:
        return command.until  # type: ignore[union-attr]
    return NEVER if kind in _NO_DEADLINE else 0


class Batch:
    """Commands that are applied and wait to be logged together."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._commands: list[Command] = []
        self._payloads: list[bytes] = []
        self._bytes = 0
        self._first = 0
        self.last_time = 0
        """TIME of the newest record logged; 0 if nothing was."""

    def add(self, command: Command) -> int:
        """Apply a command; it is logged at the latest when the batch ends."""
        engine = self._engine
        payload = encode(command)
        if not self._payloads:
            self._first = max(engine.clock.now(), engine.log.written_time + 1)
        time = self._first + len(self._payloads)
        engine.state.apply(command, time)
        self._commands.append(command)
        self._payloads.append(payload)
        self._bytes += len(payload)
        if self._bytes >= _BATCH_BYTES:
            self.flush()
        return time

    def flush(self) -> None:
        """Log what was applied."""
        if not self._payloads:
            return
        engine, payloads, first = self._engine, self._payloads, self._first
        commands, self._commands, self._payloads, self._bytes = self._commands, [], [], 0
        try:
            self.last_time = engine.log.append(payloads, first)
        except NoSpace as error:
            engine.reserve.give_up()
            try:
                self.last_time = engine.log.append(payloads, first)
            except NoSpace:
                # The state is ahead of the log and cannot be taken back: stop.
                raise engine.log.stop(error) from error
        except JournalError:
            engine.fail_waiters()
            raise
        engine.last_time = self.last_time
        for time, command in enumerate(commands, first):
            engine._after(command, time)
