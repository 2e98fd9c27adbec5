"""Decisions of consumers: lease, touch, complete, fail, release.

Rules:

1. The token of a lease is the number of the attempt. A stale token changes nothing: `LeaseLost`.
2. A row that has expired is never handed out.
3. Rows from `slow_from` on are given to a consumer only after it was told "nothing" once since its
   last other row (D-11): one pass without other work.
4. A failed row is tried again, after a wait that grows, until it has failed `max_fails` times or
   used up its attempts; then it is dead. A limit of 0 is none.
5. A row whose twin waits is not put back when its work fails: the twin holds newer data (D-13).
6. A result is kept until the row expires; a row that never expires gets `result_ttl`. Without a
   result the row just goes.
"""

from __future__ import annotations

from typing import NamedTuple

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.errors import BadRequest, OutOfRange
from fastjournal.journal.decide.base import Deciding, backoff, gone, instant_after
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
from fastjournal.model import MAX_INSTANT, Where

__all__ = ["Granted", "Leasing", "Nothing"]

_MAX_CONSUMERS = 10_000
_new = tuple.__new__


class Granted(NamedTuple):
    """A row to hand out: log and apply `command`, then show the row."""

    command: Command
    row: Row


class Nothing(NamedTuple):
    """Nothing to hand out now."""

    next_due: int
    """When to ask again; 0: nothing is in sight."""


class Leasing(Deciding):
    """What consumers ask for."""

    def lease(
        self,
        where: Where,
        now: int,
        *,
        consumer: bytes = b"",
        length: int = 0,
        fair: bool = True,
        take: bool = False,
    ) -> Granted | Nothing:
        """The next row for a consumer; with `take` it is not leased but goes at once."""
        if length < 0 or length > MAX_INSTANT:
            raise OutOfRange("a lease cannot last that long")
        state = self.state
        now = state.promote(now)
        row = state.selection.pick(where, now, fair)
        busy = self._busy
        if row is None:
            busy.pop(consumer, None)
            return Nothing(state.selection.next_wake(where))
        if row.rank >= row.queue.slow_from and not row.workq:
            if consumer in busy:
                del busy[consumer]
                return Nothing(now)
        else:
            busy[consumer] = None
            if len(busy) > _MAX_CONSUMERS:
                busy.popitem(last=False)
        command = gone(row) if take else self.grant(row, now, length, consumer)
        return _new(Granted, (command, row))

    def grant(self, row: Row, now: int, length: int, consumer: bytes) -> Command:
        """Hand this very row out."""
        policy = row.policy
        if policy.flags & FROM_WORKQ:
            return Start(row.id)
        until = now + (length or policy.lease * MILLISECOND or row.queue.settings.lease)
        if until > MAX_INSTANT:
            until = MAX_INSTANT
        lease = Lease(row.id, now, until, row.attempts + 1, consumer)
        touch = self._touched(row, now) if policy.ttl else None
        return lease if touch is None else Group((lease, touch))

    def touch(self, row_id: bytes, token: int, now: int, length: int = 0) -> Command:
        """Keep a lease for another length of time from now."""
        now = self._clock(now)
        if length < 0 or length > MAX_INSTANT:
            raise OutOfRange("a lease cannot last that long")
        row = self._held(row_id, token, now)
        length = length or row.policy.lease * MILLISECOND or row.queue.settings.lease
        renew = Renew(row.id, instant_after(now, length), row.attempts)
        touch = self._touched(row, now) if row.policy.ttl else None
        command = renew if touch is None else Group((renew, touch))
        return self._restated(row, command, now)

    def complete(
        self, row_id: bytes, token: int | None, now: int, result: bytes | None = None
    ) -> Command:
        """The work is done."""
        now = self._clock(now)
        row = self._held(row_id, token, now)
        if row.policy.flags & FROM_WORKQ:
            self._check_result(result)
            return Complete(row.id, result or b"")
        if result is None:
            return gone(row)
        self._check_result(result)
        done = Complete(row.id, result)
        if row.expires:
            return done
        until = instant_after(now, row.queue.settings.result_ttl)
        return Group((done, Touch(row.id, until)))

    def fail(
        self,
        row_id: bytes,
        token: int | None,
        now: int,
        result: bytes = b"",
        delay: int | None = None,
    ) -> Command:
        """The work failed: try again after `delay` (None: as the queue says), or give up."""
        now = self._clock(now)
        row = self._held(row_id, token, now)
        self._check_result(result)
        settings, more = row.queue.settings, row.rare
        final = Fail(row.id, result)
        max_fails, max_attempts = row.policy.max_fails, row.policy.max_attempts
        if row.workq:
            max_fails = max_fails or 1  # Workq gives up at the first failure unless told (D-28)
        else:
            max_fails = max_fails or settings.max_fails
            max_attempts = max_attempts or settings.max_attempts
        if 0 < max_fails <= more.fails + 1 or 0 < max_attempts <= row.attempts:
            return final
        if self._waiting_twin(row, now) is not None:
            return Group((final, gone(row)))
        if delay is None:
            delay = backoff(settings, more.fails, self._chance)
        due = instant_after(now, delay)
        retry = Retry(row.id, GAVE_UP, due, more.timeouts, more.fails + 1, result)
        return self._back(row, retry, now)

    def release(self, row_id: bytes, token: int, now: int, delay: int = 0) -> Command:
        """Give the row back undone: ready at its old place, or after a delay."""
        now = self._clock(now)
        if delay < 0 or delay > MAX_INSTANT:
            raise OutOfRange("the delay is out of range")
        row = self._held(row_id, token, now)
        more = row.rare
        due = instant_after(now, delay) if delay else row.due
        retry = Retry(row.id, GAVE_BACK, due, more.timeouts, more.fails, more.note)
        if self._waiting_twin(row, now) is not None:
            return Group((retry, gone(row)))
        return self._back(row, retry, now)

    def _touched(self, row: Row, now: int) -> Touch | None:
        """Rows with a ttl live on while they are used; logged only when it moves far (D-19)."""
        ttl = row.policy.ttl * MILLISECOND
        until = instant_after(now, ttl)
        if not row.expires or until - row.expires < max(SECOND, ttl // 10):
            return None
        return Touch(row.id, until)

    def _check_result(self, result: bytes | None) -> None:
        if result is None:
            return
        if type(result) is not bytes:
            raise BadRequest("a result is bytes")
        self.limits.check_value(len(result), "a result")
