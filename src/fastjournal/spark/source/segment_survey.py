"""One row per segment: how many records, from when to when, and what is wrong with it.

Rules:

1. Damage is counted here, never raised: this view is for looking at a log in trouble.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from fastjournal.errors import SegmentError, VersionMismatch
from fastjournal.log.scan.scan import verify
from fastjournal.spark.options import Settings
from fastjournal.spark.schema import arrow_schema
from fastjournal.spark.storage.segments import Piece, load_unless_gone, tear_rule

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["segment_rows"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _moment(nanos: int | None) -> datetime | None:
    return None if nanos is None else _EPOCH + timedelta(microseconds=nanos // 1000)


def _survey(piece: Piece) -> dict[str, object]:
    row: dict[str, object] = {
        "directory": piece.directory,
        "segment": piece.number,
        "path": piece.path,
        "bytes": piece.size,
        "newest": piece.newest,
        "records": 0,
        "damaged": 0,
        "damaged_bytes": 0,
        "torn_bytes": 0,
    }
    try:
        data = load_unless_gone(piece)
    except (SegmentError, VersionMismatch):
        return row | {"damaged": 1, "damaged_bytes": piece.size}
    if not data:
        return row
    verdict = verify(data, torn=tear_rule(piece))
    return row | {
        "bytes": len(data),
        "records": verdict.records,
        "first_time": _moment(verdict.first_time),
        "last_time": _moment(verdict.last_time),
        "first_time_ns": verdict.first_time,
        "last_time_ns": verdict.last_time,
        "damaged": len(verdict.damage),
        "damaged_bytes": sum(damage.end - damage.offset for damage in verdict.damage),
        "torn_bytes": len(data) - verdict.end if verdict.torn else 0,
    }


def segment_rows(pieces: Sequence[Piece], settings: Settings) -> Iterator[pa.RecordBatch]:
    """The rows of view `segments` for these pieces."""
    import pyarrow as pa

    schema = arrow_schema("segments", settings.columns)
    found = [_survey(piece) for piece in pieces]
    columns = {name: [row.get(name) for row in found] for name in settings.columns}
    yield pa.RecordBatch.from_pydict(columns, schema=schema)
