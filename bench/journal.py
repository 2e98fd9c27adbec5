"""The embedded journal: what a job costs, beside persist-queue and huey on sqlite.

Rules:

1. Equal durability side by side: `os` against sqlite in WAL mode without syncs, `always` against
   sqlite in WAL mode with `synchronous=FULL`. huey removes a task when it hands it out, so its
   cycle has no acknowledgement and loses work that a worker dies of; ours and persist-queue's do
   not.
2. persist-queue looks through everything that was handed out or acknowledged since it was last
   tidied up: it is tidied up before each measure, and measured over 500 jobs.
3. Each figure is taken twice: elapsed, and CPU of the whole process, which is the steadier one
   beside other work.
4. Size and recovery are measured in processes of their own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from fastjournal import Journal
from harness import Bench, Row

try:
    import persistqueue
except ImportError:
    persistqueue = None
try:
    import huey.storage as huey_storage
except ImportError:
    huey_storage = None

PAYLOAD = bytes(range(128))
BULK = 100
FEW = 500
Work = Callable[[], object]


@contextmanager
def scratch() -> Iterator[Path]:
    # Not in the system's temporary directory: that may be memory.
    path = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Timed:
    """Runs a piece of work; keeps elapsed and CPU time, in µs for each job."""

    def __init__(self, jobs: int, work: Work, prepare: Work | None = None) -> None:
        self.jobs, self.work, self.prepare = jobs, work, prepare
        self.cpu: list[float] = []

    def __call__(self) -> float:
        if self.prepare is not None:
            self.prepare()
        elapsed, cpu = perf_counter(), process_time()
        self.work()
        cpu, elapsed = process_time() - cpu, perf_counter() - elapsed
        self.cpu.append(cpu * 1e6 / self.jobs)
        return elapsed * 1e6 / self.jobs


def both(bench: Bench, row: str, ours: Timed, peers: dict[str, Timed]) -> None:
    """One row of elapsed time, one of CPU."""
    bench.row(row, ours, peers, unit="µs")
    figures = {name: median(peer.cpu) for name, peer in peers.items()}
    spread = (min(ours.cpu), max(ours.cpu))
    cpu = Row(bench.name, f"{row}, CPU", "µs", "lower", median(ours.cpu), spread, figures)
    bench.rows.append(cpu)
    bench._print(cpu)


class Ours:
    """One queue of a journal."""

    def __init__(self, path: Path, sync: str) -> None:
        self.journal = Journal(path, sync=sync, clean_interval=0, snapshot_bytes=0)
        self.held: list[Any] = []

    def put(self, jobs: int) -> None:
        for _ in range(jobs):
            self.journal.put(PAYLOAD, queue="q")

    def lease(self, jobs: int) -> None:
        self.held = [self.journal.lease("q") for _ in range(jobs)]

    def done(self) -> None:
        for job in self.held:
            job.done()

    def cycle(self, jobs: int) -> None:
        journal = self.journal
        for _ in range(jobs):
            journal.put(PAYLOAD, queue="q")
            journal.lease("q").done()  # type: ignore[union-attr]

    def bulk(self, jobs: int) -> None:
        journal, batch = self.journal, [{"payload": PAYLOAD, "queue": "q"}] * BULK
        for _ in range(jobs // BULK):
            journal.put_many(batch)
            held = journal.lease_many(BULK, "q")
            journal.complete_many([(job.id, job.token, None) for job in held])

    def close(self) -> None:
        self.journal.close()


class PersistQueue:
    """SQLiteAckQueue."""

    name = "persist-queue SQLiteAckQueue"

    def __init__(self, path: Path, sync: str) -> None:
        self.queue = persistqueue.SQLiteAckQueue(str(path), multithreading=True)
        level = "FULL" if sync == "always" else "OFF"
        for connection in (self.queue._putter, self.queue._getter):
            connection.execute(f"pragma synchronous={level}")
        self.held: list[Any] = []

    def put(self, jobs: int) -> None:
        for _ in range(jobs):
            self.queue.put(PAYLOAD)

    def lease(self, jobs: int) -> None:
        self.held = [self.queue.get(raw=True) for _ in range(jobs)]

    def done(self) -> None:
        for item in self.held:
            self.queue.ack(id=item["pqid"])

    def cycle(self, jobs: int) -> None:
        for _ in range(jobs):
            self.queue.put(PAYLOAD)
            self.queue.ack(id=self.queue.get(raw=True)["pqid"])

    def tidy(self) -> None:
        for item in self.held:
            self.queue.ack(id=item["pqid"])
        self.held = []
        self.queue.clear_acked_data(max_delete=1_000_000, keep_latest=0)

    def close(self) -> None:
        self.queue.close()


class Huey:
    """The storage of SqliteHuey: enqueue, dequeue."""

    name = "huey SqliteHuey"

    def __init__(self, path: Path, sync: str) -> None:
        path.mkdir()
        self.storage = huey_storage.SqliteStorage(
            filename=str(path / "huey.db"), fsync=sync == "always"
        )

    def put(self, jobs: int) -> None:
        for _ in range(jobs):
            self.storage.enqueue(PAYLOAD)

    def lease(self, jobs: int) -> None:
        for _ in range(jobs):
            self.storage.dequeue()

    def cycle(self, jobs: int) -> None:
        for _ in range(jobs):
            self.storage.enqueue(PAYLOAD)
            self.storage.dequeue()

    def tidy(self) -> None:
        pass

    def close(self) -> None:
        self.storage.close()


def peers_of(bench: Bench) -> list[Any]:
    found: list[Any] = []
    for name, module, peer in (
        ("persist-queue", persistqueue, PersistQueue),
        ("huey", huey_storage, Huey),
    ):
        if module is None:
            bench.left_out(name, "not installed")
        else:
            found.append(peer)
    return found


def refill(peer: Any) -> None:
    peer.tidy()
    peer.put(FEW)


def singles(bench: Bench, folder: Path) -> None:
    """put, lease and complete, one at a time, without syncs."""
    jobs = 2000 if bench.quick else 20_000
    ours = Ours(folder / "ours", "os")
    peers = {peer.name: peer(folder / peer.__name__, "os") for peer in peers_of(bench)}
    both(
        bench,
        "put",
        Timed(jobs, lambda: ours.put(jobs)),
        {name: Timed(FEW, lambda peer=peer: peer.put(FEW)) for name, peer in peers.items()},
    )
    keys = [f"http://example.com/{number}" for number in range(jobs)]

    def merges() -> None:
        for key in keys:
            ours.journal.put(PAYLOAD, key=key)

    both(bench, "put, merged by key", Timed(jobs, merges, merges), {})
    both(
        bench,
        "lease",
        Timed(jobs, lambda: ours.lease(jobs), lambda: ours.put(jobs)),
        {
            name: Timed(FEW, lambda peer=peer: peer.lease(FEW), lambda peer=peer: refill(peer))
            for name, peer in peers.items()
        },
    )
    acking = {name: peer for name, peer in peers.items() if hasattr(peer, "done")}
    both(
        bench,
        "complete",
        Timed(jobs, ours.done, lambda: (ours.put(jobs), ours.lease(jobs))),
        {
            name: Timed(FEW, peer.done, lambda peer=peer: (refill(peer), peer.lease(FEW)))
            for name, peer in acking.items()
        },
    )
    for side in (ours, *peers.values()):
        side.close()


def bulks(bench: Bench, folder: Path) -> None:
    """put, merge, lease and complete, a hundred at once, without syncs; the peers have no such."""
    jobs = 5000 if bench.quick else 50_000
    ours = Ours(folder / "bulk", "os")
    journal = ours.journal
    plain = [{"payload": PAYLOAD, "queue": "q"}] * BULK
    keyed = [
        [{"payload": PAYLOAD, "key": f"http://example.com/{n}"} for n in range(first, first + BULK)]
        for first in range(0, jobs, BULK)
    ]
    held: list[Any] = []

    def puts() -> None:
        for _ in range(jobs // BULK):
            journal.put_many(plain)

    def merges() -> None:
        for batch in keyed:
            journal.put_many(batch)

    def leases() -> None:
        held.extend(journal.lease_many(BULK, "q") for _ in range(jobs // BULK))

    def ends() -> None:
        while held:
            journal.complete_many([(job.id, job.token, None) for job in held.pop()])

    both(bench, f"put, {BULK} at once", Timed(jobs, puts), {})
    both(bench, f"put, merged by key, {BULK} at once", Timed(jobs, merges, merges), {})
    both(bench, f"lease, {BULK} at once", Timed(jobs, leases, lambda: (ends(), puts())), {})
    both(bench, f"complete, {BULK} at once", Timed(jobs, ends, lambda: (puts(), leases())), {})
    ours.close()


def cycles(bench: Bench, folder: Path) -> None:
    """put, lease, complete: the whole of it, under equal durability."""
    for sync in ("os", "always"):
        jobs = {"os": 10_000, "always": 1000}[sync] // (5 if bench.quick else 1)
        few = min(FEW, jobs)
        ours = Ours(folder / f"cycle-{sync}", sync)
        peers = {
            peer.name: peer(folder / f"{peer.__name__}-{sync}", sync) for peer in peers_of(bench)
        }
        timed = {
            name: Timed(few, lambda peer=peer, few=few: peer.cycle(few), peer.tidy)
            for name, peer in peers.items()
        }
        both(
            bench,
            f"whole cycle, {sync}",
            Timed(jobs, lambda ours=ours, jobs=jobs: ours.cycle(jobs)),
            timed,
        )
        again = {name: Timed(few, peer.work, peer.prepare) for name, peer in timed.items()}
        bulk = max(jobs, 10 * BULK)
        both(
            bench,
            f"whole cycle, {sync}, {BULK} at once",
            Timed(bulk, lambda ours=ours, bulk=bulk: ours.bulk(bulk)),
            again,
        )
        for side in (ours, *peers.values()):
            side.close()


def threads(bench: Bench, folder: Path) -> None:
    """The whole cycle from many threads at once, each job on stable storage before its answer."""
    many = 16
    each = 10 if bench.quick else 50
    sides = {"ours": Ours, **{peer.name: peer for peer in peers_of(bench)}}
    opened = {
        name: side(folder / f"threads-{side.__name__}", "always") for name, side in sides.items()
    }

    def run(side: Any) -> None:
        with ThreadPoolExecutor(many) as pool:
            for done in [pool.submit(side.cycle, each) for _ in range(many)]:
                done.result()

    timed = {name: Timed(many * each, lambda side=side: run(side)) for name, side in opened.items()}
    ours = timed.pop("ours")
    both(bench, f"whole cycle, always, {many} threads", ours, timed)
    for side in opened.values():
        side.close()


def recovery(bench: Bench, folder: Path) -> None:
    """Replay of a mixed log, by records."""
    jobs = 20_000 if bench.quick else 100_000
    path = folder / "replay"
    ours = Ours(path, "os")
    ours.journal.put_many([{"payload": PAYLOAD, "key": f"http://h/{n}"} for n in range(jobs)])
    for _ in range(jobs // 2 // BULK):
        held = ours.journal.lease_many(BULK)
        ours.journal.complete_many([(job.id, job.token, None) for job in held])
    ours.close()

    rates: list[float] = []

    def replayed() -> float:
        elapsed, cpu = perf_counter(), process_time()
        with Journal(path, sync="os", background=False) as journal:
            cpu, elapsed = process_time() - cpu, perf_counter() - elapsed
            rates.append(journal.replayed.records / cpu)
            return journal.replayed.records / elapsed

    bench.row("replay, half puts", replayed, unit="records/s", better="higher")
    spread = (min(rates), max(rates))
    row = Row(bench.name, "replay, CPU", "records/s", "higher", median(rates), spread)
    bench.rows.append(row)
    bench._print(row)


CHILD = """
import gc, sys, time
from fastjournal import Journal
path, jobs, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def rss():
    gc.collect()
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024

