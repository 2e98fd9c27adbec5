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

from collections.abc import Iterator
from typing import Final, final

from mypy_extensions import i64

from fastjournal.journal.decide.ground import Ground, backoff, gone, instant_after
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

__all__ = ["NEVER", "Timers"]

NEVER: Final[i64] = 9_223_372_036_854_775_807
"""An instant that does not come."""


@final
class Timers:
    """What time does to rows."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._state = ground.state

    def next_deadline(self) -> i64:
        """The next instant at which something happens; 0: nothing is in sight."""
        state = self._state
        first = _earlier(state.future.next(), state.leases.next())
        first = _earlier(first, state.dead.next())
        expiry: i64 = state.expiry.next()
        if expiry:
            first = _earlier(first, instant_after(expiry, 1))
        tomb: i64 = state.tombs.next()
        if tomb:
            first = _earlier(first, instant_after(tomb, self._ground.limits.gc_grace))
        return first

    def overdue(self, now: i64) -> bool:
        """Whether a lease was lost or a row has expired that nobody has noticed yet."""
        return self.lease_overdue(now) or 0 < self._state.expiry.next() < now

    def lease_overdue(self, now: i64) -> bool:
        """Whether a lease has ended that nobody has noticed yet."""
        return 0 < self._state.leases.next() <= now

    def passed(self, now: i64, limit: i64 = 1000, read_until: i64 = NEVER) -> Iterator[Command]:
        """The commands of everything that has passed, at most `limit`; see rule 4.

        Log and apply each before asking for the next: what happens to one row may decide what
        happens to its twin.
        """
        now = self._state.promote(now)
        last: Command | None = None
        for _ in range(limit):
            command = self._first_passed(now, min(now, read_until))
            if command is None:
                return
            if last is not None and command.id == last.id and command == last:
                raise RuntimeError("apply each command before asking for the next")
            last = command
            yield command

    def _first_passed(self, now: i64, read_until: i64) -> Command | None:
        """What the first thing comes to whose instant has passed."""
        state = self._state
        first = NEVER
        lost = state.leases.head()
        if lost is not None and lost.when <= read_until:
            first = lost.when
        else:
            lost = None
        expired = state.expiry.first()
        if expired is not None and expired.expires < now and expired.expires < first:
            first = expired.expires
        else:
            expired = None
        dead = state.dead.first()
        if dead is not None and dead.when <= now and dead.when < first:
            first = dead.when
        else:
            dead = None
        tomb = state.tombs.first()
        if tomb is not None:
            forgotten = instant_after(tomb.when, self._ground.limits.gc_grace)
            if forgotten <= now and forgotten < first:
                return gone(tomb)
        if dead is not None:
            return gone(dead)
        if expired is not None:
            return Expire(expired.id)
        return None if lost is None else self._timeout(lost, now)

    def _timeout(self, row: Row, now: i64) -> Command:
        ground = self._ground
        lost = Timeout(row.id)
        if not row.queue.name:
            return ground.back(row, lost, now)
        if ground.waiting_twin(row, now) is not None:
            return Group((lost, gone(row)))
        settings = row.queue.settings
        more = row.rare
        max_attempts = row.policy.max_attempts
        max_timeouts = row.policy.max_timeouts
        attempts = row.attempts
        if row.workq:
            if 0 < max_attempts <= attempts:
                return lost  # fails the row by itself, as in Workq
        else:
            max_attempts = max_attempts or settings.max_attempts
            max_timeouts = max_timeouts or settings.max_timeouts
        if 0 < max_attempts <= attempts:
            return Group((lost, Dead(row.id, TOO_MANY_ATTEMPTS, now)))
        if 0 < max_timeouts <= more.timeouts + 1:
            return Group((lost, Dead(row.id, TOO_MANY_TIMEOUTS, now)))
        if settings.backoff_timeouts and not row.workq:
            due = instant_after(now, backoff(settings, more.timeouts, ground.chance))
            retry = Retry(row.id, TIMED_OUT, due, more.timeouts + 1, more.fails, more.note)
            return ground.back(row, retry, now)
        return ground.back(row, lost, now)


def _earlier(one: i64, other: i64) -> i64:
    """The earlier of two instants, of which 0 is none."""
    if one and other:
        return min(one, other)
    return one or other
