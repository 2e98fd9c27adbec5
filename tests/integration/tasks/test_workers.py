"""Tasks over every kind of journal, with real workers: threads, asyncio, processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import task_app
from fastjournal import Journal, SettingError, Spool, TaskFailed, Tasks
from fastjournal.errors import TimedOut
from fastjournal.spool.daemon_destination import DaemonDestination
from fastjournal.spool.forwarder import ForwardedSpool, Forwarder
from fastjournal.tasks import TaskWorker, known_workers
from fastjournal.tasks.worker import LookAhead
from fastjournal.testing import MemoryFiles, wait_until
from fastjournal.testing.daemon import LocalDaemon

TARGET = "task_app:app"


@pytest.fixture(params=["embedded", "daemon", "daemon on uvloop"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        yield str(tmp_path / "jobs")
        return
    with LocalDaemon(tmp_path / "data", uvloop="uvloop" in request.param) as daemon:
        yield daemon.url


@contextmanager
def working(app: Tasks, **options: Any) -> Iterator[TaskWorker]:
    """A worker in a thread, stopped at the end."""
    worker = app.worker(**{"wait": 0.05, "grace": 20, **options})
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture
def app(place: str) -> Iterator[Tasks]:
    made = Tasks(place)

    @made.task(name="add")
    def add(x: int, y: int) -> int:
        return x + y

    @made.task(name="double")
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    @made.task(name="fail", retry=0)
    def fail() -> None:
        raise ValueError("no luck")

    yield made
    made.close()


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
def test_calls_run_and_their_results_come_back(app: Tasks, mode: Any) -> None:
    with working(app, mode=mode, concurrency=4):
        handles = [app.tasks["add"].put(n, 1) for n in range(50)]
        handles += app.tasks["double"].put_many([(n,) for n in range(50)])
        assert [handle.result(30) for handle in handles] == [
            *range(1, 51), *range(0, 100, 2),
        ]  # fmt: skip
        failed = app.tasks["fail"].put()
        assert failed.wait(30) is False
        with pytest.raises(TaskFailed, match="ValueError: no luck"):
            failed.result(30)


@pytest.mark.parametrize("mode", ["threads", "asyncio"])
async def test_calls_from_asyncio(app: Tasks, mode: Any) -> None:
    with working(app, mode=mode, concurrency=2):
        handle = await app.tasks["add"].aput(1, 2)
        assert await handle.result(30) == 3
        assert await handle.wait(30) is True
        assert await handle.state() == "done"
        assert not await handle.cancel()
        failed = await app.tasks["fail"].aput()
        with pytest.raises(TaskFailed):
            await failed.result(30)
        assert await failed.state() == "failed"
    later = await app.tasks["add"].later(delay=3600).aput(1, 2)
    assert await later.state() == "waiting"
    with pytest.raises(TimedOut):
        await later.result(0)
    assert await later.cancel()
    assert await later.state() == "gone"
    await app.aclose()


async def test_a_unique_call_from_asyncio_is_that_of_the_first(app: Tasks) -> None:
    task = app.task(name="once", unique="{x}")(lambda x: None)
    first, second = await task.aput(1), await task.aput(1)
    assert first.id == second.id
    assert first.is_new
    assert not second.is_new
    await app.aclose()


def forward(directory: Path, daemon: LocalDaemon) -> None:
    forwarder, target = Forwarder(ForwardedSpool(directory)), DaemonDestination(daemon.url)
    try:
        forwarder.spool.lock()
        while forwarder.send(target) or forwarder.in_flight:
            forwarder.receive(target, 10)
    finally:
        target.close()
        forwarder.close()


def test_a_call_through_the_spool_arrives_and_its_result_comes_back(tmp_path: Path) -> None:
    with LocalDaemon(tmp_path / "data") as daemon:
        app = Tasks(daemon.url, spool=tmp_path / "spool")
        add = app.task(name="add")(lambda x: x + 1)
        handle = add.spool(1)
        assert handle.state == "waiting"
        with pytest.raises(TimedOut, match="not arrived"):
            handle.result(0)
        forward(tmp_path / "spool", daemon)
        with working(app):
            assert handle.result(30) == 2
        app.close()


def test_an_app_of_a_spool_alone_puts_and_says_that_no_answer_will_come(tmp_path: Path) -> None:
    for place in (f"spool:{tmp_path / 'a'}", Spool(tmp_path / "b")):
        app = Tasks(place)
        task = app.task(name="x")(lambda: None)
        handle = task.put()
        assert len(handle.id) == 16
        for ask in (handle.result, handle.wait, handle.cancel, lambda handle=handle: handle.state):
            with pytest.raises(SettingError, match="a spool answers nothing"):
                ask()
    assert any((tmp_path / "a").iterdir())
    assert any((tmp_path / "b").iterdir())


def test_an_app_without_a_spool_says_so(tmp_path: Path) -> None:
    task = Tasks(tmp_path / "jobs").task(name="x")(lambda: None)
    with pytest.raises(SettingError, match="no spool"):
        task.spool()


def test_a_thread_past_its_time_limit_fails_its_call(app: Tasks) -> None:
    gate = threading.Event()
    task = app.task(name="slow", timeout=0.2, retry=0)(lambda: gate.wait(60))
    with working(app, concurrency=1):
        handle = task.put()
        with pytest.raises(TaskFailed, match=r"time limit of 0\.2 s"):
            handle.result(30)
        gate.set()


def test_a_worker_announces_itself_and_what_it_runs(
    app: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastjournal.tasks.worker.EVERY", 0.05)
    gate = threading.Event()
    began = threading.Event()

    def work() -> None:
        began.set()
        gate.wait(60)

    task = app.task(name="long")(work)
    with working(app, concurrency=2, name="w1"):
        wait_until(lambda: known_workers(app.journal), what="it is announced")
        handle = task.put()
        began.wait(30)
        wait_until(lambda: known_workers(app.journal)[0].running, what="its job is announced")
        (known,) = known_workers(app.journal)
        assert (known.name, known.mode, known.concurrency) == ("w1", "threads", 2)
        assert known.queues == ["tasks"]
        assert "long" in known.tasks
        (running,) = known.running
        assert (running.id, running.task) == (handle.id.hex(), "long")
        assert 0 < running.since <= known.seen
        gate.set()
        assert handle.wait(30)
    assert known_workers(app.journal) == []


def test_a_rate_of_a_queue_bounds_its_runs_for_all_workers(app: Tasks) -> None:
    seen: list[int] = []
    task = app.task(name="mail", queue="mail")(lambda n: seen.append(n))
    app.queue("mail", rate="5/h")
    quick = app.tasks["add"]
    task.put_many([(n,) for n in range(20)])
    with working(app, name="a"), working(app, name="b"):
        assert quick.put(1, 1).result(30) == 2
        wait_until(lambda: len(seen) == 5, what="the burst is used")
        assert [quick.put(n, 1).result(30) for n in range(20)] == [*range(1, 21)]
    assert len(seen) == 5
    assert app.journal.queue("mail").ready == 15


def test_a_rate_of_a_key_bounds_the_runs_of_that_key(app: Tasks) -> None:
    seen: list[str] = []
    task = app.task(name="call", rate="2/h", rate_key="{tenant}")(
        lambda tenant: seen.append(tenant)
    )
    for tenant in "aaaabc":
        task.put(tenant)
    with working(app, concurrency=2):
        wait_until(lambda: len(seen) == 4, what="two of a, one of b, one of c")
        wait_until(lambda: app.journal.queue("tasks").future == 2, what="the others wait")
    assert sorted(seen) == ["a", "a", "b", "c"]


def test_a_limit_of_concurrency_is_told_to_the_journal(app: Tasks) -> None:
    most, now = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1

    task = app.task(name="alone", queue="alone")(work)
    app.queue("alone", concurrency=1)
    handles = task.put_many([()] * 20)
    with working(app, concurrency=4):
        assert all(handle.wait(30) for handle in handles)
    assert most == 1


def test_a_worker_waits_for_a_journal_that_takes_nothing_in_when_it_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = MemoryFiles()
    with Journal("/jobs", files=files, background=False) as journal:
        handle = Tasks(journal).task(name="work", queue="work")(lambda: None).put()
        app = Tasks(journal)
        app.task(name="work", queue="work")(lambda: None)
        app.queue("work", concurrency=1)
        journal.engine.reserve.give_up()
        files.capacity = files.used()
        with working(app, schedules=False):
            wait_until(lambda: "not declared yet" in caplog.text, what="the worker waits")
            files.capacity = None
            assert handle.wait(30)
        assert journal.queue("work").settings.concurrency == 1


def test_a_worker_leases_many_short_jobs_at_once(app: Tasks) -> None:
    asked: list[int] = []

    class Asked:
        """A journal that notes for how many jobs it is asked."""

        def lease_many(self, count: int, *given: Any, **more: Any) -> Any:
            asked.append(count)
            return app.journal.lease_many(count, *given, **more)

        def __getattr__(self, name: str) -> Any:
            return getattr(app.journal, name)

    source: Any = Asked()
    noting = Tasks(source)
    short = noting.task(name="short")(lambda: None)
    with working(noting, concurrency=1):
        handles = short.put_many([()] * 200)
        assert all(handle.wait(30) for handle in handles)
        assert asked[0] == 2  # one to run, one ahead
        assert max(asked) > 11


def test_a_worker_looks_half_a_second_of_work_ahead() -> None:
    ahead = LookAhead(concurrency=2)
    counts = [ahead.note(0.001) for _ in range(100)]
    assert counts == sorted(counts) and counts[0] == 1 and 500 > counts[-1] > 100
    counts = [ahead.note(0.1) for _ in range(100)]
    assert counts == sorted(counts, reverse=True) and counts[-1] == 10
    assert ahead.note(30.0) == 1, "and never less"
    assert max(LookAhead(1000).note(0.0) for _ in range(3)) == 256, "nor more"


@pytest.fixture
def processes(place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    monkeypatch.setenv("FASTJOURNAL_URL", place)
    monkeypatch.setenv("PYTHONPATH", str(Path(task_app.__file__).parent))
    app = task_app.app
    app.connect()

    def start(**options: Any) -> Any:
        given = {"mode": "processes", "target": TARGET, "concurrency": 1, **options}
        return working(app, **given)

    start.app = app  # type: ignore[attr-defined]
    yield start
    app.close()


@pytest.mark.timeout(180)
def test_processes_run_calls_and_are_replaced_when_they_are_worn(processes: Any) -> None:
    tasks = processes.app.tasks
    with processes(recycle_jobs=2):
        assert tasks["task_app.add"].put(1, 2).result(60) == 3
        pids = [tasks["task_app.pid"].put().result(60) for _ in range(5)]
    assert len(set(pids)) == 3
    with processes(recycle_memory=200 << 20):
        grown = tasks["task_app.grow"]
        first, second = grown.put(300 << 20).result(60), grown.put(1).result(60)
        assert first != second
        assert grown.put(1).result(60) == second


@pytest.mark.timeout(180)
def test_a_process_that_dies_or_hangs_costs_its_own_call_alone(processes: Any) -> None:
    tasks = processes.app.tasks
    with processes():
        with pytest.raises(TaskFailed, match=r"killed by signal 9"):
            tasks["task_app.die"].put().result(60)
        assert tasks["task_app.die"].put(once=True).result(60) == "alive"
        with pytest.raises(TaskFailed, match=r"time limit of 0\.3 s"):
            tasks["task_app.hang"].put().result(60)
        assert tasks["task_app.add"].put(1, 2).result(60) == 3


@pytest.mark.timeout(180)
def test_a_stop_waits_its_grace_for_all_processes_together_and_kills_them(
    processes: Any, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    with processes(concurrency=2, grace=0.2, prefetch=0):
        processes.app.tasks["task_app.stay"].put_many([(str(lines),)] * 2)
        wait_until(lambda: lines.exists() and lines.stat().st_size == 2 * len("here\n"))
        stopped = time.monotonic()
    assert time.monotonic() - stopped < 8


@pytest.mark.timeout(180)
def test_a_task_in_a_process_calls_others_where_the_worker_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(task_app.__file__).parent))
    monkeypatch.setenv("FASTJOURNAL_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.delenv("FASTJOURNAL_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    with LocalDaemon(tmp_path / "data") as daemon:
        command = [
            sys.executable, "-m", "fastjournal.cli.app", "worker", TARGET, "--mode", "processes",
            "--concurrency", "1", "--url", daemon.url,
        ]  # fmt: skip
        worker = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        app = task_app.app
        app.connect(daemon.url)
        try:
            handed_on = app.tasks["task_app.pass_on"].put("told").result(60)
            assert app.handle(handed_on, app.tasks["task_app.echo"]).result(60) == "told"
        finally:
            worker.terminate()
            worker.wait(30)
            app.close()
            app.connect()
    assert not (tmp_path / "jobs").exists()


def test_processes_need_the_name_of_the_app(tmp_path: Path) -> None:
    app = Tasks(tmp_path / "jobs")
    app.task(name="x")(lambda: None)
    with pytest.raises(SettingError, match="module:app"):
        app.worker(mode="processes")
    app.close()
