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
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from fastjournal.spark.errors import coded_errors
from fastjournal.spark.options import Settings
from fastjournal.spark.partitions import Shard, Span, checked
from fastjournal.spark.schema import made_columns, names_of, struct
from fastjournal.spark.storage.segments import pack, plan, split_large

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["FastJournalDataSource", "JournalReader"]


class FastJournalDataSource(DataSource):
    """Reads journals and puts jobs: `spark.read.format("fastjournal").load(directory)`."""

    cores: ClassVar[int] = 0
    """Tasks that run at a time; 0: not known. See `known_to`."""

    @classmethod
    def known_to(cls, cores: int) -> type[FastJournalDataSource]:
        """The same source for a session with so many cores: the planner cannot ask for them."""

        class FastJournalDataSourceOfSession(cls):  # type: ignore[misc, valid-type]
            pass

        FastJournalDataSourceOfSession.cores = cores
        return FastJournalDataSourceOfSession

    @classmethod
    def name(cls) -> str:
        """The word for `format()`."""
        return "fastjournal"

    def schema(self) -> StructType:
        """The columns asked for, or the usual ones of the view."""
        with coded_errors():
            from fastjournal.spark.stream.reader import split_options

            settings = Settings.parse(split_options(self.options)[0])
            return struct(settings.view, names_of(settings))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in `schema`, which may be the user's own choice."""
        with coded_errors():
            settings = replace(Settings.parse(self.options), cores=self.cores)
            return JournalReader(schema, settings)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """A reader that follows journals."""
        from fastjournal.spark.stream.reader import JournalStreamReader, StreamSettings

        with coded_errors():
            stream = StreamSettings.parse(self.options)
            known = replace(stream, settings=replace(stream.settings, cores=self.cores))
            if known.settings.view != "records":
                from fastjournal.spark.source.life_stream import LifeStreamReader

                return LifeStreamReader(schema, known)
            return JournalStreamReader(schema, known)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer that makes jobs of rows."""
        from fastjournal.spark.sink.writer import JournalWriter, SinkSettings

        with coded_errors():
            return JournalWriter(schema, SinkSettings.parse(self.options), overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """A writer that makes jobs of the rows of each batch, once."""
        from fastjournal.spark.sink.writer import JournalStreamWriter, SinkSettings

        with coded_errors():
            return JournalStreamWriter(schema, SinkSettings.parse(self.options), overwrite)


class JournalReader(DataSourceReader):
    """Plans on the driver, reads in the tasks."""

    def __init__(self, schema: StructType, settings: Settings) -> None:
        self.settings = checked(schema, settings)

    def partitions(self) -> list[InputPartition]:
        """Packs of segments, or shards of rows."""
        with coded_errors():
            return _partitions(self.settings)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The batches of one partition; Spark hands a foreign one when there is nothing to read."""
        with coded_errors():
            yield from made_columns(self.settings, lambda own: _read(partition, own))


def _read(partition: Any, settings: Settings) -> Iterator[pa.RecordBatch]:
    if isinstance(partition, Span):
        yield from _read_span(partition, settings)
    elif isinstance(partition, Shard) and settings.view == "jobs":
        from fastjournal.spark.replay.jobs import shard_batches

        yield from shard_batches(partition, settings)
    elif isinstance(partition, Shard):
        from fastjournal.spark.source.life_rows import life_batches

        yield from life_batches(partition, settings)
    elif settings.view == "spool":
        from fastjournal.spark.source.spool_frames import SpoolHour, spool_rows

        if isinstance(partition, SpoolHour):
            yield from spool_rows(partition, settings)


def _partitions(settings: Settings) -> list[InputPartition]:
    if settings.view in ("jobs", "events", "attempts"):
        from fastjournal.spark.replay.jobs import shards

        return list(shards(settings))
    if settings.view == "spool":
        from fastjournal.spark.source.spool_frames import spool_hours

        return list(spool_hours(settings))
    most, least = settings.max_partition_bytes, settings.min_partitions
    pieces = plan(settings)
    if settings.view == "records":
        pieces = split_large(pieces, most, least)
    return [Span(some) for some in pack(pieces, most, settings.cores, least)]


def _read_span(span: Span, settings: Settings) -> Iterator[pa.RecordBatch]:
    if settings.view == "segments":
        from fastjournal.spark.source.segment_survey import segment_rows

        return segment_rows(span.pieces, settings)
    from fastjournal.spark.decode.record_columns import record_batches

    return record_batches(span.pieces, settings)
