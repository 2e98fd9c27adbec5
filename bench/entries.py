"""Key/value entries beside Redis, through their blocking Python clients, in one run.

    python bench/entries.py [--quick] [--json FILE]

Both servers are processes of their own on this machine and keep a log that is synced every second
(ours: `interval`; Redis: append-only file, `everysec`). Values have 100 bytes, keys about 10.
Rows: SET, GET, ADD (INCRBY) and a range of 100 keys with their values (Redis: a sorted set of the
keys, then MGET) one at a time and, but for the range, pipelined by 500, each with the CPU time that
client and server take together; memory of the server for an entry; reading at random where the
values are ten times what memory may hold.

Redis needs `redis-server` and the Python package `redis`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harness import Bench

VALUE = b"x" * 100
KEYS = 10_000
PIPE = 500
SPAN = 100
MIB = 1 << 20


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Server:
    """A server in a process of its own."""

    def __init__(self, command: Callable[[int, Path], list[str]], **environment: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-entries-"))
        self.port = free_port()
        self.process = subprocess.Popen(
            command(self.port, self.folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | environment,
        )  # fmt: skip
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            if self.process.poll() is not None:
                raise SystemExit(f"{command.__name__} did not start")
            time.sleep(0.02)

    def cpu(self) -> float:
        """Seconds of CPU used so far by all threads, as the scheduler counts them."""
        used = 0
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            used += int((task / "schedstat").read_text().split()[0])
        return used / 1e9

    def resident(self) -> int:
        """Bytes of memory in use."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def ours_command(port: int, folder: Path) -> list[str]:
    return [
        sys.executable, "-m", "fastjournal.cli.app", "serve", str(folder / "data"), "--sync",
        "interval", "--listen", f"127.0.0.1:{port}", "--log-level", "error",
    ]  # fmt: skip


def redis_command(port: int, folder: Path) -> list[str]:
    return [
        "redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
        "--appendonly", "yes", "--appendfsync", "everysec", "--save", "", "--loglevel", "warning",
    ]  # fmt: skip


class Ours:
    """fastjournal."""

    def __init__(self, server: Server) -> None:
        import fastjournal

        self.client = fastjournal.connect(f"fj://127.0.0.1:{server.port}")
        self.entries = self.client.entries

    def set(self, key: str) -> None:
        self.entries[key] = VALUE

    def get(self, key: str) -> None:
        assert self.entries[key] == VALUE

    def add(self, key: str) -> None:
        self.entries.add("n:" + key)

    def span(self, first: int) -> None:
        page = self.entries.page(name(first), name(first + SPAN - 1))
        assert len([entry.value for entry in page.entries]) == SPAN

    def pipelined(self, what: str, keys: list[str]) -> None:
        pipe = self.client.pipeline()
        for key in keys:
            if what == "set":
                pipe.entries.set(key, VALUE)
            elif what == "get":
                pipe.entries.get(key)
            else:
                pipe.entries.add("n:" + key)
        pipe.execute()

    def load(self, first: int, count: int, value: bytes = VALUE) -> None:
        self.entries.update((name(n), value) for n in range(first, first + count))


class Redis:
    """Redis through redis-py."""

    def __init__(self, server: Server) -> None:
        import redis

        self.client = redis.Redis(port=server.port)

    def set(self, key: str) -> None:
        self.client.set(key, VALUE)

    def get(self, key: str) -> None:
        assert self.client.get(key) == VALUE

    def add(self, key: str) -> None:
        self.client.incrby("n:" + key, 1)

    def span(self, first: int) -> None:
        low, high = f"[{name(first)}", f"[{name(first + SPAN - 1)}"
        keys = self.client.zrangebylex("keys", low, high)
        assert len(self.client.mget(keys)) == SPAN

    def pipelined(self, what: str, keys: list[str]) -> None:
        pipe = self.client.pipeline(transaction=False)
        for key in keys:
            if what == "set":
                pipe.set(key, VALUE)
            elif what == "get":
                pipe.get(key)
            else:
                pipe.incrby("n:" + key, 1)
        pipe.execute()

    def load(self, first: int, count: int, value: bytes = VALUE) -> None:
        pipe = self.client.pipeline(transaction=False)
        for number in range(first, first + count):
            pipe.set(name(number), value)
        pipe.execute()

    def index(self) -> None:
        """What a range needs."""
        self.client.zadd("keys", {name(number): 0 for number in range(KEYS)})


def name(number: int) -> str:
    return f"k{number:08}"


