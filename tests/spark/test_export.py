"""Export: every record once, in tables any engine reads, whatever is killed in between."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyarrow.fs import S3FileSystem

from fastjournal.archive.store import open_store
from fastjournal.errors import BadRequest, SettingError, Unavailable
from fastjournal.journal.journal import Journal
from fastjournal.journal.language.codec import TYPE_NAMES, decode
from fastjournal.journal.language.commands import Group
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.lake import exporter
from fastjournal.spark.lake import files as export_files
from fastjournal.spark.lake.delta import bring_up, compact
from fastjournal.spark.lake.exporter import export, files_of
from fastjournal.spark.lake.step import Step
from fastjournal.spark.lake.steps import Steps
from fastjournal.spark.lifecycle import walk
from fastjournal.spark.replay.fold import fold
from fastjournal.spark.replay.jobs import replay_share
from fastjournal.spark.storage.segments import journal_segments, load_all
from fastjournal.testing import ManualClock
from s3_server import BUCKET, environment, serve_s3
from spark_traffic import NOON, SECOND, Told, traffic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLDEN = Path(__file__).parent.parent / "golden" / "workq"


def inline(tasks: Sequence[Callable[[], Sequence[Any]]]) -> list[Any]:
    """Carry tasks out here, one after the other."""
    return [answer for task in tasks for answer in task()]


def table(out: Path, name: str, what: str = "*", more: str = "") -> list[tuple[Any, ...]]:
    """Ask DuckDB, which knows nothing of us."""
    files = f"read_parquet('{out}/{name}/**/*.parquet', hive_partitioning=true)"
    if (out / name / "_delta_log").is_dir():
        rows = duckdb.from_arrow(DeltaTable(out / name).to_pyarrow_dataset())
        return rows.query("rows", f"select {what} from rows {more}").fetchall()
    return duckdb.sql(f"select {what} from {files} {more}").fetchall()


def commands_in(path: Path) -> list[tuple[int, int | None, str]]:
    """TIME, place in a group and kind of every command, read by the journal's own cursor."""
    found: list[tuple[int, int | None, str]] = []
    cursor = Stream(path, WORKQ).open_cursor()
    for batch in cursor.batches():
        for record in batch:
            command = decode(record.payload)
            if isinstance(command, Group):
                members = enumerate(command.members)
                found += ((record.time, n, type(one).__name__.upper()) for n, one in members)
            else:
                found.append((record.time, None, TYPE_NAMES[record.payload[0]]))
    cursor.close()
    return found


def exported(out: Path) -> list[tuple[int, int | None, str]]:
    return table(out, "events", "time_ns, member, upper(command)", "order by time_ns, member")


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Told]:
    """Three hours of traffic."""
    path = tmp_path_factory.mktemp("traffic") / "jobs"
    return path, traffic(path, puts=1500)


def test_every_command_is_exported_once_over_many_commits(tmp_path: Path) -> None:
    """Increments at any instant give the same rows as one export of everything."""
    path, out, whole = tmp_path / "j", tmp_path / "lake", tmp_path / "whole"
    traffic(path, puts=600, hours=1)
    for n, shares in enumerate((1, 3, 2, 1)):
        export(inline, path, out, until=NOON + (n + 1) * 900 * SECOND, shares=shares)
    last = export(inline, path, out)
    assert (last.commit, last.rows["events"] > 0) == (5, True)
    again = export(inline, path, out)
    assert (again.commit, again.records, again.files) == (5, 0, 0)
    assert exported(out) == commands_in(path)
    export(inline, path, whole, shares=2)
    for name, order in (
        ("events", "time_ns, member"),
        ("attempts", "ended_ns, id"),
        ("jobs", "id"),
    ):
        assert table(out, name, more=f"order by {order}") == table(
            whole, name, more=f"order by {order}"
        )


