"""History flows to the lake: new records become rows of Delta or Parquet tables, once.

    from fastjournal.spark.lake.exporter import export

    export(spark, "./jobs", "./lake")       # again and again: each call adds what is new

Rules:

1. An export goes on where the last step ended, by TIME: cleaning and rotation in between change
   nothing, and no record is written twice.
2. Rows are shared out among tasks by their id, so each task knows the queue, the key and the state
   of the rows it writes about. What they are at the end of a step is kept for the next one.
3. Files are written inside the tasks; their names and sizes come back, and the driver looks at each
   before it makes a step of them.
4. Tasks may run twice, a driver may die anywhere: what counts is said by `steps`.
5. No cleaner comes in between planning and writing: a segment that a task does not see is an error,
   and the position stays where it was.
6. What was cleaned before it was exported is gone from `events` and `attempts`: export more often
   than the journal cleans, or keep an archive (`Journal(archive=...)`) and name it.
7. `jobs` follows from the rows that the new records touch. Only where records were cleaned away
   unread, or for the first time, the whole log is replayed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fastjournal.errors import SegmentError, SettingError
from fastjournal.journal.state.apply import JournalState
from fastjournal.journal.state.row import Row
from fastjournal.spark.lake.files import STAGING, DataFile, Folder, HeldRows
from fastjournal.spark.lake.history import History
from fastjournal.spark.lake.kept_rows import (
    among,
    carry_on,
    image_of,
    kept_table,
    load_kept,
    of_share,
    outweighed,
    touched_by,
)
from fastjournal.spark.lake.step import Step
from fastjournal.spark.lake.steps import ROWS, Steps
from fastjournal.spark.lake.tables import JOB_COLUMNS, TABLES, schema_of, with_day
from fastjournal.spark.lifecycle.commands import Part, parts_of
from fastjournal.spark.lifecycle.rows import attempts_of, events_of
from fastjournal.spark.lifecycle.seed import rows_before
from fastjournal.spark.lifecycle.walk import Fold, Lives
from fastjournal.spark.locations import is_remote, place
from fastjournal.spark.replay.dealt import Deal, run_shares
from fastjournal.spark.replay.fold import Share, no_collection
from fastjournal.spark.replay.jobs import job_batches, replay_share
from fastjournal.spark.replay.snapshots import lives_base, replay_base, whole_history
from fastjournal.spark.storage.segments import (
    SHARE_BYTES,
    Piece,
    SegmentListing,
    load,
    share_count,
    while_pinned,
)
from fastjournal.spark.storage.written_files import attempt_word
from fastjournal.spark.tasks import Carrier, carrier_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql import SparkSession

    Array = np.ndarray[Any, Any]

__all__ = ["ExportReport", "export", "files_of"]

_SHARE_ROWS = 1 << 18


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What an export did."""

    commit: int
    """Number of the step; of the last one if nothing was new."""
    upto: int
    """TIME of the last exported record."""
    records: int
    rows: dict[str, int]
    """Rows written to each table; of `jobs` in a Delta table, those that changed or went."""
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
    spark: SparkSession | Carrier,
    path: str | Path,
    out: str | Path | Steps,
    *,
    archive: str | Path | None = None,
    tables: Iterable[str] = TABLES,
    values: bool = True,
    until: int | None = None,
    shares: int = 0,
    delta: bool = False,
) -> ExportReport:
    """Write what is new in a journal to tables below `out`, by day; columns: see `tables`.

    Either may lie on an object store: `path` as an archive or a copy of sealed segments. `delta`
    makes Delta tables, which needs the package `deltalake`; else they are plain Parquet.
    `values=False` leaves out payloads and results. `until` (ns since 1970, exclusive) ends the
    export early. `shares`: tasks that share the jobs; each holds the rows of its share. `spark`: a
    session, or a function that carries tasks out.
    """
    started = perf_counter()
    chosen = _tables(tables)
    if delta:
        from fastjournal.spark.lake.delta import require_deltalake

        require_deltalake()
    journal = place(path)
    _, cores = carrier_of(spark)
    steps = out if isinstance(out, Steps) else Steps(out)
    with steps.lock(10.0):
        last = steps.finish()
        if last is not None:
            last.check_goes_on(chosen, values, delta)

        def write() -> tuple[_Plan, list[_Answer]]:
            history = History(journal, archive)
            plan = _Plan.of(history, last, until)
            if plan.upto <= plan.after:
                return plan, []
            size = sum(piece.size for piece in plan.pieces)
            count = shares or plan.share_count(size, cores)
            steps.folder.make_ready()
            task = _Task(history.path, steps.folder, plan, chosen, values, delta)
            # A whole replay asks for all of the log.
            pieces = _everything(history, plan.upto) if plan.cleaned else plan.pieces
            after = None if plan.cleaned else plan.after
            deal = Deal(count, after, plan.upto, tasks=shares or cores)
            answers = run_shares(spark, pieces, deal, task.write)
            if len(answers) != count:
                raise SegmentError(journal, f"{count} tasks went out, {len(answers)} came back")
            return plan, answers

        # No cleaner comes in between: what the driver plans, all tasks see.
        plan, answers = while_pinned(journal, write)
        step = last
        if answers:
            step = _step(journal, plan, answers, chosen, values, delta)
            for one in answers:
                for file in (*one.files, *one.kept):
                    steps.folder.check(file)
            steps.add(step)
            steps.finish()
        return _report(step, plan, bool(answers), started)


