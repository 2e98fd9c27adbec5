"""A journal on three nodes beside one node, and beside PostgreSQL with a synchronous standby.

    python bench/replica.py [--quick] [--json FILE]

Rows: puts one at a time by eight clients, each a process of its own, with `ack` one, quorum and
all: jobs a second, p50 and p99 of a put. Then how long nobody answers when the primary is killed
(its lease, `ttl`, is 2 s) and when it is told to switch over, seen by a client that puts all the
time.

Equal durability: everybody syncs before it answers (`sync = "always"`, `synchronous_commit = on`,
so the standby has synced too: that is ack all of two nodes). PostgreSQL: one insert a transaction.
All nodes are on this machine, so they share its cores and its disk. Each system is started anew for
each measure, in turn.

Needs etcd; PostgreSQL and psycopg are left out where they are missing.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastjournal
from fastjournal.errors import JournalError
from harness import Bench

CLIENTS = 8
NODES = ("a", "b", "c")
TTL = 2
Figures = tuple[float, float, float]
"""Jobs a second, p50 and p99 of one in ms."""


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Look again and again."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            raise SystemExit("it does not start")
        time.sleep(0.02)


class Nodes:
    """One daemon, or three with an etcd."""

    def __init__(self, home: Path, ack: str) -> None:
        """`ack`: empty for one daemon alone."""
        names = NODES if ack else NODES[:1]
        self.ports = {name: free_port() for name in names}
        self._inner = {name: free_port() for name in names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._etcd: subprocess.Popen[bytes] | None = None
        arbiter = self._start_etcd(home) if ack else ""
        for name in names:
            peers = [f"{one}=127.0.0.1:{self._inner[one]}" for one in names if one != name]
            settings = {
                "FASTJOURNAL_REPLICA_NAME": name,
                "FASTJOURNAL_REPLICA_LISTEN": f"127.0.0.1:{self._inner[name]}",
                "FASTJOURNAL_REPLICA_PEERS": ",".join(peers),
                "FASTJOURNAL_REPLICA_ARBITER": arbiter,
                "FASTJOURNAL_REPLICA_TTL": str(TTL),
                "FASTJOURNAL_REPLICA_ACK": ack,
            }
            command = [sys.executable, "-m", "fastjournal.cli.app", "serve", str(home / name)]
            self.processes[name] = subprocess.Popen(
                [*command, "--listen", f"127.0.0.1:{self.ports[name]}", "--sync", "always"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=os.environ | (settings if ack else {}),
            )  # fmt: skip
        wait_for(self._has_started if ack else self._answers)

    def _start_etcd(self, home: Path) -> str:
        mine, others = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._etcd = subprocess.Popen(
            [str(shutil.which("etcd")), "--data-dir", str(home / "etcd"),
             "--listen-client-urls", mine, "--advertise-client-urls", mine,
             "--listen-peer-urls", others, "--initial-advertise-peer-urls", others,
             "--initial-cluster", f"default={others}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=os.environ | {"ETCD_UNSUPPORTED_ARCH": "arm64"},
        )  # fmt: skip
        return mine

    @property
    def url(self) -> str:
        """All of them."""
        places = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        return f"fj://{places}?timeout=60"

    def ask(self, name: str, command: str = "status") -> dict[str, Any]:
        """What a node says of itself; empty: it is not there."""
        line = {"command": command, "journal": "default", "secret": ""}
        try:
            with socket.create_connection(("127.0.0.1", self._inner[name]), 2) as sock:
                sock.sendall(json.dumps(line).encode() + b"\n")
                answer: dict[str, Any] = json.loads(sock.makefile().readline())
                return answer
        except (OSError, ValueError):
            return {}

    def primary(self) -> str:
        """Who serves; empty: nobody."""
        return next((name for name in self.ports if self.ask(name).get("serving")), "")

    def _has_started(self) -> bool:
        """Somebody serves, and all have caught up with it: until then they have no vote."""
        told = [self.ask(name) for name in self.ports]
        ready = all(one.get("eligible") and one["last_time"] for one in told)
        return ready and any(one["serving"] for one in told) and self._answers()

    def _answers(self) -> bool:
        try:
            with fastjournal.connect(self.url.replace("timeout=60", "timeout=1")) as journal:
                return bool(journal.ping())
        except JournalError:
            return False

    def stop(self) -> None:
        """End everything."""
        for process in (*self.processes.values(), *([self._etcd] if self._etcd else [])):
            process.kill()
            process.wait()


def put_jobs(url: str, number: int, seconds: float, begin: Any, out: Any) -> None:
    """One client: puts, one after another."""
    with fastjournal.connect(url) as journal:
        run(lambda count: journal.put(b"x" * 100, key=f"{number} {count}", queue="q"), seconds,
            begin, out)  # fmt: skip


def insert_rows(url: str, number: int, seconds: float, begin: Any, out: Any) -> None:
    """The same for PostgreSQL."""
    import psycopg

    insert = "insert into jobs (key, payload) values (%s, %s)"
    with psycopg.connect(url, autocommit=True) as database:
        run(lambda count: database.execute(insert, (f"{number} {count}", b"x" * 100)), seconds,
            begin, out)  # fmt: skip


def run(work: Callable[[int], object], seconds: float, begin: Any, out: Any) -> None:
    """Work for so long, once all are here; tells how long each took."""
    work(-1)
    begin.wait()
    took: list[float] = []
    start = now = time.perf_counter()
    while now - start < seconds:
        work(len(took))
        now, before = time.perf_counter(), now
        took.append(now - before)
    out.put((len(took) / (now - start), took))


def measure(client: Callable[..., None], url: str, seconds: float) -> Figures:
    """Eight clients at once."""
    begin, out = mp.Barrier(CLIENTS), mp.Queue()
    clients = [
        mp.Process(target=client, args=(url, number, seconds, begin, out))
        for number in range(CLIENTS)
    ]
    for one in clients:
        one.start()
    found = [out.get(timeout=120) for _ in clients]
    for one in clients:
        one.join()
    took = sorted(second for _, seconds_ in found for second in seconds_)
    p50, p99 = statistics.median(took), took[int(len(took) * 0.99)]
    return sum(rate for rate, _ in found), p50 * 1e3, p99 * 1e3


def measure_nodes(ack: str, seconds: float) -> Figures:
    """Ours; `ack` is empty for one node."""
    with tempfile.TemporaryDirectory(prefix="bench-replica-") as home:
        nodes = Nodes(Path(home), ack)
        try:
            return measure(put_jobs, nodes.url, seconds)
        finally:
            nodes.stop()


def measure_gaps() -> tuple[float, float]:
    """Seconds without an answer around a switchover, and after the primary was killed."""
    with tempfile.TemporaryDirectory(prefix="bench-replica-") as home:
        nodes = Nodes(Path(home), "quorum")
        try:
            with fastjournal.connect(nodes.url) as journal:

                def gap(deed: Callable[[str], object]) -> float:
                    """The longest time between two answers, from the deed on."""
                    primary = nodes.primary()
                    longest, last = 0.0, time.perf_counter()
                    until = last + 1.5
                    deed(primary)
                    while last < until:
                        journal.put(b"x", queue="q")
                        now, before = time.perf_counter(), last
                        longest, last = max(longest, now - before), now
                    return longest

                switched = gap(lambda primary: nodes.ask(primary, "switchover"))
                wait_for(nodes._has_started)
                return switched, gap(lambda primary: nodes.processes[primary].kill())
        finally:
            nodes.stop()


@contextlib.contextmanager
def postgres(programs: Path) -> Iterator[str]:
    """PostgreSQL with a synchronous standby; its address."""
    user = None if os.getuid() else "postgres"
    home = Path(tempfile.mkdtemp(prefix="bench-replica-postgres-"))
    if user is not None:
        shutil.chown(home, user)
    port, other = free_port(), free_port()
    base, copy = home / "primary", home / "standby"
    servers: list[subprocess.Popen[bytes]] = []

    def do(program: str, *options: str) -> None:
        subprocess.run(
            [str(programs / program), *options], check=True, stdout=subprocess.DEVNULL, user=user,
            cwd=home,
        )  # fmt: skip

    def serve(data: Path, at: int) -> None:
        options = [f"port={at}", f"unix_socket_directories={home}", "listen_addresses=127.0.0.1"]
        words = [word for option in options for word in ("-c", option)]
        servers.append(
            subprocess.Popen(
                [str(programs / "postgres"), "-D", str(data), *words],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user, cwd=home,
            )
        )  # fmt: skip
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(at)]
        wait_for(lambda: subprocess.run(ready).returncode == 0)

    try:
        do("initdb", "-D", str(base), "-U", "bench", "-A", "trust", "-N")
        serve(base, port)
        source = f"host=127.0.0.1 port={port} user=bench"
        do("pg_basebackup", "-D", str(copy), "-d", source, "-R", "-c", "fast", "-X", "stream")
        serve(copy, other)
        url = f"{source} dbname=postgres"
        import psycopg

        with psycopg.connect(url, autocommit=True) as database:
            database.execute("create table jobs (key text primary key, payload bytea)")
            database.execute("alter system set synchronous_standby_names = '*'")
            database.execute("select pg_reload_conf()")
            asked = "select sync_state from pg_stat_replication"
            wait_for(lambda: database.execute(asked).fetchall() == [("sync",)])
        yield url
    finally:
        for server in reversed(servers):
            server.send_signal(signal.SIGINT)
            server.wait(60)
        shutil.rmtree(home, ignore_errors=True)


def measure_postgres(programs: Path, seconds: float) -> Figures:
    """The peer."""
    with postgres(programs) as url:
        return measure(insert_rows, url, seconds)


def find_postgres(bench: Bench) -> Path | None:
    """Where its programs are; None: it cannot be measured, which is said."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    try:
        import psycopg  # noqa: F401
    except ImportError:
        bench.left_out("PostgreSQL", "psycopg is not installed")
        return None
    if not places:
        bench.left_out("PostgreSQL", "not installed")
        return None
    return places[-1].parent


