"""Tasks that run twice, and nodes that lack the mount of the others: a real cluster, real attempts.

Each case runs in a fresh interpreter: a process has one JVM, and the other tests own ours.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from fastjournal.journal.journal import Journal
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.kinds import kind_name
from fastjournal.spark.lake.exporter import export
from fastjournal.spark.lake.steps import Steps
from fastjournal.spark.replay.fold import fold
from fastjournal.spark.storage.segments import load_all
from s3_server import BUCKET, environment, serve_s3
from whole_session import run_whole

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parent.parent.parent
SESSION = """
import json, os, sys
from pathlib import Path
from fastjournal.spark import JournalTable, local_session
from fastjournal.spark.audit.run import audit
from fastjournal.spark.maintain.clean import clean, clean_journal
from fastjournal.spark.lake.exporter import export
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
exported = export(run, target, lake)
print(json.dumps({"dropped": dropped, "events": exported.rows["events"], "pipes": next(pipes)}))
spark.stop()
"""

ROUGH = """
# Four executors. One worker does not see the shared disk, whatever runs slowly is begun a second
# time, and three executors are killed in the middle of their work, one for each question.
spark = session(**{
    "spark.cores.max": "4", "spark.sql.shuffle.partitions": "4", "spark.task.maxFailures": "16",
    "spark.speculation": "true", "spark.speculation.interval": "100ms",
    "spark.locality.wait": "0s", "spark.excludeOnFailure.enabled": "true",
    "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor": "1"})
there, out, marks = sys.argv[2:]

def kill_once(word):
    # Each question has one executor killed: whoever makes the mark first. The blind worker cannot.
    import os, signal
    try:
        os.close(os.open(f"{marks}/{word}", os.O_CREAT | os.O_EXCL))
    except (FileExistsError, FileNotFoundError):
        return
    daemon = os.getppid()
    with open(f"/proc/{daemon}/stat") as stat:
        os.kill(int(stat.read().rpartition(")")[2].split()[1]), signal.SIGKILL)

def killing(word):
    def work(batches):
        for batch in batches:
            kill_once(word)
            yield batch
    return work

class Killing:
    def __init__(self, task):
        self.task = task

    def __call__(self):
        found = self.task()
        kill_once("export")
        return found

def counted(frame, name):
    return dict(map(tuple, frame.groupBy(name).count().collect()))

table = JournalTable.for_path(spark, there)
records = table.records(columns=["command"], maxPartitionBytes="16k")
# So many tasks, and anywhere, that no executor does all of them: the blind one kills nobody.
jobs = table.jobs(columns=["id_text", "state", "queue"]).repartition(8)
rows = jobs.mapInArrow(killing("jobs"), jobs.schema).collect()
here = JournalTable.for_path(spark, journal).records(columns=["command"], maxPartitionBytes="16k")
exported = export(
    lambda tasks: run_tasks(spark, [Killing(task) for task in tasks]), there, out, shares=8,
    delta=True)
print(json.dumps({
    "records": counted(records.mapInArrow(killing("records"), records.schema), "command"),
    "here": counted(here, "command"),
    "jobs": sorted([list(row) for row in rows]),
    "exported": exported.rows,
    "killed": sorted(os.listdir(marks)),
}))
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


def ask(script: str, root: Path, tmp_path: Path, *more: str, **env: str) -> dict[str, Any]:
    path = tmp_path / "script.py"
    path.write_text(SESSION + script)
    output = run_whole(
        [str(ROOT / "tools" / "spark-cluster"), sys.executable, str(path), str(root), *more],
        env={**os.environ, **env},
        seconds=1150,
    )
    answers: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
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
    answers = ask(BLIND, root, tmp_path, SPARK_BLIND_TO=str(root))
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
    answers = ask(TWICE, root, tmp_path)
    assert answers["pipes"] >= 5  # the sink, three jobs of the cleaning, the export
    assert jobs_in(root / "target") == 3000
    assert answers["dropped"] > 0 and rows_of(root / "journal") == before
    assert not Stream(root / "journal", WORKQ).work_files(".rw")
    assert answers["events"] >= 3000
    exported = Steps(root / "lake").files_of("events")
    assert exported == sorted(map(str, (root / "lake" / "events").rglob("*.parquet")))


def test_four_executors_over_s3_answer_as_one_process_whatever_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One worker is blind to the shared disk, and attempts run twice."""
    pytest.importorskip("obstore")
    if not can_hide_a_directory():
        pytest.skip("this machine lets nobody mount a disk for one process only")
    root, marks = tmp_path / "shared", tmp_path / "shared" / "marks"
    marks.mkdir(parents=True)
    with serve_s3() as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        there, out = (f"s3://{BUCKET}/{name}" for name in ("jobs", "lake"))
        with Journal(
            root / "journal", background=False, sync="os", segment_size=16_384, archive=there
        ) as journal:
            for n in range(3):
                journal.put_many(
                    {"payload": b"x" * 100, "queue": f"q{n}", "key": f"k{i % 300}"}
                    for i in range(600)
                )
                for job in journal.lease_many(200, f"q{n}"):
                    job.done()
            journal.sync()
            journal.ship()
            alone = export(inline, root / "journal", tmp_path / "alone")
            wanted = fold(load_all(root / "journal"))
            commands = Counter(
                kind_name(record.payload[0])
                for record in Stream(root / "journal", WORKQ).open_cursor()
            )
            answers = ask(
                ROUGH, root, tmp_path, there, out, str(marks),
                SPARK_BLIND_TO=str(root), SPARK_WORKERS="4",
            )  # fmt: skip
        assert answers["records"] == answers["here"] == commands
        assert answers["jobs"] == sorted(
            [row.id.hex(), row.state.name, row.queue.name.decode()] for row in wanted.rows.values()
        )
        assert answers["exported"] == alone.rows
        assert answers["killed"] == ["export", "jobs", "records"]
        events = DeltaTable(f"{out}/events").to_pyarrow_table(columns=["time_ns", "member"])
        assert events.num_rows == alone.rows["events"]
        assert events.group_by(["time_ns", "member"]).aggregate([]).num_rows == events.num_rows
        ids = DeltaTable(f"{out}/jobs").to_pyarrow_table(columns=["id"])["id"].to_pylist()
        assert sorted(ids) == sorted(wanted.rows)


def inline(tasks: Sequence[Callable[[], Sequence[Any]]]) -> list[Any]:
    """Carry tasks out here, one after the other."""
    return [answer for task in tasks for answer in task()]
