"""The tables of an export: their columns and their versions.

Rules:

1. `VERSIONS` changes when a column changes its meaning, its type or goes; new columns at the end do
   not count. A commit names the versions it was written with; an export refuses to go on with a
   table of another version.
2. `day` and `queue` stand in the path (`day=2026-01-31/queue=mail`), not in the files, as every
   engine expects; a row without a queue is in `queue=__HIVE_DEFAULT_PARTITION__`.
3. Times are UTC in microseconds; those with `_ns` are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from fastjournal.spark.lifecycle.rows import life_schema
from fastjournal.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["JOB_COLUMNS", "TABLES", "VERSIONS", "schema_of"]

VERSIONS: Mapping[str, int] = {"events": 1, "attempts": 1, "jobs": 1}
"""The version of each table's columns."""
TABLES = tuple(VERSIONS)

JOB_COLUMNS = (
    "id", "queue", "key", "state", "rank", "due", "inserted", "modified", "expires", "lease_start",
    "lease_until", "worker", "attempts", "timeouts", "fails", "max_attempts", "max_timeouts",
    "max_fails", "value", "result", "note", "inserted_ns", "due_ns",
)  # fmt: skip


@cache
def schema_of(table: str, *, values: bool = True) -> pa.Schema:
    """The columns in the files of a table."""
    if table == "jobs":
        names = [name for name in JOB_COLUMNS if name != "queue" and (values or name != "value")]
        return arrow_schema("jobs", names)
    return life_schema(table, values=values)
