"""A write whose tasks fail at first, in a session that tries them again.

    python retrying_child.py MARKS JOURNAL

The first attempts of two of three tasks fail after they have staged some rows. What is left in the
journal's directory afterwards is printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fastjournal.spark.session import local_session

if TYPE_CHECKING:
    import pyarrow as pa


def main() -> None:
    marks, journal = sys.argv[1:3]

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        mark = Path(marks) / str(task.partitionId())
        yield from batches
        if task.partitionId() < 2 and not mark.exists():
            mark.touch()
            raise RuntimeError("this attempt fails")

    spark = local_session(
        "local[2,3]",
        **{"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.driver.memory": "1g"},
    )
    rows = spark.range(0, 3000, 1, 3).selectExpr(
        "encode(concat('job ', id), 'utf-8') as payload", "'q' as queue"
    )
    frame = rows.mapInArrow(failing, rows.schema)
    frame.write.format("fastjournal").mode("append").save(journal)
    spark.stop()
    print(*sorted(path.name for path in Path(journal).iterdir()))


if __name__ == "__main__":
    main()
