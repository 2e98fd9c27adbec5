"""The daemon beside beanstalkd and Redis Streams, through their Python clients, in one run.

    python bench/daemon.py [--quick] [--json FILE] [--sync os|interval|always ...] [--rows WORD ...]

Rows: puts one at a time by 1, 8 and 64 blocking clients, pipelined, in bulk of 500; the whole
cycle (put, lease, complete) with one producer and one consumer, one at a time and in bulk of 100.
All of them under each sync policy. Every client is a process of its own. Each measure is repeated
at least three times, interleaved with its peers, and the median is told; p50 and p99 are those of
single requests. CPU is that of the server, per job. The last columns tell how many times a peer's
figures ours are: a rate above 1, a time below 1 is better.

Equal durability: `os` = a write per group, no sync (beanstalkd -F, Redis appendfsync no);
`interval` = synced every second (beanstalkd -f 1000, Redis everysec); `always` = synced before the
answer (beanstalkd -f 0, Redis always).

Peers that are not installed are left out and named on standard error: beanstalkd and redis-server
(Debian packages), greenstalk and redis (Python). A uvloop server that only echoes stands beside
them, as the least that a server in Python can take.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing as mp
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from queue import Empty
from typing import Any

from daemon_systems import BULK, CYCLE_BULK, systems

FAMILIES = ("os", "interval", "always")
Figures = dict[str, float]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


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
        """Seconds of CPU used so far by all threads, as the scheduler counts them."""
        used = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ends just now
                used += int((task / "schedstat").read_text().split()[0])
        return used / 1e9

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
    gate.wait(60)
    times = []
    count = 0
    clock = time.perf_counter
    begin = now = clock()
    while now - begin < seconds:
        count += action(connection) or (1 if what == "put" else 0)
        after = clock()
        times.append(after - now)
        now = after
    out.put((what, count, now - begin, times))


def run(system: Any, running: Running, clients: list[str], seconds: float) -> Figures:
    """All clients at once.

    Where some take what others put, a job counts when it is completed: the producer may run ahead.
    Its CPU is then that of all requests, divided by half of the puts and completions.
    """
    gate, out = mp.Barrier(len(clients) + 1), mp.Queue()
    processes = [
        mp.Process(target=_client, args=(system, running.port, what, seconds, gate, out))
        for what in clients
    ]
    for process in processes:
        process.start()
    gate.wait(60)
    before = running.cpu()
    try:
        results = [out.get(timeout=seconds + 60) for _ in clients]
    except Empty:
        raise SystemExit(f"a client of {system.name} broke down") from None
    used = running.cpu() - before
    for process in processes:
        process.join()
    times = sorted(t for _, _, _, some in results for t in some)
    took = [result for result in results if result[0].startswith("take")]
    counted = took or results
    jobs = sum(count for _, count, _, _ in results) / (2 if took else 1)
    return {
        "rate": sum(count / lasted for _, count, lasted, _ in counted),
        "cpu": used / max(1, jobs) * 1e6,
        "p50": times[len(times) // 2] * 1e6, "p99": times[len(times) * 99 // 100] * 1e6,
    }  # fmt: skip


ROWS: list[tuple[str, list[str]]] = [
    ("put, 1 client", ["put"]),
    ("put, 8 clients", ["put"] * 8),
    ("put, 64 clients", ["put"] * 64),
    ("put, pipelined", ["pipelined"]),
    (f"put, bulk of {BULK}", ["bulk"]),
    ("cycle, one at a time", ["put", "take"]),
    (f"cycle, bulk of {CYCLE_BULK}", ["put_bulk", "take_bulk"]),
]
UNITS = (
    ("rate", "", "jobs/s", "higher", 0),
    ("p50", ", p50", "µs", "lower", 0),
    ("p99", ", p99", "µs", "lower", 0),
    ("cpu", ", server CPU", "µs/job", "lower", 1),
)
"""Figure, how its row is called, unit, which way is better, decimals."""


def measure(
    able: list[Any], sync: str, clients: list[str], seconds: float, repeats: int
) -> dict[str, list[Figures]]:
    """The figures of each system, by its name; each keeps its server over the repeats."""
    running: list[Running] = []
    runs: dict[str, list[Figures]] = {system.name: [] for system in able}
    try:
        for system in able:
            running.append(Running(system, sync))
        for _ in range(repeats):
            for system, server in zip(able, running, strict=True):
                runs[system.name].append(run(system, server, clients, seconds))
    finally:
        for server in running:
            server.stop()
    return runs


def lines_of(name: str, runs: dict[str, list[Figures]]) -> list[dict[str, Any]]:
    """The JSON objects of one row."""
    lines = []
    for figure, suffix, unit, better, decimals in UNITS:
        mine = [run[figure] for run in runs["ours"]]
        lines.append({
            "bench": "daemon", "row": name + suffix, "unit": unit, "better": better,
            "ours": _rounded(statistics.median(mine), decimals),
            "spread": [_rounded(min(mine), decimals), _rounded(max(mine), decimals)],
            "peers": {
                system: _rounded(statistics.median(run[figure] for run in some), decimals)
                for system, some in runs.items() if system != "ours"
            },
        })  # fmt: skip
    return lines


def _print_row(name: str, runs: dict[str, list[Figures]]) -> None:
    """One line for each system; those of peers tell how many times theirs ours is."""
    medians = {
        system: {key: statistics.median(run[key] for run in some) for key in some[0]}
        for system, some in runs.items()
    }
    ours = medians["ours"]
    for system, its in medians.items():
        times = ""
        if system != "ours":
            rate, p50, cpu = (ours[key] / its[key] for key in ("rate", "p50", "cpu"))
            times = f"{rate:>10.2f} x{p50:>5.2f} x{cpu:>5.2f} x"
        print(
            f"{name:<32}{system:<18}{its['rate']:>9.0f}{its['p50']:>8.0f}{its['p99']:>8.0f}"
            f"{its['cpu']:>11.1f}{times}",
            flush=True,
        )


def _rounded(value: float, decimals: int) -> float:
    return round(value, decimals) if decimals else round(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under three minutes")
    parser.add_argument("--json", metavar="FILE", help="one JSON object a line")
    parser.add_argument("--sync", nargs="*", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--rows", nargs="*", metavar="WORD", help="only rows that hold a word")
    parser.add_argument("--repeats", type=int, default=3, help="at least 3")
    options = parser.parse_args()
    seconds = 0.2 if options.quick else 2.0
    known = systems()
    lines = []
    print(
        f"{'row':<32}{'system':<18}{'jobs/s':>9}{'p50 µs':>8}{'p99 µs':>8}{'CPU µs/job':>11}"
        f"{'ours: rate':>12}{'p50':>7}{'CPU':>7}"
    )
    for sync in options.sync:
        for title, clients in ROWS:
            if options.rows and not any(word in title for word in options.rows):
                continue
            able = [s for s in known if all(hasattr(s, what) for what in clients)]
            runs = measure(able, sync, clients, seconds, max(3, options.repeats))
            name = f"{sync}, {title}"
            _print_row(name, runs)
            lines += lines_of(name, runs)
    if options.json:
        Path(options.json).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
