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
from fastjournal.errors import BadRequest, SettingError, Unavailable
from fastjournal.handles import LeasedJob
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


def test_an_exception_fails_the_job_with_its_traceback(
    journal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    receipt = journal.put(queue="q", max_fails=1)

    def work(job: LeasedJob) -> None:
        raise ValueError("not today")

    with Run(journal, work) as worker:
        until(lambda: worker.counts.failed == 1)
    job = journal.job(receipt.id)
    assert job.state is State.FAILED
    assert b"ValueError: not today" in job.result
    assert b"Traceback" in job.result
    (told,) = [one for one in caplog.records if one.levelname == "WARNING"]
    first, second, *_, last = told.getMessage().splitlines()
    assert first == f"job {receipt.id.hex()} of q failed and is dead"
    assert (second, last) == ("Traceback (most recent call last):", "ValueError: not today")


def test_only_jobs_of_the_version_asked_for_are_worked_on(journal: Any) -> None:
    journal.put(b"old", queue="q")
    journal.configure("q", schema=2)
    journal.put(b"new", queue="q")
    seen: list[bytes] = []
    with Run(journal, lambda job: seen.append(job.payload), queues=["q"], schema=2) as worker:
        until(lambda: worker.counts.completed == 1)
        (left,) = journal.jobs("q", state=State.WAITING)
    assert (seen, left.payload, left.schema) == ([b"new"], b"old", 0)


def test_an_exception_of_a_coroutine_fails_the_job_too(journal: Any) -> None:
    receipt = journal.put(queue="q", max_fails=1)

    async def work(job: LeasedJob) -> None:
        raise ValueError("not today")

    with Run(journal, work) as worker:
        until(lambda: worker.counts.failed == 1)
    assert b"not today" in journal.job(receipt.id).result


def test_a_result_that_is_no_bytes_is_dropped_and_the_job_is_done(
    journal: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The work was done: doing it again would end no better."""
    journal.put(b"once", queue="q")
    ran: list[bytes] = []

    def work(job: LeasedJob) -> Any:
        ran.append(job.payload)
        return "text"

    with Run(journal, work) as worker:
        until(lambda: worker.counts.completed == 1)
    assert ran == [b"once"]
    assert (worker.counts.failed, worker.counts.dropped_results) == (0, 1)
    assert "result is dropped: it is bytes or None, not str" in caplog.text


def says_text(job: LeasedJob) -> str:
    return ""


def says_maybe_text(job: LeasedJob) -> str | None:
    return None


async def says_number(job: LeasedJob) -> int:
    return 1


class SaysList:
    def __call__(self, job: LeasedJob) -> list[bytes]:
        return []


def says_bytes(job: LeasedJob) -> bytes | None:
    return b""


async def says_nothing(job: LeasedJob) -> None:
    pass


def says_anything(job: LeasedJob) -> Any:
    return b""


def says_unknown(job: LeasedJob) -> NoSuchName:  # type: ignore[name-defined] # noqa: F821
    return b""


@pytest.mark.parametrize("function", [says_text, says_maybe_text, says_number, SaysList()])
def test_a_function_that_says_it_returns_no_bytes_is_refused_before_its_first_run(
    journal: Any, function: Any
) -> None:
    with pytest.raises(BadRequest, match=r"a result is bytes or None; .* says"):
        Worker(journal, function)


@pytest.mark.parametrize(
    "function", [says_bytes, says_nothing, says_anything, says_unknown, lambda job: None, len]
)
def test_a_function_that_may_return_bytes_is_taken(journal: Any, function: Any) -> None:
    assert Worker(journal, function).counts.leased == 0


class Counting:
    """A journal whose touches are counted; the first ones find nobody there."""

    def __init__(self, journal: Any, failing: int = 0) -> None:
        self._journal = journal
        self.failing = failing
        self.touched: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def touch(self, *_: Any) -> int:
        raise AssertionError("one at a time")

    def touch_many(self, held: Any, extend: Any = None) -> list[bool]:
        held = list(held)
        self.touched.append(len(held))
        if len(self.touched) <= self.failing:
            raise Unavailable("not there")
        kept: list[bool] = self._journal.touch_many(held, extend)
        return kept


def test_all_leases_are_kept_with_one_message(journal: Any) -> None:
    journal.put_many([{"payload": b"", "queue": "q", "lease": 0.6}] * 6)
    source = Counting(journal, failing=1)
    hold = threading.Event()
    with Run(source, lambda job: hold.wait(20) and None, concurrency=6) as worker:
        until(lambda: len(source.touched) >= 3)
        hold.set()
        until(lambda: worker.counts.completed + worker.counts.lost == 6)
    assert worker.counts.lost == 0
    assert max(source.touched) == 6


def test_a_stop_takes_no_lock_that_the_interrupted_code_may_hold(journal: Any) -> None:
    """A signal handler runs in the middle of the main thread's code, with its locks held."""
    worker = Worker(journal, lambda job: None, wait=0.05)
    with worker._mutex:
        ended = threading.Thread(target=worker.stop, daemon=True)
        ended.start()
        ended.join(10)
        assert not ended.is_alive()
    assert worker.run().leased == 0


def test_signals_at_any_moment_stop_a_busy_worker(tmp_path: Path) -> None:
    """The handler interrupts the very code that takes and gives back the worker's locks."""
    program = (
        "import os, signal, sys, threading\n"
        "import fastjournal\n"
        "from fastjournal.client.worker import Worker\n"
        "journal = fastjournal.connect(sys.argv[1], sync='os')\n"
        "for _ in range(30):\n"
        "    journal.put_many([{'payload': b'', 'queue': 'q'}] * 200)\n"
        "    worker = Worker(journal, lambda job: None, concurrency=2, wait=0.01)\n"
        "    signal.signal(signal.SIGALRM, lambda *_: worker.stop())\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.0005)\n"
        "    worker.run()\n"
        "    signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "print('ended')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "j")],
        capture_output=True, text=True, timeout=50,
    )  # fmt: skip
    assert done.stdout == "ended\n", done.stderr


