"""The operator's side of a journal: settings, deletion, redrive, events, upkeep by hand."""

from __future__ import annotations

from typing import Any

from fastjournal.arguments import Instant, Text, id_bytes, instant, key_bytes, length, queue_bytes
from fastjournal.errors import BadRequest
from fastjournal.journal.engine.events import Subscription
from fastjournal.journal.look.access import Access
from fastjournal.log.care.cleaner import Cleaned
from fastjournal.model import QueueSettings

__all__ = ["Administration"]

_EVENTS = frozenset(("due", "dead", "changed", "lost"))
_LENGTHS = frozenset(
    ("lease", "max_wait", "backoff_base", "backoff_cap", "dead_keep", "result_ttl")
)


class Administration(Access):
    """What operators ask of a `Journal`."""

    def delete(
        self,
        job_id: bytes | None = None,
        *,
        key: Text | None = None,
        queue: Text | None = None,
        timestamp: Instant | None = None,
    ) -> bool:
        """Remove a job by its id, or all jobs of a key; False if there was none, or a newer one.

        Without a queue the jobs of the key go in all queues. A tombstone keeps older puts of the
        key, or the put of that id, away for a while.
        """
        if (job_id is None) == (key is None):
            raise BadRequest("give an id or a key")
        if job_id is not None:
            id_bytes(job_id)
        engine = self._engine
        stamp = 0 if timestamp is None else engine.stamp_of(instant(timestamp, "timestamp"))
        with engine.lock:
            self._check_open()
            if job_id is not None:
                deleted = self._operations.delete(job_id, stamp)
            else:
                name = key_bytes(key or b"")
                if queue is None:
                    deleted = self._operations.delete_everywhere(name, stamp)
                else:
                    deleted = self._operations.delete_key(queue_bytes(queue), name, stamp)
            time = engine.last_time
        if deleted.command is not None:
            engine.settle(time)
        return bool(deleted)

    def redrive(self, job_id: bytes | None = None, *, queue: Text | None = None) -> int:
        """Let a dead job, or all dead jobs of a queue, wait again; returns how many do."""
        if (job_id is None) == (queue is None):
            raise BadRequest("give an id or a queue")
        if job_id is not None:
            id_bytes(job_id)
        engine = self._engine
        with engine.lock:
            self._check_open()
            if job_id is not None:
                self._operations.redrive(job_id)
                count = 1
            else:
                with engine.batch():
                    count = self._operations.redrive_queue(queue_bytes(queue or b""))
            time = engine.last_time
        engine.settle(time)
        return count

    def configure(self, queue: Text, **settings: Any) -> QueueSettings:
        """Change settings of a queue and return all of them; lengths in seconds or `timedelta`."""
        name = queue_bytes(queue)
        changes = {
            setting: length(value, setting) if setting in _LENGTHS else value
            for setting, value in settings.items()
        }
        engine = self._engine
        with engine.lock:
            self._check_open()
            current = self._operations.configure(name, changes)
            time = engine.last_time
        engine.settle(time)
        return current

    def pause(self, queue: Text) -> None:
        """Hand nothing out of this queue until it is resumed."""
        self.configure(queue, paused=True)

    def drain(self, queue: Text) -> None:
        """Take nothing into this queue until it is resumed."""
        self.configure(queue, draining=True)

    def resume(self, queue: Text) -> None:
        """End a pause and a draining."""
        self.configure(queue, paused=False, draining=False)

    def subscribe(self, *kinds: str, backlog: int = 1000) -> Subscription:
        """Events of these kinds, all unless told: `due`, `dead`, `changed`; see `Event`.

        Queues that have something to hand out are told as `due` at once.
        """
        if backlog < 1:
            raise BadRequest(f"backlog must be at least 1, not {backlog}")
        unknown = set(kinds) - _EVENTS
        if unknown:
            raise BadRequest(f"unknown kinds of events: {', '.join(sorted(unknown))}")
        engine = self._engine

        def forget(subscription: Subscription) -> None:
            with engine.lock:
                if subscription in engine.subscriptions:
                    engine.subscriptions.remove(subscription)

        subscription = Subscription(frozenset(kinds) or _EVENTS, backlog, forget)
        with engine.lock:
            self._check_open()
            engine.subscribe(subscription)
        return subscription

    def tick(self) -> int:
        """Let time do its work now: due jobs, lost leases, expiry; returns how many changed."""
        with self._engine.lock:
            self._check_open()
            count = self._engine.tick()
        if self._log.failure is None:
            self._upkeep.begin_generation()
        return count

    def clean(self) -> list[Cleaned]:
        """Run one cleaning cycle now."""
        return self._background.clean()

    def snapshot(self) -> None:
        """Take a snapshot now, so that the next opening is quick and the log below it can go."""
        self._background.snapshot()

    def rotate(self) -> None:
        """Go on in a new segment."""
        with self._engine.lock:
            self._check_open()
        self._log.rotate()

    def sync(self) -> None:
        """Bring everything to stable storage now, whatever the policy."""
        with self._engine.lock:
            self._check_open()
        self._log.sync()
