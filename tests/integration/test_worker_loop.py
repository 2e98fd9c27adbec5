"""The worker: bulk leases, heartbeats, results, failures, limits, graceful stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fastjournal
from fastjournal.cli.worker import load_function
from fastjournal.client.worker import Retry, Worker
from fastjournal.errors import BadRequest, SettingError
from fastjournal.leased import LeasedJob
from fastjournal.model import State
from fastjournal.testing.daemon import LocalDaemon


@pytest.fixture(params=["embedded", "daemon"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "embedded":
        with fastjournal.connect(tmp_path / "j") as opened:
            yield opened
    else:
        with LocalDaemon(tmp_path / "d") as daemon, daemon.connect() as client:
            yield client


class Run:
    """A worker in a thread, stopped at the end."""

    def __init__(self, journal: Any, function: Callable[[LeasedJob], Any], **options: Any) -> None:
        self.worker = Worker(journal, function, **{"wait": 0.05, "grace": 10, **options})
        self.thread = threading.Thread(target=self.worker.run)

    def __enter__(self) -> Worker:
        self.thread.start()
        return self.worker

    def __exit__(self, *_: object) -> None:
        self.worker.stop()
        self.thread.join(20)
        assert not self.thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    """Wait for other threads; the time limit of the test is the limit."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.005)


def test_all_jobs_are_done_once_and_results_are_kept(journal: Any) -> None:
    receipts = journal.put_many([{"payload": b"%d" % n, "queue": "q"} for n in range(100)])
    seen: list[bytes] = []

    def double(job: LeasedJob) -> bytes:
        seen.append(job.payload)
        return b"%d" % (2 * int(job.payload))

    with Run(journal, double, queues=["q"], concurrency=4) as worker:
        until(lambda: worker.counts.completed == 100)
    assert sorted(map(int, seen)) == list(range(100))
    assert journal.result(receipts[21].id) == (True, b"42")


def test_coroutines_run_side_by_side(journal: Any) -> None:
    journal.put_many([{"payload": b"", "queue": "q"}] * 8)
    together = 0
    most = 0
    gate = asyncio.Event()

    async def work(job: LeasedJob) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        if together == 4:
            gate.set()
        await gate.wait()
        together -= 1

    with Run(journal, work, queues=["q"], concurrency=4) as worker:
        until(lambda: worker.counts.completed == 8)
    assert most == 4


def test_an_exception_fails_the_job_with_its_traceback(journal: Any) -> None:
    receipt = journal.put(queue="q", max_fails=1)

    def work(job: LeasedJob) -> None:
        raise ValueError("not today")

    with Run(journal, work) as worker:
        until(lambda: worker.counts.failed == 1)
    job = journal.job(receipt.id)
    assert job.state is State.FAILED
    assert b"ValueError: not today" in job.result
    assert b"Traceback" in job.result


def test_an_exception_of_a_coroutine_fails_the_job_too(journal: Any) -> None:
    receipt = journal.put(queue="q", max_fails=1)

    async def work(job: LeasedJob) -> None:
        raise ValueError("not today")

    with Run(journal, work) as worker:
        until(lambda: worker.counts.failed == 1)
    assert b"not today" in journal.job(receipt.id).result


def test_a_wrong_result_fails_the_job(journal: Any) -> None:
    receipt = journal.put(queue="q", max_fails=1)
    with Run(journal, lambda job: "text") as worker:
        until(lambda: worker.counts.failed == 1)
    assert b"bytes or None" in journal.job(receipt.id).result


def test_retry_gives_the_job_back(journal: Any) -> None:
    journal.put(queue="q")
    attempts: list[int] = []

    def work(job: LeasedJob) -> None:
        attempts.append(job.attempt)
        if job.attempt < 3:
            raise Retry

    with Run(journal, work) as worker:
        until(lambda: worker.counts.completed == 1)
    assert attempts == [1, 2, 3]
    assert worker.counts.retried == 2


def test_the_heartbeat_keeps_a_lease_alive(journal: Any) -> None:
    """Work of three lease lengths, and nobody else gets the job."""
    receipt = journal.put(queue="q", lease=0.3)
    released = threading.Event()

    def work(job: LeasedJob) -> None:
        released.wait(0.9)

    with Run(journal, work, queues=["q"], concurrency=1) as worker:
        until(lambda: worker.counts.completed + worker.counts.lost == 1)
    assert worker.counts.lost == 0
    assert worker.counts.leased == 1
    with pytest.raises(fastjournal.RequestError):
        journal.job(receipt.id)


