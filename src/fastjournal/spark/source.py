"""Data source `fastjournal`: the log as a table, its state as a table, its files as a table.

Rules:

1. Options are parsed once into frozen settings; a reader holds settings only, because Spark ships
   it with every task. What to read travels in the partitions.
2. No filter is pushed down by Spark's own interface, which in 4.3 lets the filters of one query
   leak into the next; options filter instead.
3. Tasks yield Arrow batches of exactly the expected schema.
4. An error keeps its stable code in its text: only text survives the way through the JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from fastjournal.errors import SettingError
from fastjournal.spark.failure import told
from fastjournal.spark.plan import Piece, load_unless_gone, pack, plan
from fastjournal.spark.schema import names_of, struct
from fastjournal.spark.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["FastJournalDataSource", "JournalReader", "Shard", "Span", "checked", "read_span"]


@dataclass
class Span(InputPartition):
    """Consecutive segments read by one task."""

    pieces: list[Piece]


@dataclass
class Shard(InputPartition):
    """One share of the rows of one journal, replayed by one task."""

    directory: str
    index: int
    count: int
    upto: int | None
    newest: int
    """The newest segment at the time of the plan; see rule 5 of `plan`."""


class FastJournalDataSource(DataSource):
    """Reads journals and puts jobs: `spark.read.format("fastjournal").load(directory)`."""

    @classmethod
    def name(cls) -> str:
        """The word for `format()`."""
        return "fastjournal"

    def schema(self) -> StructType:
        """The columns asked for, or the usual ones of the view."""
        with told():
            from fastjournal.spark.stream import split_options

            settings = Settings.parse(split_options(self.options)[0])
            return struct(settings.view, names_of(settings))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in `schema`, which may be the user's own choice."""
        with told():
            settings = Settings.parse(self.options)
            return JournalReader(schema, settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader that follows one journal."""
        from fastjournal.spark.stream import JournalStreamReader, StreamSettings

        with told():
            return JournalStreamReader(schema, StreamSettings.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer that makes jobs of rows."""
        from fastjournal.spark.sink import JournalWriter, SinkSettings

        with told():
            return JournalWriter(schema, SinkSettings.parse(self.options), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer that makes jobs of the rows of each batch, once."""
        from fastjournal.spark.sink import JournalStreamWriter, SinkSettings

        with told():
            return JournalStreamWriter(schema, SinkSettings.parse(self.options), overwrite)


class JournalReader(DataSourceReader):
    """Plans on the driver, reads in the tasks."""

    def __init__(self, schema: StructType, settings: Settings) -> None:
        self.settings = checked(schema, settings)

    def partitions(self) -> list[InputPartition]:
        """Packs of segments, or shards of rows."""
        with told():
            return _partitions(self.settings)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The batches of one partition; Spark hands a foreign one when there is nothing to read."""
        with told():
            if isinstance(partition, Span):
                yield from read_span(partition, self.settings)
            elif isinstance(partition, Shard):
                from fastjournal.spark.replay import shard_batches

                yield from shard_batches(partition, self.settings)
            elif self.settings.view == "spool":
                from fastjournal.spark.spooled import SpoolHour, spool_rows

                if isinstance(partition, SpoolHour):
                    yield from spool_rows(partition, self.settings)


def checked(schema: StructType, settings: Settings) -> Settings:
    """Settings that read the columns of `schema`; its types must be the view's own."""
    names = tuple(schema.fieldNames())
    settings = replace(settings, columns=names)
    for given, own in zip(schema.fields, struct(settings.view, names_of(settings)), strict=True):
        if given.dataType != own.dataType:
            raise SettingError(
                f"schema: {own.name} is {own.dataType.simpleString()},"
                f" not {given.dataType.simpleString()}",
                name="schema",
            )
    return settings


def _partitions(settings: Settings) -> list[InputPartition]:
    if settings.view == "jobs":
        from fastjournal.spark.replay import shards

        return list(shards(settings))
    if settings.view == "spool":
        from fastjournal.spark.spooled import spool_hours

        return list(spool_hours(settings))
    return [Span(pieces) for pieces in pack(plan(settings), settings.max_partition_bytes)]


def read_span(span: Span, settings: Settings) -> Iterator[pa.RecordBatch]:
    """The rows of the segments of one task."""
    from fastjournal.spark.columns import batches, coalesced
    from fastjournal.spark.surveys import segment_rows

    if settings.view == "segments":
        yield from segment_rows(span.pieces, settings)
        return
    yield from coalesced(
        batch
        for piece in span.pieces
        if (data := load_unless_gone(piece))
        for batch in batches(piece, data, settings.columns, settings)
    )
