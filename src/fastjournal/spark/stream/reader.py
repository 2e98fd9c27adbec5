"""The streaming source: a live journal as an endless table.

Rules:

1. An offset is `{"time": TIME of the last record read, "segment": the segment that held it}`. TIME
   alone says what was read, so rotation and cleaning move nothing; the segment is a hint that lets
   a loss be noticed. A stream of several journals has `{"journals": {path: offset}}`; a journal
   that joins later begins where a new query does.
2. Equal offsets give equal rows: a batch that is planned again reads the same records, unless
   cleaning has taken some of them.
3. `startingOffsets=latest` is decided once: the offsets carry where the query began (`from`), so a
   query that dies inside its first batch begins there again.
4. Without `failOnDataLoss=false` a batch fails when there is evidence (see `tail`) that records
   were cleaned away before they were read.
5. What is kept on the reader lives in Spark's planner only; tasks get their segments by partition.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from fastjournal.errors import BadRequest, SegmentError, SettingError
from fastjournal.spark.decode.record_columns import record_batches
from fastjournal.spark.errors import coded_errors, from_pyspark
from fastjournal.spark.locations import is_remote
from fastjournal.spark.options import Settings, instant, offset_time, size_bytes, timestamp
from fastjournal.spark.partitions import Span, checked
from fastjournal.spark.schema import made_columns
from fastjournal.spark.storage.segments import Piece, pack, split_large
from fastjournal.spark.stream.archive_tail import ArchiveTail
from fastjournal.spark.stream.tail import Reached, Tail

with from_pyspark("streams out of a journal"):
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["STREAM_OPTIONS", "JournalStreamReader", "StreamSettings", "split_options"]

STREAM_OPTIONS: Mapping[str, str] = {
    "startingTimestamp": "the instant at which a new query begins, instead of startingOffsets",
    "startingOffsets": "where a new query begins: earliest (default), latest, an instant,"
    ' or {"time": ns}; a checkpoint goes before it',
    "maxRecordsPerTrigger": "at most so many records of a journal in one batch",
    "maxBytesPerTrigger": "at most so many bytes of records of a journal in one batch, such as 64m",
    "stateLocation": "views events and attempts: directory, shared by all nodes, or URI, where what"
    " is known of the jobs is kept from batch to batch; without it each batch walks the whole log",
    "failOnDataLoss": "true (default): fail when records were cleaned away before they were read",
}
"""Options of `readStream` beside those of `read`."""

_FOREIGN_HERE = (
    "since",
    "until",
    "asOf",
    "fromSegment",
    "toSegment",
    "endingOffsets",
    "endingTimestamp",
)
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
    state: str = ""

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
        if settings.view not in ("records", "events", "attempts"):
            raise SettingError("view: a stream has records, events or attempts", name="view")
        values: dict[str, Any] = {"state": own.get("stateLocation", "")}
        if "startingTimestamp" in own:
            if "startingOffsets" in own:
                raise SettingError(
                    "startingTimestamp: either this or startingOffsets", name="startingTimestamp"
                )
            moment = timestamp(own["startingTimestamp"], "startingTimestamp")
            values["starting"] = max(moment - 1, 0)
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
        return offset_time(text, "startingOffsets")
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


Offset: TypeAlias = dict[str, Any]
"""Where a stream stands; see rule 1."""


class _Followed:
    """One journal of a stream: its offsets, and the segments between two of them."""

    def __init__(self, directory: str, settings: StreamSettings) -> None:
        self.directory = directory
        self._settings = settings
        self._tail = ArchiveTail(directory) if is_remote(directory) else Tail(directory)
        self._initial: Offset | None = None
        self._target: Reached | None = None

    def initial(self) -> Offset:
        """Where a new query begins; the same answer for as long as the query runs."""
        if self._initial is None:
            self._initial = self._resolve()
        return self._initial

    def _resolve(self) -> Offset:
        starting = self._settings.starting
        if starting is not None:
            return {"time": starting, "segment": 0}
        newest = self._tail.newest() or Reached(0, 0)
        return {"time": newest.time, "segment": newest.segment, "from": newest.time}

    def stop_here(self) -> None:
        """Read up to what is there at this moment."""
        self._target = self._tail.newest() or Reached(0, 0)

    def latest(self, start: Offset, records: int | None, size: int | None) -> Offset:
        """How far the next batch goes; `start` itself when there is nothing new."""
        newest = self._tail.newest()
        if newest is not None and self._target is not None:
            newest = min(newest, self._target)
        self._check_seen(newest, start)
        if newest is None or newest.time <= start["time"]:
            return start
        reached = newest
        if records is not None or size is not None:
            reached = self._tail.reach(start["time"], newest, records=records, size=size)
        return _offset(reached, start)

    def _check_seen(self, newest: Reached | None, start: Offset) -> None:
        """The log does not end before what was read of it, unless it is not the log any more."""
        segment = start["segment"]
        if segment and (
            newest is None or (newest.segment < segment and self._settings.fail_on_loss)
        ):
            raise SegmentError(
                self.directory,
                f"segment {segment} was read, and neither it nor a later one is there",
            )

    def end(self) -> Offset | None:
        """The end of the log; None while it is empty."""
        newest = self._tail.newest()
        return None if newest is None else {"time": newest.time, "segment": newest.segment}

    def pieces(self, start: Offset, end: Offset) -> list[Piece]:
        """The segments that hold what lies between two offsets."""
        begun = end.get("from")
        if begun is not None and begun != start.get("from"):
            start = {"time": begun, "segment": 0}  # see rule 3
        if start["time"] >= end["time"]:
            return []
        lost = self._tail.loss(Reached(start["time"], start["segment"]))
        if lost is not None:
            if self._settings.fail_on_loss:
                raise SegmentError(self.directory, f"{lost}; failOnDataLoss=false goes on without")
            _log.warning("%s", lost)
        return self._tail.pieces_between(start["time"], end["time"])


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches in Spark's planner, reads them in the tasks."""

    def __init__(self, schema: StructType, settings: StreamSettings) -> None:
        self.settings = settings
        self.reading = checked(schema, settings.settings)
        self._followed = [_Followed(path, settings) for path in settings.settings.paths]

    def initialOffset(self) -> Offset:  # noqa: N802
        """Where a new query begins; the same answer for as long as the query runs."""
        with coded_errors():
            return self._joined([one.initial() for one in self._followed])

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit of the options; both may be set, then both hold."""
        if self.settings.max_records is not None:
            return ReadMaxRows(self.settings.max_records)
        if self.settings.max_bytes is not None:
            return ReadMaxBytes(self.settings.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to what is there at this moment."""
        with coded_errors():
            for one in self._followed:
                one.stop_here()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """How far the next batch goes; `start` itself when there is nothing new."""
        with coded_errors():
            records, size = self._limits(limit)
            ends = [
                one.latest(begin, records, size)
                for one, begin in zip(self._followed, self._parted(start), strict=True)
            ]
            made = self._joined(ends)
            return start if made == start else made

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadAllAvailable):
            return None, None
        records, size = self.settings.max_records, self.settings.max_bytes
        if isinstance(limit, ReadMaxRows):
            records = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        return records, size

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        """The end of the log, so that the progress shows how far behind the query is."""
        with coded_errors():
            ends = [one.end() for one in self._followed]
            if all(end is None for end in ends):
                return None
            return self._joined([end or {"time": 0, "segment": 0} for end in ends])

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The segments of one batch, packed into tasks."""
        with coded_errors():
            offsets = zip(self._followed, self._parted(start), self._parted(end), strict=True)
            pieces = [piece for one, begin, last in offsets for piece in one.pieces(begin, last)]
            bounds = self.settings.settings
            most, least = bounds.max_partition_bytes, bounds.min_partitions
            packs = pack(split_large(pieces, most, least), most, bounds.cores, least)
            return [Span(one) for one in packs]

    def _joined(self, offsets: Sequence[Offset]) -> Offset:
        """One offset of those of all journals; that of a single one stands for itself."""
        if len(self._followed) == 1:
            return offsets[0]
        paths = [one.directory for one in self._followed]
        return {"journals": dict(zip(paths, offsets, strict=True))}

    def _parted(self, offset: Offset) -> list[Offset]:
        """The offset of each journal; one that has joined since begins where a new query does."""
        known = offset.get("journals")
        if known is None and len(self._followed) == 1:
            return [offset]
        if known is None:
            raise BadRequest(
                "this checkpoint is of a stream of one journal, and does not say of which;"
                " several need a checkpoint of their own"
            )
        return [known.get(one.directory) or one.initial() for one in self._followed]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The batches of one partition."""
        with coded_errors():
            if isinstance(partition, Span):
                yield from made_columns(
                    self.reading, lambda own: record_batches(partition.pieces, own)
                )

    def commit(self, end: Offset) -> None:
        """Nothing is kept for a batch, so nothing is to be freed."""


def _offset(reached: Reached, start: Offset) -> Offset:
    made: Offset = {"time": reached.time, "segment": reached.segment}
    if "from" in start:
        made["from"] = start["from"]
    return made
