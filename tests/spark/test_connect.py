"""Everything works through Spark Connect too: no RDD, no JVM behind the session's back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

GOLDEN = Path(__file__).parent.parent / "golden" / "workq"

SCRIPT = """
import shutil, sys
from fastjournal.spark import JournalTable, ensure_java, explain
ensure_java()
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
assert spark.read.format("fastjournal").load(sys.argv[1]).count() == 63
table = JournalTable.for_path(spark, sys.argv[1])
assert table.jobs(shards=2).count() == table.jobs(shards=25).count() == 37
assert table.segments().count() == 11
assert table.audit().count() == 0
assert table.clean(dry_run=True).live_rows == 37
try:
    table.records(nope=1).count()
except Exception as error:
    assert explain(error)[0] == "CLIENT-ERROR"
print("all through connect")
spark.stop()
"""


def test_a_connect_session_reads_replays_audits_and_cleans(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.mkdir()
    for segment in (GOLDEN / "multi-segment").glob("*.log"):
        (path / segment.name).write_bytes(segment.read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(path)],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "all through connect" in done.stdout
