"""Views `events` and `attempts` as streams: what happened to each job, as it happens.

Rules:

1. What a command did follows from all commands before it. So a task walks the log from the
   beginning, and tells of its part of the jobs, share by share, what lies between the offsets of
   its batch.
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

from fastjournal.spark.errors import coded_errors
from fastjournal.spark.lifecycle.commands import parts_of
from fastjournal.spark.lifecycle.seed import rows_before
from fastjournal.spark.lifecycle.walk import Fold
from fastjournal.spark.locations import absolute, is_remote
from fastjournal.spark.options import Settings
from fastjournal.spark.partitions import Shard
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.replay.jobs import shares_of
from fastjournal.spark.replay.snapshots import log_of
from fastjournal.spark.schema import made_columns
from fastjournal.spark.source.life_rows import wanted_rows
from fastjournal.spark.storage.segments import load, share_count
from fastjournal.spark.storage.written_files import attempt_word
from fastjournal.spark.stream.reader import JournalStreamReader, Offset

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LifeStreamReader", "lives_between"]

_NAME = re.compile(r"(\d+)-(\d+)-\w+\.parquet")


@dataclass
class LifeSpan(InputPartition):
    """A part of the jobs of one journal, between two offsets."""

    shard: Shard
    after: int
    state: str


class LifeStreamReader(JournalStreamReader):
    """Follows the lives of jobs."""

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The shares of the jobs of each journal that has something new."""
        with coded_errors():
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
                        LifeSpan(
                            Shard(one.directory, n, count, last["time"], pieces[-1].number),
                            begin["time"],
                            self.settings.state,
                        )
                        for n in range(count)
                    ]
            return found

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of one share."""
        with coded_errors():
            if isinstance(partition, LifeSpan):
                yield from made_columns(self.reading, lambda own: lives_between(partition, own))

    def commit(self, end: Offset) -> None:
        """A batch was carried out: the states before its end are not needed any more."""
        if self.settings.state:
            for one, last in zip(self._followed, self._parted(end), strict=True):
                _States(self.settings.state, one.directory).forget(last["time"])


def lives_between(span: LifeSpan, settings: Settings) -> Iterator[pa.RecordBatch]:
    """What happened to the jobs of a task between two offsets, share by share, in batches."""
    shard, upto = span.shard, span.shard.upto
    assert upto is not None
    states = _States(span.state, shard.directory) if span.state else None
    kept = states.find(span.after) if states is not None and span.after else []
    after, parts = (span.after, max(len(kept) // shard.count, 1)) if kept else (None, 0)
    wanted = replace(settings, since=span.after + 1)
    for share, pieces in shares_of(shard, settings, after=after, parts=parts):
        if states is not None and kept:
            before = states.load(kept, share)
        else:
            before = rows_before(pieces, share)
        rows = Fold(share, before)
        found = (
            part
            for piece in log_of(pieces)
            for part in parts_of(piece, load(piece), share, after, upto)
        )
        for lives in rows.batches(found):
            yield from wanted_rows(rows, lives, shard.directory, wanted)
        if states is not None:
            states.keep(upto, share, rows.table())


class _States:
    """What is known of the jobs of one journal at some instants (rules 2 and 3)."""

    def __init__(self, location: str, journal: str) -> None:
        from pyarrow.fs import FileSystem, LocalFileSystem

        if is_remote(location):
            self._files, path = FileSystem.from_uri(location)
        else:
            self._files, path = LocalFileSystem(), absolute(location)
        self._path = f"{path.rstrip('/')}/{blake2b(journal.encode(), digest_size=8).hexdigest()}"

    def find(self, time: int) -> list[str]:
        """The jobs at an instant, a file a share in order; none: not all of them are there."""
        shares: dict[int, dict[int, str]] = {}
        for one in self._listed(str(time)):
            if name := _NAME.fullmatch(one.base_name):
                shares.setdefault(int(name[2]), {})[int(name[1])] = one.path
        for count, paths in shares.items():
            if len(paths) == count:
                return [paths[n] for n in range(count)]
        return []

    def load(self, kept: Sequence[str], share: Share) -> pa.Table:
        """The jobs of a share, and of others where those were cut in another way."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        wanted = kept[share.index :: share.count] if len(kept) % share.count == 0 else kept
        return pa.concat_tables([pq.read_table(path, filesystem=self._files) for path in wanted])

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
