"""Tasks that run twice, and nodes that lack the mount of the others: a real cluster, real attempts.

Each case runs in a fresh interpreter: a process has one JVM, and the other tests own ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastjournal.journal.journal import Journal
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.lake.steps import Steps
from fastjournal.spark.replay.fold import fold
from fastjournal.spark.storage.segments import load_all

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parent.parent.parent
SESSION = """
import json, os, sys
from pathlib import Path
from fastjournal.spark import JournalTable, local_session
from fastjournal.spark.audit.run import audit
from fastjournal.spark.maintain.clean import clean, clean_journal
from fastjournal.spark.lake.exporter import export, export_directory
from fastjournal.spark.errors import explain
from fastjournal.spark.tasks import run_tasks
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream

def session(**conf):
    return local_session(os.environ["SPARK_MASTER"], **{
        "spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.executor.memory": "512m",
        "spark.executor.cores": "1", "spark.cores.max": "2", "spark.sql.shuffle.partitions": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s", **conf})

root = Path(sys.argv[1])
journal, lake, target = root / "journal", root / "lake", root / "target"
"""

BLIND = """
spark = session(**{"spark.task.maxFailures": "1"})
table = JournalTable.for_path(spark, journal)

def told(question):
    try:
        return question()
    except Exception as error:
        code, text = explain(error) or ("UNKNOWN", str(error)[:2000])
        return f"{code} {text}"

def write(directory):
    rows = spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) as payload", "'q' as queue")
    rows.write.format("fastjournal").mode("append").save(str(directory))
    return "written"

print(json.dumps({
    "records": told(lambda: table.records(maxPartitionBytes="16k").count()),
    "segments": told(lambda: read_segments(table)),
    "jobs": told(lambda: table.jobs(shards=4).count()),
    "shuffled": told(lambda: table.jobs(shards=30).count()),
    "audit": told(lambda: audit(spark, journal, shards=4).count()),
    "clean": told(lambda: clean(spark, journal)[0].records_dropped),
    "export": told(lambda: export(spark, journal, lake, shares=4).records),
    "report": told(lambda: table.report(shares=4) and "reported"),
    "sink": told(lambda: write(target)),
    "sink into it": told(lambda: write(journal)),
}))
spark.stop()
""".replace(
    "read_segments(table)",
    'spark.read.format("fastjournal").options(view="segments", maxPartitionBytes="16k")'
    ".load(str(journal)).count()",
)

TWICE = """
# One task on one worker, too slow for Spark: the other worker, idle, gets a second attempt.
spark = session(**{"spark.speculation": "true", "spark.speculation.interval": "100ms",
                   "spark.speculation.task.duration.threshold": "200ms"})
JournalTable.for_path(spark, journal)

def meet(pipe):
    # The first attempt goes on when the second has begun: both are at work at the same time.
    from pyspark import TaskContext
    if TaskContext.get().attemptNumber() == 0:
        with open(pipe, "rb") as end:
            end.read()
    else:
        with open(pipe, "wb") as end:
            end.write(b"here")

pipes = iter(range(1000))

def pipe():
    path = str(root / f"pipe-{next(pipes)}")
    os.mkfifo(path)
    return path

class Twice:
    def __init__(self, task):
        self.task, self.pipe = task, pipe()

    def __call__(self):
        meet(self.pipe)
        return self.task()

def run(tasks):
    assert len(tasks) == 1
    return run_tasks(spark, [Twice(task) for task in tasks])

def slow(pipe):
    def work(batches):
        meet(pipe)
        yield from batches
    return work

rows = spark.range(0, 3000, 1, 1).selectExpr("cast(id as string) as payload", "'q' as queue")
rows = rows.mapInArrow(slow(pipe()), "payload string, queue string")
rows.write.format("fastjournal").mode("append").save(str(target))
dropped = clean_journal(run, Stream(journal, WORKQ), now=2 * 10**18).records_dropped
exported = export_directory(run, target, lake)
print(json.dumps({"dropped": dropped, "events": exported.rows["events"], "pipes": next(pipes)}))
spark.stop()
"""


def fill(directory: Path, count: int) -> None:
    """Jobs over several segments, two of three of them done."""
    with Journal(directory, background=False, sync="os", segment_size=8192) as journal:
        for n in range(count):
            journal.put(b"x" * 100, queue="q")
            if n % 3:
                leased = journal.lease("q")
                assert leased is not None
                leased.done()


def rows_of(directory: Path) -> set[bytes]:
    return set(fold(load_all(directory)).rows)


def jobs_in(directory: Path) -> int:
    if not directory.exists():
        return 0
    with Journal(directory, background=False) as journal:
        return sum(status.ready for status in journal.queues())


def ask(script: str, root: Path, tmp_path: Path, port: int, **env: str) -> dict[str, Any]:
    path = tmp_path / "script.py"
    path.write_text(SESSION + script)
    done = subprocess.run(
        [str(ROOT / "tools" / "spark-cluster"), sys.executable, str(path), str(root)],
        env={**os.environ, "SPARK_MASTER_PORT": str(port), **env},
        capture_output=True,
        text=True,
        timeout=1150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answers


def can_hide_a_directory() -> bool:
    if shutil.which("unshare") is None:
        return False
    own = [] if os.geteuid() == 0 else ["--map-root-user"]
    try_it = ["unshare", *own, "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(try_it, capture_output=True, check=False).returncode == 0


def test_a_worker_without_the_mount_fails_its_tasks_and_nothing_is_changed(tmp_path: Path) -> None:
    if not can_hide_a_directory():
        pytest.skip("this machine lets nobody mount a disk for one process only")
    root = tmp_path / "shared"
    root.mkdir()
    fill(root / "journal", 600)
    before = rows_of(root / "journal")
    files = {path.name: path.read_bytes() for path in (root / "journal").glob("*.log")}
    answers = ask(BLIND, root, tmp_path, 17079, SPARK_BLIND_TO=str(root))
    for question, answer in answers.items():
        assert str(answer).startswith("NOT-FOUND "), (question, answer)
    after = {path.name: path.read_bytes() for path in (root / "journal").glob("*.log*")}
    assert after == files
    assert rows_of(root / "journal") == before
    assert jobs_in(root / "target") == 0
    assert Steps(root / "lake").last() is None


def test_second_attempts_beside_the_first_change_no_result(tmp_path: Path) -> None:
    root = tmp_path / "shared"
    root.mkdir()
    fill(root / "journal", 60)
    before = rows_of(root / "journal")
    answers = ask(TWICE, root, tmp_path, 17080)
    assert answers["pipes"] >= 5  # the sink, three jobs of the cleaning, the export
    assert jobs_in(root / "target") == 3000
    assert answers["dropped"] > 0 and rows_of(root / "journal") == before
    assert not Stream(root / "journal", WORKQ).work_files(".rw")
    assert answers["events"] >= 3000
    exported = Steps(root / "lake").files_of("events")
    assert exported == sorted(map(str, (root / "lake" / "events").rglob("*.parquet")))
