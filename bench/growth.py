"""How costs grow with the number of jobs that wait: from 10 thousand to 10 million.

    python bench/growth.py [--quick] [--json FILE] [--most 1000000]

Rules:

1. Each size is measured in processes of its own: filled in groups of 1000, closed and opened again,
   then single puts and leases with all of them waiting. Jobs carry 128 bytes, nothing is synced
   (`os`).
2. Every size stands beside the smallest: a cost that does not depend on the number shows 1x.
3. Memory is what the process grew by, CPU that of the whole process. `--quick` stops at 100
   thousand; `--most` says where to stop instead.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

from harness import Bench

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
PROBES = 20_000
GROUP = 1000
FIGURES = {
    "bytes": ("memory of a job", "bytes"),
    "fill": (f"put, {GROUP} at once, CPU", "µs"),
    "put": ("put, CPU", "µs"),
    "lease": ("lease, CPU", "µs"),
    "complete": ("complete, CPU", "µs"),
    "restart": ("opening again, a job, CPU", "µs"),
    "again": ("memory of a job, opened again", "bytes"),
}
"""What a child tells: the name of its row, and the unit."""


def resident() -> int:
    """Bytes of memory in use."""
    gc.collect()
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def micros(count: int, work: Callable[[], object]) -> float:
    """Microseconds of CPU for each of so many."""
    start = process_time()
    work()
    return (process_time() - start) * 1e6 / count


def opened(path: Path) -> Any:
    """A journal without syncs, snapshots and threads."""
    from fastjournal import Journal

    return Journal(path, sync="os", background=False, clean_interval=0, snapshot_bytes=0)


def warm_up(path: Path) -> None:
    """What is loaded and made once in a process is no part of any figure."""
    with opened(path) as journal:
        journal.put_many([{"queue": "q"}] * GROUP)
        journal.lease("q").done()
    opened(path).close()


def fill(path: Path, jobs: int) -> dict[str, float]:
    """Many jobs are put."""
    warm_up(path / "warm")
    before = resident()
    with opened(path / "jobs") as journal:

        def put_all() -> None:
            for first in range(0, jobs, GROUP):
                numbers = range(first, first + GROUP)
                journal.put_many([{"payload": b"%128d" % n, "queue": "q"} for n in numbers])

        took = micros(jobs, put_all)
        return {"fill": took, "bytes": (resident() - before) / jobs}


def restart(path: Path, jobs: int) -> dict[str, float]:
    """They are opened again, and a few more put with all of them waiting."""
    warm_up(path / "warm")
    before = resident()
    start = process_time()
    with opened(path / "jobs") as journal:
        found = {"restart": (process_time() - start) * 1e6 / jobs}
        assert journal.status().ready == jobs
        found["again"] = (resident() - before) / jobs
        held: list[Any] = []
        payload = bytes(128)
        probes = range(PROBES)
        found["put"] = micros(PROBES, lambda: [journal.put(payload, queue="q") for _ in probes])
        found["lease"] = micros(PROBES, lambda: held.extend(journal.lease("q") for _ in probes))
        found["complete"] = micros(PROBES, lambda: [job.done() for job in held])
    return found


def child(what: str, path: Path, jobs: int) -> dict[str, float]:
    """Do one of the two in a process of its own."""
    command = [sys.executable, __file__, "--child", what, str(path), str(jobs)]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(told)
    return found


def measure(jobs: int) -> dict[str, float]:
    """All figures for so many jobs, once."""
    # Not in the system's temporary directory: that may be memory.
    path = Path(tempfile.mkdtemp(prefix=".bench-", dir=Path.cwd()))
    try:
        return child("fill", path, jobs) | child("restart", path, jobs)
    finally:
        shutil.rmtree(path)


def main() -> None:
    bench = Bench(
        "growth", "what a job costs while many others wait", 3,
        lambda parser: parser.add_argument("--most", type=int, help="jobs of the largest size"),
    )  # fmt: skip
    most = bench.given.most or (100_000 if bench.quick else SIZES[-1])
    sizes = [size for size in SIZES if size <= most]
    if not sizes:
        raise SystemExit(f"--most: {SIZES[0]} or more")
    figures: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(bench.repeats):
        for size in sizes:
            figures[size].append(measure(size))

    def told(size: int, name: str) -> Callable[[], float]:
        left = iter(figures[size])
        return lambda: next(left)[name]

    for name, (title, unit) in FIGURES.items():
        for size in sizes:
            peers = {} if size == sizes[0] else {f"{sizes[0]:,} jobs": told(sizes[0], name)}
            bench.row(f"{title}, {size:,}", told(size, name), peers, unit=unit)
    bench.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        task = fill if sys.argv[2] == "fill" else restart
        print(json.dumps(task(Path(sys.argv[3]), int(sys.argv[4]))))
    else:
        main()
