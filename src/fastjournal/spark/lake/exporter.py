"""History flows to the lake: new records become Parquet, once.

    from fastjournal.spark.lake.exporter import export

    export(spark, "./jobs", "./lake")       # again and again: each call adds what is new

Rules:

1. An export goes on where the last commit ended, by TIME: cleaning and rotation in between change
   nothing, and no record is written twice.
2. Rows are shared out among tasks by their id, so each task knows the queue, the key and the state
   of the rows it writes about. What they are at the end of a commit is carried into the next one.
3. Files are written inside the tasks with Arrow's own writer, below directories that the driver has
   made; their names, sizes and CRCs come back, and the driver reads each before it commits.
4. Tasks may run twice, a driver may die anywhere: what counts is said by `export_commits`.
5. No cleaner comes in between planning and writing: a segment that a task does not see is an error,
   and the position stays where it was.
6. What was cleaned before it was exported is gone: export more often than the journal cleans, or
   keep an archive (`Journal(archive=...)`) and name it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastjournal.errors import SegmentError, SettingError
from fastjournal.spark.lake.commits import (
    STAGING,
    Commit,
    Commits,
    carried_folder,
    check_versions,
)
from fastjournal.spark.lake.history import History
from fastjournal.spark.lake.parquet_files import DataFile, TableWriter
from fastjournal.spark.lake.tables import (
    JOB_COLUMNS,
    TABLES,
    VERSIONS,
    schema_of,
)
from fastjournal.spark.lifecycle.rows import attempts_of, events_of
from fastjournal.spark.lifecycle.seed import rows_before
from fastjournal.spark.lifecycle.walk import Fold, parts_of
from fastjournal.spark.locations import absolute, is_remote, place
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.by_share import replay_share
from fastjournal.spark.replay.fold import Share, fold
from fastjournal.spark.replay.job_rows import job_batches
from fastjournal.spark.storage.segments import Piece, at_one_moment, load, share_count
from fastjournal.spark.storage.written_files import Written, attempt_word, make_below, read_back
from fastjournal.spark.tasks import parallelism, run_tasks

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

__all__ = ["ExportReport", "export", "export_directory", "files_of"]

Run = Callable[[Sequence[Any]], list[Any]]
_LEAST_SHARE = 8 << 20


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export did."""

    commit: int
    """Number of the commit; of the last one if nothing was new."""
    upto: int
    """TIME of the last exported record."""
    records: int
    rows: dict[str, int]
    files: int
    log_bytes: int
    parquet_bytes: int
    seconds: float
    missing_segments: int

    @property
    def rate(self) -> float:
        """MB of log in a second."""
        return self.log_bytes / 1e6 / max(self.seconds, 1e-9)


def export(
    spark: SparkSession,
    path: str | Path,
    out: str | Path,
    *,
    archive: str | Path | None = None,
    tables: Iterable[str] = TABLES,
    values: bool = True,
    until: int | None = None,
    shares: int = 0,
    delta: bool = False,
) -> ExportReport:
    """Write what is new in a journal to `out` as Parquet by day and queue; see `export_schema`.

    `path` may be the URI of a copy of sealed segments. `values=False` leaves out payloads and
    results. `until` (ns since 1970, exclusive) ends the export early. `delta` also keeps a Delta
    log over the same files, which needs the package `deltalake`.
    """

    def run(tasks: Sequence[Any]) -> list[Any]:
        return run_tasks(spark, tasks)

    return export_directory(
        run, path, out, archive=archive, tables=tables, values=values, until=until, shares=shares,
        delta=delta, cores=parallelism(spark),
    )  # fmt: skip


