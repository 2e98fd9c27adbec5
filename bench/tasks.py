"""A task called many times through a server, and run by one worker: ours beside Celery and others.

python bench/tasks.py [--quick] [--json FILE] [--calls N] [--peers PYTHON]

Rules:

1. Everybody puts the same call one after the other from one process, and runs it in one worker with
   one thread; the work is one write of one byte, by which we see how far it is.
2. Ours logs every change and syncs each second. Celery, RQ, Huey and Dramatiq stand on a Redis that
   keeps nothing on disk; procrastinate on a PostgreSQL that does not wait for its disk.
3. CPU is that of producer and server together while calls are put, and that of server and worker
   while they are run.
4. Who has not run all calls within a minute is measured by what it ran until then.
5. `--peers`: an interpreter that has the peers, if it is another one; `PYTHONPATH` counts too. All
   100,000 calls take a quarter of an hour, nearly all of it the peers'.
"""

from __future__ import annotations

import argparse
import contextlib
import math
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

LONGEST = 60.0
"""Seconds in which the runs of one system are counted."""
TICK = os.sysconf("SC_CLK_TCK")

COMMON = """
import os, sys, time
fd = os.open(os.environ["COUNTER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
"""
PUT = """
from program import put
count = int(sys.argv[1])
put(0)
begin, cpu = time.perf_counter(), time.process_time()
for n in range(1, count):
    put(n)
print(count / (time.perf_counter() - begin), time.process_time() - cpu)
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
    "procrastinate": """
import procrastinate
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["SERVER"]))
@app.task(name="work")
def work(n, text):
    os.write(fd, b".")
opened = None
def put(n):
    global opened
    opened = opened or app.open()
    work.defer(n=n, text="some text")
""",
}
WORKERS = {
    "ours": ["-m", "fastjournal.cli.app", "worker", "program:app", "--concurrency", "1"],
    "celery": ["-m", "celery", "-A", "program", "worker", "-P", "solo", "-l", "ERROR"],
    "rq": ["-c", "from rq.cli import main; main()", "worker", "-w", "rq.SimpleWorker", "-q"],
    "huey": ["-m", "huey.bin.huey_consumer", "program.huey", "-w", "1", "-k", "thread", "-q", "-n"],
    "dramatiq": ["-m", "dramatiq", "program", "-p", "1", "-t", "1"],
    "procrastinate": ["-m", "procrastinate", "-a", "program.app", "worker", "--concurrency", "1"],
}
SCHEMA = ["-m", "procrastinate", "-a", "program.app", "schema", "--apply"]


Figures = tuple[float, float, float, float]
"""Calls put in a second, CPU of a put; calls run in a second, CPU of a run."""


def main() -> None:
    """Measure."""
    bench = Bench(
        "tasks", "a task called and run through a server", repeats=1, options=more_options
    )
    count = bench.given.calls or (3_000 if bench.quick else 100_000)
    peers = []
    for name in list(PROGRAMS)[1:]:
        if why := why_not(name, bench.given.peers):
            bench.left_out(name, why)
        else:
            peers.append(name)
    figures: dict[str, list[Figures]] = {name: [] for name in ["ours", *peers]}
    for number in range(bench.repeats):
        for name in figures:
            python = sys.executable if name == "ours" else bench.given.peers
            figures[name].append(measure(name, python, count))
            told = "put {:,.0f}/s {:.0f} µs, run {:,.0f}/s {:.0f} µs".format(*figures[name][-1])
            print(f"{number + 1}/{bench.repeats} {name}: {told}", file=sys.stderr, flush=True)
    for place, (row, unit, better) in enumerate(
        [("put one by one", "calls/s", "higher"), ("CPU of a put", "µs", "lower"),
         ("run by one worker", "calls/s", "higher"), ("CPU of a run", "µs", "lower")]
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


def more_options(parser: argparse.ArgumentParser) -> None:
    """What this program takes beside what all take."""
    parser.add_argument("--calls", type=int, help="so many instead of 100,000, or 3,000")
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="has the peers")


def why_not(name: str, python: str) -> str:
    """Why a peer cannot be measured here; empty: it can."""
    driver = "psycopg_pool" if name == "procrastinate" else "redis"
    asked = subprocess.run([python, "-c", f"import {name}, {driver}"], capture_output=True)
    if asked.returncode:
        return "not installed"
    program = "postgres" if name == "procrastinate" else "redis-server"
    return "" if where_is(program) else f"no {program}"


def where_is(program: str) -> str | None:
    """A program on the path, or where Debian keeps those of PostgreSQL."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(program, path=os.pathsep.join([os.environ["PATH"], *map(str, places)]))


