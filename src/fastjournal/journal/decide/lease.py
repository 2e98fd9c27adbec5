"""Decisions of consumers: lease, touch, complete, fail, release.

Rules:

1. The token of a lease is the number of the attempt. A stale token changes nothing: `LeaseLost`.
2. A row that has expired is never handed out.
3. Rows from `slow_from` on are given to a consumer only after it was told "nothing" once since its
   last other row (D-11): one pass without other work.
4. A failed row is tried again, after a wait that grows, until it has failed `max_fails` times or
   used up its attempts; then it is dead. A limit of 0 is none. A wait beyond the last instant there
   is (`NEVER`) is no wait: the row is dead at once.
5. A row whose twin waits is not put back when its work fails: the twin holds newer data (D-13).
6. A result is kept until the row expires; a row that never expires gets `result_ttl`. Without a
   result the row just goes.
"""

from typing import Final, final

from mypy_extensions import i64

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.journal.decide.ground import Ground, backoff, gone, instant_after
from fastjournal.journal.language.commands import (
    FROM_WORKQ,
    GAVE_BACK,
    GAVE_UP,
    Command,
    Complete,
    Fail,
    Group,
    Lease,
    Renew,
    Retry,
    Start,
    Touch,
)
from fastjournal.journal.state.row import Row
from fastjournal.model import Where

__all__ = ["BY_THE_QUEUE", "Leases"]

BY_THE_QUEUE: Final[i64] = -1
"""In the place of a delay: as the queue says."""
NEVER: Final[i64] = 9_223_372_036_854_775_807
"""The last instant: what is due then never is."""
_MAX_CONSUMERS: Final = 10_000


@final
class Leases:
    """What consumers ask for. Lengths and delays are not negative."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._busy: dict[bytes, bool] = {}
        """Consumers who got an ordinary row since they were last told "nothing"."""
        self.row: Row | None = None
        """The row that the newest lease hands out."""
        self.next_due: i64 = 0
        """When to ask again if it hands none out; 0: nothing is in sight."""

    def lease(
        self,
        where: Where,
        now: i64,
        consumer: bytes = b"",
        length: i64 = 0,
        fair: bool = True,
        take: bool = False,
    ) -> Command | None:
        """Hand the next `row` out; with `take` it is not leased but goes at once."""
        state = self._ground.state
        now = state.places.promote(now)
        row = self.row = state.selection.pick(where, now, fair)
        busy = self._busy
        if row is None:
            busy.pop(consumer, None)
            self.next_due = state.selection.next_wake(where)
            return None
        if row.rank >= row.queue.slow_from and not row.workq:
            if consumer in busy:
                del busy[consumer]
                self.row = None
                self.next_due = now
                return None
        else:
            busy[consumer] = True
            if len(busy) > _MAX_CONSUMERS:
                del busy[next(iter(busy))]
        return gone(row) if take else self.grant(row, now, length, consumer)

    def grant(self, row: Row, now: i64, length: i64, consumer: bytes) -> Command:
        """Hand this very row out."""
        policy = row.policy
        if policy.flags & FROM_WORKQ:
            return Start(row.id)
        until = instant_after(now, length or _usual_length(row))
        lease = Lease(row.id, now, until, row.attempts + 1, consumer)
        return self._with_touch(row, lease, now) if policy.ttl else lease

    def touch(self, row_id: bytes, token: i64, now: i64, length: i64 = 0) -> Command:
        """Keep a lease for another length of time from now."""
        ground = self._ground
        now = ground.time(now)
        row = ground.leased_row(row_id, token, now)
        until = instant_after(now, length or _usual_length(row))
        renew = Renew(row.id, until, row.attempts)
        return ground.restated(row, self._with_touch(row, renew, now), now)

    def complete(self, row_id: bytes, token: i64, now: i64, result: bytes | None = None) -> Command:
        """The work is done."""
        ground = self._ground
        now = ground.time(now)
        row = ground.leased_row(row_id, token, now)
        if result is not None:
            ground.limits.check_value(len(result), "a result")
        if row.policy.flags & FROM_WORKQ:
            return Complete(row.id, b"" if result is None else result)
        if result is None:
            return gone(row)
        done = Complete(row.id, result)
        if row.expires:
            return done
        until = instant_after(now, row.queue.settings.result_ttl)
        return Group((done, Touch(row.id, until)))

    def fail(
        self,
        row_id: bytes,
        token: i64,
        now: i64,
        result: bytes = b"",
        delay: i64 = BY_THE_QUEUE,
    ) -> Command:
        """The work failed: try again after `delay`, or give up."""
        ground = self._ground
        now = ground.time(now)
        row = ground.leased_row(row_id, token, now)
        ground.limits.check_value(len(result), "a result")
        settings = row.queue.settings
        more = row.rare
        final = Fail(row.id, result)
        max_fails = row.policy.max_fails
        max_attempts = row.policy.max_attempts
        if row.workq:
            max_fails = max_fails or 1  # Workq gives up at the first failure unless told (D-28)
        else:
            max_fails = max_fails or settings.max_fails
            max_attempts = max_attempts or settings.max_attempts
        if 0 < max_fails <= more.fails + 1 or 0 < max_attempts <= row.attempts:
            return final
        if delay >= NEVER - now:
            return final
        if ground.waiting_twin(row, now) is not None:
            return Group((final, gone(row)))
        if delay == BY_THE_QUEUE:
            delay = backoff(settings, more.fails, ground.chance)
        due = instant_after(now, delay)
        retry = Retry(row.id, GAVE_UP, due, more.timeouts, more.fails + 1, result)
        return ground.back(row, retry, now)

    def release(self, row_id: bytes, token: i64, now: i64, delay: i64 = 0) -> Command:
        """Give the row back undone: ready at its old place, or after a delay."""
        ground = self._ground
        now = ground.time(now)
        row = ground.leased_row(row_id, token, now)
        more = row.rare
        due = instant_after(now, delay) if delay else row.due
        retry = Retry(row.id, GAVE_BACK, due, more.timeouts, more.fails, more.note)
        if ground.waiting_twin(row, now) is not None:
            return Group((retry, gone(row)))
        return ground.back(row, retry, now)

    def _with_touch(self, row: Row, command: Command, now: i64) -> Command:
        """Rows with a ttl live on while they are used; logged only when it moves far (D-19)."""
        ttl = row.policy.ttl * MILLISECOND
        if not ttl or not row.expires:
            return command
        until = instant_after(now, ttl)
        if until - row.expires < max(SECOND, ttl // 10):
            return command
        return Group((command, Touch(row.id, until)))


def _usual_length(row: Row) -> i64:
    return row.policy.lease * MILLISECOND or row.queue.lease
