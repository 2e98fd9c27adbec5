"""The blocking client: the interface of an embedded `Journal`, over a daemon.

Rules:

1. Any number of threads may use a client: each call takes a connection of its own from a pool, so
   a thread that waits for a job holds nobody up.
2. A call that met a broken connection is tried again with a growing, jittered pause until its time
   limit is over, if it may be (see `protocol`); else `Unavailable` says that nobody knows.
3. A forked child opens its own connections.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from fastjournal.client import operating, protocol
from fastjournal.client.link import Link, is_passing
from fastjournal.client.listening import Listening
from fastjournal.client.pipeline import Pipeline
from fastjournal.client.protocol import Call, Figures
from fastjournal.client.urls import Target
from fastjournal.edges import Instant, Length, Text
from fastjournal.errors import Closed, JournalError, Loading, Unavailable
from fastjournal.leased import LeasedJob
from fastjournal.model import (
    DEFAULT_PRIORITY,
    Job,
    NewJob,
    QueueSettings,
    QueueStatus,
    Receipt,
    State,
)
from fastjournal.wire.bulk import REFUSED, Action, Settle

__all__ = ["Client", "Listening", "Pipeline"]

_UNSAID = (None,) * 7
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0


_forks = 0
"""How often this process was forked off; connections belong to one process."""


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Client:
    """A journal of a daemon; close it, or use it as a context manager."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._free: list[Link] = []
        self._forks = _forks
        self._closed = False
        first = self._retrying(lambda _: Link(target), limit=target.connect_timeout)
        self.about: dict[str, Any] = first.about
        """What the daemon said of itself: version, journal, sync policy, roles, limits."""
        self._free.append(first)

    def put(
        self,
        payload: bytes = b"",
        *,
        key: Text | None = None,
        queue: Text | None = None,
        priority: int = DEFAULT_PRIORITY,
        delay: Length | None = None,
        due: Instant | None = None,
        ttl: Length | None = None,
        expires: Instant | None = None,
        lease: Length | None = None,
        max_attempts: int = 0,
        max_timeouts: int = 0,
        max_fails: int = 0,
        mode: str | None = None,
        timestamp: Instant | None = None,
        id: bytes = b"",  # noqa: A002 - the name of the field
        persist: bool = False,
    ) -> Receipt:
        """Take a job in; see `Journal.put`. `persist`: answer when it is on stable storage."""
        special = (delay, due, ttl, expires, lease, mode, timestamp) != _UNSAID
        plain = not (special or max_attempts or max_timeouts or max_fails or id)
        call = protocol.plain_put(payload, key, queue, priority) if plain else None
        call = call or protocol.put(
            protocol.job_put(
                payload, key, queue, priority, delay, due, ttl, expires, lease, max_attempts,
                max_timeouts, max_fails, mode, timestamp, id,
            )
        )  # fmt: skip
        receipt: Receipt = self._call(protocol.persistent(call) if persist else call)
        return receipt

    def put_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> list[Receipt]:
        """Take many jobs in, thousands in one message; a refused one raises after the others."""
        receipts: list[Receipt] = []
        for part in self._stream(protocol.puts(jobs)):
            receipts += part
        return receipts

    def lease(
        self,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool = True,
        worker: Text = b"",
        take: bool = False,
    ) -> LeasedJob | None:
        """The next job, or None if there is none within `wait`; see `Journal.lease`."""
        call = protocol.lease(1, queue, queues, prefix, wait, lease, fair, worker, take)
        leases = self._call(call)
        return LeasedJob(self, leases[0]) if leases else None

    def lease_many(
        self,
        count: int,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool = True,
        worker: Text = b"",
        take: bool = False,
    ) -> list[LeasedJob]:
        """Up to `count` jobs; waits only for the first one."""
        call = protocol.lease(count, queue, queues, prefix, wait, lease, fair, worker, take)
        return [LeasedJob(self, granted) for granted in self._call(call)]

    def touch(self, job_id: bytes, token: int, extend: Length | None = None) -> int:
        """Keep a lease for `extend` from now on, or its usual length; returns its end in ns."""
        until: int = self._call(protocol.touch(job_id, token, extend))
        return until

    def complete(self, job_id: bytes, token: int | None, result: bytes | None = None) -> None:
        """The work is done; a result is kept until the job expires."""
        self._call(protocol.complete(job_id, token, result))

    def complete_many(
        self, finished: Iterable[tuple[bytes, int | None, bytes | None]]
    ) -> list[bool]:
        """Complete many (id, token, result) with one message; False where the lease was lost."""
        outcomes = self._settle(protocol.complete_many(finished))
        return [outcome != REFUSED for outcome in outcomes]

    def touch_many(self, leases: Iterable[tuple[bytes, int]]) -> list[bool]:
        """Keep many leases (id, token) with one message; False where the lease was lost."""
        items = [Settle(Action.TOUCH, job_id, token) for job_id, token in leases]
        return [outcome != REFUSED for outcome in self._settle(items)]

    def fail(
        self, job_id: bytes, token: int | None, reason: bytes = b"", delay: Length | None = None
    ) -> State:
        """The work failed; returns WAITING if it will be tried again, FAILED if the job is dead."""
        state: State = self._call(protocol.fail(job_id, token, reason, delay))
        return state

    def release(self, job_id: bytes, token: int, delay: Length | None = None) -> None:
        """Give a job back unworked, to be handed out again after `delay`."""
        self._call(protocol.release(job_id, token, delay))

    def result(self, job_id: bytes, wait: Length = 0) -> tuple[bool, bytes]:
        """A finished job's result: (done?, result); `TimedOut` if it is not finished in time."""
        found: tuple[bool, bytes] = self._call(protocol.result(job_id, wait))
        return found

    def delete(
        self, job_id: bytes | None = None, *, key: Text | None = None, queue: Text | None = None
    ) -> bool:
        """Remove a job by its id, or all jobs of a key; False if there was none."""
        found: bool = self._call(operating.delete(job_id, key, queue))
        return found

    def redrive(self, job_id: bytes | None = None, *, queue: Text | None = None) -> int:
        """Let a dead job, or all dead jobs of a queue, wait again; returns how many do."""
        count: int = self._call(operating.redrive(job_id, queue))
        return count

    def configure(self, queue: Text, **settings: Any) -> QueueSettings:
        """Change settings of a queue and return all of them; lengths in seconds or `timedelta`."""
        current: QueueSettings = self._call(operating.configure(queue, settings))
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

    def job(
        self, job_id: bytes | None = None, *, key: Text | None = None, queue: Text | None = None
    ) -> Job:
        """A job by its id or by its key; of a key the waiting job, else the one worked on."""
        found: Job = self._call(operating.job(job_id, key, queue))
        return found

    def jobs(
        self,
        queue: Text | None = None,
        *,
        state: State | None = None,
        offset: int = 0,
        limit: int = 100,
    ) -> list[Job]:
        """Jobs of one queue or of all, a page at a time."""
        found: list[Job] = []
        while limit > 0:
            page: list[Job] = self._call(operating.jobs(queue, state, offset, min(limit, 1000)))
            found += page
            offset, limit = offset + len(page), limit - len(page)
            if len(page) < 1000:
                break
        return found

    def queues(self) -> list[QueueStatus]:
        """All queues that hold rows or have settings, by name."""
        found: list[QueueStatus] = self._call(operating.queues())
        return found

    def queue(self, name: Text) -> QueueStatus:
        """One queue."""
        found: QueueStatus = self._call(operating.queue(name))
        return found

    def status(self) -> Figures:
        """The whole journal: the figures of `Journal.status`, and those of the server."""
        figures: Figures = self._call(operating.status())
        return figures

    def subscribe(self, queue: Text | None = None) -> Listening:
        """Events of a queue, or of all: `due` when it has something to give, `dead`, `lost`."""
        return Listening(self.take_link(), queue)

    def pipeline(self) -> Pipeline:
        """Collect puts and completions, send them together, read the answers together."""
        return Pipeline(self)

    def sync(self) -> None:
        """Bring everything to stable storage now, whatever the policy."""
        self._call(operating.maintain("sync"))

    def rotate(self) -> None:
        """Go on in a new segment."""
        self._call(operating.maintain("rotate"))

    def snapshot(self) -> None:
        """Take a snapshot now."""
        self._call(operating.maintain("snapshot"))

    def clean(self) -> None:
        """Run one cleaning cycle now."""
        self._call(operating.maintain("clean"))

    def ping(self) -> int:
        """The server's time, ns since 1970."""
        now: int = self._call(operating.ping())
        return now

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._closed = True
        while self._free:
            self._free.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client {self.target.address} {self.about.get('journal', '')!r}>"

    def _settle(self, items: list[Settle]) -> list[int]:
        outcomes: list[int] = []
        for start in range(0, len(items), 10_000):
            part = self._call(protocol.settle(items[start : start + 10_000]))
            outcomes += [outcome for outcome, _, _ in part]
        return outcomes

    def _stream(self, calls: Iterator[Call]) -> Iterator[Any]:
        """The values of calls that may be sent again, sent ahead of their answers."""
        kept: deque[Call] = deque()

        def keep() -> Iterator[Call]:
            for call in calls:
                kept.append(call)
                yield call

        try:
            link = self.take_link()
        except Unavailable:
            link = None
        if link is not None:
            try:
                for value in link.stream(keep()):
                    kept.popleft()
                    yield value
            except Unavailable:  # what gave no value is sent again, one by one
                pass
            finally:
                self.give_back(link)
        while kept:
            yield self._call(kept.popleft())
        for call in calls:
            yield self._call(call)

    def _call(self, call: Call) -> Any:
        free = self._free
        if free and self._forks == _forks:
            try:  # the connection used last, once
                link = free.pop()
            except IndexError:  # another thread was quicker
                return self._retrying(lambda n: self._on_new_link(call, n > 0), call.again)
            try:
                value = link.call(call)
            except JournalError as error:
                if not link.closed:
                    free.append(link)
                if not (call.again and is_passing(error)):
                    raise
            else:
                free.append(link)
                return value
            return self._retrying(lambda _: self._on_new_link(call, True))
        return self._retrying(lambda n: self._on_new_link(call, n > 0), call.again)

    def _on_new_link(self, call: Call, repeated: bool) -> Any:
        link = self.take_link()
        try:
            return link.call(call, repeated=repeated)
        finally:
            self.give_back(link)

    def take_link(self) -> Link:
        """A connection for this thread alone; give it back."""
        if self._closed:
            raise Closed("the client is closed")
        if self._forks != _forks:
            self._free, self._forks = [], _forks
        while self._free:
            link = self._free.pop()
            if not link.closed:
                return link
        return Link(self.target)

    def give_back(self, link: Link) -> None:
        """Let others use the connection."""
        if link.closed:
            return
        if self._closed:
            link.close()
        else:
            self._free.append(link)

    def _retrying(self, work: Any, again: bool = True, limit: float = 0.0) -> Any:
        """Try until it works, the error is not a passing one, or the time is over."""
        give_up = time.monotonic() + (limit or self.target.timeout)
        pause = _FIRST_PAUSE
        tries = 0
        while True:
            try:
                return work(tries)
            except JournalError as error:
                tries += 1
                pause_now = pause * random.uniform(0.5, 1.5)
                late = time.monotonic() + pause_now > give_up
                if late or not is_passing(error) or not (again or isinstance(error, Loading)):
                    raise
            time.sleep(pause_now)
            pause = min(pause * 2, _LONGEST_PAUSE)
