"""Retention of copied history: whole segments kept aside, from which the old may go.

Rules:

1. An archive is no journal: nothing is replayed from it to serve anybody. Here records go by their
   age, and by queue, not because a newer one overrules them.
2. An archive that is shipped to is left to `archive prune`; copies that 0.1.0 made there may go. A
   directory in which a journal lives is refused: there only `clean` may drop records.
3. Records of a queue are those of every row that was ever put into it; a record that concerns no
   single row goes by age alone, and only when no queue is named.
4. Written as `clean` writes: tasks leave `.rw` files, the driver checks and renames them, oldest
   first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.errors import BadRequest
from fastjournal.journal.disk.generations import Disposal
from fastjournal.log.care.cleaner import Cleaned
from fastjournal.log.scan.scan import Buffer, Chunk, Scan, slices_to_binary
from fastjournal.log.segment import WORKQ
from fastjournal.log.stream import Stream
from fastjournal.log.synced_mark import SYNCED_MARK
from fastjournal.spark.decode.fields import Fields
from fastjournal.spark.decode.record_columns import readable
from fastjournal.spark.kinds import SINGLE, among
from fastjournal.spark.locations import absolute, is_archive
from fastjournal.spark.maintain.clean import (
    CleanReport,
    FileIdentity,
    Rewritten,
    fold_rows,
    identify,
    in_order,
    put_in_place,
    sweep,
    total_bytes,
    write_work_file,
)
from fastjournal.spark.maintain.retention_columns import byte_ranges, content, join_ranges
from fastjournal.spark.maintain.row_files import Facts, RowSet, Run, Shelf, facts_array
from fastjournal.spark.storage.segments import (
    Piece,
    journal_segments,
    load,
    pack,
    tear_rule,
    while_pinned,
)
from fastjournal.spark.storage.written_files import attempt_word
from fastjournal.spark.tasks import Carrier, carrier_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["trim_archive"]

_PACK = 256 << 20
_LOCK_SECONDS = 60.0


def trim_archive(
    spark: SparkSession | Carrier,
    path: str | Path,
    *,
    before: int,
    queues: Iterable[str] = (),
    dry_run: bool = False,
) -> CleanReport:
    """Drop from an archive the records with a TIME below `before`, of some queues or of all.

    `spark`: a session, or a function that carries tasks out.
    """
    run, cores = carrier_of(spark)
    path, chosen = absolute(path), frozenset(queues)
    stream = Stream(path, WORKQ)
    if is_archive(Path(path)) and not stream.segments():
        raise BadRequest(f"{path}: its history goes by age (fastjournal archive prune --keep-days)")
    for name in ("append.lock", SYNCED_MARK):
        if stream.files.exists(stream.path / name):
            raise BadRequest(f"{path}: a journal lives here ({name}); clean it instead")
    job = attempt_word()

    def rewrite() -> tuple[dict[int, FileIdentity], int, list[Rewritten]]:
        pieces = journal_segments(path)
        files = identify(stream, [piece.number for piece in pieces])
        packs = pack(pieces, _PACK, cores)
        with Shelf.below(stream.path) if chosen else nullcontext() as shelf:
            rows: RowSet | None = None
            if shelf is not None:
                runs: list[Run] = run([partial(_rows, some, chosen, shelf) for some in packs])
                rows = fold_rows(run, runs, shelf, cores)
            word = "" if dry_run else job
            found = run([partial(_trim, some, before, rows, word) for some in packs])
        return files, total_bytes(stream), in_order(pieces, found)

    try:
        files, size, rewritten = while_pinned(path, rewrite)
        if not dry_run:
            put_in_place(stream, files, rewritten, Disposal(stream, ()), _LOCK_SECONDS)
        cleaned = [one.cleaned for one in rewritten]
        after = size - sum(one.bytes_before - one.bytes_after for one in cleaned)
        return CleanReport(path, 0, size, after, tuple(cleaned))
    finally:
        sweep(stream, job)


def _chunks(piece: Piece, data: Buffer) -> Iterable[Chunk]:
    for part in Scan(data, path=piece.path, torn=tear_rule(piece)):
        assert isinstance(part, Chunk)
        yield part


def _rows(pieces: list[Piece], queues: frozenset[str], shelf: Shelf) -> list[Run]:
    """The ids of the rows that were put into some queues, in files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    from fastjournal.spark.maintain.fact_kernel import FOUND

    runs, facts = [], Facts()
    for piece in pieces:
        for chunk in _chunks(piece, load(piece)):
            names = readable(slices_to_binary(chunk.data, *Fields(chunk).slice_of("queue")))
            mask = pc.is_in(names, value_set=pa.array(sorted(queues)))
            ids = chunk.ids()[np.asarray(mask.fill_null(False))].view(np.uint64)
            times = np.zeros(len(ids), dtype=np.int64)
            facts.add(facts_array(ids[:, 0], ids[:, 1], times, times, FOUND))
            if facts.count >= shelf.most:
                runs.append(shelf.write(facts.rows()))
                facts.clear()
    return [*runs, shelf.write(facts.rows())]


def _trim(
    pieces: list[Piece], before: int, rows: RowSet | None, job: str
) -> Iterator[Rewritten | None]:
    """`job`: a word for the names of work files; empty: nothing is written."""
    for piece in pieces:
        yield _trimmed(piece, before, rows, job)


def _trimmed(piece: Piece, before: int, rows: RowSet | None, job: str) -> Rewritten | None:
    import numpy as np

    data = load(piece)
    records = kept = 0
    ranges = []
    for chunk in _chunks(piece, data):
        keep = chunk.times >= before
        if rows is not None:
            ids = chunk.ids().view(np.uint64)
            known, _, _ = rows.find(ids[:, 0].copy(), ids[:, 1].copy())
            keep |= ~known | ~among(SINGLE)[chunk.kinds]
        records += len(chunk)
        kept += int(keep.sum())
        ranges.append(byte_ranges(chunk, keep))
    if kept == records:
        return None
    text = content(data, join_ranges(ranges))
    cleaned = Cleaned(piece.number, records, kept, len(data), len(text))
    return Rewritten(cleaned, write_work_file(piece.path, text, job) if job else None)
