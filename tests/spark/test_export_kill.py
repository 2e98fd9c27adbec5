"""Export under SIGKILL: whatever moment it dies at, every record is there once in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.lake.commits import Commits
from fastjournal.spark.lake.exporter import export_directory, files_of
from fastjournal.testing import wait_until
from spark_traffic import NOON, traffic

CHILD = """
import sys
from fastjournal.spark.lake.exporter import export_directory

def inline(tasks):
    return [answer for task in tasks for answer in task()]

path, out, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
for n in range(1, 10_000):
    export_directory(inline, path, out, until=start + n * 20_000_000_000, shares=2)
"""


def times_in(path: Path) -> list[int]:
    cursor = Stream(path, WORKQ).open_cursor()
    found = [record.time for batch in cursor.batches() for record in batch]
    cursor.close()
    return found


@pytest.mark.kill
def test_an_export_killed_again_and_again_has_every_record_once(tmp_path: Path) -> None:
    path, out = tmp_path / "j", tmp_path / "lake"
    traffic(path, puts=600, hours=1)
    everything = times_in(path)
    done = 0
    for more in (1, 4, 7):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(out), str(NOON)])
        try:
            wanted = done + more
            wait_until(lambda w=wanted: len(Commits(out).numbers()) >= w, seconds=100)  # type: ignore[misc]
        finally:
            child.kill()
            child.wait()
        last = Commits(out).last()
        assert last is not None
        done = last.number
        files = files_of(out, "events")
        seen = duckdb.sql(
            f"select distinct time_ns from read_parquet({files}) order by 1"
        ).fetchall()
        assert [time for (time,) in seen] == [time for time in everything if time <= last.upto]
    export_directory(lambda tasks: [one for task in tasks for one in task()], path, out)
    found = duckdb.sql(
        f"select time_ns, count(*) - count(distinct coalesce(member, -1)) from"
        f" read_parquet('{out}/events/**/*.parquet') group by 1 order by 1"
    ).fetchall()
    assert found == [(time, 0) for time in everything]
