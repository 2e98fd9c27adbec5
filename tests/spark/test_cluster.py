"""Real executors in processes of their own: `local-cluster`, and a standalone master with workers.

Each case runs in a fresh interpreter: a process has one JVM, and the other tests own ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from whole_session import run_whole

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "workq"

QUESTIONS = """
import json, os, sys
from fastjournal.spark import JournalTable, local_session
from fastjournal.spark.audit.run import audit
from fastjournal.spark.maintain.clean import clean
spark = local_session(sys.argv[1], **{
    "spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.executor.memory": "512m",
    "spark.executor.cores": "1", "spark.cores.max": "2", "spark.sql.shuffle.partitions": "2"})
table = JournalTable.for_path(spark, sys.argv[2])
hosts = spark.range(0, 8, 1, 8).mapInPandas(
    lambda parts: (p.assign(id=os.getpid()) for p in parts), "id long").distinct().count()
print(json.dumps({
    "records": table.records().count(),
    "states": dict(map(tuple, table.jobs(shards=2).groupBy("state").count().collect())),
    "findings": audit(spark, sys.argv[2]).count(),
    "live": clean(spark, sys.argv[2], dry_run=True)[0].live_rows,
    "processes": hosts,
}))
spark.stop()
"""


def expected(path: Path) -> dict[str, object]:
    """The same answers from the reference in this process."""
    from fastjournal.journal.language.codec import decode
    from fastjournal.journal.state.apply import JournalState
    from fastjournal.log.segment import WORKQ
    from fastjournal.log.stream import Stream

    state, records = JournalState(), 0
    cursor = Stream(path, WORKQ).open_cursor()
    for record in cursor:
        state.apply(decode(record.payload), record.time)
        records += 1
    cursor.close()
    states: dict[str, int] = {}
    for row in state.rows.values():
        states[row.state.name] = states.get(row.state.name, 0) + 1
    return {"records": records, "states": states, "live": len(state.rows)}


def ask(command: list[str], tmp_path: Path) -> dict[str, object]:
    path = tmp_path / "journal"
    path.mkdir()
    for segment in (GOLDEN / "multi-segment").glob("*.log"):
        (path / segment.name).write_bytes(segment.read_bytes())
    script = tmp_path / "questions.py"
    script.write_text(QUESTIONS)
    run = [part.format(script=script, path=path) for part in command]
    env = {**os.environ, "SPARK_WORKER_DIR": str(tmp_path / "work")}
    output = run_whole(run, env=env, seconds=580)
    answers: dict[str, object] = json.loads(output.strip().splitlines()[-1])
    wanted = expected(path)
    assert {name: answers[name] for name in wanted} == wanted
    return answers


def test_executors_of_a_local_cluster_give_the_answers_of_one_process(tmp_path: Path) -> None:
    answers = ask(
        [sys.executable, "{script}", "local-cluster[2,1,1024]", "{path}"],
        tmp_path,
    )
    assert answers["processes"] >= 2  # type: ignore[operator]


def test_a_standalone_master_with_two_workers_gives_them_too(tmp_path: Path) -> None:
    run = 'exec "$0" "$1" "$SPARK_MASTER" "$2"'
    answers = ask(
        [
            str(ROOT / "tools" / "spark-cluster"),
            *("sh", "-c", run, sys.executable, "{script}", "{path}"),
        ],
        tmp_path,
    )
    assert answers["processes"] >= 2  # type: ignore[operator]


SHIPPED = """
import sys
sys.path.insert(0, sys.argv[3])
from fastjournal.spark import JournalTable, local_session
spark = local_session(sys.argv[1], **{
    "spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.executor.memory": "512m",
    "spark.submit.pyFiles": sys.argv[3], "spark.cores.max": "2"})
table = JournalTable.for_path(spark, sys.argv[2])
print(table.records().count(), table.jobs(shards=2).count())
spark.stop()
"""


def test_the_package_is_shipped_to_nodes_that_do_not_have_it(tmp_path: Path) -> None:
    """An interpreter with pyarrow, numpy and the rest, but without fastjournal."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    (site,) = bare.glob("lib/python*/site-packages")
    # A directory added by a .pth file: its packages are found, its own .pth files are not read.
    (site / "more.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n")
    python = bare / "bin" / "python"
    lacks = subprocess.run([str(python), "-c", "import fastjournal"], check=False, cwd=tmp_path)
    if lacks.returncode == 0:
        pytest.fail("the interpreter made for this test has fastjournal")
    bundle = tmp_path / "fastjournal.zip"
    subprocess.run([str(ROOT / "tools" / "spark-zip"), str(bundle)], check=True)
    script = tmp_path / "shipped.py"
    script.write_text(SHIPPED)
    run = 'exec "$0" "$1" "$SPARK_MASTER" "$2" "$3"'
    output = run_whole(
        [
            str(ROOT / "tools" / "spark-cluster"),
            *("sh", "-c", run, str(python), str(script), str(GOLDEN / "multi-segment")),
            str(bundle),
        ],
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        cwd=tmp_path,
        seconds=580,
    )
    assert output.strip().splitlines()[-1] == "63 37"
