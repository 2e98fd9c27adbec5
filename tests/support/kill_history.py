"""What clients were told while their daemon was killed, and whether it kept its word.

Judged is only what the pages promise (what-an-ack-means, leases, clients):

    lost         a job, a result or a value that was acknowledged is not there and nobody ended it
    doubled      one job told done twice; leased twice under one token, or before a lease had ended
    resurrected  a job that was told done is handed out again, or waits
    miscounted   a sum holds more or less than was added
    mistold      two additions were told the same sum
    misled       an end was refused ("nothing was changed"), and it had happened
    hung         a call that neither answered nor failed

Rules:

1. What was asked and not answered may have happened or not: nothing follows from it.
2. A put whose answer was lost, sent again after its job was done and forgotten, makes a new job
   ("delivery is at least once"). It counts as `reborn`, unless the put had been answered before.
3. Instants are of one clock that never steps, the client's. So a lease lasts at least from the
   moment it was asked for, for its length, whatever the daemon's clock does; less by `drift` where
   that clock is set: what it is moved by less than a second counts as drift.
4. Of two leases the one that was told before the other was asked for is the older. Else nobody
   knows by the clock: a slow sync, or a stopped daemon, answers both at once, and either client may
   be the first to write it down. Then they count in the order of their tokens.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fastjournal import Client, Journal, State
from fastjournal.clock import SECOND

__all__ = ["History", "Verdict"]

_OPEN = (State.WAITING, State.PROCESSING)


@dataclass(slots=True)
class Lease:
    """A job in somebody's hands; instants in ns."""

    asked: int
    at: int
    """When it was told."""
    token: int
    until: int
    given_back: bool = False
    """Its end was asked for, in whatever way."""


@dataclass(slots=True)
class Life:
    """What is known of one job without a key."""

    put_at: int = 0
    """When the put was acknowledged; 0: it was not."""
    leases: list[Lease] = field(default_factory=list)
    ending: bool = False
    """Somebody asked for its end and may have got it."""
    done: int = 0
    refused: int = 0
    """Token of the last end that was refused; 0: none."""
    result: bytes | None = None


