"""What an archive costs: a daemon that ships beside one that does not, a restore beside a download.

    python bench/archive.py [--quick] [--json FILE]

Rules:

1. Two daemons, one of which ships to a directory every five seconds, take the same load in turn:
   jobs of 128 bytes, put 100 at a time, leased and completed one by one. The figures are jobs a
   second, and the CPU of the server for a job, which says more on a machine that is not idle.
2. A journal of a million records (`--quick`: 100 thousand) is restored from a directory, and the
   same objects are copied from there to synced files: what any restore must cost.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from fastjournal import Journal, connect
from fastjournal.archive.manifest import find_newest
from fastjournal.archive.restore import plan_restore, restore
from fastjournal.archive.store import DirectoryStore
from fastjournal.log.files import DISK
from fastjournal.testing import wait_until
from harness import Bench

GROUP = 100
SHIPS = "a daemon that ships"
PLAIN = "one that does not"


class Daemon:
    """A daemon in a process of its own; with an archive or without."""

    def __init__(self, home: Path, *, ships: bool) -> None:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port = int(sock.getsockname()[1])
        options = ["--archive", str(home / "archive")] if ships else []
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "fastjournal.cli.app", "serve", str(home / "data"),
                "--listen", f"127.0.0.1:{self.port}", "--log-level", "error", *options,
            ],
        )  # fmt: skip
        wait_until(self._answers, seconds=60, what="the daemon answers")
        self._client = connect(f"fj://127.0.0.1:{self.port}")

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def _cpu(self) -> float:
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, seconds: float) -> tuple[float, float]:
        """Jobs a second, and microseconds of CPU for each."""
        client, count = self._client, 0
        start, cpu = perf_counter(), self._cpu()
        while perf_counter() - start < seconds:
            client.put_many([{"payload": bytes(128), "queue": "q"} for _ in range(GROUP)])
            for _ in range(GROUP):
                job = client.lease("q")
                assert job is not None
                job.done()
            count += GROUP
        took, used = perf_counter() - start, self._cpu() - cpu
        return count / took, used * 1e6 / count

    def stop(self) -> None:
        """In order."""
        self._client.close()
        self._process.terminate()
        self._process.wait()


def measure_daemons(bench: Bench, home: Path) -> None:
    """A daemon that ships beside one that does not."""
    daemons = {}
    for name in (SHIPS, PLAIN):
        (home / name).mkdir()
        daemons[name] = Daemon(home / name, ships=name == SHIPS)
    seconds = 5.5 if bench.quick else 15.0
    told: dict[str, list[float]] = {SHIPS: [], PLAIN: []}

    def rate(name: str) -> float:
        jobs, cpu = daemons[name].load(seconds)
        told[name].append(cpu)
        return jobs

    try:
        for daemon in daemons.values():
            daemon.load(1)
        bench.row(
            "put, lease, complete while shipping",
            lambda: rate(SHIPS),
            {PLAIN: lambda: rate(PLAIN)},
            unit="jobs/s",
            better="higher",
        )
        mine, other = iter(told[SHIPS]), iter(told[PLAIN])
        bench.row(
            "the same, CPU of the server", lambda: next(mine), {PLAIN: lambda: next(other)},
            unit="µs",
        )  # fmt: skip
    finally:
        for daemon in daemons.values():
            daemon.stop()


def measure_restore(bench: Bench, home: Path) -> None:
    """A restore beside a copy of the same bytes."""
    count = 100_000 if bench.quick else 1_000_000
    with Journal(
        home / "jobs", sync="os", background=False, snapshot_bytes=0, archive=home / "store"
    ) as journal:
        for first in range(0, count, 1000):
            journal.put_many(
                {"payload": bytes(128), "queue": "q", "key": f"{n}"}
                for n in range(first, first + 1000)
            )
        journal.ship()
    store = DirectoryStore(home / "store")
    manifest = find_newest(store)
    assert manifest is not None
    target = home / "restored"

    def restored() -> float:
        shutil.rmtree(target, ignore_errors=True)
        start = perf_counter()
        restore(store, plan_restore(manifest), target)
        return perf_counter() - start

    def downloaded() -> float:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        start = perf_counter()
        for number, (name, _) in enumerate(manifest.objects()):
            handle = DISK.create(target / str(number))
            for chunk in store.stream(name):
                handle.write(chunk)
            handle.sync()
            handle.close()
        return perf_counter() - start

    bench.row(
        f"restore {count:,} records", restored, {"a plain download": downloaded}, unit="s"
    )  # fmt: skip


def main() -> None:
    """Measure both."""
    bench = Bench("archive", "shipping and restoring", repeats=5)
    with tempfile.TemporaryDirectory() as folder:
        measure_daemons(bench, Path(folder))
        measure_restore(bench, Path(folder))
    bench.finish()


if __name__ == "__main__":
    main()