def main() -> None:
    """Measure all in turn, then tell."""
    bench = Bench("replica", "three nodes, one node, PostgreSQL with a standby", repeats=3)
    if shutil.which("etcd") is None:
        bench.left_out("replica", "etcd is not installed")
        return
    seconds = 1.0 if bench.quick else 3.0
    programs = find_postgres(bench)
    systems: dict[str, Callable[[], Figures]] = {
        "one node": lambda: measure_nodes("", seconds),
        **{f"ack {ack}": lambda ack=ack: measure_nodes(ack, seconds)  # type: ignore[misc]
           for ack in ("one", "quorum", "all")},
    }  # fmt: skip
    if programs is not None:
        place = programs
        systems["PostgreSQL, standby"] = lambda: measure_postgres(place, seconds)
    found: dict[str, list[Figures]] = {name: [] for name in systems}
    gaps: list[tuple[float, float]] = []
    for _ in range(bench.repeats):
        for name, work in systems.items():
            found[name].append(work())
        gaps.append(measure_gaps())
    others = [name for name in systems if not name.startswith("ack ")]
    units = (("jobs/s", "higher", "put"), ("ms", "lower", "p50"), ("ms", "lower", "p99"))
    for at, (unit, better, what) in enumerate(units):

        def figures(name: str, at: int = at) -> Callable[[], float]:
            return iter([one[at] for one in found[name]]).__next__

        for ack in ("one", "quorum", "all"):
            peers = {name: figures(name) for name in others}
            bench.row(f"{what}, {CLIENTS} clients, ack {ack}", figures(f"ack {ack}"), peers,
                      unit=unit, better=better)  # fmt: skip
    bench.row("switchover", iter([one[0] for one in gaps]).__next__, unit="s")
    bench.row(f"failover, ttl {TTL} s", iter([one[1] for one in gaps]).__next__, unit="s")
    bench.finish()


if __name__ == "__main__":
    main()
