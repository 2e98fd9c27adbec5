"""A stream from journal to journal whose whole Spark is killed with SIGKILL, again and again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fastjournal.journal.journal import Journal
from fastjournal.testing import wait_until

CHILD = Path(__file__).parent / "pipeline_child.py"
JOBS = 6000
pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.timeout(900)]


class Pipeline:
    """The child, and how far it has come."""

    def __init__(self, tmp_path: Path) -> None:
        self.source, self.target = tmp_path / "source", tmp_path / "target"
        self.checkpoint = tmp_path / "checkpoint"
        self.errors = tmp_path / "stderr"
        self.put = 0

    def feed(self, count: int) -> None:
        """More jobs at the source; some of those before are worked off."""
        with Journal(self.source, background=False, sync="os", segment_size=65_536) as journal:
            for lease in journal.lease_many(100, "in"):
                journal.complete(lease.id, lease.token)
            numbers = range(self.put, self.put + count)
            journal.put_many({"payload": b"job %d" % n, "queue": "in"} for n in numbers)
        self.put += count

    def start(self, *more: str) -> subprocess.Popen[bytes]:
        arguments = [str(CHILD), str(self.source), str(self.target), str(self.checkpoint), *more]
        return subprocess.Popen(
            [sys.executable, *arguments],
            stderr=self.errors.open("ab"),
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _newest(self, log: str) -> int:
        """How many batches stand in a log of the checkpoint."""
        folder = self.checkpoint / log
        names = [p.name for p in folder.iterdir()] if folder.is_dir() else []
        return max((int(name) + 1 for name in names if name.isdigit()), default=0)

    def stages(self) -> dict[str, Callable[[], bool]]:
        """Moments in the life of the next batch, each told as soon as it has come."""
        offsets, commits = self._newest("offsets"), self._newest("commits")
        staged = self.target / "spark-staged"
        size = self.size()
        return {
            "after the offset log": lambda: self._newest("offsets") > offsets,
            "while a task stages": lambda: any(staged.rglob("part-*")) or self.size() > size,
            "during the adoption": lambda: any(staged.rglob("manifest*")) or self.size() > size,
            "after the adoption": lambda: self.size() > size,
            "after the commit log": lambda: self._newest("commits") > commits,
        }

    def size(self) -> int:
        """Bytes of the target's log."""
        return sum(path.stat().st_size for path in self.target.glob("*.log"))


def test_a_stream_killed_with_all_its_processes_carries_every_job_over_once(
    tmp_path: Path,
) -> None:
    pipeline = Pipeline(tmp_path)
    for stage in pipeline.stages():
        pipeline.feed(JOBS // 5)
        come = pipeline.stages()[stage]
        child = pipeline.start()
        try:
            wait_until(come, seconds=300, what=stage)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    last = pipeline.start("once")
    assert last.wait(300) == 0, pipeline.errors.read_text()[-2000:]
    with Journal(pipeline.target, background=False) as journal:
        found = [job.value for job in journal.jobs("out", limit=10**6)]
    assert len(found) == JOBS
    assert set(found) == {b"job %d" % n for n in range(JOBS)}
    assert not (pipeline.target / "spark-staged").exists()
