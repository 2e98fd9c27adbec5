"""The daemon beside beanstalkd and Redis Streams, through their Python clients, in one run.

    python bench/daemon.py [--quick] [--json FILE] [--sync os|interval|always ...]

Rows: puts one at a time by one and by eight blocking clients, pipelined, in bulk of 500; the whole
cycle (put, lease, complete) with one producer and one consumer, one at a time and in bulk of 100.
Every client is a process of its own. Each measure is repeated at least three times, interleaved
with its peers, and the median is told; p50 and p99 are those of single requests. CPU is that of the
server, per job.

Equal durability: `os` = a write per group, no sync; `interval` = synced every second (beanstalkd
-f 1000, Redis everysec); `always` = synced before the answer (beanstalkd -f 0, Redis always).

Peers that are not installed are left out and named on standard error: beanstalkd and redis-server
(Debian packages), greenstalk and redis (Python).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import multiprocessing as mp
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAYLOAD = b"x" * 100
BULK, PIPE, CYCLE_BULK = 500, 500, 100
FAMILIES = ("os", "interval", "always")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Ours:
    """fastjournal."""

    name = "ours"

    def command(self, port: int, folder: Path, sync: str) -> list[str]:
        return [
            sys.executable, "-m", "fastjournal.cli.app", "serve", str(folder / "data"), "--sync",
            sync, "--listen", f"127.0.0.1:{port}", "--log-level", "error",
        ]  # fmt: skip

    def connect(self, port: int) -> Any:
        import fastjournal

        return fastjournal.connect(f"fj://127.0.0.1:{port}")

    def put(self, c: Any) -> None:
        c.put(PAYLOAD, queue="q")

    def pipelined(self, c: Any) -> int:
        pipe = c.pipeline()
        for _ in range(PIPE):
            pipe.put(PAYLOAD, queue="q")
        pipe.execute()
        return PIPE

    def bulk(self, c: Any, count: int = BULK) -> int:
        c.put_many([{"payload": PAYLOAD, "queue": "q"}] * count)
        return count

    def take(self, c: Any) -> int:
        job = c.lease("q", wait=1)
        if job is None:
            return 0
        job.done()
        return 1

    def take_bulk(self, c: Any) -> int:
        jobs = c.lease_many(CYCLE_BULK, "q", wait=1)
        return sum(c.complete_many([(job.id, job.token, None) for job in jobs])) if jobs else 0


class Beanstalkd:
    """beanstalkd with its binlog, through greenstalk."""

    name = "beanstalkd"

    def command(self, port: int, folder: Path, sync: str) -> list[str]:
        flag = {"os": ["-F"], "interval": ["-f", "1000"], "always": ["-f", "0"]}[sync]
        return ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", str(folder), *flag]

    def connect(self, port: int) -> Any:
        import greenstalk

        return greenstalk.Client(("127.0.0.1", port), encoding=None)

    def put(self, c: Any) -> None:
        c.put(PAYLOAD)

    def take(self, c: Any) -> int:
        import greenstalk

        try:
            job = c.reserve(timeout=1)
        except greenstalk.TimedOutError:
            return 0
        c.delete(job)
        return 1


class Redis:
    """Redis Streams with the append-only file, through redis-py."""

    name = "Redis Streams"

    def command(self, port: int, folder: Path, sync: str) -> list[str]:
        policy = {"os": "no", "interval": "everysec", "always": "always"}[sync]
        return [
            "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
            "--appendonly", "yes", "--appendfsync", policy, "--save", "", "--loglevel", "warning",
        ]  # fmt: skip

    def connect(self, port: int) -> Any:
        import redis

        client = redis.Redis(port=port)
        with contextlib.suppress(redis.ResponseError):
            client.xgroup_create("q", "g", mkstream=True)
        return client

    def put(self, c: Any) -> None:
        c.xadd("q", {"d": PAYLOAD})

    def pipelined(self, c: Any) -> int:
        pipe = c.pipeline(transaction=False)
        for _ in range(PIPE):
            pipe.xadd("q", {"d": PAYLOAD})
        pipe.execute()
        return PIPE

    def bulk(self, c: Any, count: int = BULK) -> int:
        pipe = c.pipeline(transaction=False)
        for _ in range(count):
            pipe.xadd("q", {"d": PAYLOAD})
        pipe.execute()
        return count

    def _take(self, c: Any, count: int) -> int:
        got = c.xreadgroup("g", f"c{os.getpid()}", {"q": ">"}, count=count, block=1000)
        if not got:
            return 0
        ids = [entry for entry, _ in got[0][1]]
        pipe = c.pipeline(transaction=False)
        pipe.xack("q", "g", *ids)
        pipe.xdel("q", *ids)
        pipe.execute()
        return len(ids)

    def take(self, c: Any) -> int:
        return self._take(c, 1)

    def take_bulk(self, c: Any) -> int:
        return self._take(c, CYCLE_BULK)


class Running:
    """A server in a process of its own."""

    def __init__(self, system: Any, sync: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-daemon-"))
        self.port = free_port()
        self.process = subprocess.Popen(
            system.command(self.port, self.folder, sync), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None:
                    raise SystemExit(f"{system.name} did not start") from None
                time.sleep(0.02)

    def cpu(self) -> float:
        """Seconds of CPU used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _client(system: Any, port: int, what: str, seconds: float, gate: Any, out: Any) -> None:
    """One client: do `what` for so long; tell jobs, seconds and the times of single requests."""
    connection = system.connect(port)
    action = getattr(system, what)
    gate.wait()
    times = []
    count = 0
    clock = time.perf_counter
    begin = now = clock()
    while now - begin < seconds:
        count += action(connection) or (1 if what == "put" else 0)
        after = clock()
        times.append(after - now)
        now = after
    out.put((count, now - begin, times))


