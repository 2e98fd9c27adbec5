"""A journal larger than its memory on a real disk: readers beside upkeep, and what it takes."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from fastjournal import Journal

KEYS = 60
CHILD = """
import sys
from random import Random
from fastjournal import Journal

path, limit, size, work = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
count = 10 * limit // size


def most():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def value(number):
    return Random(number).randbytes(size)


with Journal(path + "-small", memory_limit=limit):  # what the code itself takes
    pass
before = most()
with Journal(path, sync="os", memory_limit=limit, background=False, snapshot_bytes=0) as journal:
    entries, chance = journal.entries, Random(1)
    if work == "fill":
        for number in range(count):
            entries[f"k{number}"] = value(number)
            if number % 4 == 0:
                entries[f"k{number}"] = value(number)
        journal.clean()
    elif work == "snapshot":
        journal.snapshot()
    assert len(entries) == count
    for number in chance.sample(range(count), min(count, 500)):
        assert entries[f"k{number}"] == value(number), number
    assert journal.status().value_bytes <= limit
    print(most() - before)
"""


def grown(path: Path, limit: int, size: int, work: str) -> int:
    """Bytes by which a process grew at most."""
    child = [sys.executable, "-c", CHILD, str(path), str(limit), str(size), work]
    done = subprocess.run(child, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("work", ["clean", "snapshot"])
def test_values_are_right_while_upkeep_moves_them(tmp_path: Path, work: str) -> None:
    """Six readers and a writer beside endless cleanings or snapshots."""
    ended = threading.Event()
    with (
        Journal(
            tmp_path / "j", memory_limit=16_384, segment_size=32_768, sync="os", snapshot_bytes=0,
            clean_interval=0,
        ) as journal,
        ThreadPoolExecutor(8) as pool,
    ):  # fmt: skip
        entries = journal.entries

        def value(key: int, turn: int) -> bytes:
            return b"%d %d " % (key, turn) * 300

        for key in range(KEYS):
            entries[f"k{key}"] = value(key, 0)

        def read(seed: int) -> int:
            chance, newest, count = Random(seed), [0] * KEYS, 0
            while not ended.is_set() or count < 50:
                key = chance.randrange(KEYS)
                found = entries[f"k{key}"]
                assert isinstance(found, bytes)
                turn = int(found.split()[1])
                assert found == value(key, turn)
                assert turn >= newest[key]
                newest[key] = turn
                count += 1
            return count

        def upkeep() -> int:
            cycles = 0
            while not ended.is_set() or cycles < 3:
                getattr(journal, work)()
                cycles += 1
            return cycles

        readers = [pool.submit(read, seed) for seed in range(6)]
        cycles = pool.submit(upkeep)
        try:
            for turn in range(1, 9):
                for key in range(turn % 3, KEYS, 3):
                    entries[f"k{key}"] = value(key, turn)
        finally:
            ended.set()
        assert cycles.result(60) >= 3
        assert all(reader.result(60) >= 50 for reader in readers)
        status = journal.status()
        assert status.upkeep.segments_cleaned > 0 or work == "snapshot"
        assert status.value_bytes <= 16_384
        digest = journal.digest()
    with Journal(tmp_path / "j", memory_limit=16_384) as again:
        assert again.digest() == digest


def test_a_journal_ten_times_its_limit_takes_little_more_than_that(tmp_path: Path) -> None:
    """4 MiB and 40 MiB of values, counted by the system: filled, cleaned, opened again."""
    limit = 4 << 20
    for work in ("fill", "snapshot", "read"):
        assert grown(tmp_path / "j", limit, 16_384, work) < limit + (10 << 20)


@pytest.mark.slow
def test_640_mb_of_values_fit_a_limit_of_64_mb(tmp_path: Path) -> None:
    """The resident set grows by the limit and little more: filled, cleaned, snapshot, reopened."""
    limit = 64 << 20
    for work in ("fill", "snapshot", "read"):
        assert grown(tmp_path / "j", limit, 65_536, work) < limit * 3 // 2
