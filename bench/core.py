"""The compiled core beside the interpreted one: the same work in two processes, in one run.

    python bench/core.py [--quick] [--json FILE]

Rules:

1. Both processes run this very program as a worker, one of them with `FASTJOURNAL_PURE=1`; they
   measure in turn. "ours" is the compiled core.
2. Figures are CPU time of the whole process, µs for each thing done; nothing is synced (`os`).
   Jobs carry 128 bytes, entries 100. Where everything is synced (`always`) it is the time that
   passes.
3. Where the core is not compiled there is nothing to compare: it is said, and the pure core stands
   alone.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from time import perf_counter, process_time
from typing import Any

from harness import Bench

PAYLOAD = bytes(range(128))
VALUE = b"x" * 100
BULK = 100
SPAN = 100
THREADS = 64
ROWS = {
    "put": "put", "lease": "lease", "complete": "complete",
    "merge": "put, merged by key",
    "bulk put": f"put, {BULK} at once",
    "bulk cycle": f"put, lease, complete, {BULK} at once",
    "always": "put, lease, complete, one at a time, always (time passed)",
    "threads": f"commit log, {THREADS} threads, always, a write (time passed)",
    "replay": "replay of whole lives, a record",
    "restart": "opening a journal of waiting jobs, a job",
    "set": "SET of an entry", "get": "GET of an entry", "add": "ADD to an entry",
    "range": f"range of {SPAN} entries",
}  # fmt: skip
"""What a worker tells, and what it is called."""


def micros(count: int, work: Callable[[], object]) -> float:
    """Microseconds of CPU for each of so many."""
    start = process_time()
    work()
    return (process_time() - start) * 1e6 / count


class Worker:
    """The work itself, in this process."""

    def __init__(self, folder: Path, count: int) -> None:
        from fastjournal import Journal

        self._open = Journal
        self.count = count
        self.folder = folder
        self.journal = Journal(
            folder / "jobs", sync="os", background=False, clean_interval=0, snapshot_bytes=0
        )
        self.keys = [f"k{number:08}" for number in range(count)]
        self.journal.entries.update((key, VALUE) for key in self.keys)
        lives = Journal(folder / "lives", sync="os", background=False, snapshot_bytes=0)
        with lives as journal:
            self.bulk_cycles(journal, 5 * count // BULK)
        waiting = Journal(folder / "waiting", sync="os", background=False, snapshot_bytes=0)
        with waiting as journal:
            for _ in range(10 * count // BULK):
                journal.put_many([{"payload": PAYLOAD, "queue": "b"}] * BULK)
        self.synced = Journal(folder / "synced", sync="always", background=False, snapshot_bytes=0)

    def bulk_cycles(self, journal: Any, groups: int) -> None:
        for _ in range(groups):
            journal.put_many([{"payload": PAYLOAD, "queue": "b"}] * BULK)
            held = journal.lease_many(BULK, "b")
            journal.complete_many([(job.id, job.token, None) for job in held])

    def measure(self) -> dict[str, float]:
        """Everything once."""
        count, journal, entries = self.count, self.journal, self.journal.entries
        keys, bulks = self.keys, range(count // BULK)
        held: list[Any] = []
        found: dict[str, float] = {}

        def take(name: str, work: Callable[[], object], many: int = count) -> None:
            found[name] = micros(many, work)

        gc.collect()  # else what was made before is looked through in the middle of some row
        take("put", lambda: [journal.put(PAYLOAD, queue="q") for _ in keys])
        take("lease", lambda: held.extend(journal.lease("q") for _ in keys))
        take("complete", lambda: [job.done() for job in held])
        journal.put_many([{"key": key, "queue": "m"} for key in keys])
        take("merge", lambda: [journal.put(PAYLOAD, key=key, queue="m") for key in keys])
        jobs = [{"payload": PAYLOAD, "queue": "p"}] * BULK
        take("bulk put", lambda: [journal.put_many(jobs) for _ in bulks])
        take("bulk cycle", lambda: self.bulk_cycles(journal, len(bulks)))
        take("set", lambda: [entries.set(key, VALUE) for key in keys])
        take("get", lambda: [entries[key] for key in keys])
        take("add", lambda: [entries.add("n:" + key) for key in keys])
        spans = range(0, count - SPAN, SPAN)
        take(
            "range",
            lambda: [entries.page(keys[at], keys[at + SPAN - 1]) for at in spans],
            len(spans),
        )
        for _ in bulks:
            taken = journal.lease_many(BULK, "p")
            journal.complete_many([(job.id, job.token, None) for job in taken])
        found["always"] = self.always_cycle(count // 10)
        found["threads"] = self.write_from_threads(count)
        for name, path in (("replay", "lives"), ("restart", "waiting")):
            start = process_time()
            with self._open(self.folder / path, sync="os", background=False) as opened:
                found[name] = (process_time() - start) * 1e6 / opened.replayed.records
        return found

    def always_cycle(self, count: int) -> float:
        """Whole lives, one after the other, each step synced; µs that pass for each."""
        journal = self.synced
        start = perf_counter()
        for _ in range(count):
            journal.put(PAYLOAD, queue="q")
            journal.lease("q").done()
        return (perf_counter() - start) * 1e6 / count

    def write_from_threads(self, count: int) -> float:
        """Many threads, each waiting until its write is synced; µs that pass for each write."""
        from fastjournal.log.stream import Stream
        from fastjournal.log.write.commit_log import CommitLog

        path = self.folder / "threads"
        path.mkdir(exist_ok=True)
        with CommitLog(Stream(path), sync="always") as log:
            each = range(max(count // THREADS, 1))

            def write_all() -> None:
                for _ in each:
                    log.write(PAYLOAD)

            threads = [Thread(target=write_all) for _ in range(THREADS)]
            start = perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return (perf_counter() - start) * 1e6 / (len(each) * THREADS)


def work(folder: Path, count: int) -> None:
    """Measure whenever a line comes in; the first line out says which core this is."""
    from fastjournal.package.compiled import describe_core

    worker = Worker(folder, count)
    print(describe_core(), flush=True)
    for _ in sys.stdin:
        print(json.dumps(worker.measure()), flush=True)


class Core:
    """A worker in a process of its own, asked for figures."""

    def __init__(self, folder: Path, count: int, pure: bool) -> None:
        folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(folder), str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | {"FASTJOURNAL_PURE": "1" if pure else "0"},
        )  # fmt: skip
        self._figures: dict[str, list[float]] = {}
        self.kind = self._read().strip()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a worker has died")
        return line

    def measure(self) -> None:
        """Everything once more."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        for name, figure in json.loads(self._read()).items():
            self._figures.setdefault(name, []).append(figure)

    def figure(self, name: str) -> Callable[[], float]:
        """The figures of one measure, one at each call."""
        left = iter(self._figures[name])
        return lambda: next(left)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    # Not in the system's temporary directory: that may be memory.
    path = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def main() -> None:
    bench = Bench("core", "the core compiled and interpreted, µs of CPU each")
    count = 2000 if bench.quick else 10_000
    with scratch() as folder:
        ours = Core(folder / "compiled", count, pure=False)
        peers = {}
        if ours.kind == "compiled":
            peers["interpreted"] = Core(folder / "pure", count, pure=True)
        else:
            bench.left_out("the compiled core", "it is not built; the figures are the pure one's")
        for _ in range(bench.repeats):
            ours.measure()
            for peer in peers.values():
                peer.measure()
        for name, title in ROWS.items():
            others = {label: peer.figure(name) for label, peer in peers.items()}
            bench.row(title, ours.figure(name), others, unit="µs")
        for core in (ours, *peers.values()):
            core.close()
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