def test_duckdb_finds_what_producers_and_consumers_were_told(
    day: tuple[Path, Told], tmp_path: Path
) -> None:
    path, told = day
    export(inline, path, tmp_path, shares=2)
    effects = dict(table(tmp_path, "events", "effect, count(*)", "group by all"))
    assert effects["new"] + effects["merged"] == told.puts
    assert effects["merged"] == told.merged
    assert effects["leased"] == told.leases
    assert effects["renewed"] == told.touches
    outcomes = dict(table(tmp_path, "attempts", "outcome, count(*)", "group by all"))
    assert (outcomes["done"], outcomes["failed"]) == (told.done, told.failed)
    by_queue = dict(
        table(
            tmp_path, "events", "queue, count(*)", "where effect in ('new', 'merged') group by all"
        )
    )
    assert by_queue == told.by_queue
    with Journal(path, background=False, clock=ManualClock(NOON + 3 * 3600 * SECOND)) as journal:
        now = {q.name: q.leased + q.ready + q.held + q.future for q in journal.queues()}
    open_jobs = dict(
        table(
            tmp_path,
            "jobs",
            "queue, count(*)",
            "where state in ('WAITING','PROCESSING') group by all",
        )
    )
    assert open_jobs == {queue: count for queue, count in now.items() if count}


def test_partitions_are_days_and_names_of_queues_survive(tmp_path: Path) -> None:
    odd = "a/b ü%=1"
    clock = ManualClock(NOON)
    with Journal(tmp_path / "j", clock=clock, background=False) as journal:
        journal.put(b"1", queue=odd)
        journal.entries["greeting"] = b"a row without a queue"
        clock.advance(86_400)
        journal.put(b"2", queue="plain")
    export(inline, tmp_path / "j", tmp_path / "lake")
    found = set(table(tmp_path / "lake", "jobs", "day::varchar, queue, payload"))
    assert found == {
        ("2026-01-31", odd, b"1"),
        ("2026-01-31", None, b"a row without a queue"),
        ("2026-02-01", "plain", b"2"),
    }
    assert {Path(one).parent.name for one in files_of(tmp_path / "lake", "jobs")} == {
        "day=2026-01-31",
        "day=2026-02-01",
    }


class _Crashing(Steps):
    """Dies at one place."""

    def __init__(self, root: Path, place: str) -> None:
        super().__init__(root)
        self._place = place

    def add(self, step: Step) -> None:
        if self._place == "before the step":
            raise KeyboardInterrupt
        super().add(step)
        if self._place == "after the step":
            raise KeyboardInterrupt

    def publish(self, step: Step) -> None:
        if step.number == 2 and self._place == "half published":
            if step.delta:
                bring_up(self.folder, replace(step, tables=("events",)))
            else:
                one = step.of("events")[0]
                self.folder.move([(one.path, one.place)])
            raise KeyboardInterrupt
        super().publish(step)
        if step.number == 2 and self._place == "published, not marked":
            open_store(f"{self.folder.address}/_export").delete(["000000002.done"])
            raise KeyboardInterrupt


@pytest.mark.parametrize("delta", [False, True], ids=["parquet", "delta"])
@pytest.mark.parametrize(
    "place",
    ["in a task", "before the step", "after the step", "half published", "published, not marked"],
)
def test_a_killed_export_shows_nothing_and_the_next_one_mends_it(
    tmp_path: Path, place: str, delta: bool
) -> None:
    path, out = tmp_path / "j", tmp_path / "lake"
    traffic(path, puts=300, hours=0.5)
    export(inline, path, out, until=NOON + 900 * SECOND, shares=2, delta=delta)
    first = exported(out)
    jobs = len(table(out, "jobs"))

    def run(tasks: Sequence[Callable[[], Sequence[Any]]]) -> list[Any]:
        found = inline(tasks[:1] if place == "in a task" else tasks)
        if place == "in a task":
            raise KeyboardInterrupt
        return found

    with pytest.raises(KeyboardInterrupt):
        export(run, path, _Crashing(out, place), shares=2, delta=delta)
    if place in ("in a task", "before the step"):
        assert exported(out) == first and len(table(out, "jobs")) == jobs
        assert len(Steps(out).numbers()) == 1
    elif not delta:
        named = [Path(one).is_file() for name in ("events", "jobs") for one in files_of(out, name)]
        assert all(named)
    export(inline, path, out, delta=delta)
    assert exported(out) == commands_in(path)
    own = {row.id for row in fold(load_all(path)).rows.values()}
    assert sorted(one for (one,) in table(out, "jobs", "id")) == sorted(own)
    assert not (out / "_staging").exists()


def test_a_task_that_runs_twice_counts_once(tmp_path: Path) -> None:
    path, out = tmp_path / "j", tmp_path / "lake"
    traffic(path, puts=200, hours=0.3)

    def twice(tasks: Sequence[Callable[[], Sequence[Any]]]) -> list[Any]:
        for task in tasks:
            task()
        return inline(tasks)

    export(twice, path, out, shares=2)
    assert exported(out) == commands_in(path)