def files_of(out: str | Path, table: str) -> list[str]:
    """The files of a table, whole steps only."""
    return Steps(out).files_of(table)


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
    missing: int
    kept: tuple[tuple[DataFile, ...], ...]
    """What the last step kept of the rows; nothing for the first one."""
    old_jobs: tuple[DataFile, ...]
    cleaned: bool
    """Whether records behind `after` may have gone unread."""

    def share_count(self, size: int, cores: int) -> int:
        """Into how many shares it is cut: as before, so that each reads its own of what was kept.

        More where that would be more than twice as much as a task should hold.
        """
        files = [one for part in self.kept for one in part]
        before = max((one.share[1] for one in files if one.share), default=0)
        rows = -(-sum(one.rows for one in files) // _SHARE_ROWS)
        needed = max(share_count(size, cores, most=SHARE_BYTES), rows)
        return before if needed <= 2 * before else needed

    @property
    def whole(self) -> bool:
        """Whether this step keeps a whole picture of the rows."""
        return self.cleaned or outweighed(self.kept)

    @classmethod
    def of(cls, history: History, last: Step | None, until: int | None) -> _Plan:
        newest = history.last() or 0
        upto = newest if until is None else min(newest, until - 1)
        if last is None:
            return cls(1, 0, upto, history.behind(0), 0, (), (), cleaned=True)
        pieces = history.behind(last.upto)
        known = {piece.number for piece in pieces}
        missing = sum(
            number not in known for number in range(last.last_segment + 1, max(known, default=0))
        )
        return cls(
            last.number + 1, last.upto, upto, pieces, missing, last.kept, tuple(last.of("jobs")),
            cleaned=missing > 0 or _cleaned(history, pieces, last.upto),
        )  # fmt: skip


def _cleaned(history: History, pieces: Sequence[Piece], after: int) -> bool:
    """Whether the journal may have dropped records behind `after`; an archive drops none."""
    if is_remote(history.path) or all(p.directory != history.path or p.newest for p in pieces):
        return False
    manifest = SegmentListing(history.path).manifest()
    return manifest is None or manifest.dropped_to > after


def _everything(history: History, upto: int) -> list[Piece]:
    """All of the log, and the snapshot that tells what was before it, or by which less is replayed.

    Its bound is where rows that were before the log end: they have no other life.
    """
    pieces = history.pieces
    base = lives_base(history.path, pieces)
    if is_remote(history.path):
        whole_history(history.path, pieces)
    else:
        own = [piece for piece in pieces if piece.directory == history.path]
        serving = replay_base(history.path, own, upto)
        base = serving and replace(serving, upto=0 if base is None else base.upto)
    return pieces if base is None else [base, *pieces]


def _step(
    journal: str,
    plan: _Plan,
    answers: Sequence[_Answer],
    tables: tuple[str, ...],
    values: bool,
    delta: bool,
) -> Step:
    kept = tuple(file for one in answers for file in one.kept)
    return Step(
        number=plan.number,
        journal=journal,
        delta=delta,
        tables=tables,
        values=values,
        after=plan.after,
        upto=plan.upto,
        last_segment=max((piece.number for piece in plan.pieces), default=0),
        records=sum(one.records for one in answers),
        log_bytes=sum(one.log_bytes for one in answers),
        files=tuple(sorted((f for one in answers for f in one.files), key=lambda f: f.path)),
        kept=(kept,) if plan.whole else (*plan.kept, kept) if kept else plan.kept,
        missing_segments=plan.missing,
    )


def _report(step: Step | None, plan: _Plan, fresh: bool, started: float) -> ExportReport:
    made = step if fresh else None
    files = made.files if made else ()
    rows = dict.fromkeys(TABLES, 0)
    for one in files:
        rows[one.table] += one.rows
    return ExportReport(
        commit=0 if step is None else step.number,
        upto=plan.after if step is None else step.upto,
        records=made.records if made else 0,
        rows=rows,
        files=len(files),
        log_bytes=made.log_bytes if made else 0,
        parquet_bytes=sum(one.bytes for one in files),
        seconds=perf_counter() - started,
        missing_segments=made.missing_segments if made else 0,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    files: list[DataFile]
    kept: list[DataFile]
    records: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class _Task:
    """Everything of one share of the rows."""

    directory: str
    folder: Folder
    plan: _Plan
    tables: tuple[str, ...]
    values: bool
    delta: bool
    share: Share = Share()  # noqa: RUF009 - frozen
    pieces: Sequence[Piece] = ()
    """What there is of the log for this share."""

    def write(self, share: Share, pieces: list[Piece]) -> list[_Answer]:
        """Write everything of one share."""
        with no_collection():
            return replace(self, share=share, pieces=pieces)._write()

    def _write(self) -> list[_Answer]:
        self.folder.look()
        plan = self.plan
        # A task that is tried again, or runs twice, has names of its own.
        name = f"{plan.number:09d}-{self.share.index:03d}-{attempt_word()}"
        held = {
            table: HeldRows(self.folder, self._below(table, name), table, name)
            for table in self.tables
        }
        kept, mine, rest = self._kept()
        before = rows_before(self.pieces, self.share) if kept is None else mine
        rows = Fold(self.share, before)
        records = size = 0
        for lives in rows.batches(self._parts()):
            for table in held.keys() - {"jobs"}:
                held[table].add(self._life_rows(table, rows, lives))
            records += sum(int((part.members <= 0).sum()) for part in lives.parts)
            size += sum(int(part.log_bytes().sum()) for part in lives.parts)
        picture = rows.table()
        images: dict[bytes, bytes] = {}
        if "jobs" in held:
            changed, gone, images = self._changes(kept, mine)
            merged = self._write_jobs(held["jobs"], changed, gone, name)
        else:
            gone, merged = _without(mine, picture), []
        if plan.whole:
            known = images if plan.cleaned and "jobs" in held else None
            picture, gone = _joined(picture, rest, known), []
        found = self.folder.write(
            kept_table(picture, images, gone), f"{ROWS}/{plan.number:09d}", ROWS, name, by_day=False
        )
        files = [*(file for one in held.values() for file in one.close()), *merged]
        mine = (self.share.index, self.share.count)
        files, found = ([replace(one, share=mine) for one in some] for some in (files, found))
        return [_Answer(files, found, records, size)]

    def _below(self, table: str, attempt: str) -> str:
        """Where files are written: what no version of a Delta table names does not count."""
        return table if self.delta else f"{STAGING}/{attempt}/{table}"

    def _parts(self) -> Iterator[Part]:
        for piece in self._new():
            yield from parts_of(
                piece, load(piece), self.share, self.plan.after or None, self.plan.upto
            )

    def _new(self) -> list[Piece]:
        new = {piece.number for piece in self.plan.pieces}
        return [piece for piece in self.pieces if piece.number in new]

    def _kept(self) -> tuple[pa.Table | None, pa.Table | None, pa.Table | None]:
        """The rows as they stood: all that were loaded, those touched now, and the others."""
        import pyarrow.compute as pc

        if self.plan.number == 1:
            return None, None, None
        ids = touched_by(self._parts())
        kept = load_kept(self.folder, self.plan.kept, self.share, None if self.plan.whole else ids)
        touched = among(kept, ids)
        return kept, kept.filter(touched), kept.filter(pc.invert(touched))

    def _life_rows(self, table: str, rows: Fold, lives: Lives) -> pa.Table:
        import numpy as np
        import pyarrow as pa

        if table == "events":
            found, times, queues = events_of(lives, values=self.values), lives.times(), lives.queues
        else:
            found = attempts_of(rows, lives)
            times, queues = lives.ended("ended"), lives.ended("queue")
        names = [one.decode("utf-8", "backslashreplace") for one in rows.queues]
        words = pa.DictionaryArray.from_arrays(
            pa.array(queues.astype(np.int32), mask=queues < 0), pa.array(names, pa.string())
        )
        return with_day(found.append_column("queue", words), times)

    def _changes(
        self, kept: pa.Table | None, mine: pa.Table | None
    ) -> tuple[list[Row], list[bytes], dict[bytes, bytes]]:
        """Rows that changed, ids of those that went, and the image of every row that is known."""
        old = _images(kept)
        if self.plan.cleaned:
            state, seen = self._replayed(), old
        else:
            seen = _images(mine)
            state = carry_on(
                seen.values(), self._new(), self.share, self.plan.after, self.plan.upto
            )
        new = {row.id: image_of(row, self.values) for row in state.rows.values()}
        changed = [row for row in state.rows.values() if old.get(row.id) != new[row.id]]
        gone = [one for one in seen if one not in new]
        images = {**old, **new}
        for one in gone:
            del images[one]
        return changed, gone, images

    def _replayed(self) -> JournalState:
        """All rows of the share."""
        return replay_share(self.pieces, self.share, upto=self.plan.upto)

    def _write_jobs(
        self, held: HeldRows, changed: list[Row], gone: list[bytes], name: str
    ) -> list[DataFile]:
        """Write the table, or what is to be merged into it, which is given."""
        import pyarrow as pa
        import pyarrow.compute as pc

        first = self.plan.number == 1
        if self.delta and not first:
            tables = list(self._job_rows(changed))
            if not tables and not gone:
                return []
            went = pa.table({"id": pa.array(gone, pa.binary())})
            rows = pa.concat_tables([*tables, went], promote_options="default")
            gone_here = pa.array([n >= len(changed) for n in range(rows.num_rows)])
            return self.folder.write(
                rows.append_column("gone", gone_here), f"{STAGING}/{name}/jobs", "jobs", name,
                by_day=False,
            )  # fmt: skip
        other = pa.array([*(row.id for row in changed), *gone], pa.binary())
        for one in filter(lambda one: one.concerns(self.share), self.plan.old_jobs):
            rows = of_share(self.folder.read([one.place]), self.share)
            rows = rows.filter(pc.invert(among(rows, other)))
            held.add(with_day(rows, rows["inserted_ns"].to_numpy()))
        for rows in self._job_rows(changed):
            held.add(rows)
        return []

    def _job_rows(self, rows: Iterable[Row]) -> Iterator[pa.Table]:
        import pyarrow as pa
        import pyarrow.compute as pc

        names = [one for one in schema_of("jobs", values=self.values).names if one != "day"]
        for batch in job_batches(rows, JOB_COLUMNS, self.directory, None):
            found = pa.Table.from_batches([batch.select(names)])
            queue = found["queue"]
            named = pc.if_else(pc.equal(queue, ""), None, queue)
            found = found.set_column(found.schema.get_field_index("queue"), "queue", named)
            yield with_day(found, found["inserted_ns"].to_numpy())


def _images(rows: pa.Table | None) -> dict[bytes, bytes]:
    if rows is None:
        return {}
    return dict(zip(rows["id"].to_pylist(), rows["image"].to_pylist(), strict=True))


def _without(rows: pa.Table | None, others: pa.Table) -> list[bytes]:
    """The ids that the others do not have."""
    known = set(others["id"].to_pylist())
    return [] if rows is None else [one for one in rows["id"].to_pylist() if one not in known]


def _joined(rows: pa.Table, others: pa.Table | None, alive: dict[bytes, bytes] | None) -> pa.Table:
    """All rows; `alive`, where it is known, says which of them are there."""
    import pyarrow as pa

    if others is not None:
        rows = pa.concat_tables([rows, others.select(rows.column_names)])
    if alive is None:
        return rows
    return rows.filter(among(rows, pa.array(list(alive), pa.binary())))
