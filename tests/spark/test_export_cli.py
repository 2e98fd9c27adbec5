"""`fastjournal spark export`, `report`, `consume` and `apply`, and a journal from end to end."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from typer.testing import CliRunner

from fastjournal.cli.spark.commands import app
from fastjournal.journal.journal import Journal
from fastjournal.spark.consume.loop import consume
from fastjournal.spark.lake.exporter import export
from fastjournal.spark.report.write import report
from spark_traffic import traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def test_export_tells_what_it_did_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    traffic(tmp_path / "j", puts=100, hours=0.2)
    first = json.loads(run("export", tmp_path / "j", "-o", tmp_path / "lake", "--json"))
    assert first["commit"] == 1 and first["rows"]["events"] > 100 and first["lag_s"] > 0
    assert first["mb_per_s"] > 0
    again = run("export", tmp_path / "j", "-o", tmp_path / "lake")
    assert "nothing new since commit 1" in again


def test_report_writes_a_page_or_prints_figures(spark: SparkSession, tmp_path: Path) -> None:
    told = traffic(tmp_path / "j", puts=100, hours=0.2)
    text = run("report", tmp_path / "j", "-o", tmp_path / "r.html", "--target", "mail=5")
    assert f"{told.puts} jobs asked for" in text
    assert "<h2>Throughput</h2>" in (tmp_path / "r.html").read_text()
    figures = json.loads(run("report", tmp_path / "j", "--json", "--target", "mail=5"))
    assert figures["totals"]["asked"] == told.puts
    assert {q["queue"]: q["target_s"] for q in figures["queues"]}["mail"] == 5.0
    done = CliRunner().invoke(app, ["report", str(tmp_path / "j"), "--target", "soon"])
    assert done.exit_code == 2


def test_consume_runs_a_function_of_a_file_beside_us(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake_work.py").write_text("def upper(value):\n    return value.upper()\n")
    with Journal(tmp_path / "j", background=False) as journal:
        journal.put_many([{"payload": b"abc", "queue": "q"} for _ in range(7)])
    told = json.loads(
        run("consume", tmp_path / "j", "q", "lake_work:upper", "--each", "--once", "--json")
    )
    assert (told["done"], told["failed"]) == (7, 0)
    with Journal(tmp_path / "j", background=False) as journal:
        assert {job.result for job in journal.jobs("q")} == {b"ABC"}


def test_apply_redrives_what_sql_finds(spark: SparkSession, tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        journal.configure("q", max_fails=1)
        journal.put_many([{"payload": b"%d" % n, "queue": "q"} for n in range(5)])
        for job in journal.lease_many(5, "q"):
            job.fail(b"no")
    text = run("apply", tmp_path / "j", "select id from jobs where state = 'FAILED' limit 3")
    assert text == "redrive: 3 jobs, 0 refused\n"
    with Journal(tmp_path / "j", background=False) as journal:
        assert (journal.queue("q").ready, journal.queue("q").dead) == (3, 2)


@pytest.mark.parametrize("command", ["export", "report", "consume", "apply"])
def test_help_has_examples(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0 and f"fastjournal spark {command}" in done.stdout


def _end_to_end(spark: SparkSession, root: Path, count: int) -> dict[str, Any]:
    """Rows loaded by the sink, worked off by Spark, exported, reported."""

    def work(jobs: Any) -> Any:
        import pyarrow as pa

        numbers = [int(value) for value in jobs.column("payload").to_pylist()]
        return pa.table(
            {
                "result": pa.array([None if n % 10 else b"tenth" for n in numbers], pa.binary()),
                "error": pa.array(["unlucky" if n % 100 == 13 else None for n in numbers]),
            }
        )

    with Journal(root / "j", background=False) as journal:
        journal.configure("load", max_fails=1)
    rows = spark.range(count).selectExpr("cast(id as string) as payload", "'load' as queue")
    rows.write.format("fastjournal").mode("append").save(str(root / "j"))
    with Journal(root / "j", sync="os", background=False) as journal:
        told = consume(spark, journal, "load", work, 50_000, once=True)
        journal.sync()
        export(spark, root / "j", root / "lake")
        figures = report(spark, root / "j").figures
        status = journal.queue("load")
    unlucky = count // 100
    assert (told.leased, told.done, told.failed, told.lost) == (count, count - unlucky, unlucky, 0)
    tables = {
        name: f"read_parquet('{root}/lake/{name}/**/*.parquet', hive_partitioning=true)"
        for name in ("events", "attempts", "jobs")
    }
    effects = dict(
        duckdb.sql(f"select effect, count(*) from {tables['events']} group by 1").fetchall()
    )
    assert (effects["new"], effects["leased"]) == (count, count)
    assert (effects["done"], effects["dead"]) == (count - unlucky, unlucky)
    outcomes = dict(
        duckdb.sql(f"select outcome, count(*) from {tables['attempts']} group by 1").fetchall()
    )
    assert outcomes == {"done": count - unlucky, "failed": unlucky}
    states = dict(duckdb.sql(f"select state, count(*) from {tables['jobs']} group by 1").fetchall())
    assert states == {"COMPLETED": status.completed, "FAILED": status.dead}
    totals = figures["totals"]
    assert (totals["asked"], totals["done"], totals["dead"]) == (count, count - unlucky, unlucky)
    assert (totals["completed_now"], totals["failed_now"]) == (count // 10, unlucky)
    return figures


def test_counts_agree_from_loading_to_the_report(spark: SparkSession, tmp_path: Path) -> None:
    _end_to_end(spark, tmp_path, 2_000)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_counts_agree_for_a_million_jobs_in_bounded_memory(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _end_to_end(spark, tmp_path, 1_000_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # The journal itself lives in this process: about 1 kB a waiting job.
    assert grown < 3_000_000, f"{grown / 1e6:.2f} GB"