def test_cleaning_and_rotation_between_two_exports_lose_and_repeat_nothing(tmp_path: Path) -> None:
    path, out, clock = tmp_path / "j", tmp_path / "lake", ManualClock(NOON)
    seen = []
    with Journal(path, clock=clock, background=False, sync="os", clean_interval=0) as journal:
        for n in range(5):
            for _ in range(20):
                journal.put(b"x", queue="q")
            for job in journal.lease_many(15 + n, "q"):
                job.done()
            clock.advance(60)
            journal.sync()
            seen += commands_in(path)
            export(inline, path, out)
            journal.rotate()
            journal.clean()
            clock.advance(60)
        seen += commands_in(path)  # the last cleaning told of ends
        last = export(inline, path, out)
    assert exported(out) == sorted(set(seen), key=lambda one: one[0])
    assert last.commit >= 5
    effects = dict(table(out, "events", "effect, count(*)", "where queue = 'q' group by all"))
    assert effects == {"new": 100, "leased": 85, "done": 85}


def test_an_archive_gives_back_what_was_cleaned(tmp_path: Path) -> None:
    path, clock = tmp_path / "j", ManualClock(NOON)
    archive = path / "archive"
    with Journal(path, clock=clock, background=False, sync="os", archive=archive) as journal:
        for _ in range(50):
            journal.put(b"x", queue="q")
            job = journal.lease("q")
            assert job is not None
            job.done()
        journal.rotate()
        journal.put(b"last", queue="q")
        journal.rotate()
        journal.clean()
        export(inline, path, tmp_path / "bare")
        export(inline, path, tmp_path / "full", archive=archive)
    done = "count(*) filter (effect = 'done')"
    assert table(tmp_path / "full", "events", done) == [(50,)]
    assert table(tmp_path / "bare", "events", done)[0][0] < 50
    assert table(tmp_path / "full", "jobs", "queue, state") == [("q", "WAITING")]


def test_rows_known_only_from_a_snapshot_keep_their_queue(tmp_path: Path) -> None:
    path, clock = tmp_path / "j", ManualClock(NOON)
    with Journal(path, clock=clock, background=False, sync="os") as journal:
        journal.put(b"old", queue="q", key="k")
        clock.advance(5)
        journal.rotate()
        journal.snapshot()
        journal.clean()
        clock.advance(5)
        job = journal.lease("q")
        assert job is not None
        clock.advance(2)
        job.done()
    assert journal_segments(path)[0].number > 1
    export(inline, path, tmp_path / "lake")
    found = table(
        tmp_path / "lake", "attempts", "queue, key, outcome, round(wait_ms), round(run_ms)"
    )
    assert found == [("q", "k", "done", 10_000.0, 2_000.0)]


def test_sealed_segments_are_read_through_a_uri(tmp_path: Path) -> None:
    """pyarrow.fs reads `file://` as it reads `s3://`: the code path is the same."""
    path = tmp_path / "j"
    traffic(path, puts=200, hours=0.3)
    copy = tmp_path / "copy"
    copy.mkdir()
    for piece in journal_segments(path):
        shutil.copy(piece.path, copy)
    export(inline, f"file://{copy}", tmp_path / "lake", shares=2)
    assert exported(tmp_path / "lake") == commands_in(path)
    own = {row.id for row in fold(load_all(path)).rows.values()}
    assert {one for (one,) in table(tmp_path / "lake", "jobs", "id")} == own


def test_logs_of_a_real_workq_server_are_exported(golden: Path, tmp_path: Path) -> None:
    """WQ: types 1 to 8."""
    export(inline, golden, tmp_path)
    assert exported(tmp_path) == commands_in(golden)
    own = Counter(row.state.name for row in fold(load_all(golden)).rows.values())
    assert dict(table(tmp_path, "jobs", "state, count(*)", "group by all") if own else []) == own


