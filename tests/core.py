"""The pure core under a hand-moved clock: what tests of decisions talk to."""

from __future__ import annotations

from random import Random
from typing import Any

from fastjournal.journal.decide.jobs import Granted, Jobs, Limits, Nothing, Placed
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import job_of, lease_of
from fastjournal.model import Job, Lease, NewJob, Where

S = 1_000_000_000
MS = 1_000_000
NOW = 1_700_000_000 * S


class Core:
    """Decides, logs in a list, applies; every command goes through its bytes."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.state = JournalState()
        self.jobs = Jobs(self.state, chance=Random(1), limits=limits)
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
