"""A group of journals behind one face: the methods of a client, over several daemons.

    group = await AsyncGroup.open("fj://a,b,c/jobs?group=4")
    await group.put(b"page", key="https://example.com", queue="pages")

The journal of the URL is the home: it keeps the table of the group, and the entries.

Rules: those of `group_table`, and

1. Each journal is asked by a client of its own, so what holds for a client holds for each of them.
   One that is away holds nobody up who does not need it: leasing passes it over, says so once, and
   asks again after a pause. What is for it alone waits for it, as a client does.
2. Where a journal cannot be reached, the table is read again: it may have been moved.
3. Leasing begins each time behind the journal that was asked last, so all have their turn. While
   there is nothing anywhere they are asked again after pauses that grow to a quarter of a second.
4. A lease is settled where it was given. An id that was not leased here is looked for: first where
   it says, then everywhere.
5. What is said of a queue is told to all journals, and holds in each of them: a limit of 10 is 10
   in each.
6. What cannot be had across journals is refused; `shards` are the clients of each.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NoReturn, Self

from fastjournal.arguments import Instant, JobId, Length, Text, id_bytes, length, queue_bytes
from fastjournal.client import entry_calls, leases
from fastjournal.client._async.client import AsyncClient
from fastjournal.client._async.handles import AsyncLeasedJob
from fastjournal.client.asyncio_transport import at_once, sleep
from fastjournal.client.group_table import (
    STAMP,
    TABLE,
    GroupTable,
    is_stamped,
    merged_queues,
    read_table,
    shard_of_id,
    shard_of_job,
    shard_target,
    stamped_id,
    summed_figures,
)
from fastjournal.client.operator_calls import Figures
from fastjournal.client.puts import new_id
from fastjournal.client.retry import Backoff
from fastjournal.client.urls import Target, target_of
from fastjournal.clock import SECOND
from fastjournal.errors import (
    BadRequest,
    JournalError,
    NotFound,
    RequestError,
    SettingError,
    TimedOut,
    Unavailable,
    quoted,
)
from fastjournal.model import (
    DEFAULT_PRIORITY,
    Job,
    NewJob,
    QueueSettings,
    QueueStatus,
    Receipt,
    State,
)

__all__ = ["AsyncGroup"]

_CHUNK = 10_000  # jobs of `put_many` that are sorted at a time
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.25
_FIRST_AWAY, _LONGEST_AWAY = 0.5, 5.0
_REMEMBERED = 100_000  # leases whose journal is known
_log = logging.getLogger("fastjournal.client.group")


class _Shard:
    """One journal of the group."""

    def __init__(self, target: Target, address: str) -> None:
        self.address = address
        self.client = AsyncClient(target, reach=False)
        self.known = False
        """It has said that it is this one."""
        self.away_until = 0.0
        self.pauses = Backoff(_FIRST_AWAY, _LONGEST_AWAY)

    def came_back(self) -> None:
        """It answers."""
        if self.away_until:
            self.away_until = 0.0
            self.pauses.reset()
            _log.warning("a journal of the group answers again: %s", self.address)

    def went_away(self, error: JournalError) -> None:
        """It does not; others are asked meanwhile."""
        if not self.away_until:
            _log.warning("a journal of the group is away: %s", error)
        self.away_until = time.monotonic() + self.pauses.next()


class AsyncGroup:
    """The journals of a group; close it, or use it as an async context manager."""

    def __init__(self, target: Target | str) -> None:
        """`target`: the home of the group, `fj://host:port/journal?group=4`."""
        self.target = target_of(target)
        """Where the home is."""
        self.home = AsyncClient(replace(self.target, group=0), reach=False)
        """The journal that keeps the table and the entries."""
        self.entries = self.home.entries
        """The key/value entries of the group, which are those of its home."""
        self.caller = self.home.caller
        """Sends the calls to the home."""
        self._table = GroupTable("", ())
        self._shards: list[_Shard] = []
        self._turn = 0
        self._leased: dict[bytes, int] = {}
        """Which journal has given a lease, by the job's id."""
        at_once(self._begin)

    @classmethod
    async def open(cls, target: Target | str) -> Self:
        """Connect to the home, and learn where the others are."""
        group = cls(target)
        if not group._shards:
            await group._begin()
        return group

    @property
    def shards(self) -> list[AsyncClient]:
        """The client of each journal."""
        return [shard.client for shard in self._shards]

    @property
    def about(self) -> dict[str, Any]:
        """What the daemon of the home said of itself, and `group`: how many journals there are."""
        return self.home.about | {"group": len(self._shards)}

    @property
    def closed(self) -> bool:
        """It cannot be used any more."""
        return self.home.closed

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
        """Take a job in, in the journal of its key; see `Journal.put`."""
        number, known = self._place({"key": key, "queue": queue, "id": id})

        def put(client: AsyncClient) -> Any:
            return client.put(
                payload, key=key, queue=queue, priority=priority, delay=delay, due=due, ttl=ttl,
                expires=expires, lease=lease, max_attempts=max_attempts, max_timeouts=max_timeouts,
                max_fails=max_fails, mode=mode, timestamp=timestamp, id=known, persist=persist,
            )  # fmt: skip

        receipt: Receipt = await self._at(number, put)
        return receipt

    async def put_many(self, jobs: Iterable[NewJob | Mapping[str, Any]]) -> list[Receipt]:
        """Take many jobs in; a refused one raises after the others are in."""
        rest = iter(jobs)
        receipts: list[Receipt] = []
        while chunk := list(islice(rest, _CHUNK)):
            receipts += await self._put_some(chunk)
        return receipts

    async def _put_some(self, jobs: list[NewJob | Mapping[str, Any]]) -> list[Receipt]:
        parts: dict[int, list[tuple[int, NewJob | Mapping[str, Any]]]] = {}
        for at, job in enumerate(jobs):
            if isinstance(job, NewJob):
                number, known = self._place(job)
                job = job._replace(id=known)
            else:
                number, known = self._place(job)
                job = {**job, "id": known}
            parts.setdefault(number, []).append((at, job))
        receipts: list[Any] = [None] * len(jobs)
        refused: JournalError | None = None
        for number, part in parts.items():
            given = [job for _, job in part]
            try:
                answers = await self._at(number, _putting(given))
            except JournalError as error:
                refused = refused or error
                continue
            for (at, _), receipt in zip(part, answers, strict=True):
                receipts[at] = receipt
        if refused is not None:
            raise refused
        return receipts

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
        schema: int | None = None,
    ) -> AsyncLeasedJob | None:
        """The next job of the journals in turn, or None if there is none within `wait`."""
        found = await self.lease_many(
            1, queue, queues=queues, prefix=prefix, wait=wait, lease=lease, fair=fair,
            worker=worker, take=take, schema=schema,
        )  # fmt: skip
        return found[0] if found else None

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
        schema: int | None = None,
    ) -> list[AsyncLeasedJob]:
        """Up to `count` jobs of the journals in turn; waits only for the first one (rule 3)."""
        give_up = time.monotonic() + length(wait, "wait") / SECOND
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            found: list[AsyncLeasedJob] = []
            answered = False
            fault: Unavailable | None = None
            for number in self._in_turn():
                room = count - len(found)
                call = leases.lease(
                    room, queue, queues, prefix, 0, lease, fair, worker, take, schema
                )
                try:
                    granted = await self._lease_at(number, call)
                except Unavailable as error:
                    fault = error
                    continue
                answered = True
                for one in granted:
                    self._remember(one.job.id, number)
                    found.append(AsyncLeasedJob(self, one))
                if len(found) >= count:
                    break
            if found:
                return found
            if fault is not None and not answered:
                raise fault
            left = give_up - time.monotonic()
            if left <= 0:
                return found
            await sleep(min(pauses.next(), left))

    async def touch(self, job_id: JobId, token: int, extend: Length | None = None) -> int:
        """Keep a lease for `extend` from now on, or its usual length; returns its end in ns."""
        until: int = await self._where(job_id, lambda at: at.touch(job_id, token, extend))
        return until

    async def complete(self, job_id: JobId, token: int | None, result: bytes | None = None) -> None:
        """The work is done; a result is kept until the job expires."""
        await self._where(job_id, lambda at: at.complete(job_id, token, result), ends=True)

    async def complete_many(
        self, finished: Iterable[tuple[bytes, int | None, bytes | None]]
    ) -> list[bool]:
        """Complete many (id, token, result); False where the lease was lost."""
        return await self._settle(list(finished), lambda at, part: at.complete_many(part))

    async def touch_many(
        self, held: Iterable[tuple[bytes, int]], extend: Length | None = None
    ) -> list[bool]:
        """Keep many leases (id, token); False where the lease was lost."""
        return await self._settle(
            list(held), lambda at, part: at.touch_many(part, extend), ends=False
        )

    async def fail(
        self, job_id: JobId, token: int | None, reason: bytes = b"", delay: Length | None = None
    ) -> State:
        """The work failed; returns WAITING if it will be tried again, FAILED if the job is dead."""
        state: State = await self._where(
            job_id, lambda at: at.fail(job_id, token, reason, delay), ends=True
        )
        return state

    async def release(self, job_id: JobId, token: int, delay: Length | None = None) -> None:
        """Give a job back unworked, to be handed out again after `delay`."""
        await self._where(job_id, lambda at: at.release(job_id, token, delay), ends=True)

    async def result(self, job_id: JobId, wait: Length = 0) -> tuple[bool, bytes]:
        """A finished job's result: (done?, result); `TimedOut` if it is not finished in time."""
        found: tuple[bool, bytes]
        try:
            found = await self._where(job_id, lambda at: at.result(job_id))
        except TimedOut:  # it is there
            if not length(wait, "wait"):
                raise
            found = await self._where(job_id, lambda at: at.result(job_id, wait))
        return found

    async def delete(
        self,
        job_id: JobId | None = None,
        *,
        key: Text | None = None,
        queue: Text | None = None,
        timestamp: Instant | None = None,
    ) -> bool:
        """Remove a job by its id, or all jobs of a key; False if there was none, or a newer one."""
        if job_id is not None and key is None:
            numbers = self._candidates(id_bytes(job_id))
        elif key is not None and queue is not None:
            numbers = [self._place({"key": key, "queue": queue})[0]]
        else:
            numbers = list(range(len(self._shards)))
        found = False
        for number in numbers:
            found |= await self._at(
                number,
                lambda at: at.delete(job_id, key=key, queue=queue, timestamp=timestamp),
            )
            if found and job_id is not None:
                break
        return found

    async def redrive(self, job_id: JobId | None = None, *, queue: Text | None = None) -> int:
        """Let a dead job, or all dead jobs of a queue, wait again; returns how many do."""
        if job_id is not None and queue is None:
            count: int = await self._where(job_id, lambda at: at.redrive(job_id))
            return count
        return sum(await self._everywhere(lambda at: at.redrive(job_id, queue=queue)))

    async def configure(self, queue: Text, **settings: Any) -> QueueSettings:
        """Change settings of a queue in every journal; each of them holds there (rule 5)."""
        changed: list[QueueSettings] = await self._everywhere(
            lambda at: at.configure(queue, **settings)
        )
        return changed[0]

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
        found: Job
        if job_id is not None:
            found = await self._where(job_id, lambda at: at.job(job_id))
        else:
            number, _ = self._place({"key": key, "queue": queue})
            found = await self._at(number, lambda at: at.job(key=key, queue=queue))
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
        """Jobs of one queue or of all, in order of arrival by the clocks of their daemons."""
        each: list[list[Job]] = await self._everywhere(
            lambda at: at.jobs(
                queue, state=state, prefix=prefix, limit=offset + limit, values=values
            )
        )
        found = sorted((job for jobs in each for job in jobs), key=lambda job: job.inserted)
        return found[offset : offset + limit]

    async def queues(self) -> list[QueueStatus]:
        """All queues that hold rows or have settings, by name, with the rows of all journals."""
        return merged_queues(await self._everywhere(lambda at: at.queues()))

    async def queue(self, name: Text) -> QueueStatus:
        """One queue, with the rows of all journals."""
        each: list[list[QueueStatus]] = []
        for number in range(len(self._shards)):
            try:
                each.append([await self._at(number, lambda at: at.queue(name))])
            except NotFound:
                continue
        if not each:
            raise NotFound(f"no queue {quoted(queue_bytes(name))}")
        return merged_queues(each)[0]

    async def status(self) -> Figures:
        """Figures of all journals together; those of each are its `shards`."""
        each: list[Figures] = await self._everywhere(lambda at: at.status())
        total = summed_figures([figures._asdict() for figures in each])
        return Figures(total | {"queues": len(await self.queues())})

    def subscribe(self, queue: Text | None = None) -> NoReturn:
        """Refused: listen at each of the `shards`."""
        raise BadRequest("events come from one journal: subscribe at each of `shards`")

    def pipeline(self) -> NoReturn:
        """Refused: what goes out together goes to one journal."""
        raise BadRequest("a pipeline goes to one journal: use put_many, or one of `shards`")

    async def sync(self) -> None:
        """Bring everything to stable storage now, whatever the policy."""
        await self._everywhere(lambda at: at.sync())

    async def rotate(self) -> None:
        """Go on in a new segment, in every journal."""
        await self._everywhere(lambda at: at.rotate())

    async def snapshot(self) -> None:
        """Take a snapshot of every journal now."""
        await self._everywhere(lambda at: at.snapshot())

    async def clean(self) -> None:
        """Run one cleaning cycle of every journal now."""
        await self._everywhere(lambda at: at.clean())

    async def ping(self) -> int:
        """The time of the home's daemon, ns since 1970."""
        return await self.home.ping()

    def server_now(self) -> int:
        """The time of the home's daemon as far as we know it, ns since 1970."""
        return self.home.server_now()

    async def close(self) -> None:
        """Close the connections that are not in use, and make no more."""
        await self.home.close()
        for shard in self._shards:
            await shard.client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncGroup of {len(self._shards)} journals, {self.target.address}>"

    async def _begin(self) -> None:
        await self.home.caller.reach()
        await self._read_table()

    async def _read_table(self) -> None:
        """Learn where the journals are (rule 2)."""
        value = await self.entries.current.get(TABLE)
        table = read_table(value, self.target.group)
        if not table.made:
            raise SettingError("the group was not made to its end: create it again", name="group")
        old = dict(enumerate(self._shards))
        shards = []
        for number, address in enumerate(table.shards):
            shard = old.get(number)
            if shard is None or shard.address != address:
                if shard is not None:
                    await shard.client.close()
                shard = _Shard(shard_target(self.target, address), address)
            shards.append(shard)
        self._table, self._shards = table, shards

    def _place(self, job: NewJob | Mapping[str, Any]) -> tuple[int, bytes]:
        """The journal of a job, and its id."""
        number = shard_of_job(job, len(self._shards), self._turn)
        self._turn += 1
        chosen = job.id if isinstance(job, NewJob) else job.get("id")
        return number, chosen or stamped_id(new_id(), number)

    def _in_turn(self) -> Iterator[int]:
        """All journals, beginning behind the one that was asked last."""
        for _ in range(len(self._shards)):
            self._turn += 1
            yield self._turn % len(self._shards)

    async def _ready(self, number: int, limit: float = -1.0) -> AsyncClient:
        """The client of a journal that is known to be this one."""
        shard = self._shards[number]
        if not shard.known:
            value = None
            with contextlib.suppress(NotFound):
                value = await shard.client.caller.call(entry_calls.get_value(STAMP), limit)
            if not is_stamped(value, self._table, number):
                raise SettingError(
                    f"{shard.address} is not journal {number} of this group", name="group"
                )
            shard.known = True
        return shard.client

    async def _at(self, number: int, work: Callable[[AsyncClient], Any]) -> Any:
        """Ask one journal; if it is away, look where it is now (rule 2)."""
        shard = self._shards[number]
        try:
            return await work(await self._ready(number))
        except Unavailable:
            with contextlib.suppress(Unavailable):  # the home may be away too
                await self._read_table()
            if self._shards[number] is shard:
                raise
            return await work(await self._ready(number))

    async def _everywhere(self, work: Callable[[AsyncClient], Any]) -> list[Any]:
        """Ask all journals, one after the other."""
        return [await self._at(number, work) for number in range(len(self._shards))]

    async def _lease_at(self, number: int, call: Any) -> list[Any]:
        """What one journal gives without waiting, also for itself (rule 1)."""
        shard = self._shards[number]
        if shard.away_until > time.monotonic():
            raise Unavailable(f"{shard.address} is away")
        try:
            client = await self._ready(number, 0.0)
            granted: list[Any] = await client.caller.call(call, 0.0)
        except Unavailable as error:
            shard.went_away(error)
            raise
        shard.came_back()
        return granted

    def _remember(self, job_id: bytes, number: int) -> None:
        leased = self._leased
        leased[job_id] = number
        if len(leased) > _REMEMBERED:
            with contextlib.suppress(RuntimeError):  # another thread has changed it: next time
                leased.pop(next(iter(leased)), None)

    def _candidates(self, job_id: bytes) -> list[int]:
        """The journals in the order in which they are asked for an id (rule 4)."""
        shards = len(self._shards)
        first = self._leased.get(job_id, shard_of_id(job_id, shards))
        return [first, *(number for number in range(shards) if number != first)]

    async def _where(
        self, job_id: JobId, work: Callable[[AsyncClient], Any], *, ends: bool = False
    ) -> Any:
        """Ask the journal that has this job; `ends`: its lease is over then."""
        known = id_bytes(job_id)
        numbers = self._candidates(known)
        leased = self._leased.pop(known, None) if ends else self._leased.get(known)
        if leased is not None:
            return await self._at(leased, work)
        refused: RequestError | None = None
        for number in numbers:
            try:
                return await self._at(number, work)
            except NotFound as error:
                refused = refused or error
        assert refused is not None
        raise refused

    async def _settle(
        self, items: list[Any], work: Callable[[AsyncClient, list[Any]], Any], ends: bool = True
    ) -> list[bool]:
        """Settle or keep many leases, those of each journal together."""
        outcomes = [False] * len(items)
        tries = [self._candidates(item[0]) for item in items]
        for at, item in enumerate(items):
            known = self._leased.pop(item[0], None) if ends else self._leased.get(item[0])
            if known is not None:
                tries[at] = [known]
        for round_ in range(len(self._shards)):
            parts: dict[int, list[int]] = {}
            for at, numbers in enumerate(tries):
                if not outcomes[at] and round_ < len(numbers):
                    parts.setdefault(numbers[round_], []).append(at)
            for number, places in parts.items():
                given = [items[at] for at in places]
                answers = await self._at(number, _settling(work, given))
                for at, answer in zip(places, answers, strict=True):
                    outcomes[at] = answer
        return outcomes


def _putting(jobs: list[Any]) -> Callable[[AsyncClient], Any]:
    return lambda client: client.put_many(jobs)


def _settling(
    work: Callable[[AsyncClient, list[Any]], Any], items: list[Any]
) -> Callable[[AsyncClient], Any]:
    return lambda client: work(client, items)
