"""A journal attacked at random: the disk fills, writes are cut short, the machine stops at any
operation, the clock is stepped. What its user was told is held against what is there.

Rules:

1. Everything follows from the seed, threads left aside: the standby is made on one, so an operation
   of it may come a little earlier or later.
2. What was answered holds after any crash: a job that was put is there, one that ended is gone, and
   each lease has a larger token than all that were told before it.
3. What was refused has not happened: the job is as it was. Only `OutcomeUnknown`, and a crash in
   the middle of a call, leave it open.
4. A lease lasts as long as was told, measured by the clock that never steps, less what counts as
   drift; unless the journal was closed before it had seen a step of the wall clock.
"""

from __future__ import annotations

import contextlib
import errno
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from fastjournal import Journal, State
from fastjournal.clock import SECOND
from fastjournal.errors import JournalError, LeaseLost, NoSpace, NotFound, OutcomeUnknown, Stopped
from fastjournal.testing import Crash, Fault, ManualClock, MemoryFiles, check_replay
from fastjournal.testing.files import MemoryHandle

__all__ = ["Attack"]

HOME = Path("/journal")
QUEUES = ["a", "b"]


class Handle(MemoryHandle):
    """Room that cannot be reserved wholly is reserved in part, as ext4 does it."""

    def reserve(self, offset: int, size: int) -> None:
        room = size
        if self.files.capacity is not None:
            free = max(0, self.files.capacity - self.files.used())
            room = min(size, self.size() + free - offset)
        super().reserve(offset, room)
        if room < size:
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))


class Disk(MemoryFiles):
    """Its files are such."""

    handle_class = Handle


@dataclass(slots=True)
class Told:
    """What the user knows of a job."""

    put: bool = False
    token: int = 0
    """The largest that was told."""
    lasts: int = 0
    """Until when that lease lasts at least, by the clock that never steps."""
    ended: bool = False
    ending: bool = False
    """Its end was asked for, and may have come about."""
    mine: dict[int, bool] = field(default_factory=dict)
    """Tokens told; True: its end was asked for."""


