"""Spark's Python worker factory with the heavy imports done: new workers start warm.

Named by `spark.python.daemon.module`; Spark runs it as a program and forks workers from it.
"""

from __future__ import annotations

import gc
from contextlib import suppress

__all__ = ["main"]


def main() -> None:
    """Load what every task of ours needs, then serve as Spark's own daemon does."""
    with suppress(ImportError):
        import fastjournal.log.scan.encode_columns
        import fastjournal.log.scan.scan
        import fastjournal.spark.source.data_source

        fastjournal.log.scan.scan.warm_up()
        fastjournal.log.scan.encode_columns.warm_up()
    from pyspark.daemon import manager

    # What is loaded stays: workers neither look for cycles in it nor make copies of its pages.
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
