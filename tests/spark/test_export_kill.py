"""Export under SIGKILL: whatever moment it dies at, every record is there once in the end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.lake.exporter import export, files_of
from fastjournal.spark.lake.steps import Steps
from fastjournal.spark.replay.fold import fold
from fastjournal.spark.storage.segments import load_all
from fastjournal.testing import wait_until
from spark_traffic import NOON, traffic

CHILD = """
import sys
from fastjournal.spark.lake.exporter import export

def inline(tasks):
    return [answer for task in tasks for answer in task()]

path, out, start = sys.argv[1], sys.argv[2], int(sys.argv[3])
for n in range(1, 10_000):
    export(
        inline, path, out, until=start + n * 20_000_000_000, shares=2, delta=len(sys.argv) > 4
    )
"""


def times_in(path: Path) -> list[int]:
    cursor = Stream(path, WORKQ).open_cursor()
    found = [record.time for batch in cursor.batches() for record in batch]
    cursor.close()
    return found


@pytest.mark.kill
@pytest.mark.parametrize("delta", [False, True], ids=["parquet", "delta"])
def test_an_export_killed_again_and_again_has_every_record_once(
    tmp_path: Path, delta: bool
) -> None:
    path, out = tmp_path / "j", tmp_path / "lake"
    traffic(path, puts=600, hours=1)
    everything = times_in(path)
    arguments = [str(path), str(out), str(NOON), *(["delta"] if delta else [])]
    done = 0
    for more in (1, 4, 7):
        child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments])
        try:
            wanted = done + more
            wait_until(lambda w=wanted: len(Steps(out).numbers()) >= w, seconds=100)  # type: ignore[misc]
        finally:
            child.kill()
            child.wait()
        steps = Steps(out)
        done = steps.numbers()[-1]
        # A Delta table has a step when its transaction is there, Parquet when it was made.
        ends = [steps.read(n).upto for n in ((done - 1, done) if delta and done > 1 else (done,))]
        if not delta or done > 1:
            seen = duckdb.sql(
                f"select distinct time_ns from read_parquet({files_of(out, 'events')}) order by 1"
            ).fetchall()
            told = [[time for time in everything if time <= end] for end in ends]
            assert [time for (time,) in seen] in told
    export(lambda tasks: [one for task in tasks for one in task()], path, out, delta=delta)
    found = duckdb.sql(
        f"select time_ns, count(*) - count(distinct coalesce(member, -1)) from"
        f" read_parquet({files_of(out, 'events')}) group by 1 order by 1"
    ).fetchall()
    assert found == [(time, 0) for time in everything]
    jobs = duckdb.sql(f"select id from read_parquet({files_of(out, 'jobs')})").fetchall()
    assert sorted(one for (one,) in jobs) == sorted(
        r.id for r in fold(load_all(path)).rows.values()
    )
