"""What a put into a spool costs its producer, and how fast a forwarder carries jobs to a daemon.

python bench/spool.py [--quick] [--json FILE]

Beside each put: the same bytes by a bare os.write, and the blocking put of queues that are asked
over a socket, each with its server on this machine. The daemon and the forwarder are processes of
their own; a job counts as forwarded when its frame is marked done, that is after the daemon has it
on stable storage.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from time import perf_counter, perf_counter_ns

from fastjournal import connect
from fastjournal.spool.writer import Spool
from harness import Bench

PAYLOAD = b"x" * 100

WRITER = """
import sys, time
from fastjournal.spool.writer import Spool
path, count = sys.argv[1], int(sys.argv[2])
spool = Spool(path)
spool.put(b"warm", queue="q")
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
put, payload = spool.put, b"x" * 100
for _ in range(count):
    put(payload, queue=b"q")
"""

BARE = """
import os, sys
path, count = sys.argv[1], int(sys.argv[2])
fd = os.open(path + "/bare", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
sys.stdout.write("ready\\n"); sys.stdout.flush(); sys.stdin.readline()
data, write = b"x" * 222, os.write
for _ in range(count):
    write(fd, data)
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def wait_for_port(port: int) -> None:
    for _ in range(500):
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.02)
    raise SystemExit(f"nobody listens on {port}")


def latency(count: int, work: Callable[[], object]) -> tuple[float, float]:
    """p50 and p99 of single calls, in µs."""
    times = []
    for _ in range(count):
        start = perf_counter_ns()
        work()
        times.append(perf_counter_ns() - start)
    cuts = quantiles(times, n=100)
    return cuts[49] / 1000, cuts[98] / 1000


