"""The commit log against a write and a sync for each record, and against sqlite3 in WAL mode.

Every writer waits for its record of 200 random bytes to be acknowledged before it makes the next.
*Naive* is a loop of `write` and `fdatasync` (under `os` and `interval`: `write`), with no framing
and no CRC, on one thread, or on as many threads as ours, where the kernel may join their syncs.
sqlite commits each record, `FULL` beside `always`, else `NORMAL`.

A measure runs for a fixed time. Writes a second, then the latency that a writer sees.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from fastjournal.log.files import DiskFiles, FileHandle
from fastjournal.log.stream import Stream
from fastjournal.log.write.async_commit_log import AsyncCommitLog
from fastjournal.log.write.commit_log import CommitLog
from harness import Bench, micros_per

SIZE = 200
BATCH = 1000
THREADS = (1, 8, 64)
OUTSTANDING = 500
SLOWER = 0.001  # seconds that a sync of the slower disk takes longer

NAIVE = "naive, 1 thread"
PAYLOAD = os.urandom(SIZE)

Write = Callable[[bytes], object]


@dataclass
class Load:
    """What writers met: how many writes a second, and how long each took."""

    rate: float
    p50: float
    """Microseconds."""
    p99: float

    @classmethod
    def of(cls, seconds: float, latencies: list[float]) -> Load:
        latencies.sort()
        last = len(latencies) - 1
        return cls(
            len(latencies) / seconds,
            latencies[last // 2] * 1e6,
            latencies[round(last * 0.99)] * 1e6,
        )


class Measured:
    """Runs a load once and hands out its three figures, one for each row."""

    def __init__(self, run: Callable[[], Load]) -> None:
        self._run = run
        self._loads: list[Load] = []
        self._p50 = self._p99 = 0

    def rate(self) -> float:
        self._loads.append(self._run())
        return self._loads[-1].rate

    def p50(self) -> float:
        self._p50 += 1
        return self._loads[self._p50 - 1].p50

    def p99(self) -> float:
        self._p99 += 1
        return self._loads[self._p99 - 1].p99


class Workshop:
    """A fresh directory for every measure, removed afterwards."""

    def __init__(self, root: Path, seconds: float) -> None:
        self.root = root
        self.seconds = seconds
        self._numbers = count()

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A new, empty directory."""
        path = self.root / str(next(self._numbers))
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def load(self, threads: int, write: Write) -> Load:
        """As many threads, each writing one record after another until the time is over."""
        latencies: list[list[float]] = [[] for _ in range(threads)]
        ready = threading.Barrier(threads + 1)
        clock = time.perf_counter

        def work(mine: list[float]) -> None:
            ready.wait()
            end = clock() + self.seconds
            now = clock()
            while now < end:
                write(PAYLOAD)
                before, now = now, clock()
                mine.append(now - before)

        workers = [threading.Thread(target=work, args=(mine,)) for mine in latencies]
        for worker in workers:
            worker.start()
        ready.wait()
        began = clock()
        for worker in workers:
            worker.join()
        took = clock() - began
        return Load.of(took, [one for mine in latencies for one in mine])


def main() -> None:
    """Measure every row."""
    # Not in /tmp, which may be memory: a sync there tells nothing of a disk.
    root = os.environ.get("TMPDIR", ".")
    bench = Bench("commitlog", "acknowledged writes of 200 bytes")
    with tempfile.TemporaryDirectory(prefix="fastjournal-bench-", dir=root) as temporary:
        shop = Workshop(Path(temporary), 0.08 if bench.quick else 0.5)
        for sync in ("always", "interval", "os"):
            for threads in THREADS:
                writers(bench, shop, sync, threads)
            rows(
                bench,
                f"{sync}, event loop, {OUTSTANDING} outstanding",
                lambda s=sync: asyncio.run(event_loop(shop, s)),
                {NAIVE: lambda s=sync: naive(shop, 1, s)},
            )
        rows(
            bench,
            "always, 1 caller, append + wait_synced",
            lambda: direct(shop),
            {NAIVE: lambda: naive(shop, 1, "always")},
            alike=(NAIVE,),
        )
        for threads in (1, 64):
            rows(
                bench,
                f"always, {plural(threads)}, disk 1 ms slower",
                lambda t=threads: ours(shop, t, "always", SlowerDisk()),
                {NAIVE: lambda: naive(shop, 1, "always", SLOWER)},
                alike=(NAIVE,) if threads == 1 else (),
            )
        bench.row(
            "os, write_batch of 1000",
            lambda: batches(shop, 20 if bench.quick else 200),
            {"append_many of 1000": lambda: append_many(shop, 20 if bench.quick else 200)},
            unit="µs/record",
        )
    bench.finish()


