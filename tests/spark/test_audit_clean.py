"""Audit and cleaning in a real session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, cast

import pytest

from fastjournal.errors import LockTimeout
from fastjournal.journal.disk.retention import Retention
from fastjournal.journal.journal import Journal
from fastjournal.journal.language import commands as k
from fastjournal.journal.language.codec import decode, encode
from fastjournal.journal.state.apply import JournalState
from fastjournal.log.care.cleaner import Cleaner, sealed_segments, segment_records
from fastjournal.log.files import DISK
from fastjournal.log.manifest import read as read_manifest
from fastjournal.log.segment import WORKQ, segment_name
from fastjournal.log.stream import Stream
from fastjournal.spark import JournalTable, explain
from fastjournal.spark.audit.rules import Finding, directory_findings
from fastjournal.spark.audit.run import audit, exit_code, second_opinion
from fastjournal.spark.errors import CodedError
from fastjournal.spark.maintain.clean import clean
from fastjournal.spark.storage import segments as plan_module
from fastjournal.testing import ManualClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "workq"
T0 = 1_700_000_000_000_000_000
NOW = T0 + 10**15
Write = Callable[..., Path]


def told(found: DataFrame) -> set[tuple[str, str]]:
    return {(row["severity"], row["rule"]) for row in found.collect()}


def put(n: int, key: bytes) -> bytes:
    return encode(k.Put(n.to_bytes(16, "big"), b"q", key, 5, T0, T0, T0, 0, 1, b"v"))


def test_a_sound_journal_has_no_finding(spark: SparkSession, write_journal: Write) -> None:
    row = (1).to_bytes(16, "big")
    more = [encode(k.Lease(row, T0, T0 + 9, 1, b"w")), encode(k.Complete(row, b"done"))]
    found = JournalTable.for_path(spark, write_journal([[put(1, b"a")], more])).audit()
    assert found.collect() == []
    assert exit_code(found) == 0


def test_findings_are_rows_with_their_place(spark: SparkSession, write_journal: Write) -> None:
    orphan = encode(k.Start(b"o" * 16))
    path = write_journal([[put(1, b"a"), put(2, b"a"), orphan], [put(3, b"c")]])
    damaged = path / segment_name(1)
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(bytes(data))
    found = audit(spark, path)
    assert told(found) == {("error", "damage"), ("error", "one-waiting")}
    assert exit_code(found) == 3
    row = found.where("rule = 'damage'").first()
    assert row is not None and row["segment"] == 1 and row["offset"] > 8
    twins = found.where("rule = 'one-waiting'").first()
    assert twins is not None and "2 rows WAITING for key a in queue q" in twins["text"]


def test_rows_that_stand_in_a_snapshot_alone_are_no_finding(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The records below a snapshot are dropped: SQL, which knows nothing else, is not asked."""
    with Journal(tmp_path / "jobs") as journal:
        for number in range(20):
            journal.put(b"v", key=f"{number}", queue="q")
        journal.snapshot()
        journal.clean()
        journal.put(b"v", key="behind", queue="q")
    manifest = read_manifest(DISK, tmp_path / "jobs")
    assert manifest is not None and manifest.floor
    assert told(audit(spark, tmp_path / "jobs")) == set()