def test_a_job_past_its_time_limit_fails(journal: Any) -> None:
    receipt = journal.put(queue="q", max_fails=1)
    hold = threading.Event()
    with Run(journal, lambda job: hold.wait(10) and None, time_limit=0.1) as worker:
        until(lambda: worker.counts.failed == 1)
        assert worker.counts.timed_out == 1
        assert b"time limit" in journal.job(receipt.id).result
        hold.set()
    assert worker.counts.completed == 0


def test_a_coroutine_past_its_time_limit_is_cancelled(journal: Any) -> None:
    journal.put(queue="q", max_fails=1)
    cancelled = threading.Event()

    async def work(job: LeasedJob) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with Run(journal, work, time_limit=0.1) as worker:
        until(lambda: worker.counts.failed == 1)
    assert cancelled.is_set()
    assert worker.counts.timed_out == 1


@pytest.mark.parametrize("kind", ["threads", "coroutines"])
def test_a_stop_ends_running_jobs_and_gives_the_others_back(journal: Any, kind: str) -> None:
    journal.put_many([{"payload": b"", "queue": "q"}] * 10)
    started, hold = threading.Event(), threading.Event()

    def work(job: LeasedJob) -> None:
        started.set()
        hold.wait(10)

    async def work_async(job: LeasedJob) -> None:
        started.set()
        await asyncio.to_thread(hold.wait, 10)

    function = work if kind == "threads" else work_async
    with Run(journal, function, queues=["q"], concurrency=2, prefetch=4) as worker:
        started.wait(10)
        until(lambda: worker.counts.leased == 6)
        worker.stop()
        hold.set()
    assert worker.counts.completed + worker.counts.released == 6
    assert worker.counts.completed >= 1
    queue = journal.queue("q")
    assert (queue.leased, queue.ready) == (0, 10 - worker.counts.completed)


def test_a_lost_lease_is_not_settled(journal: Any) -> None:
    receipt = journal.put(queue="q")
    started, hold = threading.Event(), threading.Event()

    def work(job: LeasedJob) -> None:
        started.set()
        hold.wait(10)

    with Run(journal, work) as worker:
        started.wait(10)
        journal.delete(receipt.id)
        hold.set()
        until(lambda: worker.counts.lost == 1)
    assert worker.counts.completed == 0


def test_a_worker_survives_a_restart_of_the_daemon(tmp_path: Path) -> None:
    settings = {"listen": [f"unix:{tmp_path / 's'}"]}
    first = LocalDaemon(tmp_path / "d", settings=settings).start()
    done: list[bytes] = []
    client = first.connect(timeout=20)
    with Run(client, lambda job: done.append(job.payload), queues=["q"]) as worker:
        client.put(b"before", queue="q")
        until(lambda: worker.counts.completed == 1)
        first.stop()
        with LocalDaemon(tmp_path / "d", settings=settings) as second, second.connect() as other:
            other.put(b"after", queue="q")
            until(lambda: worker.counts.completed == 2)
            worker.stop()
    assert done == [b"before", b"after"]
    client.close()


def test_a_worker_needs_room(journal: Any) -> None:
    with pytest.raises(BadRequest):
        Worker(journal, lambda job: None, concurrency=0)


def test_functions_are_found_by_name() -> None:
    assert load_function("os.path:join") is os.path.join
    for wrong in ("os.path", "os.path:", "no.such:thing", "os:nothing", "os:sep"):
        with pytest.raises(SettingError):
            load_function(wrong)


def test_the_command_works_off_a_queue_until_it_is_told_to_stop(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(
        "def upper(job):\n    return job.payload.upper()\n"
        "async def lower(job):\n    return job.payload.lower()\n"
    )
    with LocalDaemon(tmp_path / "d") as daemon, daemon.connect() as client:
        receipts = {name: client.put(b"Hello", queue=name) for name in ("upper", "lower")}
        for name, expected in (("upper", b"HELLO"), ("lower", b"hello")):
            process = subprocess.Popen(
                [sys.executable, "-m", "fastjournal.cli.app", "worker", f"tasks:{name}",
                 "--queue", name, "--concurrency", "2", "--url", daemon.url],
                cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            assert client.result(receipts[name].id, wait=30) == (True, expected)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=20)
            assert process.returncode == 0, err
            assert json.loads(out)["completed"] == 1
