"""Where an export lies, and its Parquet files, on a disk or on any store. No Spark.

Rules:

1. Files are written by `pyarrow.dataset` inside the tasks, by day, under names that no other
   attempt uses. What a task wrote is known again by its size, and on a disk by its CRC-32C too.
2. On a disk a file is synced before its task tells of it, and a name before the next step.
3. On a disk the driver makes `_staging`: a task that does not see it has another disk before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from fastjournal.errors import NotFound, SegmentError
from fastjournal.log.files import DISK
from fastjournal.spark.lake.tables import MEASURED
from fastjournal.spark.locations import absolute, is_remote
from fastjournal.spark.replay.fold import Share
from fastjournal.spark.storage.written_files import read_back

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["HELD_BYTES", "STAGING", "DataFile", "Folder", "HeldRows"]

STAGING = "_staging"
HELD_BYTES = 128 << 20
"""Bytes of rows that are held for a file; then it is written."""
_GROUP_ROWS = 131_072
_MANY_DAYS = 100_000
_OPEN_FILES = 128
_KEPT_AS_WORDS = frozenset({"worker", "note", "state"})


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of an export, below its folder."""

    table: str
    path: str
    """Where it was written, with `/`."""
    rows: int
    bytes: int
    day: str | None = None
    crc: int | None = None
    """CRC-32C of all of it; None on an object store."""
    stats: dict[str, Any] = field(default_factory=dict)
    """Statistics as a Delta log has them."""
    share: tuple[int, int] | None = None
    """Of which share its rows are, and of how many; None: not known."""

    @property
    def place(self) -> str:
        """Where it counts: below the folder of its table."""
        head, _, rest = self.path.partition(f"/{self.table}/")
        return f"{self.table}/{rest}" if head.startswith(STAGING) else self.path

    def concerns(self, share: Share) -> bool:
        """Whether rows of a share may be in it."""
        index, count = self.share or (0, 0)
        return count != share.count or index == share.index


