"""The streaming source: a live journal as an endless table.

Rules:

1. An offset is `{"time": TIME of the last record read, "segment": the segment that held it}`. TIME
   alone says what was read, so rotation and cleaning move nothing; the segment is a hint that lets
   a loss be noticed.
2. Equal offsets give equal rows: a batch that is planned again reads the same records, unless
   cleaning has taken some of them.
3. `startingOffsets=latest` is decided once: the offsets carry where the query began (`from`), so a
   query that dies inside its first batch begins there again.
4. Without `failOnDataLoss=false` a batch fails when there is evidence (see `tail`) that records
   were cleaned away before they were read.
5. What is kept on the reader lives in Spark's planner only; tasks get their segments by partition.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fastjournal.errors import SegmentError, SettingError
from fastjournal.spark.decode.record_columns import record_batches
from fastjournal.spark.errors import told
from fastjournal.spark.options import Settings, instant, size_bytes
from fastjournal.spark.partitions import Span, checked
from fastjournal.spark.storage.segments import pack
from fastjournal.spark.stream.tail import Reached, Tail, loss, pieces_between

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["STREAM_OPTIONS", "JournalStreamReader", "StreamSettings", "split_options"]

STREAM_OPTIONS: Mapping[str, str] = {
    "startingOffsets": "where a new query begins: earliest (default), latest, an instant,"
    ' or {"time": ns}; a checkpoint goes before it',
    "maxRecordsPerTrigger": "at most so many records in one batch",
    "maxBytesPerTrigger": "at most so many bytes of records in one batch, for example 64m",
    "failOnDataLoss": "true (default): fail when records were cleaned away before they were read",
}
"""Options of `readStream` beside those of `read`."""

_FOREIGN_HERE = ("since", "until", "asOf", "fromSegment", "toSegment", "shards")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What to follow, and how; small and frozen."""

    settings: Settings
    starting: int | None = 0
    """The TIME behind which a new query begins; None: the newest record of that moment."""
    max_records: int | None = None
    max_bytes: int | None = None
    fail_on_loss: bool = True

    @property
    def directory(self) -> str:
        """The journal that is followed."""
        return self.settings.paths[0]

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> StreamSettings:
        """Settings from the options of a streaming load; raises SettingError naming the option."""
        rest, own = split_options(options)
        for name in rest:
            for foreign in _FOREIGN_HERE:
                if name.lower() == foreign.lower():
                    raise SettingError(
                        f"{foreign}: not for a stream; it begins at startingOffsets", name=foreign
                    )
        settings = Settings.parse(rest)
        if settings.view != "records":
            raise SettingError("view: a stream has the view records only", name="view")
        if len(settings.paths) != 1:
            raise SettingError(
                "path: a stream follows one journal; unite several streams", name="path"
            )
        if "://" in settings.paths[0]:
            raise SettingError(
                "path: a stream follows a journal in a directory, where it is written", name="path"
            )
        values: dict[str, Any] = {}
        if "startingOffsets" in own:
            values["starting"] = _starting(own["startingOffsets"])
        if "maxRecordsPerTrigger" in own:
            values["max_records"] = _positive(own["maxRecordsPerTrigger"], "maxRecordsPerTrigger")
        if "maxBytesPerTrigger" in own:
            size = size_bytes(own["maxBytesPerTrigger"], "maxBytesPerTrigger")
            values["max_bytes"] = _positive(str(size), "maxBytesPerTrigger")
        if "failOnDataLoss" in own:
            values["fail_on_loss"] = _boolean(own["failOnDataLoss"], "failOnDataLoss")
        return cls(settings, **values)


