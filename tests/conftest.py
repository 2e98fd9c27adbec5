"""What holds for every test.

Spark tests share one session, so under xdist they all go to one worker. They may take longer than
others: a fresh machine starts a JVM and compiles kernels first, and a test that is broken off in
the middle of a call to the JVM breaks all that follow.

The directories of tests are in memory where it has room: on a disk they would wait for syncs half
of the time. That would show nothing more: a killed process loses nothing that it wrote, and what a
disk loses is shown with `MemoryFiles`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from fastjournal.testing import ManualClock

HERE = Path(__file__).parent
SPARK_SECONDS = 900
MEMORY = Path("/dev/shm")
MEMORY_ROOM = 4 << 30  # bytes

if MEMORY.is_dir():
    about = os.statvfs(MEMORY)
    if about.f_bavail * about.f_frsize >= MEMORY_ROOM and not about.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

settings.register_profile("fastjournal", deadline=None)  # a loaded machine fails no test
settings.load_profile("fastjournal")


@pytest.fixture
def clock() -> ManualClock:
    """The time, moved by hand."""
    return ManualClock()


class _SparkTogether(LoadScopeScheduling):
    """Every test goes to whichever worker is free, those of Spark all to one of them."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/spark/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> _SparkTogether:
    return _SparkTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE / "spark"):
            item.add_marker(pytest.mark.spark)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(SPARK_SECONDS))
