"""What the executors run: a function of the user's on batches of jobs. Nothing here sees a journal.

Rules: those of `consume`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ANSWER", "MAX_REASON", "Work", "answered", "per_job", "working"]

ANSWER = "place bigint, result binary, error string"
MAX_REASON = 8192
"""Bytes of an error that are kept; its end tells most."""

Work: TypeAlias = Callable[["pa.RecordBatch"], Any]


def per_job(function: Callable[[bytes], bytes | None]) -> Work:
    """A function of one payload as a function of a batch; an exception fails its own job only."""

    def work(jobs: pa.RecordBatch) -> pa.Table:
        import pyarrow as pa

        results: list[bytes | None] = []
        errors: list[str | None] = []
        for value in jobs.column("payload").to_pylist():
            result, error = None, None
            try:
                result = function(value)
            except Exception:
                error = traceback.format_exc()[-MAX_REASON:]
            results.append(result)
            errors.append(error)
        return pa.table(
            {"result": pa.array(results, pa.binary()), "error": pa.array(errors, pa.string())}
        )

    return work


def working(fn: Work) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What the executors run."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield answered(fn, batch)

    return work


def answered(fn: Work, batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    count = batch.num_rows
    results: Any = pa.nulls(count, pa.binary())
    errors: Any = pa.nulls(count, pa.string())
    try:
        jobs = batch.select(["id", "queue", "key", "payload", "attempt"])
        answer = fn(jobs.append_column("value", jobs.column("payload")))  # its name of before
        if isinstance(answer, (pa.Table, pa.RecordBatch)):
            names = answer.schema.names
            if not {"result", "error"} & set(names):
                raise TypeError("the answer has neither a column 'result' nor 'error'")
            results = _column(answer, "result", pa.binary()) if "result" in names else results
            errors = _column(answer, "error", pa.string()) if "error" in names else errors
        elif answer is not None:
            results = pa.array(answer, pa.binary()) if not isinstance(answer, pa.Array) else answer
            results = results.cast(pa.binary())
        for one in (results, errors):
            if len(one) != count:
                raise ValueError(f"{len(one)} answers for {count} jobs")
    except Exception:
        results = pa.nulls(count, pa.binary())
        errors = pa.array([traceback.format_exc()[-MAX_REASON:]] * count, pa.string())
    return pa.RecordBatch.from_arrays(
        [batch.column("place"), results, errors], names=["place", "result", "error"]
    )


def _column(answer: Any, name: str, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    found = answer.column(name)
    if isinstance(found, pa.ChunkedArray):
        found = pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], found.type)
    return found.cast(kind)
