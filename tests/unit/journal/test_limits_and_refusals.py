"""A limit of 0 is none; many puts are all taken in or none; what is refused leaves no trace."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastjournal import Journal, NewJob, Outcome, State
from fastjournal.clock import SECOND
from fastjournal.errors import AlreadyExists, OutOfRange, QueuePaused, RequestError
from fastjournal.model import Mode
from fastjournal.testing import ManualClock, MemoryFiles
from fastjournal.testing.daemon import LocalDaemon
from world import put_now

ID = bytes(6) + b"\x40" + bytes(9)
WORKQ_ID = "6ba7b810-9dad-41d1-80b4-00c04fd430c4"


@pytest.fixture
def journal(clock: ManualClock) -> Iterator[Journal]:
    with Journal("/j", clock=clock, files=MemoryFiles()) as opened:
        yield opened


def test_a_queue_without_a_limit_of_failures_tries_for_ever(journal: Journal) -> None:
    journal.configure("q", max_fails=0)
    put = journal.put(b"x", queue="q")
    for number in range(1, 30):
        job = journal.lease("q")
        assert job is not None
        assert journal.fail(job.id, job.token, b"why", delay=0) is State.WAITING
        assert journal.job(put.id).fails == number
    journal.put(b"x", queue="q", priority=0, max_fails=1)
    job = journal.lease("q")
    assert job is not None
    assert journal.fail(job.id, job.token) is State.FAILED


def workq(daemon: LocalDaemon) -> Any:
    sock = socket.create_connection(("127.0.0.1", daemon.workq_port), 10)

    def ask(line: str, payload: str = "") -> str:
        sock.sendall(f"{line}\r\n".encode() + (f"{payload}\r\n".encode() if payload else b""))
        return sock.recv(4096).decode()

    return ask


@pytest.mark.parametrize("uvloop", [True, False])
def test_workq_gives_up_at_the_first_failure_unless_told(tmp_path: Path, uvloop: bool) -> None:
    """D-28 stays at the edge of Workq."""
    with LocalDaemon(tmp_path / "d", uvloop=uvloop) as daemon, daemon.connect() as client:
        ask = workq(daemon)
        client.configure("w", max_fails=0)
        assert ask(f"add {WORKQ_ID} w 1000 60000 1", "x") == "+OK\r\n"
        ask("lease w 1")
        assert ask(f"fail {WORKQ_ID} 1", "y") == "+OK\r\n"
        assert client.jobs("w")[0].state is State.FAILED


def both(journal: Journal, clock: ManualClock, jobs: list[NewJob]) -> tuple[Any, Any]:
    """What becomes of jobs put one by one on a copy of a journal, and together on another."""
    answers: list[Any] = []
    for together in (False, True):
        with Journal("/j", clock=clock, files=journal_files(journal)) as copy:
            try:
                if together:
                    receipts = copy.put_many(jobs)
                else:
                    with copy.engine.lock:
                        receipts = [put_now(copy.operations, job) for job in jobs]
            except RequestError as error:
                answers.append(type(error))
            else:
                answers.append([receipt.outcome for receipt in receipts])
    return answers[0], answers[1]


def journal_files(journal: Journal) -> MemoryFiles:
    files = journal.engine.log.stream.files
    assert isinstance(files, MemoryFiles)
    return files.killed()


def test_a_put_sent_again_is_not_refused_for_standing_among_others(
    journal: Journal, clock: ManualClock
) -> None:
    journal.put(b"x", queue="q", id=ID)
    journal.drain("q")
    again = NewJob(b"q", b"x", mode=Mode.PLAIN, id=ID)
    assert both(journal, clock, [again, again]) == ([Outcome.STALE] * 2, [Outcome.STALE] * 2)


def test_a_unique_message_that_stands_twice_among_others_is_taken_once(
    journal: Journal, clock: ManualClock
) -> None:
    job = NewJob(b"q", b"x", b"k", Mode.UNIQUE, timestamp=clock.now() - 1)
    one_by_one, together = both(journal, clock, [job, job])
    assert one_by_one == together == [Outcome.NEW, Outcome.STALE]
    other = job._replace(timestamp=clock.now() - 2)
    assert both(journal, clock, [job, other]) == (AlreadyExists, AlreadyExists)


def test_a_unique_key_whose_older_put_was_stale_is_free(
    journal: Journal, clock: ManualClock
) -> None:
    now = clock.now()
    journal.delete(key="k", queue="q", timestamp=(now - 5 * SECOND) / SECOND)
    older = NewJob(b"q", b"x", b"k", timestamp=now - 9 * SECOND)
    newer = NewJob(b"q", b"x", b"k", Mode.UNIQUE, timestamp=now - SECOND)
    one_by_one, together = both(journal, clock, [older, newer])
    assert one_by_one == together == [Outcome.STALE, Outcome.NEW]


def test_a_job_that_expires_this_very_moment_is_taken_in_with_others(
    journal: Journal, clock: ManualClock
) -> None:
    jobs = [NewJob(b"q", b"x", mode=Mode.PLAIN, expires=clock.now() + 1) for _ in range(5)]
    assert journal.put_many(jobs)[0].outcome is Outcome.NEW


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"expires": 1}, OutOfRange),
        ({"queue": b"drained"}, QueuePaused),
        ({"key": b"k", "mode": Mode.UNIQUE}, AlreadyExists),
    ],
)
def test_one_refused_job_keeps_all_out(
    journal: Journal, bad: dict[str, Any], error: type[Exception]
) -> None:
    journal.put(b"x", key="k", queue="q")
    journal.drain("drained")
    before = journal.digest()
    refused = NewJob(**{"queue": b"q", "value": b"x", "mode": Mode.PLAIN, **bad})
    with pytest.raises(error):
        journal.put_many([NewJob(b"new", b"x", mode=Mode.PLAIN), refused])
    assert journal.digest() == before
    assert "new" not in [queue.name for queue in journal.queues()]


def test_a_lease_of_an_entry_ends_before_the_last_instant(journal: Journal) -> None:
    journal.entries["k"] = b"v"
    entry = journal.entries.entry("k", lease=2**63 / SECOND - 1, worker="w")
    assert 0 < entry.lease_until < 2**63
    digest = journal.digest()
    journal.snapshot()
    assert journal.digest() == digest


@pytest.mark.parametrize("uvloop", [True, False])
def test_a_refused_duplicate_id_makes_no_queue(tmp_path: Path, uvloop: bool) -> None:
    with LocalDaemon(tmp_path / "d", uvloop=uvloop) as daemon, daemon.connect() as client:
        ask = workq(daemon)
        assert ask(f"add {WORKQ_ID} one 1000 60000 1", "x") == "+OK\r\n"
        assert ask(f"add {WORKQ_ID} two 1000 60000 1", "x").startswith("-CLIENT-ERROR")
        later = "schedule {} three 1000 60000 2099-01-01T00:00:00Z 1"
        assert ask(later.format(WORKQ_ID), "x").startswith("-CLIENT-ERROR")
        assert ask("inspect queues 0 10").startswith("+OK 1\r\none ")
        assert ask("inspect queue two") == "-NOT-FOUND\r\n"
        assert [queue.name for queue in client.queues()] == ["one"]
        assert client.status().queues == 1
