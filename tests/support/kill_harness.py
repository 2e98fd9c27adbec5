"""A real daemon, killed with SIGKILL again and again while blocking and asyncio clients work.

Rules:

1. One script says what a client does, as a generator of calls; both clients play it. So both meet
   the same requests, and the history is written in one place.
2. The daemon is killed at a random moment of its work, or of its start; each time it comes back
   under another sync policy. Segments are short, cleaning and snapshots frequent.
3. The queue stays short, so that a start is quick however long the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import subprocess
import threading
import time
import uuid
from collections.abc import Generator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import fastjournal
from daemon_process import DaemonProcess
from fastjournal import Journal, Outcome
from fastjournal.clock import SECOND
from fastjournal.errors import ClockSkew, JournalError, OutcomeUnknown, RequestError, Unavailable
from fastjournal.testing import check_one_waiting_row, check_replay
from kill_history import History, Lease, Verdict

__all__ = ["QUEUE", "QUEUES", "SETTINGS", "Crowd", "kill_rounds"]

BLOCKING, ASYNCIO = 3, 4
AHEAD = 400  # jobs
SITTING = 300  # calls of a blocking client before another takes its place
PATIENCE = 60.0  # seconds a call may take, restarts included
POLICIES = ("interval", "always", "os")
QUEUES = ["jobs", "keyed", "spooled"]
QUEUE = {"max_fails": 2**31 - 1, "max_timeouts": 255, "backoff_base": 0}
SETTINGS = {
    "FASTJOURNAL_JOURNAL_SEGMENT_SIZE": "50000",
    "FASTJOURNAL_JOURNAL_CLEAN_INTERVAL": "0.3",
    "FASTJOURNAL_JOURNAL_SNAPSHOT_BYTES": "200000",
}


class Call(NamedTuple):
    """A method of a client and its arguments."""

    method: str
    args: tuple[Any, ...] = ()
    how: dict[str, Any] = {}  # noqa: RUF012 - never changed
    on: Any = None
    """What has the method, if not the client itself."""

    def make(self, client: Any) -> Any:
        """Make the call; what comes back may have to be awaited."""
        return attrgetter(self.method)(self.on or client)(*self.args, **self.how)


Script = Generator[Call, Any, None]


def client_life(name: str, chance: random.Random, history: History) -> Script:
    """What a client does, for ever; each call is answered by its value, or by its error."""
    versions = {f"{name}-{n}": 0 for n in range(3)}
    while True:
        what = chance.random()
        if what < 0.3 and history.ahead < AHEAD:
            yield from put_jobs(chance, history)
        elif what < 0.4:
            yield from put_keyed(chance, history, versions)
        elif what < 0.5:
            yield from add(f"sum-{chance.randrange(4)}", history)
        elif what < 0.57:
            yield from set_entry(f"entry of {name}", history)
        elif what < 0.6:
            yield from count_locked(f"locked-{chance.randrange(2)}", history)
        else:
            yield from work(chance, history)


def put_jobs(chance: random.Random, history: History) -> Script:
    """One job or several, under ids of our own."""
    jobs: list[dict[str, Any]] = [
        {"payload": bytes(chance.randrange(200)), "queue": "jobs", "id": uuid.uuid4().bytes}
        for _ in range(chance.choice([1, 1, 1, 15]))
    ]
    try:
        yield Call("put", (), jobs[0]) if len(jobs) == 1 else Call("put_many", (jobs,))
    except JournalError:
        return
    now = time.monotonic_ns()
    for job in jobs:
        history.lives[job["id"]].put_at = now
    history.ahead += len(jobs)


def put_keyed(chance: random.Random, history: History, versions: dict[str, int]) -> Script:
    """The next version of a key that nobody else writes."""
    key = chance.choice(list(versions))
    versions[key] += 1
    version = versions[key]
    try:
        receipt = yield Call("put", (b"%d" % version,), {"key": key, "queue": "keyed"})
    except JournalError:
        return
    if receipt.outcome is not Outcome.STALE:  # the daemon's clock was ahead when it took the last
        history.keyed_told[key] = version


def add(key: str, history: History) -> Script:
    """One more."""
    try:
        total = yield Call("entries.add", (key, 1))
    except JournalError as error:
        if isinstance(error, RequestError) and not isinstance(error, ClockSkew):
            raise
        history.unsure[key] += outcome_of(error) == "unknown"
        return
    history.sums[key].append(total)


def set_entry(key: str, history: History) -> Script:
    """The next number under a key that nobody else writes."""
    value = history.set_asked[key] = history.set_asked.get(key, 0) + 1
    try:
        taken = yield Call("entries.set", (key, value))
    except JournalError:
        return
    if taken:
        history.set_told[key] = value


def count_locked(key: str, history: History) -> Script:
    """One more, read and written by whoever has the lock."""
    asked = time.monotonic_ns()
    try:
        held = yield Call("entries.lock", (key, 2), {"wait": 0.2})
        yield Call("take", on=held)  # that of asyncio was only promised so far
        history.fences[key].append((asked, time.monotonic_ns(), held.fence))
        value = yield Call("get", (0,), on=held)
        if (yield Call("set", (value + 1,), on=held)):
            history.counted[key].append(value + 1)
        yield Call("free", on=held)
    except JournalError:
        return


def work(chance: random.Random, history: History) -> Script:
    """Lease some jobs and end them, in any of the ways there are."""
    lasts = chance.choice([1, 3])
    how = {"queues": QUEUES, "lease": lasts, "wait": 0.1}
    asked = time.monotonic_ns()
    try:
        leased = yield Call("lease_many", (chance.choice([1, 4, 16]),), how)
    except JournalError:
        return
    now, until = time.monotonic_ns(), asked + lasts * SECOND
    hands = [(job, history.leased(job, asked, now, until)) for job in leased]
    if len(hands) > 1 and chance.random() < 0.3:
        yield from finish_many(hands, history)
        return
    for job, lease in hands:
        what = chance.random()
        if what < 0.05:
            continue  # as if its worker had died: the lease ends by itself
        if what < 0.15:
            yield from touch(job, lease)
        if what < 0.12:
            lease.given_back = True
            method, rest = chance.choice([("fail", (b"why", 0)), ("release", (0,))])
            with contextlib.suppress(JournalError):
                yield Call(method, (job.id, job.token, *rest))
            continue
        yield from finish(job, lease, history, b"result" if what > 0.97 else None)


def touch(job: Any, lease: Lease) -> Script:
    """Keep the lease for a while."""
    asked = time.monotonic_ns()
    try:
        yield Call("touch", (job.id, job.token, 2))
    except JournalError:
        return
    lease.until = max(lease.until, asked + 2 * SECOND)


def begin_end(job: Any, lease: Lease, history: History) -> None:
    """The end of a job is about to be asked for."""
    lease.given_back = True
    if job.key:
        history.keyed_ended[job.key] = max(history.keyed_ended[job.key], int(job.payload))


def finish(job: Any, lease: Lease, history: History, result: bytes | None) -> Script:
    """Done, and perhaps with a result."""
    begin_end(job, lease, history)
    life = history.lives[job.id]
    try:
        yield Call("complete", (job.id, job.token, result))
    except JournalError as error:
        if outcome_of(error) == "refused":
            life.refused = job.token
        else:
            life.ending = True
    else:
        told_done(job, history, result)


def finish_many(hands: list[tuple[Any, Lease]], history: History) -> Script:
    """Done, all of them with one call."""
    for job, lease in hands:
        begin_end(job, lease, history)
    try:
        answers = yield Call("complete_many", ([(job.id, job.token, None) for job, _ in hands],))
    except JournalError:  # of some of them, perhaps
        for job, _ in hands:
            history.lives[job.id].ending = True
        return
    for (job, _), fine in zip(hands, answers, strict=True):
        if fine:
            told_done(job, history, None)
        else:
            history.lives[job.id].refused = job.token


def told_done(job: Any, history: History, result: bytes | None) -> None:
    """It was acknowledged."""
    life = history.lives[job.id]
    life.ending = True
    if not job.key:  # the same id may come to new work of its key
        life.done += 1
        life.result = result
        history.ahead -= 1


def outcome_of(error: JournalError) -> str:
    """Two errors leave it open; any other says that nothing was changed."""
    return "unknown" if isinstance(error, Unavailable | OutcomeUnknown | Hung) else "refused"


class Hung(JournalError):
    """A call that neither answered nor failed."""


class Crowd:
    """The clients, each in a thread; those of asyncio share one, and one connection."""

    def __init__(self, url: str, seed: int, drift: int = 0) -> None:
        self.url = f"{url}?timeout={PATIENCE / 2:g}&connect_timeout={PATIENCE / 2:g}"
        self.history = History(drift)
        self._stop = threading.Event()
        self._faults: list[BaseException] = []
        scripts = [
            client_life(f"c{n}", random.Random(seed * 100 + n), self.history)
            for n in range(BLOCKING + ASYNCIO)
        ]
        works = [(self._blocking, script) for script in scripts[:BLOCKING]]
        self._threads = [
            threading.Thread(target=self._guard, args=(work, given), daemon=True)
            for work, given in [*works, (self._asyncio, scripts[BLOCKING:])]
        ]

    def start(self) -> None:
        """Everybody begins."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Everybody ends behind the call under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * PATIENCE)
            assert not thread.is_alive(), "a client does not come back"
        self.check()

    def check(self) -> None:
        """Raise what a client died of."""
        if self._faults:
            raise self._faults[0]

    def _guard(self, work: Any, given: Any) -> None:
        try:
            work(given)
        except BaseException as error:
            self._faults.append(error)

    def _blocking(self, script: Script) -> None:
        call = next(script)
        while not self._stop.is_set():
            try:
                client = fastjournal.connect(self.url)
            except JournalError as error:  # as when there are too many connections
                self.history.count(outcome_of(error))
                self._stop.wait(0.1)
                continue
            with client:
                call = self._sit(client, script, call)

    def _sit(self, client: Any, script: Script, call: Call) -> Call:
        for _ in range(SITTING):
            if self._stop.is_set():
                break
            try:
                answer = call.make(client)
            except JournalError as error:
                self.history.count(outcome_of(error))
                call = script.throw(error)
            else:
                self.history.count("acknowledged")
                call = script.send(answer)
        return call

    def _asyncio(self, scripts: list[Script]) -> None:
        asyncio.run(self._play_all(scripts))

    async def _play_all(self, scripts: list[Script]) -> None:
        async with await fastjournal.aconnect(self.url) as client:
            await asyncio.gather(*(self._play(client, script) for script in scripts))

    async def _play(self, client: Any, script: Script) -> None:
        call = next(script)
        while not self._stop.is_set():
            try:
                async with asyncio.timeout(PATIENCE):
                    answer = call.make(client)
                    if inspect.isawaitable(answer):
                        answer = await answer
            except JournalError as error:
                self.history.count(outcome_of(error))
                call = script.throw(error)
            except TimeoutError:
                self.history.count("hung")
                call = script.throw(Hung("it hung"))
            else:
                self.history.count("acknowledged")
                call = script.send(answer)


