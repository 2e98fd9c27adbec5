"""Work spread over a session: one Spark task for each piece, no RDD, so Spark Connect works too.

Rules:

1. A task is a picklable callable without arguments; it may run more than once.
2. Errors of ours keep their code in their text.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fastjournal.errors import Unavailable
from fastjournal.spark.errors import coded_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Carrier",
    "Task",
    "carrier_of",
    "frame_of",
    "parallelism",
    "row_batches",
    "run_tasks",
    "schema_of",
    "single",
]

T = TypeVar("T")
Task: TypeAlias = Callable[[], Iterable[Any]]
Carrier: TypeAlias = Callable[[Sequence[Task]], list[Any]]
"""Carries out tasks somewhere; all their answers, in order."""
_ROWS = 10_000


def parallelism(spark: SparkSession) -> int:
    """How many tasks run at a time; 2 where that is not known.

    The larger of what is there and what `spark.default.parallelism` says: executors may come later.
    """
    try:
        here = int(spark.sparkContext.defaultParallelism)
    except (AttributeError, NotImplementedError):  # Spark Connect has no context
        here = 2
    try:
        return max(here, int(spark.conf.get("spark.default.parallelism", "0") or 0))
    except ValueError:
        return here


def carrier_of(spark: SparkSession | Carrier) -> tuple[Carrier, int]:
    """What carries tasks out, a session or a function, and how many at a time; 0: not known."""
    return (spark, 0) if callable(spark) else (partial(run_tasks, spark), parallelism(spark))


def run_tasks(spark: SparkSession, tasks: Sequence[Task]) -> list[Any]:
    """Each task in a Spark task of its own; all their answers, in order."""
    if not tasks:
        return []
    frame = _spread(spark, tasks, "n bigint, answer binary", _pickled)
    rows = sorted(frame.collect(), key=lambda row: row["n"])
    if [row["n"] for row in rows] != list(range(len(tasks))):
        raise Unavailable(f"{len(tasks)} tasks went out, {len(rows)} came back")
    # Our own tasks made these bytes a moment ago.
    return [one for row in rows for one in pickle.loads(bytes(row["answer"]))]  # noqa: S301


def frame_of(spark: SparkSession, tasks: Sequence[Task], columns: str) -> DataFrame:
    """The tuples that the tasks give, as rows of these columns."""
    return _spread(spark, tasks or [list], columns, _rows)


def single(work: Callable[..., T], *given: Any) -> list[T]:
    """What some work gives, as the one answer of a task."""
    return [work(*given)]


def _pickled(number: int, task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    answer = pickle.dumps(list(task()))
    yield pa.RecordBatch.from_pydict({"n": [number], "answer": [answer]}, schema)


def _rows(number: int, task: Task, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    yield from row_batches(task(), schema)


def row_batches(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Tuples as batches."""
    import pyarrow as pa

    found = iter(rows)
    while some := list(islice(found, _ROWS)):
        columns = zip(zip(*some, strict=True), schema, strict=True)
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, kind.type) for values, kind in columns], schema=schema
        )


def schema_of(columns: str) -> pa.Schema:
    """What Spark calls `name kind, name kind`, as Arrow has it."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "bigint": pa.int64(), "binary": pa.binary()}
    words = [part.split() for part in columns.split(",")]
    return pa.schema([pa.field(name, kinds[kind]) for name, kind in words])


def _spread(
    spark: SparkSession,
    tasks: Sequence[Task],
    columns: str,
    made: Callable[[int, Task, pa.Schema], Iterator[pa.RecordBatch]],
) -> DataFrame:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schema = schema_of(columns)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with coded_errors():
                    yield from made(number, tasks[number], schema)

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(work, columns)