class Folder:
    """The place of an export."""

    def __init__(self, address: str | Path) -> None:
        self.remote = is_remote(address)
        self.address = str(address).rstrip("/") if self.remote else absolute(address)

    def __reduce__(self) -> tuple[Any, ...]:
        return Folder, (self.address,)

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        from pyarrow.fs import FileSystem, LocalFileSystem

        if not self.remote:
            return LocalFileSystem(), self.address
        try:
            found, path = FileSystem.from_uri(self.address)
        except (OSError, ValueError, NotImplementedError, ImportError) as error:
            raise NotFound(f"{self.address}: {error}") from error
        return found, path.rstrip("/")

    @property
    def files(self) -> Any:
        """The file system."""
        return self._opened[0]

    def at(self, name: str) -> str:
        """The path of a name in the file system."""
        return f"{self._opened[1]}/{name}"

    def make_ready(self) -> None:
        """Make, on the driver, what the tasks must see (rule 3)."""
        if not self.remote:
            Path(self.at(STAGING)).mkdir(parents=True, exist_ok=True)

    def look(self) -> None:
        """Raise NotFound on a node that does not see the folder."""
        if not self.remote and not Path(self.at(STAGING)).is_dir():
            raise NotFound(
                f"{self.at(STAGING)}: made by the driver, not to be seen on {gethostname()}; name a"
                " directory that all nodes share"
            )

    def write(
        self, rows: pa.Table | Sequence[pa.Table], below: str, table: str, name: str, *,
        by_day: bool = True,
    ) -> list[DataFile]:  # fmt: skip
        """Write rows to new files, by their column `day` or as they are."""
        import pyarrow as pa
        import pyarrow.dataset as ds

        rows = pa.concat_tables([rows] if isinstance(rows, pa.Table) else rows)
        if not rows.num_rows:
            return []
        made: list[tuple[str, Any]] = []
        kind = ds.ParquetFileFormat()
        words = [
            one.name
            for one in rows.schema
            if pa.types.is_dictionary(one.type) or one.name in _KEPT_AS_WORDS
        ]
        measured = [one for one in rows.column_names if by_day and one in MEASURED]
        day = ds.partitioning(pa.schema([("day", pa.date32())]), flavor="hive")
        ds.write_dataset(
            rows, self.at(below), filesystem=self.files, format=kind,
            partitioning=day if by_day else None, basename_template=f"{name}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore", use_threads=False,
            max_partitions=_MANY_DAYS, max_open_files=_OPEN_FILES, max_rows_per_group=_GROUP_ROWS,
            file_visitor=lambda one: made.append((one.path, one.metadata)),
            file_options=kind.make_write_options(
                compression="zstd", compression_level=1, use_dictionary=words,
                write_statistics=measured, store_schema=False,
            ),
        )  # fmt: skip
        return [self._describe(table, path, metadata) for path, metadata in made]

    def _describe(self, table: str, path: str, metadata: Any) -> DataFile:
        name = path.removeprefix(self._opened[1]).lstrip("/")
        day = next((unquote(one[4:]) for one in name.split("/") if one.startswith("day=")), None)
        rows, stats = metadata.num_rows, _statistics(metadata)
        if self.remote:
            return DataFile(
                table, name, rows, self.files.get_file_info(path).size, day, None, stats
            )
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
        made = read_back(path)
        return DataFile(table, name, rows, made.size, day, made.crc, stats)

    def check(self, one: DataFile) -> None:
        """Raise unless a file is what its task wrote."""
        if self.remote:
            found = self.files.get_file_info(self.at(one.path))
            size, crc = (found.size if found.is_file else None), None
        else:
            here = read_back(self.at(one.path))
            size, crc = here.size, here.crc
        if (size, crc) != (one.bytes, one.crc):
            raise SegmentError(self.at(one.path), "does not hold the bytes that its task wrote")

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return bool(self.files.get_file_info(self.at(name)).is_file)

    def move(self, names: Iterable[tuple[str, str]]) -> None:
        """Give files another name, for good."""
        folders: set[Path] = set()
        for old, new in names:
            target = self.at(new)
            if not self.remote:
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                folders.update(Path(target).parents)
            self.files.move(self.at(old), target)
        for folder in folders:
            if folder.is_relative_to(self.address):
                DISK.sync_directory(folder)

    def delete(self, names: Iterable[str]) -> None:
        """Remove files; one that is not there is no error."""
        for name in names:
            if self.has(name):
                self.files.delete_file(self.at(name))

    def delete_below(self, folder: str, keep: Iterable[str] = ()) -> None:
        """Remove a folder, or all in it but the folders of these names."""
        from pyarrow.fs import FileSelector

        kept = set(keep)
        if not kept:
            if self.files.get_file_info(self.at(folder)).type.name != "NotFound":
                self.files.delete_dir(self.at(folder))
            return
        for one in self.files.get_file_info(FileSelector(self.at(folder), allow_not_found=True)):
            if one.base_name not in kept:
                self.files.delete_dir(one.path)

    def read(self, names: Sequence[str]) -> pa.Table:
        """The rows of files, in order."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        return pa.concat_tables(
            [pq.read_table(self.at(one), filesystem=self.files, partitioning=None) for one in names]
        )


class HeldRows:
    """Rows of one table of one task, written whenever enough are together for a file."""

    def __init__(self, folder: Folder, below: str, table: str, name: str) -> None:
        self._folder, self._below, self._table, self._name = folder, below, table, name
        self._held: list[pa.Table] = []
        self._bytes = 0
        self._times = 0
        self._files: list[DataFile] = []

    def add(self, rows: pa.Table) -> None:
        """Take rows that have a column `day`."""
        self._held.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= HELD_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            name = f"{self._name}-{self._times:04d}"
            self._files += self._folder.write(self._held, self._below, self._table, name)
            self._held, self._bytes, self._times = [], 0, self._times + 1

    def close(self) -> list[DataFile]:
        """Write what is left; all files."""
        self._flush()
        return self._files


def _statistics(metadata: Any) -> dict[str, Any]:
    """Counts, smallest and largest values, over all row groups of a file."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    broken = set()
    for group in range(metadata.num_row_groups):
        for place in range(metadata.num_columns):
            column = metadata.row_group(group).column(place)
            found, name = column.statistics, column.path_in_schema
            if found is None or not found.has_null_count:
                continue
            nulls[name] = nulls.get(name, 0) + found.null_count
            if found.has_min_max:
                least[name] = min(least.get(name, found.min), found.min)
                most[name] = max(most.get(name, found.max), found.max)
            elif found.null_count < metadata.row_group(group).num_rows:
                broken.add(name)
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: _value(one) for name, one in least.items() if name not in broken},
        "maxValues": {name: _value(one) for name, one in most.items() if name not in broken},
        "nullCount": nulls,
    }


def _value(one: Any) -> Any:
    return one.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if hasattr(one, "strftime") else one