class Rate:
    """How often a second, and the CPU of client and server for each; `work` tells how many."""

    def __init__(self, server: Server, work: Callable[[int], int], seconds: float) -> None:
        self._server, self._work, self._seconds = server, work, seconds
        self._cpu: list[float] = []

    def __call__(self) -> float:
        chance = random.Random(1)
        done = 0
        used = self._server.cpu() + time.process_time()
        began = now = time.perf_counter()
        while now - began < self._seconds:
            done += self._work(chance.randrange(KEYS - SPAN))
            now = time.perf_counter()
        used = self._server.cpu() + time.process_time() - used
        self._cpu.append(used / done * 1e6)
        return done / (now - began)

    def cpu(self) -> float:
        """Microseconds of CPU, of the runs so far in turn."""
        return self._cpu.pop(0)


@contextlib.contextmanager
def running(bench: Bench) -> Iterator[dict[str, tuple[Server, Any]]]:
    """The servers that are installed, by name."""
    found: dict[str, tuple[Server, Any]] = {}
    try:
        server = Server(ours_command)
        found["ours"] = server, Ours(server)
        lacks = [] if shutil.which("redis-server") else ["redis-server"]
        if importlib.util.find_spec("redis") is None:
            lacks.append("Python package redis")
        if lacks:
            bench.left_out("Redis", f"no {', '.join(lacks)}")
        else:
            server = Server(redis_command)
            found["Redis, redis-py"] = server, Redis(server)
        yield found
    finally:
        for server, _ in found.values():
            server.stop()


def both(bench: Bench, row: str, measures: dict[str, Rate]) -> None:
    """A row of rates, and one of CPU."""
    peers = dict(measures)
    mine = peers.pop("ours")
    bench.row(row, mine, peers, unit="1/s", better="higher")
    used = {label: peer.cpu for label, peer in peers.items()}
    bench.row(f"{row}, CPU", mine.cpu, used, unit="µs", better="lower")


def speeds(bench: Bench, systems: dict[str, tuple[Server, Any]]) -> None:
    seconds = 0.4 if bench.quick else 2.0
    for _, client in systems.values():
        for first in range(0, KEYS, 1000):
            client.load(first, 1000)
    if "Redis, redis-py" in systems:
        systems["Redis, redis-py"][1].index()

    def single(what: str, server: Server, client: Any) -> Rate:
        action = getattr(client, what)

        def once(number: int) -> int:
            action(number if what == "span" else name(number))
            return 1

        return Rate(server, once, seconds)

    def many(what: str, server: Server, client: Any) -> Rate:
        def batch(number: int) -> int:
            client.pipelined(what, [name((number + n) % KEYS) for n in range(PIPE)])
            return PIPE

        return Rate(server, batch, seconds)

    titles = {"set": "SET", "get": "GET", "add": "ADD", "span": f"range of {SPAN}"}
    for what, title in titles.items():
        measures = {label: single(what, *system) for label, system in systems.items()}
        both(bench, f"{title}, one at a time", measures)
    for what in ("set", "get", "add"):
        measures = {label: many(what, *system) for label, system in systems.items()}
        both(bench, f"{titles[what]}, pipelined by {PIPE}", measures)


def memory(bench: Bench) -> None:
    """Once for each: a million entries are loaded."""
    count = 100_000 if bench.quick else 1_000_000
    with running(bench) as systems:
        figures: dict[str, float] = {}
        for label, (server, client) in systems.items():
            client.load(0, 1000)
            before = server.resident()
            for first in range(1000, count + 1000, 10_000):
                client.load(first, 10_000)
            figures[label] = (server.resident() - before) / count
        mine = figures.pop("ours")
        peers = {label: (lambda figure=figure: figure) for label, figure in figures.items()}
        bench.row(f"memory, {count:,} entries", lambda: mine, peers, unit="bytes/entry")


def larger_than_memory(bench: Bench) -> None:
    """Values ten times what memory may hold, read at random."""
    limit = (8 if bench.quick else 64) * MIB
    size = 10_000
    count = 10 * limit // size
    server = Server(ours_command, FASTJOURNAL_JOURNAL_MEMORY_LIMIT=str(limit))
    try:
        client = Ours(server)
        empty = server.resident()
        value = random.Random(2).randbytes(size)
        for first in range(0, count, 500):
            client.load(first, min(500, count - first), value)
        chance = random.Random(3)

        def once(_: int) -> int:
            assert client.entries[name(chance.randrange(count))] == value
            return 1

        what = f"values 10x a limit of {limit // MIB} MiB"
        read = Rate(server, once, 0.4 if bench.quick else 2.0)
        bench.row(f"GET, {what}", read, {}, unit="1/s", better="higher")
        bench.row(
            f"resident beyond an empty daemon, {what}",
            lambda: (server.resident() - empty) / MIB, {}, unit="MiB",
        )  # fmt: skip
    finally:
        server.stop()


def main() -> None:
    bench = Bench("entries", "key/value entries beside Redis, synced every second")
    with running(bench) as systems:
        speeds(bench, systems)
    memory(bench)
    larger_than_memory(bench)
    bench.finish()


if __name__ == "__main__":
    main()