def export_directory(
    run: Run,
    path: str | Path,
    out: str | Path,
    *,
    archive: str | Path | None = None,
    tables: Iterable[str] = TABLES,
    values: bool = True,
    until: int | None = None,
    shares: int = 0,
    delta: bool = False,
    commits: Commits | None = None,
    cores: int = 0,
) -> ExportReport:
    """The same; `run` carries out tasks somewhere, `cores` at a time; their answers in order."""
    started = perf_counter()
    chosen = _tables(tables)
    if delta:
        from fastjournal.spark.lake.delta_log import require_deltalake

        require_deltalake()
    if is_remote(out):
        raise SettingError("out: a directory; commits need a file system with rename", name="out")
    journal = place(path)
    commits = commits or Commits(absolute(out))
    lock = commits.lock(10.0)
    try:
        last = commits.finish()
        if last is not None:
            check_versions(last, VERSIONS, values)
            if set(last.tables) != set(chosen):
                raise SettingError(f"tables: goes on with {', '.join(last.tables)}", name="tables")

        def write() -> tuple[_Plan, list[_Answer]]:
            history = History(journal, archive)
            plan = _Plan.of(history, last, until)
            if plan.upto <= plan.after:
                return plan, []
            return plan, _written(run, history, commits, plan, chosen, values, shares, cores)

        # No cleaner comes in between: what the driver plans, all tasks see.
        plan, answers = at_one_moment(journal, write)
        if not answers:
            report = _report(last, plan, (), started)
        else:
            commit = _commit(journal, plan, answers, chosen, values)
            _check(commits, answers)
            commits.add(commit)
            commits.finish()
            report = _report(commit, plan, commit.files, started)
        if delta:
            from fastjournal.spark.lake.delta_log import bring_up

            bring_up(commits, chosen)
        return report
    finally:
        lock.release()


def files_of(out: str | Path, table: str) -> list[str]:
    """The files of a table, whole commits only."""
    return Commits(absolute(out)).files_of(table)


def _tables(tables: Iterable[str]) -> tuple[str, ...]:
    wanted = set(tables)
    unknown = wanted - set(TABLES)
    if unknown or not wanted:
        raise SettingError(f"tables: some of {', '.join(TABLES)}", name="tables")
    return tuple(table for table in TABLES if table in wanted)


@dataclass(frozen=True, slots=True)
class _Plan:
    number: int
    after: int
    upto: int
    pieces: list[Piece]
    carried: tuple[str, ...]
    missing: int

    @classmethod
    def of(cls, history: History, last: Commit | None, until: int | None) -> _Plan:
        after = 0 if last is None else last.upto
        newest = history.last() or 0
        upto = newest if until is None else min(newest, until - 1)
        pieces = history.behind(after)
        missing = 0
        if last is not None and pieces:
            known = {piece.number for piece in pieces}
            missing = sum(
                number not in known for number in range(last.last_segment + 1, max(known))
            )
        carried = () if last is None else last.carried
        return cls(0 if last is None else last.number, after, upto, pieces, carried, missing)


def _written(
    run: Run,
    history: History,
    commits: Commits,
    plan: _Plan,
    tables: tuple[str, ...],
    values: bool,
    shares: int,
    cores: int,
) -> list[_Answer]:
    count = share_count(sum(piece.size for piece in plan.pieces), cores, shares)
    tasks = [
        _Task(
            history.path, str(commits.root), plan.pieces, history.pieces, Share(n, count),
            plan.after, plan.upto, plan.number + 1, plan.carried, tables, values,
        )
        for n in range(count)
    ]  # fmt: skip
    commits.make_ready(plan.number + 1)
    answers = run(tasks)
    if len(answers) != count:
        raise SegmentError(history.path, f"{count} tasks went out, {len(answers)} came back")
    return answers


def _check(commits: Commits, answers: Sequence[_Answer]) -> None:
    """Read every file that the tasks have written, before a commit names it."""
    for one in answers:
        for file in one.files:
            file.check(commits.root)
        one.carried.check()


def _commit(
    journal: str, plan: _Plan, answers: Sequence[_Answer], tables: tuple[str, ...], values: bool
) -> Commit:
    return Commit(
        number=plan.number + 1,
        journal=journal,
        after=plan.after,
        upto=plan.upto,
        last_segment=max((piece.number for piece in plan.pieces), default=0),
        events=sum(one.events for one in answers),
        records=sum(one.records for one in answers),
        log_bytes=sum(one.log_bytes for one in answers),
        versions=dict(VERSIONS),
        files=tuple(sorted((f for one in answers for f in one.files), key=lambda f: f.path)),
        carried=tuple(f"{carried_folder(plan.number + 1)}/{one.carried.name}" for one in answers),
        values=values,
        missing_segments=plan.missing,
        tables=tables,
    )