class Attack:
    """One life of a journal."""

    def __init__(self, seed: int, sync: str = "always", **options: Any) -> None:
        self.chance = Random(seed)
        self.sync = sync
        self.options = {"segment_size": self.chance.choice([4096, 8192, 65536]), **options}
        self.wall = ManualClock()
        self.files: MemoryFiles = Disk()
        self.files.make_directory(HOME.parent)
        self.jobs: dict[bytes, Told] = {}
        self.sums = 0
        self.unsure = 0
        self.steps = self.crashes = self.refusals = 0
        self.unseen = False
        self.journal: Journal | None = None
        self.doing = ""

    def run(self, steps: int) -> None:
        """Live, and judge."""
        deeds = [
            *[self.put] * 6, *[self.put_many] * 2, *[self.lease] * 8, *[self.complete] * 5,
            *[self.complete_many] * 2, *[self.fail] * 2, *[self.release] * 2, *[self.touch] * 2,
            *[self.pass_time] * 6, *[self.add] * 3, self.step_clock, self.rotate, self.clean,
            self.snapshot, self.fill, self.fill, self.empty, self.fault, self.fault, self.stop_at,
            self.stop_at, self.stop_at, self.kill, self.restart,
        ]  # fmt: skip
        self.open()
        for queue in QUEUES:
            self.j.configure(queue, max_fails=2**31 - 1, max_timeouts=255, backoff_base=0)
        for _ in range(steps):
            deed = self.chance.choice(deeds)
            self.doing = deed.__name__
            self.steps += 1
            try:
                deed()
            except Crash:
                self.crash()
            except JournalError as error:
                raise AssertionError(f"{deed.__name__}: {error!r}") from error
        self.doing = "end"
        self.files.faults.clear()
        self.files.crash_at = None
        self.files.capacity = None
        try:
            self.restart()
        except Crash:  # on the thread that makes the next segment
            self.crash()
        self.judge()
        self.close()

    # The journal comes and goes.

    def open(self) -> None:
        assert self.journal is None
        while self.journal is None:
            try:
                self.journal = Journal(
                    HOME,
                    sync=self.sync,
                    background=False,
                    clock=self.wall,
                    files=self.files,
                    chance=Random(self.chance.random()),
                    snapshot_bytes=0,
                    **self.options,
                )
            except Crash:
                self.crashes += 1
                self.files = self.left()
            except JournalError:
                if self.files.capacity is None and not self.files.faults:
                    raise
                self.files.faults.clear()
                self.files.capacity = None
        if self.unseen:
            self.unseen = False
            for told in self.jobs.values():
                told.lasts = 0
        self.look()

    def left(self) -> MemoryFiles:
        """What a crash leaves."""
        capacity = self.files.capacity
        if self.sync != "always" or self.chance.random() < 0.4:
            left: MemoryFiles = self.files.killed()
        else:
            images = self.files.images(samples=6, seed=self.chance.randrange(10**6))
            left = list(islice(images, self.chance.randrange(1, 7)))[-1]
        left.capacity = None if capacity is None else max(capacity, left.used())
        return left

    def crash(self) -> None:
        self.crashes += 1
        journal, self.journal = self.journal, None
        self.files.crash()
        left = self.left()
        if journal is not None:
            with contextlib.suppress(Crash, JournalError):
                journal.close()
        self.files = left
        self.open()

    def close(self) -> None:
        journal, self.journal = self.journal, None
        assert journal is not None
        try:
            journal.close()
        except JournalError as error:
            self.closing = repr(error)

    def kill(self) -> None:
        self.crash()

    def restart(self) -> None:
        self.close()
        self.files = self.files.killed() if self.chance.random() < 0.2 else self.files
        self.open()

    def stop_at(self) -> None:
        """The machine stops soon."""
        self.files.crash_at = len(self.files.operations) + self.chance.randrange(1, 12)

    def fault(self) -> None:
        """Something fails soon, for want of space."""
        at = len(self.files.operations) + self.chance.randrange(1, 10)
        short = self.chance.choice([None, 0, 1, 7, 40])
        for number in range(self.chance.choice([1, 1, 2, 3, 6])):
            self.files.faults[at + number] = Fault(errno.ENOSPC, short=short)

    def fill(self) -> None:
        self.files.capacity = self.files.used() + self.chance.choice([0, 1, 30, 300, 3000, 70_000])

    def empty(self) -> None:
        self.files.capacity = None
        self.wall.advance(2)

    # What its user does.

    @property
    def j(self) -> Journal:
        assert self.journal is not None
        return self.journal

    def ask(self, call: Any, *given: Any, **how: Any) -> tuple[str, Any]:
        """`done`, `refused` or `unknown`, and what was answered."""
        try:
            return "done", call(*given, **how)
        except OutcomeUnknown as error:
            self.stopped()
            return "unknown", error
        except (Stopped, JournalError) as error:
            self.refusals += 1
            if isinstance(error, Stopped):
                self.stopped()
            return "refused", error

    def stopped(self) -> None:
        """The log has stopped: there must have been a fault; begin again."""
        failure = self.j.status().log.failure
        assert failure
        self.files.faults.clear()
        self.crash()

    def put(self) -> None:
        job_id = self.chance.randbytes(16)
        told = self.jobs[job_id] = Told()
        key = self.chance.choice([None, None, None])
        payload = bytes(self.chance.choice([0, 10, 300, 3000]))
        outcome, _ = self.ask(
            self.j.put, payload, queue=self.chance.choice(QUEUES), id=job_id, key=key
        )
        told.put = outcome == "done"
        if outcome == "refused":
            self.gone(job_id)

    def put_many(self) -> None:
        ids = [self.chance.randbytes(16) for _ in range(self.chance.choice([2, 20]))]
        for job_id in ids:
            self.jobs[job_id] = Told()
        jobs = [{"payload": bytes(100), "queue": "a", "id": job_id} for job_id in ids]
        outcome, _ = self.ask(self.j.put_many, jobs)
        for job_id in ids:
            self.jobs[job_id].put = outcome == "done"

    def gone(self, job_id: bytes) -> None:
        self.files.faults.clear()  # who looks waits for a sync, too
        with contextlib.suppress(NotFound):
            self.j.job(job_id)
            raise AssertionError("a put that was refused is there")

    def lease(self) -> None:
        lasts = self.chance.choice([1, 5, 60])
        began = self.wall.monotonic()
        count = self.chance.choice([1, 1, 3, 20])
        outcome, leased = self.ask(
            self.j.lease_many, count, queues=self.chance.choice([QUEUES, ["a"]]), lease=lasts
        )
        if outcome != "done":
            return
        for job in leased:
            told = self.jobs[job.id]
            assert not told.ended, "it had ended"
            assert job.token > told.token, f"token {job.token} after {told.token}"
            if told.token and not told.mine[told.token]:
                early = told.lasts - self.wall.monotonic()
                assert early <= SECOND, f"{early} ns before token {told.token} had ended"
            told.token, told.lasts = job.token, began + lasts * SECOND
            told.mine[job.token] = False

    def mine(self) -> tuple[bytes, Told] | None:
        held = [
            (job_id, told)
            for job_id, told in self.jobs.items()
            if told.token and not told.mine[told.token]
        ]
        return self.chance.choice(held) if held else None

    def complete(self) -> None:
        if (held := self.mine()) is None:
            return
        job_id, told = held
        told.mine[told.token] = told.ending = True
        result = self.chance.choice([None, None, b"result"])
        self.judge_end(job_id, told, *self.ask(self.j.complete, job_id, told.token, result))

    def judge_end(self, job_id: bytes, told: Told, outcome: str, answer: Any) -> None:
        if outcome == "done":
            told.ended = True
        elif outcome == "refused":
            told.ending = False
            if isinstance(answer, NoSpace):
                told.mine[told.token] = False
            else:
                assert isinstance(answer, LeaseLost | NotFound | Stopped), repr(answer)
            self.there(job_id)

    def there(self, job_id: bytes) -> None:
        self.files.faults.clear()
        told = self.jobs[job_id]
        if told.put and not told.ending and not told.ended:
            try:
                state = self.j.job(job_id).state
            except NotFound:
                raise AssertionError(f"{job_id.hex()} is lost") from None
            assert state in (State.WAITING, State.PROCESSING), state

    def complete_many(self) -> None:
        held = [
            (job_id, told)
            for job_id, told in self.jobs.items()
            if told.token and not told.mine[told.token]
        ][:20]
        if not held:
            return
        for _, told in held:
            told.mine[told.token] = told.ending = True
        ends = [(job_id, told.token, None) for job_id, told in held]
        outcome, fine = self.ask(self.j.complete_many, ends)
        if outcome != "done":
            if isinstance(fine, Stopped) and outcome == "refused":
                for job_id, told in held:
                    self.judge_end(job_id, told, outcome, fine)
            return
        for (job_id, told), done in zip(held, fine, strict=True):
            if done:
                told.ended = True
            else:
                told.ending = False
                self.there(job_id)

    def fail(self) -> None:
        if (held := self.mine()) is not None:
            job_id, told = held
            told.mine[told.token] = True
            outcome, answer = self.ask(self.j.fail, job_id, told.token, b"x" * 50, 0)
            self.judge_return(job_id, told, outcome, answer)

    def release(self) -> None:
        if (held := self.mine()) is not None:
            job_id, told = held
            told.mine[told.token] = True
            delay = self.chance.choice([0, 0, 3])
            outcome, answer = self.ask(self.j.release, job_id, told.token, delay)
            self.judge_return(job_id, told, outcome, answer)

    def judge_return(self, job_id: bytes, told: Told, outcome: str, answer: Any) -> None:
        if outcome == "refused" and isinstance(answer, NoSpace):
            told.mine[told.token] = False
        self.there(job_id)

    def touch(self) -> None:
        if (held := self.mine()) is None:
            return
        job_id, told = held
        began = self.wall.monotonic()
        outcome, _ = self.ask(self.j.touch, job_id, told.token, 30)
        if outcome == "done":
            told.lasts = max(told.lasts, began + 30 * SECOND)

    def add(self) -> None:
        known, most = self.sums, self.sums + self.unsure
        self.unsure += 1
        outcome, answer = self.ask(self.j.entries.add, "sum", 1)
        if outcome == "done":
            assert known < answer <= most + 1
            self.sums, self.unsure = answer, 0
        elif outcome == "refused":
            self.files.faults.clear()
            found = self.j.entries.get("sum", 0)
            assert known <= found <= most, (known, found, most)
            self.sums, self.unsure = found, 0

    def pass_time(self) -> None:
        self.wall.advance(self.chance.choice([0.000_001, 0.1, 1, 3]))
        if self.chance.random() < 0.5:
            self.ask(self.j.tick)

    def step_clock(self) -> None:
        self.wall.step(self.chance.choice([-7200, -3, 3, 7200]))
        self.unseen = True
        outcome, _ = self.ask(self.j.tick)
        if outcome == "done" and not self.j.engine.clock.stepped:
            self.unseen = False

    def rotate(self) -> None:
        self.ask(self.j.rotate)

    def clean(self) -> None:
        self.ask(self.j.clean)

    def snapshot(self) -> None:
        self.ask(self.j.snapshot)

    # The judge.

    def look(self) -> None:
        """After each opening."""
        check_replay(self.j)
        self.judge()

    def judge(self) -> None:
        rows = {job.id: job for job in self.j.jobs(limit=10**6)}
        for job_id, told in self.jobs.items():
            row = rows.get(job_id)
            open_ = row is not None and row.state in (State.WAITING, State.PROCESSING)
            if told.ended:
                assert not open_, f"{job_id.hex()} had ended and is back"
            elif told.put and not told.ending:
                assert open_, f"{job_id.hex()} was put and is lost"
            if row is not None and open_:
                assert row.attempts >= told.token, f"token {told.token} told, {row.attempts} is"
        found = self.j.entries.get("sum", 0)
        assert self.sums <= found <= self.sums + self.unsure, (found, self.sums, self.unsure)
        self.sums, self.unsure = found, 0