def test_many_leases_are_kept_together_and_lost_ones_told(journal: Any) -> None:
    journal.put_many([{"payload": b"%d" % n, "queue": "q"} for n in range(3)])
    jobs = journal.lease_many(3, "q", lease=5)
    jobs[1].done()
    held = [(job.id, job.token) for job in jobs]
    held[2] = (held[2][0], held[2][1] + 1)
    before = journal.job(jobs[0].id).lease_until
    assert journal.touch_many(held, 100) == [True, False, False]
    assert journal.job(jobs[0].id).lease_until > before + 90 * 10**9
    with pytest.raises(fastjournal.RequestError):
        journal.touch_many(held, -1)


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
    """Work that takes longer than its lease, and nobody else gets the job."""
    receipt = journal.put(queue="q", lease=1.5)
    released = threading.Event()

    def work(job: LeasedJob) -> None:
        released.wait(1.8)

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


def test_a_worker_survives_a_restart_of_the_daemon_and_tells_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournal.client.worker.PATIENCE", 0.05)
    settings = {"listen": [f"unix:{tmp_path / 's'}"]}
    first = LocalDaemon(tmp_path / "d", settings=settings).start()
    done: list[bytes] = []
    client = first.connect(timeout=20)
    with Run(client, lambda job: done.append(job.payload), queues=["q"]) as worker:
        client.put(b"before", queue="q")
        until(lambda: worker.counts.completed == 1)
        first.stop()
        until(lambda: "the journal is away, will go on trying" in caplog.text)
        with LocalDaemon(tmp_path / "d", settings=settings) as second, second.connect() as other:
            other.put(b"after", queue="q")
            until(lambda: worker.counts.completed == 2)
            until(lambda: "the journal answers again" in caplog.text)
            worker.stop()
    assert done == [b"before", b"after"]
    client.close()


def test_lengths_of_a_worker_may_have_a_unit(tmp_path: Path) -> None:
    with fastjournal.Journal(tmp_path / "j", background=False) as journal:
        stopping, hold, waits = threading.Event(), threading.Event(), list[float]()

        class Asked:
            """A journal that notes how long a worker waits; a stop comes while a job runs."""

            def lease_many(self, *given: Any, wait: float, **more: Any) -> list[LeasedJob]:
                waits.append(wait)
                return journal.lease_many(*given, wait=0, **more)

            def __getattr__(self, name: str) -> Any:
                return getattr(journal, name)

        journal.put(b"long", queue="q")
        source: Any = Asked()

        def work(job: LeasedJob) -> None:
            stopping.set()
            hold.wait(60)

        worker = Worker(source, work, grace="250ms", wait="125ms", lease="2m")
        run = threading.Thread(target=worker.run, daemon=True)
        run.start()
        assert stopping.wait(20)
        worker.stop()
        run.join(20)  # for its grace alone
        assert not run.is_alive()
        hold.set()
        assert set(waits) == {0.125}
        with pytest.raises(BadRequest, match="grace is no length"):
            Worker(journal, lambda job: None, grace="soon")
    assert (Retry(after="5m").delay, Retry(3).delay) == (300.0, 3.0)


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
            banner = err.splitlines()[0]
            assert f"tasks:{name}; queues: {name}; journal: " in banner
            assert daemon.url.removeprefix("fj://") in banner


def worker_process(directory: Path, function: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fastjournal.cli.app", "worker", function],
        cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | environment,
    )  # fmt: skip


def test_the_command_waits_for_a_daemon_that_is_not_up_yet(tmp_path: Path) -> None:
    """Its address is that of the environment."""
    (tmp_path / "tasks.py").write_text("def upper(job):\n    return job.payload.upper()\n")
    address = f"unix:{tmp_path / 's'}"
    process = worker_process(tmp_path, "tasks:upper", FASTJOURNAL_URL=address)
    assert process.stderr is not None
    assert "again in" in process.stderr.readline()
    with (
        LocalDaemon(tmp_path / "d", settings={"listen": [address]}) as daemon,
        daemon.connect() as client,
    ):
        receipt = client.put(b"Hello", queue="q")
        assert client.result(receipt.id, wait=30) == (True, b"HELLO")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0, err
    assert json.loads(out)["completed"] == 1


def test_the_command_can_be_stopped_while_it_waits_for_a_daemon(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("def upper(job):\n    pass\n")
    process = worker_process(tmp_path, "tasks:upper", FASTJOURNAL_URL=f"unix:{tmp_path / 's'}")
    assert process.stderr is not None
    assert "again in" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_the_command_refuses_a_function_that_says_it_returns_text(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("def text(job) -> str:\n    return ''\n")
    process = worker_process(tmp_path, "tasks:text", FASTJOURNAL_URL=f"unix:{tmp_path / 's'}")
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (
        2, "error: a result is bytes or None; text says that it returns str\n"
    )  # fmt: skip
