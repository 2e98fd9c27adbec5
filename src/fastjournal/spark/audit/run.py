"""The audit of a journal on Spark: findings as rows.

Rules:

1. What is wrong is said by `spark.findings`, in tasks next to the bytes; here the tasks are spread,
   and the questions that need all rows at once are asked in SQL.
2. The second opinion folds Workq's own commands (types 1 to 8) inside the JVM, in code that shares
   nothing with `journal.state`; the two must agree on every row. It knows nothing but records: for
   a log that begins behind a snapshot, whose rows may have none left, it is not asked.
3. An audit reads only. Each task that looks at files sees the journal as of one moment, that in
   which it opens them. What needs the rows is dealt out by row, and the second opinion reads in
   many tasks: both happen at once, while the log is pinned.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.errors import JournalFault
from fastjournal.spark.audit.rules import (
    FINDING_COLUMNS,
    SeenLog,
    ShareLog,
    directory_findings,
    keyed_rows,
    segment_findings,
    share_findings,
    snapshot_findings,
)
from fastjournal.spark.errors import coded_errors
from fastjournal.spark.kinds import GROUP
from fastjournal.spark.locations import absolute, is_remote
from fastjournal.spark.replay.dealt import Deal, dealt, places_of
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.replay.snapshots import replay_base
from fastjournal.spark.storage.segments import (
    SHARE_BYTES,
    Piece,
    SegmentListing,
    journal_segments,
    load_all,
    newest_time,
    pack,
    share_count,
    while_pinned,
)
from fastjournal.spark.tasks import Task, frame_of, parallelism, row_batches, schema_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["audit", "exit_code", "second_opinion"]

_PACK = 256 << 20
_BEFORE = 8  # of which one holds a record

_FOLD = """
aggregate(
  array_sort(collect_list(struct(_segment, _offset, type, coalesce(max_attempts, 0) as most))),
  named_struct('state', cast(null as string), 'attempts', 0, 'timeouts', 0, 'fails', 0, 'most', 0),
  (row, c) -> case
    when c.type in (1, 2) then
      named_struct('state', 'WAITING', 'attempts', 0, 'timeouts', 0, 'fails', 0, 'most', c.most)
    when c.type in (5, 6) then
      named_struct('state', cast(null as string), 'attempts', 0, 'timeouts', 0, 'fails', 0,
                   'most', 0)
    when row.state is null or row.state in ('COMPLETED', 'FAILED') then row
    when c.type = 7 then
      named_struct('state', 'PROCESSING', 'attempts', row.attempts + 1, 'timeouts', row.timeouts,
                   'fails', row.fails, 'most', row.most)
    when c.type = 8 then
      named_struct('state', if(row.most > 0 and row.most <= row.attempts, 'FAILED', 'WAITING'),
                   'attempts', row.attempts, 'timeouts', row.timeouts + 1, 'fails', row.fails,
                   'most', row.most)
    when c.type = 3 then
      named_struct('state', 'COMPLETED', 'attempts', row.attempts, 'timeouts', row.timeouts,
                   'fails', row.fails, 'most', row.most)
    when c.type = 4 then
      named_struct('state', 'FAILED', 'attempts', row.attempts, 'timeouts', row.timeouts,
                   'fails', row.fails + 1, 'most', row.most)
    else row
  end)