def run(system: Any, running: Running, clients: list[str], seconds: float) -> dict[str, float]:
    """All clients at once; the last kind is the one whose jobs are counted."""
    gate, out = mp.Barrier(len(clients) + 1), mp.Queue()
    processes = [
        mp.Process(target=_client, args=(system, running.port, what, seconds, gate, out))
        for what in clients
    ]
    for process in processes:
        process.start()
    gate.wait()
    before = running.cpu()
    results = [out.get() for _ in clients]
    used = running.cpu() - before
    for process in processes:
        process.join()
    times = sorted(t for _, _, some in results for t in some)
    jobs = sum(count for count, _, _ in results)
    rate = sum(count / took for count, took, _ in results)
    return {
        "rate": rate, "cpu": used / jobs * 1e6 if jobs else 0.0, "jobs": jobs,
        "p50": times[len(times) // 2] * 1e6, "p99": times[len(times) * 99 // 100] * 1e6,
    }  # fmt: skip


def cycle(system: Any, running: Running, put: str, take: str, seconds: float) -> dict[str, float]:
    """One producer and one consumer side by side; counts what was put and completed."""
    gate, out = mp.Barrier(3), mp.Queue()
    processes = [
        mp.Process(target=_client, args=(system, running.port, what, seconds, gate, out))
        for what in (put, take)
    ]
    for process in processes:
        process.start()
    gate.wait()
    before = running.cpu()
    results = [out.get(), out.get()]
    used = running.cpu() - before
    for process in processes:
        process.join()
    # Completed jobs are what counts; the producer may run ahead.
    counts = sorted(result[0] for result in results)
    times = sorted(t for result in results for t in result[2])
    return {
        "rate": counts[0] / seconds, "cpu": used / max(1, counts[0]) * 1e6, "jobs": counts[0],
        "p50": times[len(times) // 2] * 1e6, "p99": times[len(times) * 99 // 100] * 1e6,
    }  # fmt: skip


def put_bulk_100(self: Any, c: Any) -> int:
    count: int = self.bulk(c, CYCLE_BULK)
    return count


for _kind in (Ours, Redis):
    _kind.put_bulk = put_bulk_100  # type: ignore[attr-defined]

Row = tuple[str, Callable[[Any, Running, float], dict[str, float]], tuple[str, ...]]
ROWS: list[Row] = [
    ("put, 1 client", lambda s, r, t: run(s, r, ["put"], t), ("put",)),
    ("put, 8 clients", lambda s, r, t: run(s, r, ["put"] * 8, t), ("put",)),
    ("put, pipelined", lambda s, r, t: run(s, r, ["pipelined"], t), ("pipelined",)),
    (f"put, bulk of {BULK}", lambda s, r, t: run(s, r, ["bulk"], t), ("bulk",)),
    ("cycle, one at a time", lambda s, r, t: cycle(s, r, "put", "take", t), ("put", "take")),
    (
        f"cycle, bulk of {CYCLE_BULK}",
        lambda s, r, t: cycle(s, r, "put_bulk", "take_bulk", t),
        ("put_bulk", "take_bulk"),
    ),
]


def systems() -> list[Any]:
    """Those that are installed; the others are named on standard error."""
    found: list[Any] = [Ours()]
    for system, program, module in (
        (Beanstalkd(), "beanstalkd", "greenstalk"),
        (Redis(), "redis-server", "redis"),
    ):
        lacks = [program] if shutil.which(program) is None else []
        if importlib.util.find_spec(module) is None:
            lacks.append(f"Python package {module}")
        if lacks:
            print(f"left out: {system.name} (no {', '.join(lacks)})", file=sys.stderr)
        else:
            found.append(system)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute")
    parser.add_argument("--json", metavar="FILE", help="one JSON object a line")
    parser.add_argument("--sync", nargs="*", choices=FAMILIES, default=None)
    options = parser.parse_args()
    seconds, repeats = (0.25, 3) if options.quick else (2.0, 3)
    policies = options.sync or (("interval",) if options.quick else FAMILIES)
    known = systems()
    lines = []
    head = f"{'row':<38}{'system':<16}{'jobs/s':>10}{'p50 µs':>9}{'p99 µs':>10}{'CPU µs/job':>12}"
    print(head)
    for sync in policies:
        for title, measure, needs in ROWS:
            able = [s for s in known if all(hasattr(s, need) for need in needs)]
            runs: dict[str, list[dict[str, float]]] = {s.name: [] for s in able}
            for _ in range(repeats):
                for system in able:
                    running = Running(system, sync)
                    try:
                        runs[system.name].append(measure(system, running, seconds))
                    finally:
                        running.stop()
            name = f"{sync}, {title}"
            middle = {k: statistics.median(r["rate"] for r in v) for k, v in runs.items()}
            for system_name, figures in runs.items():
                best = {key: statistics.median(f[key] for f in figures) for key in figures[0]}
                print(
                    f"{name:<38}{system_name:<16}{best['rate']:>10.0f}{best['p50']:>9.0f}"
                    f"{best['p99']:>10.0f}{best['cpu']:>12.1f}",
                    flush=True,
                )
            rates = [r["rate"] for r in runs["ours"]]
            lines.append({
                "bench": "daemon", "row": name, "unit": "jobs/s", "better": "higher",
                "ours": round(middle["ours"]), "spread": [round(min(rates)), round(max(rates))],
                "peers": {k: round(v) for k, v in middle.items() if k != "ours"},
            })  # fmt: skip
            cpus = [r["cpu"] for r in runs["ours"]]
            lines.append({
                "bench": "daemon", "row": f"{name}, server CPU", "unit": "µs/job",
                "better": "lower", "ours": round(statistics.median(cpus), 1),
                "spread": [round(min(cpus), 1), round(max(cpus), 1)],
                "peers": {
                    k: round(statistics.median(r["cpu"] for r in v), 1)
                    for k, v in runs.items() if k != "ours"
                },
            })  # fmt: skip
    if options.json:
        Path(options.json).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
