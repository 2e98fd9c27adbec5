"""The asyncio client: the methods of the blocking client, to be awaited, over one connection.

Rules: those of `alink`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from fastjournal.arguments import Instant, Length, Text
from fastjournal.client import leases, operating
from fastjournal.client.aentries import AsyncEntries
from fastjournal.client.aleased import AsyncLeasedJob
from fastjournal.client.alink import AsyncLink
from fastjournal.client.alistening import AsyncListening
from fastjournal.client.operating import Figures
from fastjournal.client.puts import put, puts, taken
from fastjournal.client.urls import Target
from fastjournal.errors import JournalError
from fastjournal.model import (
    DEFAULT_PRIORITY,
    Job,
    NewJob,
    QueueSettings,
    QueueStatus,
    Receipt,
    State,
)
from fastjournal.wire.fj.bulk import REFUSED, Settle, SettleOutcome

__all__ = ["AsyncClient", "AsyncLeasedJob", "AsyncListening"]


class AsyncClient(AsyncLink):
    """A journal of a daemon; close it, or use it as an async context manager."""

    _entries: AsyncEntries | None = None

    @classmethod
    async def open(cls, target: Target) -> AsyncClient:
        """Connect."""
        client = cls(target)
        await client._retrying(operating.ping(), target.connect_timeout)
        return client

    @property
    def entries(self) -> AsyncEntries:
        """The journal's key/value entries."""
        found = self._entries
        if found is None:
            found = self._entries = AsyncEntries(self)
        return found

    async def put(
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
        """Take a job in; see `Journal.put`."""
        call = put(
            payload, key, queue, priority, delay, due, ttl, expires, lease, max_attempts,
            max_timeouts, max_fails, mode, timestamp, id, persist,
        )  # fmt: skip
        receipt: Receipt = await self._call(call)
        return receipt

    async def put_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> list[Receipt]:
        """Take many jobs in with few messages; a refused one raises after the others are in."""
        answers: list[Receipt | JournalError] = []
        for call in puts(jobs):
            answers += await self._call(call)
        return taken(answers)

    async def lease(
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
    ) -> AsyncLeasedJob | None:
        """The next job, or None if there is none within `wait`."""
        call = leases.lease(1, queue, queues, prefix, wait, lease, fair, worker, take)
        granted = await self._call(call)
        return AsyncLeasedJob(self, granted[0]) if granted else None

    async def lease_many(
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
    ) -> list[AsyncLeasedJob]:
        """Up to `count` jobs; waits only for the first one."""
        call = leases.lease(count, queue, queues, prefix, wait, lease, fair, worker, take)
        return [AsyncLeasedJob(self, granted) for granted in await self._call(call)]

    async def touch(self, job_id: bytes, token: int, extend: Length | None = None) -> int:
        """Keep a lease; returns its end in ns."""
        until: int = await self._call(leases.touch(job_id, token, extend))
        return until

    async def complete(self, job_id: bytes, token: int | None, result: bytes | None = None) -> None:
        """The work is done."""
        await self._call(leases.complete(job_id, token, result))

    async def complete_many(
        self, finished: Iterable[tuple[bytes, int | None, bytes | None]]
    ) -> list[bool]:
        """Complete many (id, token, result) with one message; False where the lease was lost."""
        outcomes = await self._settle(leases.complete_many(finished))
        return [outcome.outcome != REFUSED for outcome in outcomes]

    async def touch_many(
        self, held: Iterable[tuple[bytes, int]], extend: Length | None = None
    ) -> list[bool]:
        """Keep many leases (id, token) with one message; False where the lease was lost."""
        return leases.kept(await self._settle(leases.touch_many(held, extend)))

    async def fail(
        self, job_id: bytes, token: int | None, reason: bytes = b"", delay: Length | None = None
    ) -> State:
        """The work failed; returns WAITING if it will be tried again, FAILED if the job is dead."""
        state: State = await self._call(leases.fail(job_id, token, reason, delay))
        return state

    async def release(self, job_id: bytes, token: int, delay: Length | None = None) -> None:
        """Give a job back unworked."""
        await self._call(leases.release(job_id, token, delay))

    async def result(self, job_id: bytes, wait: Length = 0) -> tuple[bool, bytes]:
        """A finished job's result: (done?, result); `TimedOut` if it is not finished in time."""
        found: tuple[bool, bytes] = await self._call(leases.result(job_id, wait))
        return found

    async def delete(
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
        found: bool = await self._call(operating.delete(job_id, key, queue, timestamp))
        return found

    async def redrive(self, job_id: bytes | None = None, *, queue: Text | None = None) -> int:
        """Let a dead job, or all dead jobs of a queue, wait again; returns how many do."""
        count: int = await self._call(operating.redrive(job_id, queue))
        return count

    async def configure(self, queue: Text, **settings: Any) -> QueueSettings:
        """Change settings of a queue and return all of them."""
        current: QueueSettings = await self._call(operating.configure(queue, settings))
        return current

    async def pause(self, queue: Text) -> None:
        """Hand nothing out of this queue until it is resumed."""
        await self.configure(queue, paused=True)

    async def drain(self, queue: Text) -> None:
        """Take nothing into this queue until it is resumed."""
        await self.configure(queue, draining=True)

    async def resume(self, queue: Text) -> None:
        """End a pause and a draining."""
        await self.configure(queue, paused=False, draining=False)

    async def job(
        self, job_id: bytes | None = None, *, key: Text | None = None, queue: Text | None = None
    ) -> Job:
        """A job by its id or by its key."""
        found: Job = await self._call(operating.job(job_id, key, queue))
        return found

    async def jobs(
        self,
        queue: Text | None = None,
        *,
        state: State | None = None,
        prefix: Text | None = None,
        offset: int = 0,
        limit: int = 100,
        values: bool = True,
    ) -> list[Job]:
        """Jobs of one queue or of all, in order of arrival; as many requests as it takes.

        `prefix`: how their keys begin. Without `values` they come without values and results.
        """
        pages = operating.JobPages(queue, state, prefix, offset, limit, values)
        while (call := pages.call()) is not None:
            await self._call(call)
        return pages.jobs

    async def queues(self) -> list[QueueStatus]:
        """All queues that hold rows or have settings, by name."""
        found: list[QueueStatus] = await self._call(operating.queues())
        return found

    async def queue(self, name: Text) -> QueueStatus:
        """One queue."""
        found: QueueStatus = await self._call(operating.queue(name))
        return found

    async def status(self) -> Figures:
        """The whole journal, and the server."""
        figures: Figures = await self._call(operating.status())
        return figures

    async def subscribe(self, queue: Text | None = None) -> AsyncListening:
        """Events of a queue, or of all: `due` when it has something to give, `dead`, `lost`."""
        return AsyncListening(await self.listen(operating.listen(queue)))

    async def sync(self) -> None:
        """Bring everything to stable storage now, whatever the policy."""
        await self._call(operating.maintain("sync"))

    async def rotate(self) -> None:
        """Go on in a new segment."""
        await self._call(operating.maintain("rotate"))

    async def snapshot(self) -> None:
        """Take a snapshot now."""
        await self._call(operating.maintain("snapshot"))

    async def clean(self) -> None:
        """Run one cleaning cycle now."""
        await self._call(operating.maintain("clean"))

    async def ping(self) -> int:
        """The server's time, ns since 1970."""
        now: int = await self._call(operating.ping())
        return now

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self.target.address} {self.about.get('journal', '')!r}>"

    async def _settle(self, items: list[Settle]) -> list[SettleOutcome]:
        outcomes: list[SettleOutcome] = []
        for start in range(0, len(items), 10_000):
            outcomes += await self._call(leases.settle(items[start : start + 10_000]))
        return outcomes