def test_an_export_goes_on_as_it_began(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        journal.put(b"1", queue="q")
    export(inline, tmp_path / "j", tmp_path / "lake", values=False)
    assert (
        "payload"
        not in duckdb.sql(
            f"select * from read_parquet('{tmp_path}/lake/events/**/*.parquet')"
        ).columns
    )
    with pytest.raises(SettingError, match="values"):
        export(inline, tmp_path / "j", tmp_path / "lake")
    with pytest.raises(SettingError, match="tables"):
        export(inline, tmp_path / "j", tmp_path / "lake", values=False, tables=["events"])
    with pytest.raises(SettingError, match="some of"):
        export(inline, tmp_path / "j", tmp_path / "lake", tables=["rows"])


def test_delta_tables_grow_by_transactions_and_jobs_by_merges(tmp_path: Path) -> None:
    """The same rows as plain Parquet has; each step once, by its number; all by other engines."""
    path, out, plain = tmp_path / "j", tmp_path / "lake", tmp_path / "plain"
    traffic(path, puts=400, hours=0.5)
    for n, shares in enumerate((1, 2, 1)):
        until = NOON + (n + 1) * 500 * SECOND
        export(inline, path, out, until=until, shares=shares, delta=True)
    for _ in range(2):
        export(inline, path, out, delta=True)
    export(inline, path, plain)
    assert exported(out) == commands_in(path)
    for name, order in (("events", "time_ns, member"), ("attempts", "ended_ns"), ("jobs", "id")):
        chosen = "* exclude (day), day::date"
        assert table(out, name, chosen, f"order by {order}") == table(
            plain, name, chosen, f"order by {order}"
        )
    events = DeltaTable(out / "events")
    assert events.transaction_version("fastjournal-export") == 4
    assert events.metadata().partition_columns == ["day"]
    first = events.get_add_actions(flatten=True).column("min.time_ns").to_pylist()
    assert min(first) == commands_in(path)[0][0]
    merges = [one for one in DeltaTable(out / "jobs").history() if one["operation"] == "MERGE"]
    rows = fold(load_all(path)).rows
    assert len(merges) == 3
    assert all(int(m["operationMetrics"]["num_source_rows"]) > 0 for m in merges)
    joined = compact(out, hours=0)
    assert joined["events"][0] > 1 and joined["events"][1] > 1
    assert exported(out) == commands_in(path)
    assert len(table(out, "jobs")) == len(rows)
    with pytest.raises(SettingError, match="delta: an export goes on as it began"):
        export(inline, path, out)


def test_jobs_follow_from_the_rows_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No second replay, unless records were cleaned away unread."""
    path, out, clock = tmp_path / "j", tmp_path / "lake", ManualClock(NOON)
    replays = []

    def counted(*arguments: Any, **more: Any) -> Any:
        replays.append(arguments)
        return replay_share(*arguments, **more)

    monkeypatch.setattr(exporter, "replay_share", counted)
    with Journal(path, clock=clock, background=False, sync="os", clean_interval=0) as journal:
        for n in range(40):
            journal.put(b"%d" % n, queue="q", key=f"k{n}")
        export(inline, path, out, delta=True)
        for n in range(25):  # so many that the picture is written anew in between
            clock.advance(1)
            journal.put(b"again", queue="q", key="k0")
            job = journal.lease("q")
            assert job is not None
            job.done() if n % 2 else job.fail(b"why")
            journal.sync()
            told = export(inline, path, out, delta=True)
            assert 0 < told.rows["jobs"] < 4
        assert len(replays) == 1
        shown = table(out, "jobs", "key, state, fails, payload", "order by id")
        export(inline, path, tmp_path / "whole", delta=True)
        assert shown == table(
            tmp_path / "whole", "jobs", "key, state, fails, payload", "order by id"
        )
        for job in journal.lease_many(20, "q"):
            job.done()
        journal.rotate()
        journal.put(b"last", queue="q")
        journal.rotate()
        journal.clean()
        journal.clean()
        left = {job.key for job in journal.jobs("q")}
        journal.sync()
        replays.clear()
        export(inline, path, out, delta=True)
    assert len(replays) == 1, "the ends of jobs were cleaned away unread"
    assert {key or "" for (key,) in table(out, "jobs", "key")} == left


@pytest.mark.slow
@pytest.mark.parametrize("delta", [False, True], ids=["parquet", "delta"])
def test_an_archive_on_s3_is_exported_to_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delta: bool
) -> None:
    """No lock and no rename there: a step that another has made is refused."""
    pytest.importorskip("obstore")
    path, clock = tmp_path / "j", ManualClock(NOON)
    with serve_s3() as endpoint:
        for name, value in environment(endpoint).items():
            monkeypatch.setenv(name, value)
        there, out = (f"s3://{BUCKET}/{tmp_path.name}/{name}" for name in ("jobs", "lake"))
        with Journal(path, clock=clock, background=False, sync="os", archive=there) as journal:
            for n in range(3):
                journal.put_many([{"payload": b"%d" % i, "queue": "q"} for i in range(30)])
                for job in journal.lease_many(20 + n, "q"):
                    job.done()
                clock.advance(86_400)
                journal.ship()
                told = export(inline, there, out, delta=delta, shares=2)
        assert told.commit == 3
        events, jobs = (_rows_on_s3(endpoint, files_of(out, name)) for name in ("events", "jobs"))
        assert Counter(events["effect"]) == {"new": 90, "leased": 63, "done": 63}
        own = {row.id for row in fold(load_all(path)).rows.values()}
        assert sorted(jobs["id"]) == sorted(own)
        if delta:
            assert DeltaTable(f"{out}/jobs").to_pyarrow_table().num_rows == 27
            assert compact(out)["events"][0] == 6  # of two tasks, on three days
        last = Steps(out).last()
        assert last is not None
        with pytest.raises(BadRequest, match="made by another"):
            Steps(out).add(last)


def _rows_on_s3(endpoint: str, files: list[str]) -> dict[str, list[Any]]:
    there = S3FileSystem(
        access_key="test", secret_key="test", endpoint_override=endpoint, region="us-east-1"
    )
    paths = [one.removeprefix("s3://") for one in files]
    found = [pq.read_table(one, filesystem=there, partitioning=None) for one in paths]
    return dict(pa.concat_tables(found).to_pydict())


@pytest.mark.parametrize("delta", [False, True], ids=["parquet", "delta"])
def test_a_journal_may_be_empty_in_between(tmp_path: Path, delta: bool) -> None:
    path, out, clock = tmp_path / "j", tmp_path / "lake", ManualClock(NOON)
    with Journal(path, clock=clock, background=False, sync="os", clean_interval=0) as journal:
        for n in range(4):
            journal.put(b"%d" % n, queue="q")
            if n % 2 == 0:  # every other export finds no row, the last one after a cleaning
                for job in journal.lease_many(9, "q"):
                    job.done()
            if n == 2:
                journal.rotate()
                journal.put(b"", queue="r")
                journal.rotate()
                journal.clean()
                for job in journal.lease_many(9, "r"):
                    job.done()
            journal.sync()
            export(inline, path, out, delta=delta)
            left = {row.id for row in fold(load_all(path)).rows.values()}
            assert {one for (one,) in (table(out, "jobs", "id") if left or delta else [])} == left


def test_an_export_of_the_version_before_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lake" / "_commits").mkdir(parents=True)
    with pytest.raises(SettingError, match=r"export of 0\.1\.0"):
        export(inline, tmp_path, tmp_path / "lake")


def test_delta_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(Unavailable, match=r"fastjournal\[delta\]"):
        export(inline, tmp_path / "j", tmp_path / "lake", delta=True)


def test_spark_writes_the_tables_inside_its_tasks(
    spark: SparkSession, day: tuple[Path, Told], tmp_path: Path
) -> None:
    path, told = day
    report = export(spark, path, tmp_path, shares=2)
    assert exported(tmp_path) == commands_in(path)
    assert report.rows["events"] == len(exported(tmp_path))
    seen = spark.read.parquet(str(tmp_path / "attempts"))
    assert seen.where("outcome = 'done'").count() == told.done
    assert {"day", "queue"} <= set(seen.columns)


def test_what_is_held_is_written_whenever_it_is_enough_for_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_files, "HELD_BYTES", 20_000)
    monkeypatch.setattr(walk, "HELD_ROWS", 40)
    with Journal(tmp_path / "j", clock=ManualClock(NOON), background=False) as journal:
        for _ in range(4):
            journal.put_many([{"payload": b"x" * 50, "queue": f"q{q}"} for q in range(40)])
            journal.rotate()
        export(inline, tmp_path / "j", tmp_path / "lake")
    assert len(files_of(tmp_path / "lake", "events")) > 1
    assert exported(tmp_path / "lake") == commands_in(tmp_path / "j")[:-1]
    counts = table(tmp_path / "lake", "jobs", "queue, count(*)", "group by 1")
    assert dict(counts) == {f"q{q}": 4 for q in range(40)}
