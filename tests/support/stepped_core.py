"""The pure core under a hand-moved clock: what tests of decisions talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from fastjournal.journal.decide.ground import NO_TOKEN, Ground, Limits
from fastjournal.journal.decide.lease import Leases
from fastjournal.journal.decide.operator import Deleted, Operator
from fastjournal.journal.decide.put import Puts
from fastjournal.journal.decide.timers import Timers
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row, job_of, lease_of
from fastjournal.model import Job, Lease, NewJob, Outcome, Where
from fastjournal.put_request import checked_request

S = 1_000_000_000
MS = 1_000_000
NOW = 1_700_000_000 * S


class Placed(NamedTuple):
    """What a put comes to."""

    command: k.Command | None
    outcome: Outcome
    id: bytes


class Granted(NamedTuple):
    """A row to hand out."""

    command: k.Command
    row: Row


class Nothing(NamedTuple):
    """Nothing to hand out now."""

    next_due: int


class Decisions:
    """All decisions, each answered by one value."""

    def __init__(
        self,
        state: JournalState,
        *,
        ids: Callable[[], bytes] | None = None,
        chance: Any = None,
        limits: Limits | None = None,
    ) -> None:
        ground = Ground(state, ids, chance, limits)
        self.puts, self.leases = Puts(ground), Leases(ground)
        self.passing, self.operator = Timers(ground), Operator(ground)

    def put(self, job: NewJob, now: int) -> Placed:
        puts = self.puts
        command = puts.put(checked_request(job), now)
        return Placed(command, Outcome(puts.outcome), puts.placed_id)

    def put_many(self, jobs: list[NewJob], now: int) -> None:
        self.puts.check_many([checked_request(job) for job in jobs], now)

    def add(self, job: k.Add | k.Schedule, now: int) -> k.Command:
        return self.puts.add(job, now)

    def lease(self, where: Where, now: int, **how: Any) -> Granted | Nothing:
        leases = self.leases
        command = leases.lease(where, now, **how)
        if command is None:
            return Nothing(leases.next_due)
        assert leases.row is not None
        return Granted(command, leases.row)

    def touch(self, row_id: bytes, token: int | None, now: int, length: int = 0) -> k.Command:
        return self.leases.touch(row_id, _token(token), now, length)

    def complete(
        self, row_id: bytes, token: int | None, now: int, result: bytes | None = None
    ) -> k.Command:
        return self.leases.complete(row_id, _token(token), now, result)

    def fail(self, row_id: bytes, token: int | None, now: int, *how: Any, **more: Any) -> k.Command:
        return self.leases.fail(row_id, _token(token), now, *how, **more)

    def release(self, row_id: bytes, token: int | None, now: int, delay: int = 0) -> k.Command:
        return self.leases.release(row_id, _token(token), now, delay)

    def delete(self, row_id: bytes, now: int, timestamp: int = 0, **how: Any) -> Deleted:
        return self.operator.delete(row_id, now, timestamp, **how)

    def delete_key(
        self, queue: bytes, key: bytes, now: int, timestamp: int = 0, **how: Any
    ) -> Deleted:
        return self.operator.delete_key(queue, key, now, timestamp, **how)

    def delete_everywhere(self, key: bytes, now: int) -> Iterator[Deleted]:
        return self.operator.delete_everywhere(key, now)

    def redrive(self, row_id: bytes, now: int, delay: int = 0) -> k.Command:
        return self.operator.redrive(row_id, now, delay)

    def redrive_all(self, queue: bytes, now: int) -> Iterator[k.Command]:
        return self.operator.redrive_all(queue, now)

    def set_queue(self, queue: bytes, changes: dict[str, Any]) -> k.Command | None:
        return self.operator.set_queue(queue, changes)

    def timers(self, now: int, limit: int = 1000) -> Iterator[k.Command]:
        return self.passing.passed(now, limit)

    def next_deadline(self) -> int:
        return self.passing.next_deadline()


def _token(token: int | None) -> int:
    return NO_TOKEN if token is None else token


class Core:
    """Decides, logs in a list, applies; every command goes through its bytes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.state = JournalState()
        self.jobs = Decisions(self.state, chance=Random(1), limits=limits)
        self.clock = NOW
        self.time = NOW - 1
        self.log: list[tuple[int, bytes]] = []

    def wait(self, length: int) -> None:
        self.clock += length

    def tick(self) -> None:
        """No two requests at one instant, so the TIME of a record is when it was decided."""
        if self.clock <= self.time < self.clock + S:
            self.clock = self.time + 1

    def commit(self, command: k.Command | None) -> k.Command | None:
        if command is not None:
            self.time = max(self.time + 1, self.clock)
            payload = encode(command)
            self.log.append((self.time, payload))
            self.state.apply(decode(payload), self.time)
        return command

    def put(self, job: NewJob) -> Placed:
        self.tick()
        placed = self.jobs.put(job, self.clock)
        self.commit(placed.command)
        return placed

    def add(self, number: int = 1, **fields: Any) -> bytes:
        self.tick()
        row_id = bytes((number,)) * 6 + b"\x40\x00\x80" + bytes(7)
        given = {
            "name": b"w",
            "ttr": 1000,
            "ttl": 60_000,
            "priority": 0,
            "max_attempts": 0,
            "max_fails": 0,
            "payload": b"",
            "time": 0,
            "created": 0,
            **fields,
        }
        kind = k.Schedule if given["time"] else k.Add
        self.commit(self.jobs.add(kind(row_id, **given), self.clock))
        return row_id

    def ask(self, *names: bytes, prefix: bytes = b"", **options: Any) -> Lease | Nothing:
        self.tick()
        granted = self.jobs.lease(Where(names, prefix), self.clock, **options)
        if isinstance(granted, Nothing):
            return granted
        assert isinstance(granted, Granted)
        self.commit(granted.command)
        return lease_of(granted.row)

    def lease(self, *names: bytes, **options: Any) -> Lease:
        leased = self.ask(*names, **options)
        assert isinstance(leased, Lease)
        return leased

    def nothing(self, *names: bytes, **options: Any) -> int:
        """Nothing is to be had; when to ask again."""
        where = Where(names, options.pop("prefix", b""))
        answer = self.jobs.lease(where, self.clock, **options)
        assert isinstance(answer, Nothing), answer
        return answer.next_due

    def complete(self, lease: Lease, result: bytes | None = None) -> None:
        self.tick()
        self.commit(self.jobs.complete(lease.job.id, lease.token, self.clock, result))

    def fail(self, lease: Lease, result: bytes = b"") -> None:
        self.tick()
        self.commit(self.jobs.fail(lease.job.id, lease.token, self.clock, result))

    def release(self, lease: Lease, delay: int = 0) -> None:
        self.tick()
        self.commit(self.jobs.release(lease.job.id, lease.token, self.clock, delay))

    def set(self, queue: bytes, **changes: Any) -> None:
        self.tick()
        self.commit(self.jobs.set_queue(queue, changes))

    def timers(self) -> list[k.Command]:
        self.tick()
        done = []
        for command in self.jobs.timers(self.clock):
            self.commit(command)
            done.append(command)
        return done

    def job(self, row_id: bytes) -> Job:
        return job_of(self.state.rows[row_id])

    def replayed(self) -> JournalState:
        state = JournalState()
        for time, payload in self.log:
            state.replay(payload, time)
        return state