def measure(name: str, python: str, count: int) -> Figures:
    """What one system does with so many calls."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        counter = place / "counter"
        (place / "program.py").write_text(COMMON + PROGRAMS[name])
        with server(name, place) as (url, server_pid):
            path = filter(None, [folder, os.environ.get("PYTHONPATH")])
            environment = os.environ | {
                "COUNTER": str(counter), "SERVER": url, "FASTJOURNAL_URL": url,
                "RQ_REDIS_URL": url, "PYTHONPATH": os.pathsep.join(path),
            }  # fmt: skip
            if name == "procrastinate":
                said(name, [python, *SCHEMA], environment)
            before = spent(server_pid)
            pace, cpu = map(float, said(name, [python, "-c", COMMON + PUT, str(count)],
                                        environment).split())  # fmt: skip
            put_cpu = cpu + spent(server_pid) - before
            worker = subprocess.Popen(
                [python, *WORKERS[name]], cwd=folder, env=environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            try:
                first = wait_for(counter, max(1, count // 20), worker)
                begin, cpu = perf_counter(), spent(server_pid) + spent(worker.pid)
                last = wait_for(counter, count, worker, begin + LONGEST)
                seconds = perf_counter() - begin
                cpu = spent(server_pid) + spent(worker.pid) - cpu
            finally:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
    runs = last - first
    return pace, put_cpu / count * 1e6, runs / seconds, cpu / runs * 1e6


def said(name: str, command: list[str], environment: dict[str, str]) -> str:
    """What a program prints; it must not fail."""
    ended = subprocess.run(
        command, cwd=Path(environment["COUNTER"]).parent, env=environment, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise SystemExit(f"{name}: {ended.stderr}")
    return ended.stdout


def wait_for(
    counter: Path, size: int, worker: subprocess.Popen[bytes], until: float = math.inf
) -> int:
    """Until so many calls have run, or it is so late; how many did."""
    last, give_up = -1, 0.0
    while (there := counter.stat().st_size if counter.exists() else 0) < size:
        if perf_counter() > until:
            break
        if there != last:
            last, give_up = there, perf_counter() + 60
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
    user = None
    if name == "ours":
        command = [sys.executable, "-m", "fastjournal.cli.app", "serve", str(place / "data"),
                   "--listen", f"127.0.0.1:{port}"]  # fmt: skip
        url = f"fj://127.0.0.1:{port}"
    elif name == "procrastinate":
        user = make_database(place)
        command = [str(where_is("postgres")), "-D", str(place / "data"), "-p", str(port),
                   "-k", str(place / "data"), "-c", "synchronous_commit=off"]  # fmt: skip
        url = f"postgresql://bench@127.0.0.1:{port}/postgres"
    else:
        command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no",
                   "--dir", str(place)]  # fmt: skip
        url = f"redis://127.0.0.1:{port}/0"
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user
    )
    try:
        while not answers(name, port):
            time.sleep(0.02)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def answers(name: str, port: int) -> bool:
    """Whether a server takes connections."""
    if name == "procrastinate":
        asked = [str(where_is("pg_isready")), "-q", "-h", "127.0.0.1", "-p", str(port)]
        return subprocess.run(asked).returncode == 0
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def make_database(place: Path) -> str | None:
    """An empty PostgreSQL; the user it runs as, for it never runs as root."""
    user = "postgres" if os.geteuid() == 0 else None
    data = place / "data"
    data.mkdir()
    if user:
        place.chmod(0o755)
        shutil.chown(data, user)
    subprocess.run(
        [str(where_is("initdb")), "-D", str(data), "-U", "bench", "-A", "trust", "-N"],
        check=True, stdout=subprocess.DEVNULL, user=user, cwd=data,
    )  # fmt: skip
    return user


if __name__ == "__main__":
    main()