def _report(
    commit: Commit | None, plan: _Plan, files: Sequence[DataFile], started: float
) -> ExportReport:
    fresh = commit if files else None
    rows = dict.fromkeys(TABLES, 0)
    for one in files:
        rows[one.table] += one.rows
    return ExportReport(
        commit=0 if commit is None else commit.number,
        upto=plan.after if commit is None else commit.upto,
        records=fresh.records if fresh else 0,
        rows=rows,
        files=len(files),
        log_bytes=fresh.log_bytes if fresh else 0,
        parquet_bytes=sum(one.bytes for one in files),
        seconds=perf_counter() - started,
        missing_segments=fresh.missing_segments if fresh else 0,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    files: list[DataFile]
    carried: Written
    events: int
    records: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class _Task:
    """Everything of one share of the rows."""

    directory: str
    root: str
    pieces: list[Piece]
    everything: list[Piece]
    share: Share
    after: int
    upto: int
    number: int
    carried: tuple[str, ...]
    tables: tuple[str, ...]
    values: bool

    def __call__(self) -> list[_Answer]:
        # A task that is tried again, or runs twice, has a directory and names of its own.
        attempt = attempt_word()
        staging = f"{STAGING}/{attempt}"
        root = Path(self.root)
        make_below(root / STAGING, root / staging)
        name = f"{self.number:09d}-{self.share.index:03d}-{attempt}"
        writers = {
            table: TableWriter(root, staging, table, schema_of(table, values=self.values), name)
            for table in self.tables
        }
        try:
            rows = Fold(self.share, self._before())
            events = records = size = 0
            for lives in rows.batches(
                part
                for piece in self.pieces
                for part in parts_of(piece, load(piece), self.share, self.after or None, self.upto)
            ):
                names = [one.decode("utf-8", "backslashreplace") for one in rows.queues]
                if "events" in writers:
                    found = events_of(lives, values=self.values)
                    writers["events"].add(found, lives.times(), lives.queues, names)
                if "attempts" in writers:
                    ends = attempts_of(rows, lives)
                    writers["attempts"].add(ends, lives.ended("ended"), lives.ended("queue"), names)
                events += len(lives.effects)
                records += sum(int((part.members <= 0).sum()) for part in lives.parts)
                size += sum(int(part.log_bytes().sum()) for part in lives.parts)
            if "jobs" in writers:
                self._jobs(writers["jobs"])
            carried = self._keep(rows.table(), name)
            files = [file for writer in writers.values() for file in writer.close()]
        except BaseException:
            for writer in writers.values():
                writer.abandon()
            raise
        return [_Answer(files, carried, events, records, size)]

    def _before(self) -> pa.Table | None:
        if self.carried:
            return _carried(self.root, self.carried)
        return rows_before(self.directory, self.everything, self.share)

    def _jobs(self, writer: TableWriter) -> None:
        import numpy as np
        import pyarrow as pa

        settings = Settings((self.directory,))
        if is_remote(self.directory):
            segments = [(piece, load(piece)) for piece in self.everything]
            state = fold(segments, share=self.share, upto=self.upto)
        else:
            own = [piece.number for piece in self.everything if piece.directory == self.directory]
            state = replay_share(
                self.directory,
                self.share,
                self.upto,
                settings,
                newest=max(own, default=0),
                lock=False,
            )
        schema = schema_of("jobs", values=self.values)
        for batch in job_batches(state.rows.values(), JOB_COLUMNS, self.directory, None):
            queues = batch.column("queue").dictionary_encode()
            names = [one or None for one in queues.dictionary.to_pylist()]
            rows = pa.Table.from_batches([batch.select(schema.names)]).cast(schema)
            nanos = np.asarray(batch.column("inserted_ns"))
            writer.add(rows, nanos, np.asarray(queues.indices).astype(np.int64), names)

    def _keep(self, rows: pa.Table, name: str) -> Written:
        import pyarrow.parquet as pq

        path = Path(self.root) / carried_folder(self.number) / f"{name}.parquet"
        with path.open("xb") as file:
            pq.write_table(rows, file, compression="zstd", compression_level=1)
            file.flush()
            os.fsync(file.fileno())
        return read_back(path)


def _carried(root: str, names: Sequence[str]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pa.concat_tables([pq.read_table(Path(root) / name, partitioning=None) for name in names])
