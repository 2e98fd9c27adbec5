"""The client of a daemon: the interface of an embedded `Journal`, over a connection.

Rules: those of `retry`, and of the transport.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from mypy_extensions import mypyc_attr

from fastjournal.arguments import Instant, JobId, Length, Text
from fastjournal.client import leases, operator_calls
from fastjournal.client._async.caller import AsyncCaller
from fastjournal.client._async.entries import AsyncEntries
from fastjournal.client._async.handles import AsyncLeasedJob
from fastjournal.client._async.pipeline import AsyncPipeline
from fastjournal.client._async.subscription import AsyncListening
from fastjournal.client.operator_calls import Figures
from fastjournal.client.puts import put, puts, taken
from fastjournal.client.urls import Target, target_of
from fastjournal.errors import JournalError, SettingError
from fastjournal.model import (
    DEFAULT_PRIORITY,
    Job,
    NewJob,
    QueueSettings,
    QueueStatus,
    Receipt,
    State,
    Unchecked,
)
from fastjournal.wire.fj.bulk import REFUSED, Settle, SettleOutcome

__all__ = ["AsyncClient"]

_PUTS_AHEAD = 4  # messages of `put_many` on their way
_SETTLED = 10_000  # leases settled by one message


@mypyc_attr(allow_interpreted_subclasses=True)
class AsyncClient:
    """A journal of a daemon; close it, or use it as an async context manager."""

    def __init__(self, target: Target | str, *, reach: bool = True) -> None:
        """`target`: where the daemon is, `fj://host:port/journal`.

        `reach`: a blocking client connects at once; else when something is asked.
        """
        where = target_of(target)
        if where.group:
            raise SettingError(
                "a group is opened by connect: one client has one journal", name="group"
            )
        self.caller = AsyncCaller(where, reach)
        """Sends the calls of this client."""
        self.entries = AsyncEntries(self.caller)
        """The journal's key/value entries: a mapping with more to it."""

    @classmethod
    async def open(cls, target: Target | str) -> Self:
        """Connect."""
        client = cls(target)
        await client.caller.reach()
        return client

    @property
    def target(self) -> Target:
        """Where the daemon is."""
        return self.caller.target

    @property
    def about(self) -> dict[str, Any]:
        """What the daemon said of itself: version, journal, sync policy, roles, limits."""
        return self.caller.pool.about

    @property
    def closed(self) -> bool:
        """It cannot be used any more."""
        return self.caller.pool.closed

    async def put(
        self,
        payload: bytes | Unchecked = b"",
        *,
        key: Text | None = None,
        queue: Text | None = None,
        priority: int | Unchecked = DEFAULT_PRIORITY,
        delay: Length | None = None,
        due: Instant | None = None,
        ttl: Length | None = None,
        expires: Instant | None = None,
        lease: Length | None = None,
        max_attempts: int | Unchecked = 0,
        max_timeouts: int | Unchecked = 0,
        max_fails: int | Unchecked = 0,
        mode: str | Unchecked | None = None,
        timestamp: Instant | None = None,
        id: bytes | Unchecked = b"",  # noqa: A002 - the name of the field
        persist: bool | Unchecked = False,
    ) -> Receipt:
        """Take a job in; see `Journal.put`. `persist`: answer when it is on stable storage."""
        call = put(
            payload, key, queue, priority, delay, due, ttl, expires, lease, max_attempts,
            max_timeouts, max_fails, mode, timestamp, id, bool(persist),
        )  # fmt: skip
        receipt: Receipt = await self.caller.call(call)
        return receipt

    async def put_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> list[Receipt]:
        """Take many jobs in with few messages; a refused one raises after the others are in."""
        answers: list[Receipt | JournalError] = []
        for part in await self.caller.call_many(puts(jobs), ahead=_PUTS_AHEAD):
            if isinstance(part, JournalError):
                raise part
            answers += part
        return taken(answers)

    async def lease(
        self,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | Unchecked | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool | Unchecked = True,
        worker: Text = b"",
        take: bool | Unchecked = False,
        schema: int | Unchecked | None = None,
    ) -> AsyncLeasedJob | None:
        """The next job, or None if there is none within `wait`; see `Journal.lease`."""
        call = leases.lease(
            1, queue, queues, prefix, wait, lease, bool(fair), worker, bool(take), schema
        )
        granted = await self.caller.call(call)
        return AsyncLeasedJob(self, granted[0]) if granted else None

    async def lease_many(
        self,
        count: int | Unchecked,
        queue: Text | None = None,
        *,
        queues: Sequence[Text] | Unchecked | None = None,
        prefix: Text | None = None,
        wait: Length = 0,
        lease: Length | None = None,
        fair: bool | Unchecked = True,
        worker: Text = b"",
        take: bool | Unchecked = False,
        schema: int | Unchecked | None = None,
    ) -> list[AsyncLeasedJob]:
        """Up to `count` jobs; waits only for the first one."""
        call = leases.lease(
            count, queue, queues, prefix, wait, lease, bool(fair), worker, bool(take), schema
        )
        return [AsyncLeasedJob(self, granted) for granted in await self.caller.call(call)]

    async def touch(
        self, job_id: JobId, token: int | Unchecked, extend: Length | None = None
    ) -> int:
        """Keep a lease for `extend` from now on, or its usual length; returns its end in ns."""
        until: int = await self.caller.call(leases.touch(job_id, token, extend))
        return until

    async def complete(
        self, job_id: JobId, token: int | Unchecked | None, result: bytes | Unchecked | None = None
    ) -> None:
        """The work is done; a result is kept until the job expires."""
        await self.caller.call(leases.complete(job_id, token, result))

    async def complete_many(
        self, finished: Iterable[tuple[JobId, int | Unchecked | None, bytes | Unchecked | None]]
    ) -> list[bool]:
        """Complete many (id, token, result) with one message; False where the lease was lost."""
        outcomes = await self._settle(leases.complete_many(finished))
        return [outcome.outcome != REFUSED for outcome in outcomes]

    async def touch_many(
        self, held: Iterable[tuple[JobId, int | Unchecked]], extend: Length | None = None
    ) -> list[bool]:
        """Keep many leases (id, token) with one message; False where the lease was lost."""
        return leases.kept(await self._settle(leases.touch_many(held, extend)))

    async def fail(
        self,
        job_id: JobId,
        token: int | Unchecked | None,
        reason: bytes | Unchecked = b"",
        delay: Length | None = None,
    ) -> State:
        """The work failed; returns WAITING if it will be tried again, FAILED if the job is dead."""
        state: State = await self.caller.call(leases.fail(job_id, token, reason, delay))
        return state

    async def release(
        self, job_id: JobId, token: int | Unchecked, delay: Length | None = None
    ) -> None:
        """Give a job back unworked, to be handed out again after `delay`."""
        await self.caller.call(leases.release(job_id, token, delay))

    async def result(self, job_id: JobId, wait: Length = 0) -> tuple[bool, bytes]:
        """A finished job's result: (done?, result); `TimedOut` if it is not finished in time."""
        found: tuple[bool, bytes] = await self.caller.call(leases.result(job_id, wait))
        return found

    async def delete(
        self,
        job_id: JobId | None = None,
        *,
        key: Text | None = None,
        queue: Text | None = None,
        timestamp: Instant | None = None,
    ) -> bool:
        """Remove a job by its id, or all jobs of a key; False if there was none, or a newer one.

        Without a queue the jobs of the key go in all queues. A tombstone keeps older puts of the
        key, or the put of that id, away for a while.
        """
        found: bool = await self.caller.call(operator_calls.delete(job_id, key, queue, timestamp))
        return found

    async def redrive(self, job_id: JobId | None = None, *, queue: Text | None = None) -> int:
        """Let a dead job, or all dead jobs of a queue, wait again; returns how many do."""
        count: int = await self.caller.call(operator_calls.redrive(job_id, queue))
        return count

    async def configure(self, queue: Text, **settings: Any) -> QueueSettings:
        """Change settings of a queue and return all of them; lengths in seconds or `timedelta`."""
        current: QueueSettings = await self.caller.call(operator_calls.configure(queue, settings))
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
        self, job_id: JobId | None = None, *, key: Text | None = None, queue: Text | None = None
    ) -> Job:
        """A job by its id or by its key; of a key the waiting job, else the one worked on."""
        found: Job = await self.caller.look(operator_calls.job(job_id, key, queue))
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
        pages = operator_calls.JobPages(queue, state, prefix, offset, limit, values)
        while (call := pages.call()) is not None:
            await self.caller.look(call)
        return pages.jobs

    async def queues(self) -> list[QueueStatus]:
        """All queues that hold rows or have settings, by name."""
        found: list[QueueStatus] = await self.caller.look(operator_calls.queues())
        return found

    async def queue(self, name: Text) -> QueueStatus:
        """One queue."""
        found: QueueStatus = await self.caller.look(operator_calls.queue(name))
        return found

    async def status(self) -> Figures:
        """The whole journal: the figures of `Journal.status`, and those of the server."""
        figures: Figures = await self.caller.look(operator_calls.status())
        return figures

    async def subscribe(self, queue: Text | None = None) -> AsyncListening:
        """Events of a queue, or of all: `due` when it has something to give, `dead`, `lost`."""
        return await AsyncListening.open(self.caller.pool, queue)

    def pipeline(self) -> AsyncPipeline:
        """Collect puts and completions, send them together, read the answers together."""
        return AsyncPipeline(self.caller)

    async def sync(self) -> None:
        """Bring everything to stable storage now, whatever the policy."""
        await self.caller.call(operator_calls.maintain("sync"))

    async def rotate(self) -> None:
        """Go on in a new segment."""
        await self.caller.call(operator_calls.maintain("rotate"))

    async def snapshot(self) -> None:
        """Take a snapshot now."""
        await self.caller.call(operator_calls.maintain("snapshot"))

    async def clean(self) -> None:
        """Run one cleaning cycle now."""
        await self.caller.call(operator_calls.maintain("clean"))

    async def ping(self) -> int:
        """The server's time, ns since 1970."""
        now: int = await self.caller.call(operator_calls.ping())
        return now

    def server_now(self) -> int:
        """The daemon's time as far as we know it, ns since 1970."""
        return self.caller.server_now()

    async def close(self) -> None:
        """Close the connections that are not in use, and make no more."""
        await self.caller.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncClient {self.target.address} {self.about.get('journal', '')!r}>"

    async def _settle(self, items: list[Settle]) -> list[SettleOutcome]:
        outcomes: list[SettleOutcome] = []
        for start in range(0, len(items), _SETTLED):
            outcomes += await self.caller.call(leases.settle(items[start : start + _SETTLED]))
        return outcomes
