"""`fastjournal spark stream` and `load` on the shared session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from fastjournal.cli.spark.commands import app
from fastjournal.errors import JournalError
from fastjournal.journal.journal import Journal

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def test_a_stream_writes_parquet_goes_on_and_tells_rate_and_lag(
    spark: SparkSession, tmp_path: Path
) -> None:
    arguments = ["stream", tmp_path / "jobs", "--once", "--checkpoint", tmp_path / "at",
                 "--to", tmp_path / "lake", "--columns", "time_ns,command", "--commands", "put",
                 "--max-records", 30, "--json"]  # fmt: skip
    for total in (40, 80):
        with Journal(tmp_path / "jobs", background=False) as journal:
            for _ in range(40):
                journal.put(b"x", queue="q")
        told = [json.loads(line) for line in run(*arguments).stderr.splitlines()]
        assert sum(one["records"] for one in told) == 40
        assert told[0]["behind"] > 0 == told[-1]["behind"]
        assert told[0]["per_second"] > 0
        assert spark.read.parquet(str(tmp_path / "lake")).count() == total


def test_a_stream_without_a_place_to_go_prints_json_lines(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Journal(tmp_path / "jobs", background=False) as journal:
        job = journal.put(b"hello", queue="q")
    done = run("stream", tmp_path / "jobs", "--once", "--checkpoint", tmp_path / "at",
               "--columns", "id,queue,payload", "--commands", "put")  # fmt: skip
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"id": job.id.hex(), "queue": "q", "payload": b"hello".hex()}
    ]
    assert "batch 0: 1 records" in done.stderr and "s behind" in done.stderr


def test_a_table_is_loaded_once_with_columns_mapped_by_sql(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "mail.csv").write_text("who,text\nann,hello\nbob,hi\neve,ignored\n")
    arguments = ["load", tmp_path / "mail.csv", tmp_path / "jobs", "--format", "csv", "--option",
                 "header=true", "--where", "who <> 'eve'", "--map", "payload=text", "--map",
                 "key=concat('mail:', who)", "--map", "priority=5", "--queue", "mail", "--app",
                 "mail", "--number", 3]  # fmt: skip
    assert "2 rows in" in run(*arguments).stdout
    assert json.loads(run(*arguments, "--json").stdout)["rows"] == 2
    with Journal(tmp_path / "jobs", background=False) as journal:
        found = sorted((job.key_bytes, job.payload, job.rank) for job in journal.jobs("mail"))
    assert found == [(b"mail:ann", b"hello", 5), (b"mail:bob", b"hi", 5)]


def test_a_table_with_other_columns_is_refused_in_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "mail.csv").write_text("ann,hello\n")
    arguments = ["load", str(tmp_path / "mail.csv"), str(tmp_path / "jobs"), "--format", "csv"]
    with pytest.raises(JournalError, match="a job has no column '_c0'"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