"""


def audit(
    spark: SparkSession,
    path: str | Path,
    *,
    opinion: bool = True,
    shards: int = 0,
) -> DataFrame:
    """Everything that is wrong with a journal, as rows of `findings.Finding`.

    `opinion=False` leaves out the second opinion, which costs as much as the rest.
    """
    directory = absolute(path)
    with coded_errors():
        pieces = journal_segments(directory, whole=False)
        first = directory_findings(directory)
        cores = parallelism(spark)
        count = share_count(sum(piece.size for piece in pieces), cores, shards, most=SHARE_BYTES)
    newest = pieces[-1].number if pieces else 0
    tasks: list[Task] = [partial(list, first)]
    at = 0
    for some in pack(pieces, _PACK, cores):
        tasks.append(partial(segment_findings, some, pieces[max(at - _BEFORE, 0) : at]))
        at += len(some)
    deal = Deal(count, mode="DROPMALFORMED", tasks=shards or cores)
    found = frame_of(spark, tasks, FINDING_COLUMNS)
    looked_at = while_pinned(
        directory, lambda: _shares(spark, SeenLog.look(directory, newest), deal).localCheckpoint()
    )
    found = found.unionByName(looked_at.where("rule is not null").select(*found.columns))
    rows = looked_at.where("rule is null").selectExpr("queue", "key", "state", "row_id as id")
    found = found.unionByName(_one_waiting(rows, directory))
    if opinion and _replayable(directory) and not _begins_behind_snapshot(directory):
        found = found.unionByName(second_opinion(spark, directory))
    return found


def _replayable(directory: str) -> bool:
    """Whether every file can be opened; where not, the findings say so and a replay would stop."""
    try:
        segments = load_all(directory)
        replay_base(directory, [piece for piece, _ in segments], None)
    except JournalFault:
        return False
    return bool(segments)


def _begins_behind_snapshot(directory: str) -> bool:
    """Whether a snapshot stands for records that are gone (rule 2)."""
    manifest = None if is_remote(directory) else SegmentListing(directory).manifest()
    return manifest is not None and manifest.floor > 0


def exit_code(found: DataFrame) -> int:
    """0 when nothing is wrong, 1 for warnings only, 3 for errors: for use in CI.

    2 is for a command that could not be understood or carried out.
    """
    kinds = {row["severity"] for row in found.select("severity").distinct().collect()}
    return 3 if "error" in kinds else 1 if "warning" in kinds else 0


def _shares(spark: SparkSession, seen: SeenLog, deal: Deal) -> DataFrame:
    """The findings of all shares and, without a rule, the rows of which there may be one only."""
    columns = f"{FINDING_COLUMNS}, queue binary, key binary, state string"

    def look(share: Share, mine: list[Piece]) -> Iterator[pa.RecordBatch]:
        log = ShareLog(seen, share, mine)
        found = share_findings(log)
        named = [(one.segment, one.offset) for one in found if one.segment and one.offset]
        places = places_of(named, mine, seen.pieces)
        found = [
            one._replace(offset=places[one.segment, one.offset])
            if one.segment and one.offset
            else one
            for one in found
        ]
        found += snapshot_findings(log)
        yield from row_batches(((*one, None, None, None) for one in found), schema_of(columns))
        shown = ((*(None,) * 5, row_id, None, *row) for *row, row_id in keyed_rows(log))
        yield from row_batches(shown, schema_of(columns))

    return dealt(spark, seen.pieces, deal, look, columns)


def _one_waiting(rows: DataFrame, directory: str) -> DataFrame:
    """Promise: a key never has two waiting rows, nor two being worked on."""
    from pyspark.sql import functions as F  # noqa: N812

    twice = (
        rows.groupBy("queue", "key", "state")
        .agg(F.count("*").alias("n"), F.min("id").alias("row_id"))
        .where("n > 1")
    )
    text = F.concat(
        F.col("n").cast("string"),
        F.lit(" rows "),
        F.col("state"),
        F.lit(" for key "),
        F.decode("key", "UTF-8"),
        F.lit(" in queue "),
        F.decode("queue", "UTF-8"),
    )
    return twice.select(
        F.lit("error").alias("severity"),
        F.lit("one-waiting").alias("rule"),
        F.lit(directory).alias("directory"),
        F.lit(None).cast("bigint").alias("segment"),
        F.lit(None).cast("bigint").alias("offset"),
        "row_id",
        text.alias("text"),
    )


def second_opinion(spark: SparkSession, path: str | Path) -> DataFrame:
    """Rows on which an independent fold in SQL and the journal's own replay differ.

    Only rows whose every record is of types 1 to 8 and stands alone, not in a GROUP. The question
    is asked at once, while the log is pinned, and both sides answer as of one TIME.
    """
    directory = absolute(path)
    return while_pinned(directory, lambda: _opinion(spark, directory).localCheckpoint())


def _opinion(spark: SparkSession, path: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    pieces = journal_segments(path, whole=False)
    upto = (newest_time(pieces[-1]) if pieces else None) or 0
    reader = (
        spark.read.format("fastjournal")
        .option("mode", "DROPMALFORMED")
        .option("until", f"{upto + 1:09d}")
    )
    records = reader.option("columns", "id,type,max_attempts,_segment,_offset").load(path)
    groups = (
        reader.option("columns", "record").option("commands", str(GROUP)).load(path)
    ).mapInArrow(_group_ids, "id binary")
    foreign = records.where("type > 8 and id is not null").select("id").unionByName(groups)
    folded = (
        records.where("type between 1 and 8")
        .join(foreign.distinct(), "id", "left_anti")
        .groupBy("id")
        .agg(F.expr(_FOLD).alias("row"))
        .select("id", "row.state", "row.attempts", "row.timeouts", "row.fails")
    )
    mine = (
        spark.read.format("fastjournal")
        .option("view", "jobs")
        .option("mode", "DROPMALFORMED")
        .option("columns", "id,state,attempts,timeouts,fails")
        .option("asOf", f"{upto:09d}")
        .load(path)
        .join(foreign.distinct(), "id", "left_anti")
    )
    both = folded.where("state is not null").alias("theirs").join(mine.alias("mine"), "id", "full")
    differs = " or ".join(
        f"not (theirs.{name} <=> mine.{name})"
        for name in ("state", "attempts", "timeouts", "fails")
    )
    columns = [
        F.concat_ws(" ", *(F.coalesce(F.col(f"{side}.{n}").cast("string"), F.lit("none")) for n in
                           ("state", "attempts", "timeouts", "fails")))
        for side in ("mine", "theirs")
    ]  # fmt: skip
    return both.where(differs).select(
        F.lit("error").alias("severity"),
        F.lit("second-opinion").alias("rule"),
        F.lit(path).alias("directory"),
        F.lit(None).cast("bigint").alias("segment"),
        F.lit(None).cast("bigint").alias("offset"),
        F.col("id").alias("row_id"),
        F.concat(F.lit("replay: "), columns[0], F.lit("; SQL: "), columns[1]).alias("text"),
    )


def _group_ids(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from fastjournal.errors import CorruptCommand
    from fastjournal.journal.language.codec import row_ids

    for batch in batches:
        ids: list[bytes] = []
        for payload in batch.column(0).to_pylist():
            try:
                ids += row_ids(payload)
            except CorruptCommand:
                continue
        yield pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.binary())})