def split_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of `read`, and those of the stream under their own spelling."""
    known = {name.lower(): name for name in STREAM_OPTIONS}
    rest = {name: value for name, value in options.items() if name.lower() not in known}
    own = {known[name.lower()]: v for name, v in options.items() if name.lower() in known}
    return rest, own


def _starting(text: str) -> int | None:
    word = text.strip().lower()
    if word == "earliest":
        return 0
    if word == "latest":
        return None
    if word.startswith("{"):
        try:
            time = json.loads(text)["time"]
        except (ValueError, KeyError, TypeError):
            time = None
        if type(time) is not int or time < 0:
            raise SettingError(
                f'startingOffsets: not an offset: {text!r} (for example {{"time": 1}})',
                name="startingOffsets",
            )
        return time
    # An instant is the first one read, an offset the last one not read.
    return max(0, instant(text, "startingOffsets") - 1)


def _positive(text: str, name: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise SettingError(f"{name}: not a whole number above 0: {text!r}", name=name)
    return number


def _boolean(text: str, name: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise SettingError(f"{name}: true or false, not {text!r}", name=name)
    return word == "true"


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in Spark's planner, reads them in the tasks."""

    def __init__(self, schema: StructType, settings: StreamSettings) -> None:
        self.settings = settings
        self.reading = checked(schema, settings.settings)
        self._tail = Tail(settings.directory)
        self._initial: dict[str, int] | None = None
        self._target: Reached | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Where a new query begins; the same answer for as long as the query runs."""
        with told():
            if self._initial is None:
                self._initial = self._resolve()
            return self._initial

    def _resolve(self) -> dict[str, int]:
        starting = self.settings.starting
        if starting is not None:
            return {"time": starting, "segment": 0}
        newest = self._tail.newest() or Reached(0, 0)
        return {"time": newest.time, "segment": newest.segment, "from": newest.time}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of the options; both may be set, then both hold."""
        if self.settings.max_records is not None:
            return ReadMaxRows(self.settings.max_records)
        if self.settings.max_bytes is not None:
            return ReadMaxBytes(self.settings.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there at this moment."""
        with told():
            self._target = self._tail.newest() or Reached(0, 0)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """How far the next batch goes; `start` itself when there is nothing new."""
        with told():
            newest = self._tail.newest()
            if newest is not None and self._target is not None:
                newest = min(newest, self._target)
            self._check_seen(newest, start)
            if newest is None or newest.time <= start["time"]:
                return start
            reached = newest
            records, size = self._limits(limit)
            if records is not None or size is not None:
                reached = self._tail.reach(start["time"], newest, records=records, size=size)
            return _offset(reached, start)

    def _check_seen(self, newest: Reached | None, start: Mapping[str, int]) -> None:
        """The log does not end before what was read of it, unless it is not the log any more."""
        segment = start["segment"]
        if segment and (
            newest is None or (newest.segment < segment and self.settings.fail_on_loss)
        ):
            raise SegmentError(
                self._tail.directory,
                f"segment {segment} was read, and neither it nor a later one is there",
            )

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadAllAvailable):
            return None, None
        records, size = self.settings.max_records, self.settings.max_bytes
        if isinstance(limit, ReadMaxRows):
            records = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return records, size

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        """The end of the log, so that the progress shows how far behind the query is."""
        with told():
            newest = self._tail.newest()
            if newest is None:
                return None
            return {"time": newest.time, "segment": newest.segment}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The segments of one batch, packed into tasks."""
        with told():
            begun = end.get("from")
            if begun is not None and begun != start.get("from"):
                start = {"time": begun, "segment": 0}  # see rule 3
            directory = self._tail.directory
            if start["time"] >= end["time"]:
                return []
            lost = loss(directory, Reached(start["time"], start["segment"]))
            if lost is not None:
                if self.settings.fail_on_loss:
                    raise SegmentError(directory, f"{lost}; failOnDataLoss=false goes on without")
                _log.warning("%s", lost)
            pieces = pieces_between(directory, start["time"], end["time"])
            return [Span(one) for one in pack(pieces, self.settings.settings.max_partition_bytes)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The batches of one partition."""
        with told():
            if isinstance(partition, Span):
                yield from record_batches(partition.pieces, self.reading)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept for a batch, so nothing is to be freed."""


def _offset(reached: Reached, start: Mapping[str, int]) -> dict[str, int]:
    made = {"time": reached.time, "segment": reached.segment}
    if "from" in start:
        made["from"] = start["from"]
    return made
