"""Views `events` and `attempts` as streams: what happened to each job, as it happens.

Rules:

1. What a command did follows from all commands before it. So a task walks the log of its share of
   the jobs from the beginning, and tells what lies between the offsets of its batch.
2. With `stateLocation` it begins where the batch before ended: what each task knows of its jobs at
   the end of a batch is kept there, under the journal and the TIME. Whatever is missing there is
   found by rule 1: it saves work, and nothing depends on it.
3. A state counts when all shares of it are there; which attempt wrote it does not matter, for equal
   offsets give equal rows. States before the last batch that was carried out are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from fastjournal.log.scan.scan import Buffer
from fastjournal.spark.errors import told
from fastjournal.spark.lifecycle.commands import parts_of
from fastjournal.spark.lifecycle.seed import rows_before
from fastjournal.spark.lifecycle.walk import Fold
from fastjournal.spark.locations import absolute, is_remote
from fastjournal.spark.options import Settings
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.schema import made_columns
from fastjournal.spark.source.life_rows import told_rows
from fastjournal.spark.storage.segments import (
    Piece,
    at_one_moment,
    journal_segments,
    load,
    share_count,
)
from fastjournal.spark.storage.written_files import attempt_word
from fastjournal.spark.stream.reader import JournalStreamReader, Offset
from fastjournal.spark.stream.tail import pieces_between

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LifeStreamReader", "lives_between"]

_NAME = re.compile(r"(\d+)-(\d+)-\w+\.parquet")


@dataclass
class LifeSpan(InputPartition):
    """One share of the jobs of one journal, between two offsets."""

    directory: str
    index: int
    count: int
    after: int
    upto: int
    newest: int
    """The newest segment at the time of the plan."""
    state: str


class LifeStreamReader(JournalStreamReader):
    """Follows the lives of jobs."""

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The shares of the jobs of each journal that has something new."""
        with told():
            found: list[InputPartition] = []
            for one, begin, last in zip(
                self._followed, self._parted(start), self._parted(end), strict=True
            ):
                pieces = one.pieces(begin, last)
                if pieces and last["time"] > begin["time"]:
                    # Every share of a log on a store would fetch all of it.
                    many = 1 if is_remote(one.directory) else self.reading.cores
                    size = sum(piece.size for piece in pieces)
                    count = share_count(size, many, self.reading.shards)
                    found += [
                        LifeSpan(one.directory, n, count, begin["time"], last["time"],
                                 pieces[-1].number, self.settings.state)
                        for n in range(count)
                    ]  # fmt: skip
            return found

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one share."""
        with told():
            if isinstance(partition, LifeSpan):
                yield from made_columns(self.reading, lambda own: lives_between(partition, own))

    def commit(self, end: Offset) -> None:
        """A batch was carried out: the states before its end are not needed any more."""
        if self.settings.state:
            for one, last in zip(self._followed, self._parted(end), strict=True):
                _States(self.settings.state, one.directory).forget(last["time"])


def lives_between(span: LifeSpan, settings: Settings) -> Iterator[pa.RecordBatch]:
    """What happened to the jobs of a share between two offsets, in batches."""
    share = Share(span.index, span.count)
    states = _States(span.state, span.directory) if span.state else None

    def opened() -> tuple[list[tuple[Piece, Buffer]], pa.Table | None, int | None]:
        pieces = journal_segments(span.directory, least=span.newest, whole=settings.whole)
        before = states.load(span.after) if states is not None and span.after else None
        if before is not None:
            rest = pieces_between(pieces, span.after, span.upto)
            return [(piece, load(piece)) for piece in rest], before, span.after
        before = rows_before(span.directory, pieces, share)
        return [(piece, load(piece)) for piece in pieces], before, None

    segments, before, after = at_one_moment(span.directory, opened)
    rows = Fold(share, before)
    parts = (
        part for piece, data in segments for part in parts_of(piece, data, share, after, span.upto)
    )
    wanted = replace(settings, since=span.after + 1)
    for lives in rows.batches(parts):
        yield from told_rows(rows, lives, span.directory, wanted)
    if states is not None:
        states.keep(span.upto, share, rows.table())


class _States:
    """What is known of the jobs of one journal at some instants (rules 2 and 3)."""

    def __init__(self, location: str, journal: str) -> None:
        from pyarrow.fs import FileSystem, LocalFileSystem

        if is_remote(location):
            self._files, path = FileSystem.from_uri(location)
        else:
            self._files, path = LocalFileSystem(), absolute(location)
        self._path = f"{path.rstrip('/')}/{blake2b(journal.encode(), digest_size=8).hexdigest()}"

    def load(self, time: int) -> pa.Table | None:
        """The jobs at an instant; None: not all of them are there."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        shares: dict[int, dict[int, str]] = {}
        for one in self._listed(str(time)):
            if name := _NAME.fullmatch(one.base_name):
                shares.setdefault(int(name[2]), {})[int(name[1])] = one.path
        for count, paths in shares.items():
            if len(paths) == count:
                read = [pq.read_table(path, filesystem=self._files) for path in paths.values()]
                return pa.concat_tables(read)
        return None

    def keep(self, time: int, share: Share, rows: pa.Table) -> None:
        """The jobs of a share at an instant."""
        import pyarrow.parquet as pq

        folder = f"{self._path}/{time}"
        self._files.create_dir(folder, recursive=True)
        path = f"{folder}/{share.index}-{share.count}-{attempt_word()}.parquet"
        pq.write_table(rows, f"{path}.new", filesystem=self._files, compression="zstd")
        self._files.move(f"{path}.new", path)

    def forget(self, time: int) -> None:
        """Remove what is older."""
        for one in self._listed(""):
            if one.base_name.isdecimal() and int(one.base_name) < time:
                self._files.delete_dir(one.path)

    def _listed(self, folder: str) -> list[Any]:
        from pyarrow.fs import FileSelector

        place = f"{self._path}/{folder}".rstrip("/")
        return list(self._files.get_file_info(FileSelector(place, allow_not_found=True)))
