"""Decisions of the clock: lost leases, expiry, and the end of dead rows and tombstones.

Rules:

1. Things happen in the order of their instants, each as one command.
2. A lease is lost at `lease_until`, a row expires after `expires`, a dead row that never expires
   goes after `dead_keep`, a tombstone after `gc_grace`.
3. A lost lease puts the row back; a row with too many lost leases or attempts is dead; a row whose
   twin waits goes, for the twin holds newer data (D-13).
4. Whoever answers for what has arrived says up to when (`read_until`): no lease is lost at a later
   instant, for the word that ends or prolongs it may be here, unread.
5. Falling due needs no command: `JournalState.promote` follows from the clock.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastjournal.journal.decide.base import Deciding, backoff, gone, instant_after
from fastjournal.journal.language.commands import (
    TIMED_OUT,
    TOO_MANY_ATTEMPTS,
    TOO_MANY_TIMEOUTS,
    Command,
    Dead,
    Expire,
    Group,
    Retry,
    Timeout,
)
from fastjournal.journal.state.row import Row

__all__ = ["Timers"]


class Timers(Deciding):
    """What time does to rows."""

    def next_deadline(self) -> int:
        """The next instant at which something happens; 0: nothing is in sight."""
        state = self.state
        tomb, expiry = state.tombs.next(), state.expiry.next()
        instants = (
            state.future.next(),
            state.leases.next(),
            expiry and expiry + 1,
            state.dead.next(),
            tomb and tomb + self.limits.gc_grace,
        )
        return min((instant for instant in instants if instant), default=0)

    def overdue(self, now: int) -> bool:
        """Whether a lease was lost or a row has expired that nobody has noticed yet."""
        return 0 < self.state.leases.next() <= now or 0 < self.state.expiry.next() < now

    def lease_overdue(self, now: int) -> bool:
        """Whether a lease has ended that nobody has noticed yet."""
        return 0 < self.state.leases.next() <= now

    def timers(
        self, now: int, limit: int = 1000, read_until: int | None = None
    ) -> Iterator[Command]:
        """The commands of everything that has passed, at most `limit`; see rule 4.

        Log and apply each before asking for the next: what happens to one row may decide what
        happens to its twin.
        """
        now = self.state.promote(now)
        last: tuple[int, int, bytes] | None = None
        for _ in range(limit):
            passed = self._passed(now, now if read_until is None else read_until)
            if passed is None:
                return
            instant, kind, row = passed
            if last == (instant, kind, row.id):
                raise RuntimeError("apply each command before asking for the next")
            last = (instant, kind, row.id)
            if kind == 0:
                yield self._timeout(row, now)
            else:
                yield Expire(row.id) if kind == 1 else gone(row)

    def _passed(self, now: int, read_until: int) -> tuple[int, int, Row] | None:
        """The first thing whose instant has passed."""
        state = self.state
        first: tuple[int, int, Row] | None = None
        row = state.leases.head()
        if row is not None and row.lease_until <= min(now, read_until):
            first = (row.lease_until, 0, row)
        row = state.expiry.head()
        if row is not None and row.expires < now and (first is None or row.expires < first[0]):
            first = (row.expires, 1, row)
        instant = state.dead.next()
        if 0 < instant <= now and (first is None or instant < first[0]):
            row = state.dead.head()
            assert row is not None
            first = (instant, 2, row)
        instant = state.tombs.next() + self.limits.gc_grace
        if instant <= now and (first is None or instant < first[0]):
            row = state.tombs.head()
            if row is not None:
                first = (instant, 3, row)
        return first

    def _timeout(self, row: Row, now: int) -> Command:
        lost = Timeout(row.id)
        if not row.queue.name:
            return self._back(row, lost, now)
        if self._waiting_twin(row, now) is not None:
            return Group((lost, gone(row)))
        settings, more = row.queue.settings, row.rare
        max_attempts, max_timeouts = row.policy.max_attempts, row.policy.max_timeouts
        if row.workq:
            if 0 < max_attempts <= row.attempts:
                return lost  # fails the row by itself, as in Workq
        else:
            max_attempts = max_attempts or settings.max_attempts
            max_timeouts = max_timeouts or settings.max_timeouts
        if 0 < max_attempts <= row.attempts:
            return Group((lost, Dead(row.id, TOO_MANY_ATTEMPTS, now)))
        if 0 < max_timeouts <= more.timeouts + 1:
            return Group((lost, Dead(row.id, TOO_MANY_TIMEOUTS, now)))
        if settings.backoff_timeouts and not row.workq:
            due = instant_after(now, backoff(settings, more.timeouts, self._chance))
            retry = Retry(row.id, TIMED_OUT, due, more.timeouts + 1, more.fails, more.note)
            return self._back(row, retry, now)
        return self._back(row, lost, now)
