"""A stream and a sink with real executors in processes of their own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fastjournal.journal.journal import Journal
from whole_session import run_whole

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CHILD = Path(__file__).parent / "pipeline_child.py"
JOBS = 2000


def test_executors_of_a_local_cluster_carry_every_job_over_once(tmp_path: Path) -> None:
    with Journal(tmp_path / "source", background=False, segment_size=65_536) as journal:
        journal.put_many({"payload": b"job %d" % n, "queue": "in"} for n in range(JOBS))
    run_whole(
        [sys.executable, str(CHILD), *map(str, (tmp_path / "source", tmp_path / "target")),
         str(tmp_path / "checkpoint"), "once"],
        env={
            **os.environ,
            "PIPELINE_MASTER": "local-cluster[2,1,1024]",
            "SPARK_WORKER_DIR": str(tmp_path / "work"),
        },
        seconds=880,
    )  # fmt: skip
    with Journal(tmp_path / "target", background=False) as journal:
        found = [job.value for job in journal.jobs("out", limit=10**6)]
    assert sorted(found) == sorted(b"job %d" % n for n in range(JOBS))
    assert not (tmp_path / "target" / "spark-staged").exists()