with Journal(path + "-empty", sync="os", background=False, snapshot_bytes=0) as j:
    j.put(b"x", queue="q")
before = rss()
started = time.perf_counter()
j = Journal(path, sync="os", background=False, snapshot_bytes=0)
opened = time.perf_counter() - started
if what == "fill":
    for first in range(0, jobs, 1000):
        j.put_many([{"payload": b"%128d" % n, "queue": "q"} for n in range(first, first + 1000)])
    print((rss() - before) / jobs)
elif what == "open":
    assert j.status().ready == jobs
    print(opened, (rss() - before) / jobs)
else:
    def cost(work, n=3000):
        cpu = time.process_time()
        for _ in range(n):
            work()
        return (time.process_time() - cpu) * 1e6 / n
    held = []
    best = [
        min(cost(lambda: j.put(bytes(128), queue="q")) for _ in range(3)),
        min(cost(lambda: held.append(j.lease("q"))) for _ in range(3)),
        min(cost(lambda: held.pop().done()) for _ in range(3)),
    ]
    print(*best)
j.close()
"""


def child(path: Path, jobs: int, what: str) -> list[float]:
    command = [sys.executable, "-c", CHILD, str(path), str(jobs), what]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(word) for word in out.split()]


def sizes(bench: Bench, folder: Path) -> None:
    """Memory, disk, recovery and growth with many jobs queued."""
    many = 100_000 if bench.quick else 1_000_000
    few = 10_000
    path = folder / "many"
    (filled,) = child(path, many, "fill")
    disk = sum(file.stat().st_size for file in path.glob("*.log")) / many
    opens = [child(path, many, "open") for _ in range(3)]
    words = f"{many:,} jobs of 128 bytes"
    for row, unit, figures in (
        (f"memory, {words}, put", "bytes/job", [filled]),
        (f"memory, {words}, recovered", "bytes/job", [one[1] for one in opens]),
        (f"disk, {words}", "bytes/job", [disk]),
        (f"recovery, {words}", "s", [one[0] for one in opens]),
    ):
        record(bench, row, unit, figures)
    small = folder / "few"
    child(small, few, "fill")
    names = ("put", "lease", "complete")
    for name, at_few, at_many in zip(
        names, child(small, few, "cost"), child(path, many, "cost"), strict=True
    ):
        record(bench, f"{name} with {few:,} queued, CPU", "µs", [at_few])
        record(bench, f"{name} with {many:,} queued, CPU", "µs", [at_many])
        record(bench, f"{name}: growth {few:,} to {many:,}", "times", [at_many / at_few])


def record(bench: Bench, name: str, unit: str, figures: list[float]) -> None:
    row = Row(bench.name, name, unit, "lower", median(figures), (min(figures), max(figures)))
    bench.rows.append(row)
    bench._print(row)


def main() -> None:
    bench = Bench("journal", "the embedded journal, µs for each job of 128 bytes")
    with scratch() as folder:
        singles(bench, folder)
        bulks(bench, folder)
        cycles(bench, folder)
        threads(bench, folder)
        recovery(bench, folder)
        sizes(bench, folder)
    bench.finish()


if __name__ == "__main__":
    main()