def test_an_audit_that_a_cleaner_came_before_looks_at_what_is_left(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may list the segments, wait for a cleaner that is at work, and find some of them gone."""
    path, clock = tmp_path / "jobs", ManualClock(T0)
    with Journal(path, clock=clock, background=False, sync="os", segment_size=4096) as journal:
        for n in range(160):
            journal.put(b"x" * 30, queue="a", key=f"k{n}")
            clock.advance(1)
            job = journal.lease("a")
            assert job is not None
            job.done()
        journal.put(b"x", queue="b", key="stays")
        before = set(path.glob("*.log"))

        def clean_then(directory: str) -> list[Finding]:
            clock.advance(30 * 86_400)
            journal.tick()
            journal.rotate()
            journal.put(b"x", queue="b")
            for _ in range(4):
                journal.clean()
            return directory_findings(directory)

        monkeypatch.setattr("fastjournal.spark.audit.run.directory_findings", clean_then)
        for shards in (0, 12):
            found = audit(spark, path, opinion=False, shards=shards)
            assert told(found) <= {("note", "gap"), ("note", "orphan")}
        assert before - set(path.glob("*.log"))


def test_warnings_alone_end_with_one(spark: SparkSession, write_journal: Write) -> None:
    found = audit(spark, write_journal([[encode(k.Start(b"o" * 16))]]))
    assert told(found) == {("warning", "orphan")}
    assert exit_code(found) == 1


@pytest.mark.parametrize("case", ["attempts", "reordered", "run-noise"])
def test_a_fold_in_sql_agrees_with_the_journal_on_real_logs(spark: SparkSession, case: str) -> None:
    assert second_opinion(spark, GOLDEN / case).collect() == []


def test_a_fold_in_sql_agrees_on_random_histories_and_tells_a_difference(
    spark: SparkSession, write_journal: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(8)
    payloads = []
    for n in range(3000):
        row = random.randrange(300).to_bytes(16, "big")
        payloads.append(
            encode(
                random.choice(
                    [
                        k.Add(row, b"q", 9, 99, 0, random.choice([0, 1, 3]), 0, b"v", 0, T0 + n),
                        k.Complete(row, b""),
                        k.Fail(row, b""),
                        k.Delete(row),
                        k.Expire(row),
                        k.Start(row),
                        k.Start(row),
                        k.Timeout(row),
                        k.Timeout(row),
                    ]
                )
            )
        )
    path = write_journal([payloads[:1000], payloads[1000:]])
    assert second_opinion(spark, path).collect() == []

    from fastjournal.spark.audit import run as module

    monkeypatch.setattr(module, "_FOLD", module._FOLD.replace("c.type = 7", "c.type = 9"))
    assert second_opinion(spark, path).count() > 0


def lives(count: int) -> list[bytes]:
    random = Random(1)
    commands: list[k.Command] = []
    rows: list[bytes] = []
    for n in range(count):
        t = T0 + n
        if random.random() < 0.4 or not rows:
            rows.append(random.randbytes(16))
            commands.append(
                k.Put(rows[-1], b"q", b"k%d" % n, 5, t, t, t, 0, 1, random.randbytes(60))
            )
        elif random.random() < 0.2:
            commands.append(k.Group((k.Timeout(rows[0]), k.Purge(rows[0], b"q", b"", t))))
            rows.pop(0)
        else:
            commands.append(k.Purge(rows.pop(random.randrange(len(rows))), b"q", b"", t))
    return [encode(command) for command in commands]


def state_of(path: Path) -> JournalState:
    state = JournalState()
    cursor = Stream(path, WORKQ).open_cursor()
    for record in cursor:
        state.apply(decode(record.payload), record.time)
    cursor.close()
    return state


def test_clean_on_spark_writes_the_bytes_of_the_local_cleaner(
    spark: SparkSession, write_journal: Write, tmp_path: Path
) -> None:
    payloads = lives(1200)
    path = write_journal([payloads[n : n + 100] for n in range(0, 1200, 100)])
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    before = state_of(path).digest()

    (report,) = clean(spark, path, now=NOW)
    stream = Stream(copy, WORKQ)
    retention = Retention(state_of(copy))
    with Cleaner(stream) as cleaner:
        sealed = sealed_segments(stream)
        for number in sealed:
            records = segment_records(stream, number)
            retention.survey(number, ((r.time, r.payload) for r in records))
        retention.plan(sealed, NOW)
        cleaner.clean(retention.clean)

    names = sorted(p.name for p in path.glob("*.log*"))
    assert names == sorted(p.name for p in copy.glob("*.log*"))
    assert all((path / name).read_bytes() == (copy / name).read_bytes() for name in names)
    assert state_of(path).digest() == before
    assert report.records_dropped > 300
    assert report.bytes_after == sum((path / name).stat().st_size for name in names)
    assert len(report.segments) == 11


def test_damage_stops_a_cleaning_on_spark_with_its_code(
    spark: SparkSession, write_journal: Write
) -> None:
    payloads = lives(200)
    path = write_journal([payloads[:100], payloads[100:]])
    damaged = path / segment_name(1)
    data = bytearray(damaged.read_bytes())
    data[40] ^= 1
    damaged.write_bytes(bytes(data))
    with pytest.raises(Exception) as caught:
        clean(spark, path, now=NOW)
    code, text = explain(caught.value) or ("", "")
    assert code == "SERVER-ERROR" and segment_name(1) in text
    assert damaged.read_bytes() == bytes(data)
    assert not list(path.glob("*.rw"))


def test_a_second_opinion_keeps_the_cleaner_out(
    spark: SparkSession, write_journal: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (1).to_bytes(16, "big")
    add, delete = encode(k.Add(row, b"q", 9, 99, 1, 0, 0, b"x", 0, T0)), encode(k.Delete(row))
    path = write_journal([[add], [delete], [put(2, b"a")]])
    monkeypatch.setattr(plan_module, "LOCK_SECONDS", 0)
    held = DISK.lock(path / "read.lock", exclusive=True, timeout=0)
    with pytest.raises(LockTimeout):
        second_opinion(spark, path)
    held.release()
    # It is formed by now: what a cleaner does later is no difference.
    found = second_opinion(spark, path)
    (path / segment_name(2)).unlink()
    assert found.collect() == []


def test_a_replay_behind_a_shuffle_keeps_the_cleaner_out(
    spark: SparkSession, write_journal: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = (1).to_bytes(16, "big")
    path = write_journal([[put(1, b"a")], [encode(k.Purge(row, b"q", b"a", T0))], [put(2, b"b")]])
    table = JournalTable.for_path(spark, path)
    monkeypatch.setattr(plan_module, "LOCK_SECONDS", 0)
    held = DISK.lock(path / "read.lock", exclusive=True, timeout=0)
    with pytest.raises(CodedError, match="is locked"):
        table.jobs(shards=30)
    held.release()
    # Its tasks have read by now: what a cleaner does between two of them brings nothing back.
    found = table.jobs(shards=30, columns=["id"])
    (path / segment_name(2)).unlink()
    assert [bytes(one["id"]) for one in found.collect()] == [(2).to_bytes(16, "big")]


def test_a_second_opinion_of_a_journal_in_use_compares_one_moment(
    spark: SparkSession, tmp_path: Path
) -> None:
    with Journal(tmp_path / "jobs", background=False) as journal:
        journal.put(b"before", queue="q")

        class InUse:
            """A session; a job comes in whenever it is asked to read."""

            @property
            def read(self) -> DataFrameReader:
                journal.put(b"meanwhile", queue="q")
                journal.sync()
                return spark.read

        assert second_opinion(cast("SparkSession", InUse()), tmp_path / "jobs").collect() == []
