"""Export: every record once, in tables any engine reads, whatever is killed in between."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from fastjournal.errors import SettingError, Unavailable
from fastjournal.journal.journal import Journal
from fastjournal.journal.language.codec import TYPE_NAMES, decode
from fastjournal.journal.language.commands import Group
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.lake import parquet_files as export_files
from fastjournal.spark.lake.commits import Commit, Commits
from fastjournal.spark.lake.exporter import export, export_directory, files_of
from fastjournal.spark.replay.fold import fold
from fastjournal.spark.storage.segments import journal_segments, load_all
from fastjournal.testing import ManualClock
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
        export_directory(inline, path, out, until=NOON + (n + 1) * 900 * SECOND, shares=shares)
    last = export_directory(inline, path, out)
    assert (last.commit, last.rows["events"] > 0) == (5, True)
    again = export_directory(inline, path, out)
    assert (again.commit, again.records, again.files) == (5, 0, 0)
    assert exported(out) == commands_in(path)
    export_directory(inline, path, whole, shares=2)
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
    export_directory(inline, path, tmp_path, shares=2)
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


def test_partitions_are_days_and_queues_and_names_survive(tmp_path: Path) -> None:
    odd = "a/b ü%=1"
    clock = ManualClock(NOON)
    with Journal(tmp_path / "j", clock=clock, background=False) as journal:
        journal.put(b"1", queue=odd)
        journal.entries["greeting"] = b"a row without a queue"
        clock.advance(86_400)
        journal.put(b"2", queue="plain")
    export_directory(inline, tmp_path / "j", tmp_path / "lake")
    found = set(table(tmp_path / "lake", "jobs", "day::varchar, queue, value"))
    assert found == {
        ("2026-01-31", odd, b"1"),
        ("2026-01-31", None, b"a row without a queue"),
        ("2026-02-01", "plain", b"2"),
    }
    assert {Path(one).parent.name for one in files_of(tmp_path / "lake", "jobs")} == {
        "queue=a%2Fb%20%C3%BC%25%3D1",
        "queue=plain",
        "queue=__HIVE_DEFAULT_PARTITION__",
    }


class _Crashing(Commits):
    """Dies at one step."""

    def __init__(self, root: Path, step: str) -> None:
        super().__init__(root)
        self._step = step

    def add(self, commit: Commit) -> None:
        if self._step == "before the commit":
            raise KeyboardInterrupt
        super().add(commit)
        if self._step == "after the commit":
            raise KeyboardInterrupt

    def _publish(self, commit: Commit) -> None:
        if self._step == "half published" and commit.number == 2:
            some = [one for one in commit.files if one.table == "events"][:1]
            for one in some:
                target = self.root / one.path
                target.parent.mkdir(parents=True, exist_ok=True)
                (self.root / one.staged).replace(target)
            raise KeyboardInterrupt
        super()._publish(commit)

    def _replace(self, name: str, commit: Commit) -> None:
        if self._step == "jobs taken out" and commit.number == 2:
            staging = self.root / "_staging"
            (self.root / name).replace(staging / f"{name}-old-{commit.number:09d}")
            raise KeyboardInterrupt
        super()._replace(name, commit)


@pytest.mark.parametrize(
    "step",
    ["in a task", "before the commit", "after the commit", "half published", "jobs taken out"],
)
def test_a_killed_export_shows_nothing_and_the_next_one_mends_it(tmp_path: Path, step: str) -> None:
    path, out = tmp_path / "j", tmp_path / "lake"
    traffic(path, puts=300, hours=0.5)
    export_directory(inline, path, out, until=NOON + 900 * SECOND, shares=2)
    first = exported(out)
    jobs = len(table(out, "jobs"))

    def run(tasks: Sequence[Callable[[], Sequence[Any]]]) -> list[Any]:
        found = inline(tasks[:1] if step == "in a task" else tasks)
        if step == "in a task":
            raise KeyboardInterrupt
        return found

    with pytest.raises(KeyboardInterrupt):
        export_directory(run, path, out, shares=2, commits=_Crashing(out, step))
    if step in ("in a task", "before the commit"):
        assert exported(out) == first and len(table(out, "jobs")) == jobs
        assert len(Commits(out).numbers()) == 1
    else:
        named = [Path(one).is_file() for name in ("events", "jobs") for one in files_of(out, name)]
        assert all(named)
    export_directory(inline, path, out)
    assert exported(out) == commands_in(path)
    own = {row.id for row in fold(load_all(path)).rows.values()}
    assert {one for (one,) in table(out, "jobs", "id")} == own
    assert not (out / "_staging").exists()


def test_a_task_that_runs_twice_counts_once(tmp_path: Path) -> None:
    path, out = tmp_path / "j", tmp_path / "lake"
    traffic(path, puts=200, hours=0.3)

    def twice(tasks: Sequence[Callable[[], Sequence[Any]]]) -> list[Any]:
        for task in tasks:
            task()
        return inline(tasks)

    export_directory(twice, path, out, shares=2)
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
            export_directory(inline, path, out)
            journal.rotate()
            journal.clean()
            clock.advance(60)
        seen += commands_in(path)  # the last cleaning told of ends
        last = export_directory(inline, path, out)
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
        export_directory(inline, path, tmp_path / "bare")
        export_directory(inline, path, tmp_path / "full", archive=archive)
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
    export_directory(inline, path, tmp_path / "lake")
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
    export_directory(inline, f"file://{copy}", tmp_path / "lake", shares=2)
    assert exported(tmp_path / "lake") == commands_in(path)
    own = {row.id for row in fold(load_all(path)).rows.values()}
    assert {one for (one,) in table(tmp_path / "lake", "jobs", "id")} == own


def test_logs_of_a_real_workq_server_are_exported(golden: Path, tmp_path: Path) -> None:
    """WQ: types 1 to 8."""
    export_directory(inline, golden, tmp_path)
    assert exported(tmp_path) == commands_in(golden)
    own = Counter(row.state.name for row in fold(load_all(golden)).rows.values())
    assert dict(table(tmp_path, "jobs", "state, count(*)", "group by all") if own else []) == own


def test_an_export_goes_on_as_it_began(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", background=False) as journal:
        journal.put(b"1", queue="q")
    export_directory(inline, tmp_path / "j", tmp_path / "lake", values=False)
    assert (
        "value"
        not in duckdb.sql(
            f"select * from read_parquet('{tmp_path}/lake/events/**/*.parquet')"
        ).columns
    )
    with pytest.raises(SettingError, match="values"):
        export_directory(inline, tmp_path / "j", tmp_path / "lake")
    with pytest.raises(SettingError, match="tables"):
        export_directory(inline, tmp_path / "j", tmp_path / "lake", values=False, tables=["events"])
    with pytest.raises(SettingError, match="some of"):
        export_directory(inline, tmp_path / "j", tmp_path / "lake", tables=["rows"])


def test_a_delta_log_names_the_same_files_once(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    path, out = tmp_path / "j", tmp_path / "lake"
    traffic(path, puts=200, hours=0.3)
    export_directory(
        inline, path, out, until=NOON + 400 * SECOND
    )  # made before Delta was asked for
    for _ in range(2):
        export_directory(inline, path, out, delta=True)
    events = DeltaTable(out / "events")
    assert events.transaction_version("fastjournal-export") == 2
    found = events.to_pyarrow_table(columns=["time_ns", "member", "queue"])
    assert sorted(found["time_ns"].to_pylist()) == sorted(time for time, _, _ in exported(out))
    jobs = DeltaTable(out / "jobs").to_pyarrow_table(columns=["id", "day", "queue"])
    assert set(jobs["id"].to_pylist()) == {one for (one,) in table(out, "jobs", "id")}
    traffic_rows = fold(load_all(path)).rows
    assert jobs.num_rows == len(traffic_rows)


def test_delta_without_its_package_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(Unavailable, match=r"fastjournal\[delta\]"):
        export_directory(inline, tmp_path / "j", tmp_path / "lake", delta=True)


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


def test_many_queues_are_written_with_few_open_files_and_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition whose file was closed goes on in another one; nothing is lost on the way."""
    monkeypatch.setattr(export_files, "OPEN_FILES", 3)
    monkeypatch.setattr(export_files, "HELD_BYTES", 20_000)
    with Journal(tmp_path / "j", clock=ManualClock(NOON), background=False) as journal:
        for _ in range(4):
            journal.put_many([{"payload": b"x" * 50, "queue": f"q{q}"} for q in range(40)])
            journal.rotate()
        export_directory(inline, tmp_path / "j", tmp_path / "lake")
    assert exported(tmp_path / "lake") == commands_in(tmp_path / "j")[:-1]
    counts = table(tmp_path / "lake", "jobs", "queue, count(*)", "group by 1")
    assert dict(counts) == {f"q{q}": 4 for q in range(40)}