def kill_rounds(
    folder: Path, rounds: int, *, policies: tuple[str, ...] = POLICIES, most: int = 200
) -> Verdict:
    """Kill a daemon so many times, after up to `most` calls each; then judge."""
    chance = random.Random(rounds)
    daemon = DaemonProcess(folder / "d", env=SETTINGS)

    def start(number: int, *, wait: bool = True) -> None:
        daemon.options = ("--sync", policies[number % len(policies)], "--log-level", "error")
        daemon.start(wait=wait)

    start(0)
    crowd = Crowd(daemon.url, rounds)
    with fastjournal.connect(daemon.url) as client:
        for queue in QUEUES:
            client.configure(queue, **QUEUE)
    crowd.start()
    try:
        for number in range(1, rounds + 1):
            if number % 8 == 0:
                died_while_starting(daemon, chance)
            else:
                crowd.history.wait_for(1 + chance.randrange(most))
            crowd.check()
            daemon.kill()
            start(number, wait=number % 8 != 7)
        daemon.wait_ready()
        crowd.history.wait_for(50)
    finally:
        try:
            crowd.stop()
        finally:
            code = daemon.stop()
    assert code == 0, daemon.log.read_text()
    with Journal(folder / "d" / "default", background=False) as journal:
        check_replay(journal)
        check_one_waiting_row(journal)
        verdict = crowd.history.judge(journal)
    verdict.rounds = rounds
    return verdict


def died_while_starting(daemon: DaemonProcess, chance: random.Random) -> None:
    """Let a daemon that was just started come some way, perhaps not to its end."""
    assert daemon.process is not None
    try:
        daemon.process.wait(chance.uniform(0.2, 1.0))
    except subprocess.TimeoutExpired:
        return
    raise AssertionError(daemon.log.read_text())
