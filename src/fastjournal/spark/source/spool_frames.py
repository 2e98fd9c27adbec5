"""View `spool`: the jobs in the spools of producers, done or not, one row per frame.

Rules:

1. A task reads whole files; a file that was forwarded and removed meanwhile gives nothing, a spool
   that is not there is an error.
2. Damage is a row with a reason and no job, never an error: this view is for looking.
3. `id` is the place of a frame: the id of its job in the journal, unless its producer chose one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import InputPartition

from fastjournal.errors import NotFound
from fastjournal.spark.options import Settings
from fastjournal.spark.schema import arrow_schema
from fastjournal.spool.frames import HOUR, sender_name, spool_tag
from fastjournal.spool.reader import SpooledJob, read_spool
from fastjournal.spool.spool_dir import IDENTITY, hours

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SpoolHour", "spool_hours", "spool_rows"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ROWS = 10_000


@dataclass
class SpoolHour(InputPartition):
    """One file of one spool."""

    directory: str
    hour: int


def spool_hours(settings: Settings) -> Iterator[SpoolHour]:
    """The files to read; `since` and `until` leave out hours."""
    for directory in settings.paths:
        if not Path(directory, IDENTITY).is_file():
            raise NotFound(f"{directory} is no spool")
        for hour in hours(directory):
            if settings.until is not None and hour * HOUR >= settings.until:
                continue
            # A file may hold jobs put long after its hour, by a producer whose clock went back.
            yield SpoolHour(directory, hour)


def spool_rows(part: SpoolHour, settings: Settings) -> Iterator[pa.RecordBatch]:
    """The rows of one file."""
    import pyarrow as pa

    schema = arrow_schema("spool", settings.columns)
    try:
        identity = bytes.fromhex(Path(part.directory, IDENTITY).read_text("ascii"))
    except FileNotFoundError:
        raise NotFound(f"{part.directory} is no spool on {gethostname()}") from None
    sender = sender_name(spool_tag(identity), part.hour)
    rows: list[dict[str, Any]] = []

    def batch() -> pa.RecordBatch:
        columns = {name: [row.get(name) for row in rows] for name in settings.columns}
        rows.clear()
        return pa.RecordBatch.from_pydict(columns, schema=schema)

    for entry in read_spool(part.directory, lambda hour: hour == part.hour):
        if settings.since is not None and entry.put_at < settings.since:
            continue
        if settings.until is not None and entry.put_at >= settings.until:
            continue
        row = _row(part.directory, sender, entry)
        if settings.queues is not None and row.get("queue") not in settings.queues:
            continue
        rows.append(row)
        if len(rows) == _ROWS:
            yield batch()
    if rows:
        yield batch()


def _row(directory: str, sender: bytes, entry: SpooledJob) -> dict[str, Any]:
    end = entry.offset + entry.size
    row: dict[str, Any] = {
        "put": _moment(entry.put_at),
        "put_ns": entry.put_at,
        "state": entry.state,
        "file": entry.file,
        "offset": entry.offset,
        "size": entry.size,
        "reason": entry.reason or None,
        "_directory": directory,
    }
    job = entry.job
    if job is None:
        return row
    return row | {
        "id": job.id or sender + (end & 0xFFFFFFFF).to_bytes(4, "big"),
        "queue": _text(job.queue),
        "key": _text(job.key),
        "key_bytes": job.key,
        "mode": job.mode.name.lower(),
        "priority": job.priority,
        "due": _moment(job.due),
        "expires": _moment(job.expires),
        "payload": job.value,
    }


def _moment(ns: int) -> datetime | None:
    return _EPOCH + timedelta(microseconds=ns // 1000) if ns else None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
