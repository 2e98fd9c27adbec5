"""Rows of the state to Arrow batches of view `jobs`. No Spark.

Rules:

1. Values are those of `journal.rows.job_of`: what a caller of the journal sees is what SQL sees.
2. An instant of 0 means "not set" and becomes null; nothing else does.
3. `held` is not a column: whether a row waits behind its twin depends on another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from fastjournal.journal.state.row import Row, job_of
from fastjournal.model import Job
from fastjournal.spark.decode.record_columns import readable
from fastjournal.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["job_batches"]

_ROWS = 20_000
_INSTANTS = frozenset({"due", "inserted", "modified", "expires", "lease_start", "lease_until"})
_TEXTS = frozenset({"queue", "key", "worker", "note"})
_PLACES = {name.removesuffix("_bytes"): place for place, name in enumerate(Job._fields)}


def _column(
    name: str, fields: Sequence[Sequence[Any]], directory: str, kind: pa.DataType
) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if name == "_directory":
        return pa.repeat(pa.scalar(directory), len(fields[0]))
    values = fields[_PLACES[name.removesuffix("_ns").removesuffix("_bytes")]]
    if name in _INSTANTS:
        nanos = np.array(values, dtype=np.int64)
        return pa.array(np.floor_divide(nanos, 1000), mask=nanos == 0).cast(kind)
    if name in _TEXTS:
        return readable(pa.array(values, pa.binary()))
    if name == "state":
        return pa.array([state.name for state in values], kind)
    return pa.array(values, kind)


def job_batches(
    rows: Iterable[Row], names: Sequence[str], directory: str, queues: frozenset[str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows as batches of the columns `names`."""
    import pyarrow as pa

    schema = arrow_schema("jobs", names)
    if queues is not None:
        rows = (row for row in rows if row.queue.name.decode("utf-8", "backslashreplace") in queues)
    left = iter(rows)
    while some := list(map(job_of, islice(left, _ROWS))):
        # A job is a tuple: turning twenty thousand of them into columns costs next to nothing.
        fields: list[tuple[Any, ...]] = list(zip(*some, strict=True))
        columns = [_column(name, fields, directory, schema.field(name).type) for name in names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
