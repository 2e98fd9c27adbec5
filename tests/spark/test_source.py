"""The data source in a real session: views, options, errors, several and live directories."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fastjournal.errors import BadRequest
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import encode
from fastjournal.log.record import encode as record
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.spark import JournalTable, explain, read
from fastjournal.spark.source.data_source import FastJournalDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "workq"
T0 = 1_700_000_000_000_000_000
Write = Callable[..., Path]


def add(n: int, queue: bytes = b"q", value: bytes = b"v") -> bytes:
    return encode(k.Add(n.to_bytes(16, "big"), queue, 1000, 10**9, 0, 0, 0, value, 0, T0))


def load(spark: SparkSession, path: object, **options: str) -> DataFrame:
    return spark.read.format("fastjournal").options(**options).load(str(path))


def failure(action: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(Exception) as caught:
        action()
    told = explain(caught.value)
    assert told is not None, caught.value
    return told


def test_the_log_is_a_table(spark: SparkSession) -> None:
    frame = load(spark, GOLDEN / "all-types")
    counts = {row["type"]: row["count"] for row in frame.groupBy("type").count().collect()}
    assert set(counts) == set(range(1, 9)) and sum(counts.values()) == 30
    first = frame.orderBy("time_ns").first()
    assert first is not None
    assert (first["command"], first["queue"], bytes(first["payload"])) == (
        "add",
        "q",
        b"plain ascii",
    )


def test_the_state_is_a_table(spark: SparkSession) -> None:
    frame = load(spark, GOLDEN / "all-types", view="jobs")
    assert frame.where("state = 'WAITING'").count() > 0
    assert frame.select("id").distinct().count() == frame.count()


def test_the_files_are_a_table(spark: SparkSession) -> None:
    rows = load(spark, GOLDEN / "multi-segment", view="segments").orderBy("segment").collect()
    assert [row["segment"] for row in rows] == list(range(1, 12))
    assert sum(row["records"] for row in rows) == 63
    assert [row["newest"] for row in rows] == [False] * 10 + [True]


def test_sql_reads_a_view_made_with_options(spark: SparkSession) -> None:
    spark.sql(
        "create or replace temporary view w using fastjournal"
        f" options (path '{GOLDEN / 'all-types'}', columns 'command,size')"
    )
    row = spark.sql("select count(*) as n, max(size) as most from w where command = 'add'").first()
    assert row is not None and row["n"] > 0 and row["most"] > 17
    spark.sql("drop view w")


def test_a_schema_of_the_user_reads_only_its_columns(spark: SparkSession) -> None:
    frame = (
        spark.read.format("fastjournal")
        .schema("time timestamp, size int")
        .load(str(GOLDEN / "all-types"))
    )
    assert frame.columns == ["time", "size"]
    assert frame.count() == 30


def test_filters_do_not_leak_from_one_query_into_the_next(spark: SparkSession) -> None:
    frame = load(spark, GOLDEN / "all-types")
    frame.where("type = 1").collect()
    assert frame.count() == 30
    both = frame.where("type = 7").union(frame.where("type = 8")).select("type").distinct()
    assert sorted(row["type"] for row in both.collect()) == [7, 8]


def test_options_choose_records(spark: SparkSession, write_journal: Write) -> None:
    path = write_journal([[add(n) for n in range(5)], [add(n, b"other") for n in range(5, 9)]])
    assert load(spark, path, queue="other").count() == 4
    assert load(spark, path, fromSegment="2").count() == 4
    bounds = {"since": str(T0 + 2000), "until": str(T0 + 6000)}
    assert load(spark, path, **bounds).count() == 4
    assert load(spark, path, commands="delete").count() == 0


def test_several_directories_are_read_at_once(spark: SparkSession, write_journal: Write) -> None:
    paths = [write_journal([[add(1)]], name="a"), write_journal([[add(2), add(3)]], name="b c")]
    frame = read(spark, paths, columns=["id", "_directory"])
    rows = {Path(row["_directory"]).name: 0 for row in frame.collect()}
    assert frame.count() == 3 and set(rows) == {"a", "b c"}
    assert read(spark, paths, view="jobs").count() == 3


def test_an_empty_journal_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    for view in ("records", "jobs", "segments"):
        assert load(spark, tmp_path, view=view).count() == 0
    (tmp_path / segment_name(1)).write_bytes(WORKQ.encode())
    assert load(spark, tmp_path).count() == 0


def test_one_record_and_a_torn_tail_give_one_row(spark: SparkSession, write_journal: Write) -> None:
    path = write_journal([[add(1)]])
    newest = path / segment_name(1)
    newest.write_bytes(newest.read_bytes() + record(T0 + 9, add(2))[:-3])
    assert load(spark, path).count() == 1
    assert load(spark, path, view="jobs").count() == 1


def test_a_damaged_middle_is_an_error_a_row_or_left_out(
    spark: SparkSession, write_journal: Write
) -> None:
    path = write_journal([[add(1), add(2), add(3)], [add(4)]])
    damaged = path / segment_name(1)
    data = bytearray(damaged.read_bytes())
    data[8 + len(record(T0, add(1))) + 30] ^= 1
    damaged.write_bytes(bytes(data))
    code, text = failure(load(spark, path).collect)
    assert code == "SERVER-ERROR" and segment_name(1) in text and "crc mismatch" in text
    assert failure(load(spark, path, view="jobs").collect)[0] == "SERVER-ERROR"
    rows = load(spark, path, mode="PERMISSIVE").collect()
    assert sorted(str(row["_error"]) for row in rows) == ["None", "None", "None", "crc mismatch"]
    assert load(spark, path, mode="DROPMALFORMED").count() == 3
    assert load(spark, path, mode="DROPMALFORMED", view="jobs").count() == 3


def test_a_payload_of_sixteen_mebibytes_comes_through_whole(
    spark: SparkSession, write_journal: Write
) -> None:
    value = bytes(range(256)) * (1 << 16)
    path = write_journal([[add(1), add(2, value=value[:-100]), add(3)]])
    sizes = load(spark, path, columns="payload").selectExpr("length(payload) as n").collect()
    assert sorted(row["n"] for row in sizes) == [1, 1, (16 << 20) - 100]


def test_a_segment_larger_than_a_partition_is_read_by_several_tasks(
    spark: SparkSession, write_journal: Write
) -> None:
    path = write_journal([[add(n) for n in range(300)], [add(1000)]])
    frame = load(spark, path, maxPartitionBytes="1k")
    assert frame.count() == 301
    assert frame.select("id").distinct().count() == 301
    tasks = frame.selectExpr("spark_partition_id() as p").distinct().count()
    assert tasks > 10


def test_ten_thousand_tiny_segments_are_read(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(1, 10_001):
        text = WORKQ.encode() + record(T0 + n, b"\x05" + n.to_bytes(16, "big"))
        (tmp_path / segment_name(n)).write_bytes(text)
    assert load(spark, tmp_path, columns="id").distinct().count() == 10_000


def test_names_that_are_not_utf_8_come_through(spark: SparkSession, write_journal: Write) -> None:
    put = k.Put(bytes(16), b"caf\xe9", b"\xffkey", 0, T0, T0, T0, 0, 1, b"")
    path = write_journal([[encode(put)]], name="a path with spaces, and é")
    row = load(spark, path, view="jobs", columns="queue,key,key_bytes").first()
    assert row is not None
    assert (row["queue"], row["key"], bytes(row["key_bytes"])) == (
        "caf\\xe9",
        "\\xffkey",
        b"\xffkey",
    )


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"colums": "time"}, "unknown option"),
        ({"view": "tables"}, "view"),
        ({"columns": "colour"}, "colour"),
        ({"asOf": "2024-01-01"}, "asOf"),
    ],
)
def test_a_wrong_option_is_told_with_its_code(
    spark: SparkSession, options: dict[str, str], word: str
) -> None:
    code, text = failure(lambda: load(spark, GOLDEN / "all-types", **options).count())
    assert code == "CLIENT-ERROR" and word in text


def test_a_missing_path_is_told_with_its_code(spark: SparkSession, tmp_path: Path) -> None:
    code, text = failure(lambda: load(spark, tmp_path / "nowhere").count())
    assert (code, "nowhere" in text) == ("NOT-FOUND", True)


def test_a_loaded_table_is_a_picture_of_its_moment(
    spark: SparkSession, write_journal: Write
) -> None:
    path = write_journal([[add(1), add(2)]])
    frame = load(spark, path)
    assert frame.count() == 2
    newest = path / segment_name(1)
    newest.write_bytes(newest.read_bytes() + record(T0 + 50_000, add(3)))
    assert frame.count() == 2
    assert load(spark, path).count() == 3


def test_a_segment_cleaned_since_the_plan_gives_its_remaining_records(
    spark: SparkSession, write_journal: Write
) -> None:
    path = write_journal([[add(1), add(2)], [add(3)], [add(4)]])
    frame = load(spark, path, columns="id")
    assert frame.count() == 4
    first = path / segment_name(1)
    work = path / "work"
    work.write_bytes(first.read_bytes()[: 8 + len(record(T0, add(1)))])
    work.replace(first)
    (path / segment_name(2)).unlink()
    assert sorted(int.from_bytes(row["id"], "big") for row in frame.collect()) == [1, 4]


def test_a_journal_table_has_its_views_for_sql(spark: SparkSession) -> None:
    table = JournalTable.for_path(spark, GOLDEN / "all-types")
    table.create_views()
    row = spark.sql(
        "select count(*) as n from jobs left semi join records on jobs.id = records.id"
    ).first()
    assert row is not None and row["n"] == table.jobs().count() > 0
    assert spark.sql("select sum(records) as n from segments").first()["n"] == 30  # type: ignore[index]


def test_what_happened_to_jobs_is_a_table_and_so_is_every_lease(spark: SparkSession) -> None:
    table = JournalTable.for_path(spark, GOLDEN / "all-types")
    table.create_views()
    assert table.events().count() == table.records().count() == 30
    leases = spark.sql("select count(*) as n from events where effect = 'leased'").first()
    ended = spark.sql("select count(*) as n, min(run_ms) as least from attempts").first()
    assert leases is not None and ended is not None
    assert 0 < ended["n"] <= leases["n"] and ended["least"] >= 0
    shared = load(spark, GOLDEN / "all-types", view="events", shards="3")
    assert shared.rdd.getNumPartitions() == 3
    assert sorted(map(str, shared.collect())) == sorted(map(str, table.events().collect()))


def test_tasks_are_planned_for_the_cluster_and_not_for_the_machine_of_the_driver(
    spark: SparkSession, write_journal: Write
) -> None:
    path = write_journal([[add(n)] for n in range(8)])
    assert load(spark, path).rdd.getNumPartitions() == 1
    assert load(spark, path, minPartitions="5").rdd.getNumPartitions() == 5
    assert FastJournalDataSource.known_to(300).cores == 300
    assert FastJournalDataSource.cores == 0


def test_a_log_on_a_store_gives_its_records_segments_and_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Any file system of `pyarrow.fs`; this one reads local files in every process."""
    path = tmp_path / "a copy"
    shutil.copytree(GOLDEN / "multi-segment", path)
    table = JournalTable.for_path(spark, f"fsspec+file://{path}")
    assert table.records().count() == load(spark, f"fsspec+file://{path}").count() == 63
    assert table.segments().count() == 11
    here = JournalTable.for_path(spark, path).jobs(columns=["id", "state", "attempts"])
    there = table.jobs(columns=["id", "state", "attempts"])
    assert sorted(there.collect()) == sorted(here.collect())
    assert load(spark, f"fsspec+file://{path}", view="jobs").count() == 37


def test_a_store_that_is_not_there_or_would_be_changed_is_refused_with_a_code(
    spark: SparkSession, tmp_path: Path
) -> None:
    code, text = failure(lambda: load(spark, f"fsspec+file://{tmp_path}/nowhere").count())
    assert (code, "nowhere" in text) == ("NOT-FOUND", True)
    code, text = failure(lambda: load(spark, "nosuch://bucket/jobs").count())
    assert (code, "nosuch://bucket/jobs" in text) == ("NOT-FOUND", True)
    shutil.copytree(GOLDEN / "multi-segment", tmp_path / "copy")
    table = JournalTable.for_path(spark, f"fsspec+file://{tmp_path}/copy")
    with pytest.raises(BadRequest, match="only read"):
        table.clean()
    with pytest.raises(BadRequest, match="only read"):
        table.audit()
