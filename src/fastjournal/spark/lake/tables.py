"""The tables of an export: their columns and their versions.

Rules:

1. `VERSIONS` changes when a column changes its meaning, its type or goes; new columns at the end do
   not count. A step names the versions it was written with; an export refuses to go on with a table
   of another version.
2. `day` stands in the path (`day=2026-01-31`), not in the files, as every engine expects. `queue`
   is a column like any other: thousands of queues make no small files.
3. Times are UTC in microseconds; those with `_ns` are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from fastjournal.spark.lifecycle.rows import life_schema
from fastjournal.spark.schema import arrow_schema

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Array = np.ndarray[Any, Any]

__all__ = ["JOB_COLUMNS", "MEASURED", "TABLES", "VERSIONS", "plain", "schema_of", "with_day"]

VERSIONS: Mapping[str, int] = {"events": 3, "attempts": 2, "jobs": 3}
"""The version of each table's columns."""
TABLES = tuple(VERSIONS)

JOB_COLUMNS = (
    "id", "queue", "key", "state", "priority", "due", "inserted", "modified", "expires",
    "lease_start", "lease_until", "worker", "attempts", "timeouts", "fails", "max_attempts",
    "max_timeouts", "max_fails", "payload", "result", "note", "inserted_ns", "due_ns",
)  # fmt: skip

MEASURED = (
    "time", "time_ns", "ended", "ended_ns", "inserted", "inserted_ns", "queue", "state", "effect",
    "outcome", "command",
)  # fmt: skip
"""Columns whose smallest and largest values are told, where a table has them."""

_DAY = 86_400_000_000_000


@cache
def schema_of(table: str, *, values: bool = True) -> pa.Schema:
    """The columns of a table, with its queue and its day."""
    import pyarrow as pa

    if table == "jobs":
        names = [name for name in JOB_COLUMNS if values or name not in ("payload", "result")]
        return arrow_schema("jobs", names).append(pa.field("day", pa.date32()))
    word = pa.dictionary(pa.int32(), pa.string())
    more = [pa.field("queue", word), pa.field("day", pa.date32())]
    return pa.schema([*life_schema(table, values=values), *more])


def plain(schema: pa.Schema) -> pa.Schema:
    """The same with words as text: how they are kept in memory is of no concern to a reader."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field(
                one.name, one.type.value_type if pa.types.is_dictionary(one.type) else one.type
            )
            for one in schema
        ]
    )


def with_day(rows: pa.Table, nanos: Array) -> pa.Table:
    """The rows and the day (UTC) of these instants."""
    import numpy as np
    import pyarrow as pa

    days = pa.array(np.floor_divide(nanos, _DAY).astype(np.int32)).cast(pa.date32())
    return rows.append_column("day", days)
