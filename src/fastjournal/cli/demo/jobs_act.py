"""The second act of the demonstration: a journal, its workers and its own process killed.

Rules:

1. What was acknowledged is told through a pipe by the process that is killed, before it goes on:
   the judge never believes the journal about itself.
2. `put ID` and `done ID` are told after the journal's answer, `work ID` before the job is ended. So
   a job that was put and not worked on must be there, one that is done must not, and of the others
   both may be true.
3. The claims are the promises of the test kit, checked by its own code.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

from fastjournal.cli.demo.stage import Stage, killed_after
from fastjournal.journal.journal import Journal
from fastjournal.model import Outcome, Receipt, State
from fastjournal.testing.promises import (
    Answers,
    check_max_wait,
    check_one_waiting_row,
    check_replay,
    check_stale_token,
)

__all__ = ["JobsAct", "busy", "doomed"]

PAGES = 10
REQUESTS = 1000
LEASE = 1.0  # seconds
MAX_WAIT = 30  # seconds
THREADS = 4
KILL_AFTER = 2000  # answers

_PROGRAM = "from fastjournal.cli.demo.jobs_act import {0}; import sys; {0}(sys.argv[1])"


def doomed(directory: str) -> None:
    """A worker: leases a job, says so, and never comes to its end."""
    journal = Journal(directory, sync="always")
    job = journal.lease("letters", lease=LEASE)
    assert job is not None
    _print_line(f"{job.id.hex()} {job.token} {job.lease.until}")
    threading.Event().wait()


def busy(directory: str) -> None:
    """A process whose threads put, lease and end jobs for ever, and tell what they were told."""
    journal = Journal(directory, sync="always", segment_size=256 * 1024)
    numbers = count()

    def work() -> None:
        while True:
            number = next(numbers)
            receipt = journal.put(b"%d" % number, queue="busy")
            _print_line(f"put {receipt.id.hex()}")
            if number % 2 and (job := journal.lease("busy")) is not None:
                _print_line(f"work {job.id.hex()}")
                job.done()
                _print_line(f"done {job.id.hex()}")

    for _ in range(THREADS):
        threading.Thread(target=work, daemon=True).start()
    threading.Event().wait()


def _print_line(line: str) -> None:
    os.write(1, line.encode() + b"\n")  # one system call: lines of threads do not mix


class JobsAct:
    """Shows the journal; `work` replaces the busy process in tests."""

    def __init__(
        self, stage: Stage, home: Path, work: Callable[[Path], list[bytes]] | None = None
    ) -> None:
        self._stage = stage
        self._home = home
        self._work = work or (lambda at: killed_after(_PROGRAM.format("busy"), at, KILL_AFTER))

    def show(self) -> None:
        """All steps."""
        self._merged()
        self._handed_on()
        self._survived()

    def _merged(self) -> None:
        stage = self._stage
        stage.step(f"{REQUESTS} requests to fetch {PAGES} pages again")
        stage.say(f"journal: {self._home}")
        with Journal(self._home, sync="always") as journal:
            journal.configure("example.com", max_wait=MAX_WAIT)
            receipts = journal.put_many(
                {
                    "payload": b"request %d" % number,
                    "key": f"https://example.com/{number % PAGES}",
                    "delay": 60,
                }
                for number in range(REQUESTS)
            )
            jobs = journal.jobs("example.com", limit=REQUESTS)
            merged = sum(receipt.outcome is Outcome.MERGED for receipt in receipts)
            stage.say(f"{merged} were merged into jobs that waited already")
            stage.claim(f"{PAGES} jobs wait, one for each page", len(jobs) == PAGES)
            stage.keeps("no key has more than one", lambda: check_one_waiting_row(journal))
            stage.claim(
                "each holds the data of the newest request",
                sorted(job.payload for job in jobs)
                == [b"request %d" % (REQUESTS - PAGES + page) for page in range(PAGES)],
            )
            stage.keeps(
                f"put off by a minute every time, none waits for more than {MAX_WAIT} s",
                lambda: check_max_wait(journal),
            )

    def _handed_on(self) -> None:
        stage = self._stage
        stage.step("A worker is killed with a job in its hands")
        with Journal(self._home, sync="always") as journal:
            journal.put(b"a letter", queue="letters")
        lines = killed_after(_PROGRAM.format("doomed"), self._home, 1)
        job_id, token, until = lines[0].split()
        dead_id, dead_token = bytes.fromhex(job_id.decode()), int(token)
        stage.say(f"kill -9; it had leased {job_id.decode()} for {LEASE:g} s, token {dead_token}")
        with Journal(self._home, sync="always") as journal:
            if journal.job(dead_id).state is State.PROCESSING:
                stage.claim("nobody else gets it while the lease lasts", _none(journal))
            job = journal.lease("letters", wait=10 * LEASE)
            stage.claim(
                "the moment the lease has ended, the next worker gets it",
                job is not None
                and job.id == dead_id
                and job.payload == b"a letter"
                and job.lease.job.lease_start >= int(until),
            )
            if job is None:
                return
            stage.say(f"attempt {job.attempt}, token {job.token}")
            stage.keeps(
                "the dead worker's token can end nothing any more",
                lambda: check_stale_token(journal, dead_id, dead_token),
            )
            job.done()
            stage.claim("the new one can", not journal.jobs("letters"))

    def _survived(self) -> None:
        stage = self._stage
        stage.step(f"A process puts, leases and ends jobs from {THREADS} threads")
        answers = _answers(self._work(self._home))
        put, done = len(answers.there | answers.ended), len(answers.ended)
        stage.say(f"kill -9; by then {put} jobs had been acknowledged, and the end of {done}")
        with Journal(self._home, sync="always") as journal:
            status = journal.status()
            stage.say(
                f"opened again: {status.replayed_records} records replayed "
                f"in {status.replay_seconds:.3f} s"
            )
            stage.keeps(
                "no acknowledged job is lost, and none that was finished came back",
                lambda: answers.check(journal),
            )
            jobs = journal.jobs("busy", limit=10**6)
            stage.claim(
                "nothing is there that was never put",
                len({job.id for job in jobs} - answers.there) <= THREADS,
            )
            stage.keeps("the log replays to the very state", lambda: check_replay(journal))


def _answers(lines: list[bytes]) -> Answers:
    """What a process that is dead now had been told."""
    answers = Answers()
    for line in lines:
        word, number = line.split()
        job_id = bytes.fromhex(number.decode())
        if word == b"put":
            answers.put(Receipt(job_id, Outcome.NEW))
        elif word == b"work":
            answers.ending(job_id)
        else:
            answers.end(job_id)
    return answers


def _none(journal: Journal) -> bool:
    """Whether nobody gets a letter now, unless the lease ended at this very moment."""
    job = journal.lease("letters")
    if job is None:
        return True
    job.release()
    return job.lease.job.timeouts > 0
