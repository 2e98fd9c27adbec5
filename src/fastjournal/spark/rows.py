"""Rows of the state to Arrow batches of view `jobs`. No Spark.

Rules:

1. Values are those of `journal.rows.job_of`: what a caller of the journal sees is what SQL sees.
2. An instant of 0 means "not set" and becomes null; nothing else does.
3. `held` is not a column: whether a row waits behind its twin depends on another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastjournal.journal.rows import Row, job_of
from fastjournal.model import Job
from fastjournal.spark.columns import readable
from fastjournal.spark.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["job_batches"]

_ROWS = 20_000

_INSTANTS = ("due", "inserted", "modified", "expires", "lease_start", "lease_until")
_TEXTS = frozenset({"queue", "key", "worker", "note"})

_GET: Mapping[str, Callable[[Job], Any]] = {
    **{name: (lambda job, name=name: getattr(job, name)) for name in Job._fields},  # type: ignore[misc]
    **{f"{name}_ns": (lambda job, name=name: getattr(job, name)) for name in _INSTANTS},  # type: ignore[misc]
    **{f"{name}_bytes": (lambda job, name=name: getattr(job, name)) for name in _TEXTS},  # type: ignore[misc]
    "state": lambda job: job.state.name,
    "lease_ns": lambda job: job.lease,
    "ttl_ns": lambda job: job.ttl,
}


def _column(name: str, jobs: Sequence[Job], directory: str, kind: pa.DataType) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if name == "_directory":
        return pa.repeat(pa.scalar(directory), len(jobs))
    get = _GET[name]
    values = [get(job) for job in jobs]
    if name in _INSTANTS:
        nanos = np.array(values, dtype=np.int64)
        return pa.array(np.floor_divide(nanos, 1000), mask=nanos == 0).cast(kind)
    if name in _TEXTS:
        return readable(pa.array(values, pa.binary()))
    return pa.array(values, kind)


def job_batches(
    rows: Iterable[Row], names: Sequence[str], directory: str, queues: frozenset[str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows as batches of the columns `names`."""
    import pyarrow as pa

    schema = arrow_schema("jobs", names)

    def made(jobs: list[Job]) -> pa.RecordBatch:
        columns = [_column(name, jobs, directory, schema.field(name).type) for name in names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    jobs: list[Job] = []
    for row in rows:
        job = job_of(row)
        if queues is not None and job.queue.decode("utf-8", "backslashreplace") not in queues:
            continue
        jobs.append(job)
        if len(jobs) == _ROWS:
            yield made(jobs)
            jobs = []
    if jobs:
        yield made(jobs)
