"""Retention on Spark: many cold segments of one or many journals, rewritten side by side.

Rules:

1. Same bytes as the local cleaner: what may go is said by `journal.retention`.
2. As long as tasks read and write, the log is pinned: readers come and go, no other cleaner does.
   The driver holds the readers' lock alone only to rename, and gives up if a segment has become
   another file in the moment between. The active segment and what stands by are never touched. So
   no segment goes meanwhile: one that a task does not see is an error.
3. Tasks only write `<segment>.<attempt>.rw` and sync it. When all are written the driver checks
   each (`written`), and that the tasks read the segments that lie here; then it renames, oldest
   first. A task or a driver that dies leaves work files and a journal that replays to the same
   state.
4. The driver holds nothing for each row: which rows live, and which ends must stay, lies in files
   that tasks write and map (`row_files`), in a folder that goes with the job.
5. The newest segment is synced before anything is renamed: what was judged by its records must be
   on the disk first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from fastjournal.clock import SYSTEM_CLOCK
from fastjournal.errors import SegmentError, Unavailable
from fastjournal.journal.disk.generations import Disposal
from fastjournal.journal.disk.snapshot import newest_snapshot
from fastjournal.log.care.cleaner import Cleaned, replace_segment, sealed_segments
from fastjournal.log.manifest import MANIFEST, ManifestFile, check_segments
from fastjournal.log.segment import REWRITE_SUFFIX, WORKQ
from fastjournal.log.stream import Stream
from fastjournal.spark.locations import absolute
from fastjournal.spark.maintain.live_rows import LiveRows, Read, Rowless, read_log, read_snapshot
from fastjournal.spark.maintain.retention_columns import (
    Bounds,
    Pins,
    Planner,
    Surveyed,
    content,
    decide_groups,
    kept_ranges,
    survey,
)
from fastjournal.spark.maintain.row_files import (
    MOST_ROWS,
    RowSet,
    Run,
    Shelf,
    fold_part,
    part_count,
)
from fastjournal.spark.replay.snapshots import mark_times
from fastjournal.spark.storage.segments import Piece, journal_segments, load, pack, while_pinned
from fastjournal.spark.storage.written_files import Written, attempt_word, write_file
from fastjournal.spark.tasks import Carrier, Task, carrier_of, single

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "CleanReport",
    "FileIdentity",
    "Rewritten",
    "clean",
    "clean_journal",
    "find_live_rows",
    "fold_rows",
    "identify",
    "in_order",
    "put_in_place",
    "sweep",
    "total_bytes",
    "write_work_file",
]

_PACK = 256 << 20


@dataclass(frozen=True, slots=True)
class CleanReport:
    """What a cleaning did to one journal."""

    directory: str
    live_rows: int
    bytes_before: int
    bytes_after: int
    """Both count all segments, those left alone too."""
    segments: tuple[Cleaned, ...]
    """Those that were changed."""

    @property
    def records_dropped(self) -> int:
        """How many records went."""
        return sum(one.records - one.kept for one in self.segments)


def clean(
    spark: SparkSession,
    paths: str | Path | Sequence[str | Path],
    *,
    now: int | None = None,
    lock_seconds: float = 60.0,
    dry_run: bool = False,
    work: str | Path | None = None,
) -> list[CleanReport]:
    """Drop what replay does not need from the sealed segments of journals.

    `now` in ns since 1970 decides which averages of expiry have passed. `dry_run` writes the work
    files' sizes into the report and changes nothing. `work`: a directory that all nodes see, for
    the files of the job (some 40 bytes for each row that the log tells of); that of the journal if
    none is named. Raises LockTimeout when a cleaner, or at the end a reader, holds a journal
    longer than `lock_seconds`, Unavailable when another cleaner came first; then nothing changed.
    """
    given = [absolute(one) for one in ([paths] if isinstance(paths, (str, Path)) else paths)]
    moment = SYSTEM_CLOCK.now() if now is None else now
    run, cores = carrier_of(spark)
    return [
        clean_journal(
            run,
            Stream(path, WORKQ),
            now=moment,
            lock_seconds=lock_seconds,
            dry_run=dry_run,
            cores=cores,
            work=work,
        )
        for path in given
    ]


def clean_journal(
    run: Carrier,
    stream: Stream,
    *,
    now: int,
    lock_seconds: float = 60.0,
    dry_run: bool = False,
    cores: int = 0,
    work: str | Path | None = None,
    most_rows: int = MOST_ROWS,
) -> CleanReport:
    """Clean one journal; `run` carries out tasks, `cores` at a time, each with `most_rows` rows."""
    directory, job = str(stream.path), attempt_word()

    def rewrite() -> tuple[CleanReport, dict[int, FileIdentity], list[Rewritten], Disposal]:
        check_segments(stream)
        covered = newest_snapshot(stream)
        numbers = [n for n in sealed_segments(stream) if covered is None or n >= covered.first]
        files = identify(stream, numbers)
        before = total_bytes(stream)
        if not numbers:
            return CleanReport(directory, 0, before, before, ()), {}, [], Disposal(stream, ())
        with Shelf.below(stream.path if work is None else work, most_rows) as shelf:
            rows = find_live_rows(run, directory, cores, shelf)
            pieces = [
                Piece(str(stream.segment_path(n)), n, size, newest=False)
                for n, (_, size, _) in files.items()
            ]
            word = "" if dry_run else job
            chosen, tasks = _rewriting(run, pieces, rows, cores, shelf, now, word)
            rewritten = in_order(chosen, run(tasks))
        cleaned = tuple(one.cleaned for one in rewritten)
        after = before - sum(one.bytes_before - one.bytes_after for one in cleaned)
        report = CleanReport(directory, len(rows.rows), before, after, cleaned)
        disposal = Disposal(stream, [lane.settings for lane in rows.queues.values()])
        return report, files, rewritten, disposal

    try:
        report, files, rewritten, disposal = while_pinned(directory, rewrite, lock_seconds)
        if files and not dry_run:
            put_in_place(stream, files, rewritten, disposal, lock_seconds)
        return report
    finally:
        sweep(stream, job)


FileIdentity: TypeAlias = tuple[int, int, int]
"""What changes when a segment is rewritten; zeros when it is gone."""


def identify(stream: Stream, numbers: Iterable[int]) -> dict[int, FileIdentity]:
    """Which files the segments are; the second number of each is its size."""
    return {number: _identity(stream, number) for number in numbers}


def _identity(stream: Stream, number: int) -> FileIdentity:
    try:
        found = stream.segment_path(number).stat()
    except FileNotFoundError:
        return (0, 0, 0)
    return found.st_ino, found.st_size, found.st_mtime_ns


def find_live_rows(run: Carrier, directory: str, cores: int, shelf: Shelf) -> LiveRows:
    """The rows that live, from the snapshot and the segments behind it."""
    marks = mark_times(directory)
    first, overlap = (0, 0) if marks is None or not marks.last else (marks.segment, marks.last)
    pieces = [piece for piece in journal_segments(directory) if piece.number >= first]
    tasks: list[Task] = [
        partial(single, read_log, some, shelf, overlap) for some in pack(pieces, _PACK, cores)
    ]
    if overlap:
        tasks.insert(0, partial(single, read_snapshot, directory, shelf))
    runs: list[Run] = []
    rowless = Rowless()
    found: list[Read] = run(tasks)
    for one in found:
        runs += one.runs
        rowless.follow(one.rowless)
    return LiveRows(fold_rows(run, runs, shelf, cores, overlap), rowless)


def fold_rows(
    run: Carrier, runs: Sequence[Run], shelf: Shelf, cores: int, overlap: int = 0
) -> RowSet:
    """The rows that are there at the end of all runs, which come in order."""
    if not runs:
        return RowSet([])
    parts = part_count(runs, shelf, cores)
    return RowSet(
        run([partial(single, fold_part, runs, n, parts, shelf, overlap) for n in range(parts)])
    )


def _rewriting(
    run: Carrier,
    pieces: Sequence[Piece],
    rows: LiveRows,
    cores: int,
    shelf: Shelf,
    now: int,
    job: str,
) -> tuple[list[Piece], list[Task]]:
    """The segments worth rewriting, and the tasks that do it; see `_rewrite`."""
    surveys: list[Surveyed] = run(
        [partial(single, survey, p, rows, shelf) for p in pack(pieces, _PACK, cores)]
    )
    planner = Planner(rows)
    marks = mark_times(pieces[0].directory)
    planner.snapshot_at = None if marks is None else marks.first
    for report in (report for one in surveys for report in one.reports):
        planner.note(report)
    bounds = {one.segment: one for one in planner.bounds((p.number for p in pieces), now)}
    pins = fold_rows(run, [one for found in surveys for one in found.pins], shelf, cores)
    undecided = [one for found in surveys for one in found.undecided]
    horizons = {one.segment: one.horizon for one in bounds.values()}
    late = (
        run([partial(single, decide_groups, undecided, pins, horizons, shelf)]) if undecided else []
    )
    held = Pins([pins, RowSet(late)])
    chosen = [piece for piece in pieces if piece.number in bounds]
    tasks: list[Task] = [
        partial(_rewrite, p, rows, [bounds[piece.number] for piece in p], held, job)
        for p in pack(chosen, _PACK, cores)
    ]
    return chosen, tasks


def total_bytes(stream: Stream) -> int:
    """Bytes of all segments."""
    return sum(stream.segment_path(number).stat().st_size for number in stream.segments())


class Rewritten(NamedTuple):
    """What a task made of one segment."""

    cleaned: Cleaned
    file: Written | None
    """The new content; None when nothing is left, or nothing was to be written."""


def in_order(pieces: Sequence[Piece], answers: Sequence[Rewritten | None]) -> list[Rewritten]:
    """The segments that tasks have rewritten, oldest first; raises if they read other files."""
    if len(answers) != len(pieces):
        raise SegmentError(
            pieces[0].directory, f"{len(pieces)} segments went out, {len(answers)} came back"
        )
    sizes = {piece.number: piece.size for piece in pieces}
    found = sorted((one for one in answers if one), key=lambda one: one.cleaned.segment)
    for number, bytes_before in ((o.cleaned.segment, o.cleaned.bytes_before) for o in found):
        if sizes.get(number) != bytes_before:
            raise SegmentError(
                pieces[0].directory,
                f"segment {number} has {sizes.get(number)} bytes, a task read {bytes_before}",
            )
    return found


def put_in_place(
    stream: Stream,
    files: dict[int, FileIdentity],
    rewritten: Sequence[Rewritten],
    disposal: Disposal,
    lock_seconds: float,
) -> None:
    """Check what the tasks wrote, then rename it, oldest first; see to what nothing is left of.

    Readers are locked out meanwhile. `files`: the segments as they were when tasks read them.
    """
    lock = stream.lock_readers(exclusive=True, timeout=lock_seconds)
    try:
        if identify(stream, files) != files:
            raise Unavailable(f"{stream.path}: another cleaner came first; nothing was changed")
        for _, file in rewritten:
            if file is not None:
                file.check()
        named = stream.files.exists(stream.path / MANIFEST)  # not so in an archive
        manifest = ManifestFile(stream) if named else None
        # Oldest first and one by one: an end must not be gone while its beginning is still there.
        for one, file in rewritten:
            work = None if file is None else Path(file.path)
            replace_segment(stream, manifest, one, work, disposal)
        if manifest is not None:
            manifest.settle()
        sweep(stream)
        Shelf.sweep(stream.path)
    finally:
        lock.release()


def sweep(stream: Stream, job: str = "") -> None:
    """Remove work files: those of a job, or all, if nobody else can be at work."""
    for path in stream.work_files(REWRITE_SUFFIX):
        if job in path.name:
            with suppress(OSError):
                stream.files.remove(path)


def _rewrite(
    pieces: list[Piece], rows: LiveRows, bounds: list[Bounds], pins: Pins, job: str
) -> Iterator[Rewritten | None]:
    """`job`: a word for the names of work files; empty: nothing is written."""
    for piece, bound in zip(pieces, bounds, strict=True):
        data = load(piece)
        kept = kept_ranges(piece.path, data, rows, bound, pins)
        if kept.records and kept.kept == kept.records:
            yield None
            continue
        text = content(data, kept.ranges)
        cleaned = Cleaned(
            piece.number, kept.records, kept.kept, len(data), len(text), kept.last, kept.dropped_to
        )
        yield Rewritten(cleaned, write_work_file(piece.path, text, job) if job else None)


def write_work_file(segment: str, text: bytes, job: str) -> Written | None:
    """Write and sync the new content of a segment beside it; nothing if there is none."""
    if not text:
        return None
    return write_file(Path(f"{segment}.{job}-{attempt_word()}{REWRITE_SUFFIX}"), [text])
