"""Rows into Parquet files by day and queue, inside a task. No Spark.

Rules:

1. A file holds rows of one day and one queue. Rows are held until enough are together for a row
   group, over all partitions at most `HELD_BYTES`.
2. At most `OPEN_FILES` files are open at a time; the one used longest ago is closed, and its
   partition goes on in another file.
3. Files are written below a staging directory and synced; they count once a commit names them.
4. Names of queues are written in paths as percent signs and digits where they hold anything but
   letters, digits, `.`, `_` and `-`. A name too long for a file system is cut and ends in `~` and
   a digest.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastjournal.spark.storage.written_files import Written, read_back

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    Array = np.ndarray[Any, Any]

__all__ = ["NO_QUEUE", "DataFile", "TableWriter", "day_of", "partition_path"]

NO_QUEUE = "__HIVE_DEFAULT_PARTITION__"
HELD_BYTES = 64 << 20
OPEN_FILES = 128
_GROUP_ROWS = 131_072
_LONGEST_NAME, _CUT_NAME = 240, 200
_DAY = 86_400_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a table, as a commit names it."""

    table: str
    path: str
    """Below the directory of the export, with `/`."""
    rows: int
    bytes: int
    day: str
    queue: str | None
    staged: str = ""
    """Where it was written, below the directory of the export."""
    crc: int | None = None
    """CRC-32C of all of it; None in what 0.1.0 wrote."""

    def check(self, root: Path) -> None:
        """Raise unless the file lies where it was staged, and is what its task wrote."""
        if self.crc is not None:
            Written(str(root / self.staged), self.bytes, self.crc).check()


def day_of(day: int) -> str:
    """The name of a day counted from 1970."""
    return (_EPOCH + timedelta(days=day)).strftime("%Y-%m-%d")


def partition_path(table: str, day: str, queue: str | None) -> str:
    """The directory of a partition below that of the export."""
    name = NO_QUEUE if queue is None else quote(queue, safe="")
    if len(name) > _LONGEST_NAME:  # file systems end at 255 bytes
        name = f"{name[:_CUT_NAME].rpartition('%')[0] or name[:_CUT_NAME]}~{_digest(queue or '')}"
    return f"{table}/day={day}/queue={name}"


def _digest(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


@dataclass(slots=True)
class _Open:
    writer: pq.ParquetWriter
    path: Path
    rows: int = 0


@dataclass(slots=True)
class _Held:
    tables: list[pa.Table] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


class TableWriter:
    """Writes one table of one task."""

    def __init__(self, root: Path, staging: str, table: str, schema: pa.Schema, name: str) -> None:
        self._root = root
        self._staging = staging
        self._table = table
        self._schema = schema
        self._name = name
        self._open: OrderedDict[tuple[str, str | None], _Open] = OrderedDict()
        self._held: dict[tuple[str, str | None], _Held] = {}
        self._held_bytes = 0
        self._count = 0
        self.files: list[DataFile] = []

    def add(self, rows: pa.Table, nanos: Array, queues: Array, names: Sequence[str | None]) -> None:
        """Rows with their instants and the numbers of their queues in `names`, -1 for none."""
        import numpy as np
        import pyarrow as pa

        if not len(nanos):
            return
        days = np.floor_divide(nanos, _DAY)
        first = int(days.min())
        groups = (days - first) * (len(names) + 1) + queues + 1
        if (groups == groups[0]).all():
            self._hold(first, int(groups[0]), names, rows)
            return
        order = np.argsort(groups, kind="stable")
        ordered = groups[order]
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        rows = rows.take(pa.array(order))
        for start, stop in zip(starts, [*starts[1:], len(ordered)], strict=True):
            self._hold(first, int(ordered[start]), names, rows.slice(start, stop - start))

    def _hold(self, first: int, group: int, names: Sequence[str | None], rows: pa.Table) -> None:
        day, queue = divmod(group, len(names) + 1)
        where = day_of(first + day), names[queue - 1] if queue else None
        held = self._held.setdefault(where, _Held())
        held.tables.append(rows)
        held.rows += rows.num_rows
        size = rows.nbytes
        held.bytes += size
        self._held_bytes += size
        if held.rows >= _GROUP_ROWS:
            self._flush(where)
        while self._held_bytes > HELD_BYTES:
            self._flush(max(self._held, key=lambda one: self._held[one].bytes))

    def _flush(self, where: tuple[str, str | None]) -> None:
        import pyarrow as pa

        held = self._held.pop(where)
        self._held_bytes -= held.bytes
        one = self._file(where)
        one.writer.write_table(pa.concat_tables(held.tables), row_group_size=_GROUP_ROWS)
        one.rows += held.rows

    def _file(self, where: tuple[str, str | None]) -> _Open:
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = self._open.get(where)
        if found is not None:
            self._open.move_to_end(where)
            return found
        if len(self._open) >= OPEN_FILES:
            self._close(next(iter(self._open)))
        folder = self._root / self._staging / partition_path(self._table, *where)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._name}-{self._count:05d}.parquet"
        self._count += 1
        words = [one.name for one in self._schema if pa.types.is_dictionary(one.type)]
        writer = pq.ParquetWriter(
            path,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[*words, *(n for n in ("worker", "note", "state") if n in self._names)],
            write_statistics=[
                n for n in ("time", "time_ns", "ended", "ended_ns") if n in self._names
            ],
            store_schema=False,
        )
        self._open[where] = made = _Open(writer, path)
        return made

    @property
    def _names(self) -> list[str]:
        return list(self._schema.names)

    def _close(self, where: tuple[str, str | None]) -> None:
        one = self._open.pop(where)
        one.writer.close()
        number = os.open(one.path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
        made = read_back(one.path)
        final = f"{partition_path(self._table, *where)}/{one.path.name}"
        staged = one.path.relative_to(self._root).as_posix()
        self.files.append(
            DataFile(self._table, final, one.rows, made.size, *where, staged, made.crc)
        )

    def close(self) -> list[DataFile]:
        """Write what is held, sync and close; the files that were written."""
        for where in list(self._held):
            self._flush(where)
        for where in list(self._open):
            self._close(where)
        return self.files

    def abandon(self) -> None:
        """Close without a word; what was written stays in the staging directory."""
        for one in self._open.values():
            with suppress(Exception):
                one.writer.close()