def writers(bench: Bench, shop: Workshop, sync: str, threads: int) -> None:
    """As many threads that each wait for their own write."""
    peers = {NAIVE: lambda: naive(shop, 1, sync)}
    alike = NAIVE
    if threads > 1:
        alike = f"naive, {threads} threads"
        peers[alike] = lambda: naive(shop, threads, sync)
    peers["sqlite, commit each"] = lambda: sqlite(shop, sync)
    row = f"{sync}, {plural(threads)}"
    rows(bench, row, lambda: ours(shop, threads, sync), peers, alike=(alike,))


def plural(threads: int) -> str:
    return "1 writer" if threads == 1 else f"{threads} writers"


def rows(
    bench: Bench,
    name: str,
    mine: Callable[[], Load],
    peers: dict[str, Callable[[], Load]],
    *,
    alike: tuple[str, ...] = (),
) -> None:
    """Three rows from the same runs; latencies only beside peers with as many writers."""
    measured = Measured(mine)
    others = {peer: Measured(run) for peer, run in peers.items()}
    rates = {peer: other.rate for peer, other in others.items()}
    bench.row(name, measured.rate, rates, unit="writes/s", better="higher")
    p50 = {peer: others[peer].p50 for peer in alike}
    bench.row(f"{name}: p50", measured.p50, p50, unit="µs")
    p99 = {peer: others[peer].p99 for peer in alike}
    bench.row(f"{name}: p99", measured.p99, p99, unit="µs")


def ours(shop: Workshop, threads: int, sync: str, files: DiskFiles | None = None) -> Load:
    with (
        shop.place() as path,
        CommitLog(Stream(path, files=files or DiskFiles()), sync=sync) as log,
    ):
        return shop.load(threads, log.write)


def direct(shop: Workshop) -> Load:
    with shop.place() as path, CommitLog(Stream(path), sync="always") as log:
        return shop.load(1, lambda payload: log.wait_synced(log.append_one(payload)))


async def event_loop(shop: Workshop, sync: str) -> Load:
    """One task that keeps 500 writes under way."""
    clock = time.perf_counter
    latencies: list[float] = []
    with shop.place() as path, CommitLog(Stream(path), sync=sync) as log:
        writer = AsyncCommitLog(log)
        finished = asyncio.get_running_loop().create_future()
        began = clock()
        end = began + shop.seconds
        under_way = OUTSTANDING

        def submit() -> None:
            start = clock()

            def done(_: asyncio.Future[int]) -> None:
                nonlocal under_way
                now = clock()
                latencies.append(now - start)
                if now < end:
                    submit()
                    return
                under_way -= 1
                if not under_way:
                    finished.set_result(None)

            writer.write(PAYLOAD).add_done_callback(done)

        for _ in range(OUTSTANDING):
            submit()
        await finished
        return Load.of(clock() - began, latencies)


def naive(shop: Workshop, threads: int, sync: str, slower: float = 0.0) -> Load:
    with shop.place() as path:
        fd = os.open(path / "naive", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def write(payload: bytes) -> None:
            os.write(fd, payload)
            if sync == "always":
                os.fdatasync(fd)
                if slower:
                    time.sleep(slower)

        try:
            return shop.load(threads, write)
        finally:
            os.close(fd)


def sqlite(shop: Workshop, sync: str) -> Load:
    with shop.place() as path:
        database = sqlite3.connect(path / "db", isolation_level=None, check_same_thread=False)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute(f"PRAGMA synchronous={'FULL' if sync == 'always' else 'NORMAL'}")
        database.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, payload BLOB)")
        try:
            return shop.load(
                1,
                lambda payload: database.execute(
                    "INSERT INTO log (payload) VALUES (?)", (payload,)
                ),
            )
        finally:
            database.close()


def batches(shop: Workshop, times: int) -> float:
    batch = [PAYLOAD] * BATCH
    with shop.place() as path, CommitLog(Stream(path), sync="os") as log:

        def work() -> None:
            for _ in range(times):
                log.write_batch(batch)

        return micros_per(times * BATCH, work)


def append_many(shop: Workshop, times: int) -> float:
    batch = [PAYLOAD] * BATCH
    with shop.place() as path, Stream(path).open_appender(sync="os") as appender:

        def work() -> None:
            for _ in range(times):
                appender.append_many(batch)

        return micros_per(times * BATCH, work)


class SlowerDisk(DiskFiles):
    """Files whose syncs take a millisecond longer, as on a slower disk."""

    def create(self, path: Path) -> FileHandle:
        handle = super().create(path)
        sync = handle.sync

        class Slower:
            """The same file, slower to sync."""

            def __getattr__(self, name: str) -> object:
                return getattr(handle, name)

            def sync(self) -> None:
                sync()
                time.sleep(SLOWER)

        return Slower()  # type: ignore[return-value]


if __name__ == "__main__":
    main()