@dataclass(slots=True)
class Verdict:
    """The figures of a run; those from `lost` on must be 0."""

    rounds: int = 0
    calls: int = 0
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    jobs: int = 0
    done: int = 0
    reborn: int = 0
    lost: int = 0
    doubled: int = 0
    resurrected: int = 0
    miscounted: int = 0
    mistold: int = 0
    misled: int = 0
    hung: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def broken(self) -> int:
        """How many promises were broken."""
        return sum((self.lost, self.doubled, self.resurrected, self.miscounted, self.mistold,
                    self.misled, self.hung))  # fmt: skip

    def blame(self, what: str, words: str, seen: object = "") -> None:
        """One more broken promise; `seen`: what the clients wrote down of it."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.examples) < 20:
            self.examples.append(f"{what}: {words} {seen}".rstrip())

    def add(self, other: Verdict) -> None:
        """Take in the figures of another run."""
        for name in self.names:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.examples += other.examples

    @property
    def names(self) -> list[str]:
        """Of all figures."""
        return [name for name in self.__slots__ if name != "examples"]

    def __str__(self) -> str:
        return ", ".join(f"{name} {getattr(self, name)}" for name in self.names)


class History:
    """Written by all clients, judged at the end."""

    def __init__(self, drift: int = 0) -> None:
        self._drift = drift
        self.lives: dict[bytes, Life] = defaultdict(Life)
        self.told = Verdict()
        self.sums: dict[str, list[int]] = defaultdict(list)
        self.unsure: Counter[str] = Counter()
        self.set_asked: dict[str, int] = {}
        self.set_told: dict[str, int] = {}
        self.keyed_told: dict[str, int] = {}
        self.keyed_ended: Counter[str] = Counter()
        """The newest version of a key whose end was asked for."""
        self.fences: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
        """Locks of a key: when asked for, when told, and the number."""
        self.counted: dict[str, list[int]] = defaultdict(list)
        """What holders of the lock of a key read, made one more and wrote."""
        self.spooled_told: set[bytes] = set()
        """Payloads whose put into a spool returned."""
        self.spooled: dict[bytes, set[bytes]] = defaultdict(set)
        """As which jobs they were seen."""
        self.ahead = 0
        """Jobs put and not ended, about."""
        self._changed = threading.Condition()

    def count(self, outcome: str) -> None:
        """A call ended so: acknowledged, refused, unknown or hung."""
        with self._changed:
            self.told.calls += 1
            setattr(self.told, outcome, getattr(self.told, outcome) + 1)
            self._changed.notify_all()

    def wait_for(self, calls: int, seconds: float = 120) -> None:
        """Until so many more calls were acknowledged."""
        with self._changed:
            wanted = self.told.acknowledged + calls
            arrived = self._changed.wait_for(lambda: self.told.acknowledged >= wanted, seconds)
        assert arrived, f"only {self.told} after {seconds} s"

    def leased(self, job: Any, asked: int, now: int, until: int) -> Lease:
        """A job that was asked for was handed out now, until at least then."""
        lease = Lease(asked, now, job.token, until)
        self.lives[job.id].leases.append(lease)
        if job.payload in self.spooled_told:
            self.spooled[job.payload].add(job.id)
        return lease

    def judge(self, journal: Journal | Client) -> Verdict:
        """Compare with what is there now."""
        verdict = self.told
        rows = {job.id: job for job in journal.jobs(limit=10**9)}
        for job_id, life in self.lives.items():
            self._judge_job(job_id.hex(), life, rows.get(job_id), verdict)
        verdict.jobs = sum(life.put_at > 0 for life in self.lives.values())
        verdict.done = sum(life.done for life in self.lives.values())
        self._judge_keys(rows.values(), verdict)
        self._judge_entries(journal, verdict)
        self._judge_locks(journal, verdict)
        self._judge_spool(rows.values(), verdict)
        return verdict

    def _judge_job(self, name: str, life: Life, row: Any, verdict: Verdict) -> None:
        lives = self._lives_of(name, life, verdict)
        verdict.reborn += lives - 1
        if life.done > lives:
            verdict.blame("doubled", f"{name} was told done {life.done} times")
        waits = row is not None and row.state in _OPEN
        if life.done and lives == 1 and waits:
            verdict.blame("resurrected", f"{name} was done and is {row.state.name}")
        if life.result is not None and lives == 1:
            if row is None or row.state is not State.COMPLETED or row.result != life.result:
                verdict.blame("lost", f"the result of {name}")
        elif life.put_at and not life.ending and not waits:
            if life.refused and life.leases[-1].token == life.refused:
                verdict.blame(
                    "misled", f"{name}: token {life.refused} was refused and ended it", life
                )
            else:
                told = f"put at {life.put_at / SECOND:.3f}, leased {len(life.leases)} times"
                verdict.blame("lost", f"{name}, {told}", life)

    def _lives_of(self, name: str, life: Life, verdict: Verdict) -> int:
        lives = 1
        for a, b in pairwise(_in_order(life)):
            if b.token == 1 and a.given_back:  # else it cannot have ended
                if life.put_at and life.put_at < a.at:
                    times = f"put {life.put_at / SECOND:.3f}, leased {a.at / SECOND:.3f}"
                    again = f"began again at {b.at / SECOND:.3f}"
                    verdict.blame("resurrected", f"{name}: {times}, {again}")
                lives += 1
            elif b.token <= a.token:
                verdict.blame("doubled", f"{name} was leased twice under token {b.token}", life)
            elif b.at < a.until - self._drift and not a.given_back:
                early = f"{(a.until - b.at) / SECOND:.1f} s before token {a.token} had ended"
                verdict.blame("doubled", f"{name} was handed out {early}")
        return lives

    def _judge_keys(self, rows: Any, verdict: Verdict) -> None:
        there: Counter[str] = Counter()
        for row in rows:
            if row.key and row.queue == "keyed" and row.state in _OPEN:
                there[row.key] = max(there[row.key], int(row.payload))
        for key, version in self.keyed_told.items():
            if max(there[key], self.keyed_ended[key]) < version:
                verdict.blame("lost", f"version {version} of key {key}")

    def _judge_entries(self, journal: Journal | Client, verdict: Verdict) -> None:
        for key, sums in self.sums.items():
            total = journal.entries.get(key, 0)
            for value, times in Counter(sums).items():
                if times > 1:
                    verdict.blame("mistold", f"{key}: {times} additions were told {value}")
            if not len(sums) <= total <= len(sums) + self.unsure[key]:
                told = f"{len(sums)} told, {self.unsure[key]} unsure, but {total}"
                verdict.blame("miscounted", f"{key}: {told}")
        for key, value in self.set_told.items():
            found = journal.entries.get(key, -1)
            if not value <= found <= self.set_asked[key]:
                verdict.blame("lost", f"{key} is {found}, told {value}")

    def _judge_locks(self, journal: Journal | Client, verdict: Verdict) -> None:
        for key, locks in self.fences.items():
            by_told = sorted(locks, key=lambda lock: lock[1])
            known, at = 0, 0  # the largest number told before the next one was asked for
            for asked, _, fence in sorted(locks):
                while by_told[at][1] < asked:
                    known, at = max(known, by_told[at][2]), at + 1
                if fence <= known:
                    verdict.blame("doubled", f"lock {key} got number {fence} after {known}")
        for key, values in self.counted.items():
            for value, times in Counter(values).items():
                if times > 1:
                    verdict.blame("doubled", f"{key}: {times} holders of its lock wrote {value}")
            found = journal.entries.get(key, 0)
            if found < max(values):
                verdict.blame("lost", f"{key} is {found}, a holder of its lock wrote {max(values)}")

    def _judge_spool(self, rows: Any, verdict: Verdict) -> None:
        for row in rows:
            if row.value in self.spooled_told:
                self.spooled[row.value].add(row.id)
        for payload in self.spooled_told:
            jobs = len(self.spooled[payload])
            if jobs != 1:
                word = "doubled" if jobs else "lost"
                verdict.blame(word, f"{payload!r} of a spool became {jobs} jobs")


def _in_order(life: Life) -> list[Lease]:
    """The leases of a job as they came about (rule 4)."""
    ordered: list[Lease] = []
    for lease in sorted(life.leases, key=lambda lease: lease.at):
        place = len(ordered)
        while place and _may_precede(lease, ordered[place - 1], life):
            place -= 1
        ordered.insert(place, lease)
    return ordered


def _may_precede(late: Lease, early: Lease, life: Life) -> bool:
    """Whether the lease that was told later came first all the same."""
    if late.asked >= early.at or late.token >= early.token:
        return False
    begins_anew = late.token == 1 and early.given_back and not 0 < life.put_at < early.at
    return not begins_anew