def together(program: str, path: str, processes: int, count: int) -> float:
    """Calls a second of so many processes at once."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program, path, str(count // processes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(processes)
    ]
    for process in running:
        process.stdout.readline()
    start = perf_counter()
    for process in running:
        process.stdin.write(b"go\n")
        process.stdin.flush()
    for process in running:
        process.wait()
    return count / (perf_counter() - start)


class Peers:
    """Servers of other queues, where they are installed."""

    def __init__(self, bench: Bench) -> None:
        self.puts: dict[str, Callable[[], object]] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._beanstalkd(bench)
        self._redis(bench)

    def _beanstalkd(self, bench: Bench) -> None:
        try:
            import greenstalk
        except ImportError:
            bench.left_out("beanstalkd", "greenstalk is not installed")
            return
        if shutil.which("beanstalkd") is None:
            bench.left_out("beanstalkd", "the server is not installed")
            return
        port = free_port()
        self._start("beanstalkd", "-l", "127.0.0.1", "-p", str(port))
        wait_for_port(port)
        client = greenstalk.Client(("127.0.0.1", port), encoding=None)
        self.puts["beanstalkd, greenstalk put"] = lambda: client.put(PAYLOAD)

    def _redis(self, bench: Bench) -> None:
        try:
            import redis
        except ImportError:
            bench.left_out("redis", "redis-py is not installed")
            return
        if shutil.which("redis-server") is None:
            bench.left_out("redis", "the server is not installed")
            return
        port = free_port()
        self._start("redis-server", "--port", str(port), "--save", "", "--appendonly", "no")
        wait_for_port(port)
        client = redis.Redis(port=port)
        self.puts["redis-py XADD"] = lambda: client.xadd("q", {"p": PAYLOAD})

    def _start(self, *command: str) -> None:
        self._processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Daemon:
    """A daemon and, when asked for, a forwarder, each a process of its own."""

    def __init__(self, folder: Path, sync: str) -> None:
        self.port = free_port()
        self.url = f"fj://127.0.0.1:{self.port}"
        self.spool = folder / "spool"
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "fastjournal.cli.app", "serve", str(folder / "data"),
                 "--listen", f"127.0.0.1:{self.port}", "--journal", "default", "--sync", sync,
                 "--log-level", "error"],
            )
        ]  # fmt: skip
        wait_for_port(self.port)

    def forward(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "fastjournal.cli.app", "forward", "--spool", str(self.spool),
             "--to", self.url],
        )  # fmt: skip
        self._processes.append(process)
        return process

    def cpu(self) -> list[float]:
        """Seconds of CPU spent by the daemon and the forwarder."""
        spent = []
        for process in self._processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            spent.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        return spent

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()


def done_at(path: Path, offset: int) -> bool:
    """Whether the frame that begins at an offset is done."""
    with path.open("rb") as file:
        file.seek(offset + 2)
        return file.read(1) == b"D"


def last_frame(spool: Spool, path: Path) -> tuple[Path, int]:
    """Put one more job; where it lies."""
    file = max(path.glob("*.fjq"))
    offset = file.stat().st_size
    spool.put(b"last", queue="q")
    return file, offset


def forwarded_per_second(count: int, sync: str, cpu: list[list[float]]) -> float:
    """Jobs a second from the file to stable storage of the daemon, a backlog being drained."""
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as name:
        folder = Path(name)
        daemon = Daemon(folder, sync)
        try:
            with Spool(daemon.spool) as spool:
                spool.put(b"first", queue="q")
                forwarder = daemon.forward()
                file = next(daemon.spool.glob("*.fjq"))
                while not done_at(file, 8):  # both are up and connected
                    time.sleep(0.001)
                forwarder.send_signal(signal.SIGSTOP)
                for _ in range(count // 1000):
                    spool.put_many([{"payload": PAYLOAD, "queue": "q"}] * 1000)
                place = last_frame(spool, daemon.spool)
                before, used = perf_counter(), daemon.cpu()
                forwarder.send_signal(signal.SIGCONT)
                while not done_at(*place):
                    time.sleep(0.001)
                seconds = perf_counter() - before
                spent = [now - then for now, then in zip(daemon.cpu(), used, strict=True)]
        finally:
            daemon.close()
        cpu.append([part * 1e6 / count for part in spent])
        return count / seconds


def delays(count: int, sync: str) -> tuple[float, float]:
    """p50 and p99, in ms, from a put to the job being in the hands of a waiting consumer."""
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as name:
        daemon = Daemon(Path(name), sync)
        try:
            daemon.forward()
            client = connect(daemon.url)
            with Spool(daemon.spool) as spool:
                spool.put(b"first", queue="q")
                client.lease("q", wait=30)
                times = []
                for _ in range(count):
                    start = perf_counter()
                    spool.put(PAYLOAD, queue="q")
                    leased = client.lease("q", wait=30)
                    times.append((perf_counter() - start) * 1000)
                    leased.done()
                    time.sleep(0.002)
            client.close()
        finally:
            daemon.close()
    cuts = quantiles(times, n=100)
    return cuts[49], cuts[98]


def main() -> None:
    bench = Bench("spool", "puts into a spool, and their way to a daemon")
    quick = bench.quick
    calls = 5_000 if quick else 50_000
    backlog = 30_000 if quick else 200_000
    peers = Peers(bench)
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        spool = Spool(folder)
        bare = os.open(folder + "/bare", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        data = b"x" * 222

        def ours() -> None:
            spool.put(PAYLOAD, queue=b"q")

        def keyed() -> None:
            spool.put(PAYLOAD, key="https://example.com/some/page", priority=20)

        def write() -> None:
            os.write(bare, data)

        for name, at in (("p50", 0), ("p99", 1)):
            bench.row(
                f"put, {name}", lambda at=at: latency(calls, ours)[at],
                {"os.write of the same bytes": lambda at=at: latency(calls, write)[at],
                 **{peer: lambda at=at, put=put: latency(calls // 5, put)[at]
                    for peer, put in peers.puts.items()}},
                unit="µs",
            )  # fmt: skip
        bench.row("put with key and domain, p50", lambda: latency(calls, keyed)[0], unit="µs")
        batch = [{"payload": PAYLOAD, "queue": b"q"} for _ in range(1000)]

        def many() -> float:
            start = perf_counter()
            for _ in range(max(1, calls // 1000)):
                spool.put_many(batch)
            return (perf_counter() - start) * 1e6 / (max(1, calls // 1000) * 1000)

        bench.row("put_many of 1000, each", many, unit="µs")
        bench.row(
            "put, sync=True, p50",
            lambda: latency(
                50 if quick else 300, lambda: spool.put(PAYLOAD, queue=b"q", sync=True)
            )[0],
            unit="µs",
        )
        for processes in (1, 8):
            bench.row(
                f"{processes} process{'es' if processes > 1 else ''}",
                lambda processes=processes: together(WRITER, folder, processes, calls * 8),
                {"os.write of the same bytes":
                     lambda processes=processes: together(BARE, folder, processes, calls * 8)},
                unit="puts/s", better="higher",
            )  # fmt: skip
        spool.close()
        os.close(bare)
    peers.close()
    for sync in ("interval", "always"):
        cpu: list[list[float]] = []
        bench.row(
            f"forwarder, daemon sync {sync}",
            lambda sync=sync, cpu=cpu: forwarded_per_second(backlog, sync, cpu),
            unit="jobs/s", better="higher",
        )  # fmt: skip
        of_daemon, of_forwarder = min(cpu)
        print(f"    CPU a job: {of_daemon:.1f} µs daemon, {of_forwarder:.1f} µs forwarder")
    for name, at in (("p50", 0), ("p99", 1)):
        bench.row(
            f"put to leased, sync interval, {name}",
            lambda at=at: delays(60 if quick else 500, "interval")[at],
            unit="ms",
        )
    bench.finish()


if __name__ == "__main__":
    main()
