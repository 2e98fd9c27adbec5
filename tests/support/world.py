"""A whole `Journal` over files in memory, and the plain oracle beside it.

Every request goes to both. After a step the rows are the oracle's rows, and replaying the files
gives the same state by hash.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from fastjournal import Journal
from fastjournal.errors import RequestError
from fastjournal.journal.disk.replay import replay
from fastjournal.journal.engine.operations import Operations
from fastjournal.journal.language import commands as k
from fastjournal.journal.state.row import job_of
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.model import NewJob, Outcome, Receipt
from fastjournal.put_request import checked_request
from fastjournal.testing import ManualClock, MemoryFiles
from oracle import SETTINGS, Oracle, Refused, S, compare_row, order

HOME = Path("/journal")
QUEUES = [b"a", b"ab", b"b", b"w"]


def put_now(operations: Operations, job: NewJob) -> Receipt:
    outcome = operations.put(checked_request(job))
    return Receipt(operations.placed_id, Outcome(outcome))


def put_all(operations: Operations, jobs: list[NewJob]) -> list[Receipt]:
    return operations.put_many([checked_request(job) for job in jobs])


class EvenChance(Random):
    """Ids by chance, but waits that are never moved."""

    def random(self) -> float:
        return 0.5


class World:
    """A journal and its oracle."""

    def __init__(self, seed: int = 0, **options: Any) -> None:
        self.options = {"sync": "always", "segment_size": 4096, **options}
        self.seed = seed
        self.wall = ManualClock()
        self.files = MemoryFiles()
        self.files.make_directory(HOME.parent)
        self.oracle = Oracle()
        self.restarts = 0
        self.open()

    def open(self) -> None:
        self.restarts += 1
        self.journal = Journal(
            HOME,
            background=False,
            clean_interval=0,
            snapshot_bytes=0,
            clock=self.wall,
            files=self.files,
            chance=EvenChance(self.seed * 1000 + self.restarts),
            **self.options,
        )
        state = self.journal.engine.state
        self.oracle.busy.clear()
        self.oracle.stamp = max(state.now, state.last_inserted)

    @property
    def now(self) -> int:
        return self.journal.engine.clock.now()

    def next_time(self) -> int:
        """TIME of the next record."""
        return max(self.now, self.journal.engine.log.written_time + 1)

    def step(self) -> None:
        """Before each request: both know the same time."""
        self.oracle.known = self.journal.engine.state.now

    def step_ahead(self, seconds: int) -> None:
        """The wall clock steps forward; leases keep their length if it is a step."""
        self.wall.step(seconds)
        begin = self.now
        with self.journal.engine.lock:
            self.journal.engine.begin()
        if self.options["sync"] == "always":
            self.journal.sync()  # nobody was answered: else the next answer would wait for it
        step = self.now - begin
        for row in self.oracle.rows:
            if row["state"] == "P":
                row["lease_until"] += step

    def refused(self, ours: Any, theirs: Any) -> Any:
        """Ask both: (answer, answer), or None if both refuse. A refusal changes nothing."""
        self.step()
        before = self.journal.digest()
        try:
            answer = ours()
        except RequestError:
            assert self.journal.digest() == before
            try:
                theirs()
            except Refused:
                return None
            raise
        return answer, theirs()

    def put(self, **fields: Any) -> None:
        job = NewJob(**fields)
        given = self.refused(
            lambda: self.ask(lambda operations: put_now(operations, job)),
            lambda: self.oracle.put(job, self.now),
        )
        if given is None:
            return
        receipt, (outcome, row) = given
        assert receipt.outcome.name == outcome
        if row["id"] is None:
            row["id"] = receipt.id
        assert row["id"] == receipt.id

    def ask(self, request: Any) -> Any:
        """A request as the journal's own methods make it, but with values to the nanosecond."""
        engine = self.journal.engine
        with engine.lock:
            answer = request(self.journal.operations)
            time = engine.last_time
        engine.settle(time)
        return answer

    def put_many(self, jobs: list[NewJob]) -> None:
        """All or none."""
        now = self.now
        self.step()
        before = self.journal.digest()
        copy = [dict(row) for row in self.oracle.rows]
        stamp, known = self.oracle.stamp, self.oracle.known
        outcomes = []
        time = self.next_time()
        try:
            for job in jobs:
                outcomes.append(self.oracle.put(job, now))
                if outcomes[-1][0] != "STALE":
                    self.oracle.known = max(self.oracle.known, time)
                    time += 1
        except Refused:
            self.oracle.rows = copy
            try:
                self.ask(lambda operations: put_all(operations, jobs))
            except RequestError:
                self.oracle.stamp, self.oracle.known = stamp, known
                assert self.journal.digest() == before
                return
            raise
        receipts = self.ask(lambda operations: put_all(operations, jobs))
        for receipt, (outcome, row) in zip(receipts, outcomes, strict=True):
            assert receipt.outcome.name == outcome
            assert row is not None
            row["id"] = row["id"] or receipt.id
            assert row["id"] == receipt.id

    def add(self, job: k.Add | k.Schedule) -> None:
        """Workq's add and schedule."""
        now = self.now
        self.refused(
            lambda: self.ask(lambda operations: operations.add(job)),
            lambda: self.oracle.add(job, now),
        )

    def lease(self, count: int, names: list[bytes], where: dict[str, Any], **how: Any) -> None:
        self.step()
        now, take = self.now, how["take"]
        oracle = self.oracle
        time = self.next_time()
        if any(r["state"] == "P" and r["lease_until"] <= now for r in oracle.rows) or any(
            r["expires"] and r["expires"] < now for r in oracle.rows
        ):
            time = self._let_time_pass(now, time)
        length = how["lease"]
        leased = self.journal.lease_many(
            count, **where, **{**how, "lease": length / S if length else None}
        )
        for got in leased:
            kind, rows = oracle.choices(names, now, how["worker"])
            assert kind == "rows"
            row = oracle.row(got.id)
            assert row is not None
            assert row in rows
            if not how["fair"]:
                assert row == min(rows, key=order)
            assert got.payload == row["value"]
            if take:
                oracle.rows.remove(row)
            else:
                oracle.lease(row, now, time, length)
                assert got.token == row["attempts"]
                assert got.lease.until == row["lease_until"]
            oracle.known = max(oracle.known, time)
            time += 1
        if not leased:
            self.journal.sync()  # what time did was no answer to anybody
        if len(leased) < count:
            assert oracle.choices(names, now, how["worker"])[0] != "rows"

    def _let_time_pass(self, now: int, time: int) -> int:
        oracle = self.oracle
        now = oracle.known = max(oracle.known, now)
        while passed := oracle.passed(now):
            oracle.known = now
            oracle.happen(passed[0], now, time)
            time += 1
        oracle.known = max(now, time - 1)
        return time

    def tick(self) -> None:
        self.step()
        self._let_time_pass(self.now, self.next_time())
        self.journal.tick()
        self.journal.sync()
        assert not self.oracle.passed(self.now)

    def pick(self, number: int, states: str) -> Any:
        rows = [row for row in self.oracle.rows if row["state"] in states]
        return sorted(rows, key=order)[number % len(rows)] if rows else None

    def end(self, what: str, number: int, token: str, **given: Any) -> None:
        """touch, complete, fail or release of some row, by the right token, a wrong one or none."""
        row = self.pick(number, "PPPWCF")
        if row is None:
            return
        right: Any = row["attempts"] + (token == "wrong")
        if token == "none" and what in ("complete", "fail"):
            right = None
        now, time, journal = self.now, self.next_time(), self.journal
        row_id, oracle = row["id"], self.oracle
        theirs = {
            "touch": lambda: oracle.touch(row_id, right, now, given["extend"] * S),
            "complete": lambda: oracle.complete(row_id, right, now, given["result"]),
            "fail": lambda: oracle.fail(row_id, right, now, time, given["reason"]),
            "release": lambda: oracle.release(row_id, right, now, given["delay"] * S),
        }[what]
        method = getattr(journal, what)
        if what in ("touch", "release"):
            (value,) = given.values()
            self.refused(lambda: method(row_id, right, value or None), theirs)
        else:
            self.refused(lambda: method(row_id, right, *given.values()), theirs)

    def complete_many(self, result: bytes | None) -> None:
        """All that is worked on, in one write, with a lost lease between them."""
        self.step()
        now, time = self.now, self.next_time()
        rows = sorted((r for r in self.oracle.rows if r["state"] == "P"), key=order)
        ends = [(r["id"], r["attempts"], result) for r in rows]
        outcomes = self.journal.complete_many([*ends, (bytes(16), 1, result)])
        assert outcomes[-1] is False
        for (row_id, token, _), done in zip(ends, outcomes, strict=False):
            try:
                self.oracle.complete(row_id, token, now, result)
            except Refused:
                assert not done
            else:
                assert done
                self.oracle.known = max(self.oracle.known, time)
                time += 1

    def delete(self, number: int) -> None:
        row = self.pick(number, "WPCF")
        if row is None:
            return
        self.step()
        there = self.oracle.delete(row["id"], self.now)
        assert self.journal.delete(row["id"]) is bool(there)

    def delete_key(self, queue: bytes, key: bytes) -> None:
        self.step()
        now = self.now
        deleted = self.ask(lambda operations: operations.delete_key(queue, key))
        command = deleted.command
        tomb = command.members[-1] if isinstance(command, k.Group) else command
        assert deleted.found == self.oracle.delete_key(queue, key, now, tomb.id)

    def redrive(self, number: int) -> None:
        row = self.pick(number, "FFW")
        if row is not None:
            now = self.now
            self.refused(
                lambda: self.journal.redrive(row["id"]),
                lambda: self.oracle.redrive(row["id"], now),
            )

    def configure(self, queue: bytes, change: dict[str, Any]) -> None:
        self.step()
        seconds = {"lease", "max_wait", "dead_keep"}
        given = {name: v // S if name in seconds else v for name, v in change.items()}
        self.journal.configure(queue, **given)
        merged = {**self.oracle.settings.get(queue, {}), **change}
        self.oracle.settings[queue] = {n: v for n, v in merged.items() if v != SETTINGS[n]}

    def restart(self) -> None:
        own = self.journal.engine.own
        self.journal.close()
        self.open()
        assert self.journal.replayed.clean == own  # no MARK where only Workq has written

    def kill(self) -> None:
        """Everything handed to the system is there."""
        image = self.files.killed()
        self.abandon()
        self.files = image
        self.open()

    def lose_power(self, seed: int) -> None:
        """Under `always` nothing that was answered may be missing on any disk left behind."""
        assert self.options["sync"] == "always"
        digest = self.journal.digest()
        images = list(self.files.images(samples=4, seed=seed))
        self.abandon()
        for image in images:
            self.files = image
            self.open()
            assert self.journal.digest() == digest
            if image is not images[-1]:
                self.journal.close()

    def abandon(self) -> None:
        """End the threads of a journal whose files are no longer ours."""
        self.journal.close()

    def check(self) -> None:
        """The rows are the oracle's, and the files say the same."""
        state = self.journal.engine.state
        assert len(state.rows) == len(self.oracle.rows)
        for theirs in self.oracle.rows:
            row = state.rows[theirs["id"]]
            self.journal.engine.load(row)
            compare_row(job_of(row), theirs)
        assert self.replayed().digest() == self.journal.digest()

    def replayed(self) -> Any:
        return replay(Stream(HOME, WORKQ, files=self.files)).state
