"""Jobs named by their keys: reading one may lease it or let it live longer; a lock protects it.

Rules: those of `operations`, and

1. A job is leased by its key whether it is due or not, unless its queue is paused or full. A lease
   of the same worker is renewed; that of another is left alone and told (D-27).
2. A job that never expires goes on so; any other lives at least until the instant given.
3. A lock on the key of a job keeps others from putting, merging, deleting, leasing and prolonging
   it by that key. Who leases by queue is not kept from it: work goes on.
4. Locks are those of the entries: one key, one lock.
"""

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from fastjournal.errors import NotFound, OutOfRange, QueuePaused, quoted
from fastjournal.journal.decide.ground import has_expired
from fastjournal.journal.entries.locks import NOBODY, Writer
from fastjournal.journal.language.commands import Renew, Touch
from fastjournal.journal.state.row import PROCESSING_ROW, WAITING_ROW, Row

if TYPE_CHECKING:
    from fastjournal.journal.engine.engine import Engine

__all__ = ["JobKeys"]

_LAST_INSTANT: Final = 9_223_372_036_854_775_807


@final
class JobKeys:
    """What may be asked of a job by its key."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._leases = engine.leases
        self._ground = engine.ground

    def check_lock(self, key: bytes, now: i64, by: Writer = NOBODY) -> None:
        """Refuse what a lock on a key forbids; a job without a key has none."""
        locks = self._engine.locks
        if key and (by.fence or len(locks)):
            locks.check((key,), by, int(self._ground.time(now)))

    def is_locked(self, key: bytes, now: i64) -> bool:
        """Whether somebody holds the lock on a key."""
        locks = self._engine.locks
        return len(locks) > 0 and locks.holder((key,), int(self._ground.time(now))) is not None

    def is_gone(self, row: Row, now: i64) -> bool:
        """Its time is over, whether that is written down or not (SNAP-EXP-2)."""
        return has_expired(row, self._ground.time(now))

    def lease(self, row: Row, until: int, worker: bytes, now: i64, by: Writer = NOBODY) -> bool:
        """Hand this job out until an instant, or renew its lease; False: another holds it."""
        engine = self._engine
        at = self._ground.time(now)
        if not at < until <= _LAST_INSTANT:
            raise OutOfRange("a lease ends in the future, and before 2262")
        if row.stage == PROCESSING_ROW and row.when > at:
            if not worker or row.rare.worker != worker:
                return False
            self.check_lock(row.key, now, by)
            renew = Renew(row.id, until, row.attempts)
            engine.commit(self._ground.restated(row, renew, at), now)
            engine.counts.touches += 1
            return True
        if row.stage != WAITING_ROW:
            raise NotFound("no job waits under this key")
        self.check_lock(row.key, now, by)
        lane, rules = engine.state.queues[row.queue.name], row.queue
        if rules.settings.paused or 0 < rules.concurrency <= lane.leases.count:
            raise QueuePaused(f"queue {quoted(row.queue.name)} hands nothing out now")
        engine.commit(self._leases.grant(row, at, until - at, worker), now)
        engine.asked(row.queue.name)
        engine.counts.handed_out(row, at)
        return True

    def prolong(self, row: Row, least: int, now: i64, by: Writer = NOBODY) -> None:
        """Let a job that expires live at least until an instant, or as long as a touch keeps it."""
        self.check_lock(row.key, now, by)
        at = self._ground.time(now)
        expires: i64 = min(least, _LAST_INSTANT)
        if not expires and row.policy.ttl:
            expires = at + row.policy.ttl * 1_000_000
        if row.expires and expires > row.expires:
            touch = Touch(row.id, expires)
            self._engine.commit(self._ground.restated(row, touch, at), now)
