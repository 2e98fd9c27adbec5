"""A task called many times through a server, and run by one worker: ours beside Celery and others.

python bench/tasks.py [--quick] [--json FILE] [--peers PYTHON]

Everybody puts the same call one after the other from one process, and runs it in one worker with
one thread; the work is one write of one byte, by which we see how far it is. Peers stand on a
Redis that keeps nothing on disk; ours logs every change. CPU is that of server and worker together
while they work the calls off. `--peers`: an interpreter that has the peers, if it is another one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from harness import Bench

TICK = os.sysconf("SC_CLK_TCK")

COMMON = """
import os, sys, time
fd = os.open(os.environ["COUNTER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
"""
PUT = """
from program import put
count = int(sys.argv[1])
put(0)
begin = time.perf_counter()
for n in range(1, count):
    put(n)
print(count / (time.perf_counter() - begin))
"""
PROGRAMS = {
    "ours": """
from fastjournal import Tasks
app = Tasks(os.environ["SERVER"])
@app.task
def work(n: int, text: str) -> None:
    os.write(fd, b".")
def put(n): work.put(n, "some text")
""",
    "celery": """
from celery import Celery
app = Celery("program", broker=os.environ["SERVER"])
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64)
app.conf.update(broker_connection_retry_on_startup=True)
@app.task(name="work")
def work(n, text):
    os.write(fd, b".")
def put(n): work.delay(n, "some text")
""",
    "rq": """
from redis import Redis
from rq import Queue
queue = Queue(connection=Redis.from_url(os.environ["SERVER"]))
def work(n, text):
    os.write(fd, b".")
def put(n): queue.enqueue("program.work", n, "some text", result_ttl=0)
""",
    "huey": """
from huey import RedisHuey
huey = RedisHuey("program", url=os.environ["SERVER"], results=False)
@huey.task()
def work(n, text):
    os.write(fd, b".")
def put(n): work(n, "some text")
""",
    "dramatiq": """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
dramatiq.set_broker(RedisBroker(url=os.environ["SERVER"]))
@dramatiq.actor
def work(n, text):
    os.write(fd, b".")
def put(n): work.send(n, "some text")
""",
}
WORKERS = {
    "ours": ["-m", "fastjournal.cli.app", "worker", "program:app", "--concurrency", "1"],
    "celery": ["-m", "celery", "-A", "program", "worker", "-P", "solo", "-l", "ERROR"],
    "rq": ["-c", "from rq.cli import main; main()", "worker", "-w", "rq.SimpleWorker", "-q"],
    "huey": ["-m", "huey.bin.huey_consumer", "program.huey", "-w", "1", "-k", "thread", "-q", "-n"],
    "dramatiq": ["-m", "dramatiq", "program", "-p", "1", "-t", "1"],
}


def main() -> None:
    """Measure."""
    bench = Bench(
        "tasks",
        "a task called and run through a server",
        repeats=3,
        options=lambda parser: parser.add_argument("--peers", default=sys.executable),
    )
    count = 3_000 if bench.quick else 100_000
    peers = []
    for name in list(PROGRAMS)[1:]:
        asked = subprocess.run(
            [bench.given.peers, "-c", f"import {name}, redis"], capture_output=True
        )
        if shutil.which("redis-server") is None:
            bench.left_out(name, "no redis-server")
        elif asked.returncode:
            bench.left_out(name, "not installed")
        else:
            peers.append(name)
    figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ["ours", *peers]}
    for _ in range(bench.repeats):
        for name in figures:
            python = sys.executable if name == "ours" else bench.given.peers
            figures[name].append(measure(name, python, count))
    for place, (row, unit, better) in enumerate(
        [("put one by one", "calls/s", "higher"), ("run by one worker", "calls/s", "higher"),
         ("CPU of a run", "µs", "lower")]
    ):  # fmt: skip
        series = {name: iter([one[place] for one in taken]) for name, taken in figures.items()}
        bench.row(
            f"{row}, {count:,} calls",
            lambda: next(series["ours"]),  # noqa: B023 - asked at once
            {name: (lambda name=name: next(series[name])) for name in peers},  # noqa: B023
            unit=unit,
            better=better,
        )
    bench.finish()


def measure(name: str, python: str, count: int) -> tuple[float, float, float]:
    """Calls put and run in a second, and microseconds of CPU for a run."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        counter = place / "counter"
        (place / "program.py").write_text(COMMON + PROGRAMS[name])
        with server(name, place) as (url, server_pid):
            environment = os.environ | {
                "COUNTER": str(counter), "SERVER": url, "FASTJOURNAL_URL": url,
                "RQ_REDIS_URL": url, "PYTHONPATH": folder,
            }  # fmt: skip
            said = subprocess.run(
                [python, "-c", COMMON + PUT, str(count)], cwd=folder, env=environment,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if said.returncode:
                raise SystemExit(f"{name}: {said.stderr}")
            worker = subprocess.Popen(
                [python, *WORKERS[name]], cwd=folder, env=environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            try:
                first = wait_for(counter, max(1, count // 20), worker)
                begin, cpu = perf_counter(), spent(server_pid) + spent(worker.pid)
                last = wait_for(counter, count, worker)
                seconds = perf_counter() - begin
                cpu = spent(server_pid) + spent(worker.pid) - cpu
            finally:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
    runs = last - first
    return float(said.stdout), runs / seconds, cpu / runs * 1e6


def wait_for(counter: Path, size: int, worker: subprocess.Popen[bytes]) -> int:
    """Until so many calls have run; how many did."""
    give_up = perf_counter() + 600
    while (there := counter.stat().st_size if counter.exists() else 0) < size:
        if worker.poll() is not None or perf_counter() > give_up:
            raise SystemExit(f"the worker {worker.args} has stopped after {there} calls")
        time.sleep(0.01)
    return there


def spent(pid: int) -> float:
    """Seconds of CPU that a process and its children have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    total = sum(int(field) for field in fields[11:15]) / TICK
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                total += spent(int(child))
    return total


@contextlib.contextmanager
def server(name: str, place: Path) -> Iterator[tuple[str, int]]:
    """A server of its own for one measure: its URL and its process."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    if name == "ours":
        command = [sys.executable, "-m", "fastjournal.cli.app", "serve", str(place / "data"),
                   "--listen", f"127.0.0.1:{port}"]  # fmt: skip
        url = f"fj://127.0.0.1:{port}"
    else:
        command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no",
                   "--dir", str(place)]  # fmt: skip
        url = f"redis://127.0.0.1:{port}/0"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield url, process.pid
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
