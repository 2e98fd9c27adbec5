"""The data pipeline: read, replay, audit, clean, stream, export and report on the log with Spark.

    from fastjournal.spark import JournalTable, local_session

    spark = local_session()
    jobs = JournalTable.for_path(spark, "./jobs")
    jobs.jobs(as_of="2026-01-31T12:00Z").groupBy("queue", "state").count().show()

Rules:

1. Names are resolved when first used: importing this package loads neither Spark nor Arrow.
2. `export`, `report` and `consume` are modules with a function of the same name each.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastjournal.spark.clean import CleanReport
    from fastjournal.spark.consume_frames import apply_frame
    from fastjournal.spark.consume_work import per_job
    from fastjournal.spark.failure import explain
    from fastjournal.spark.session import configure, ensure_java, local_session, register
    from fastjournal.spark.table import JournalTable, read

__all__ = [
    "CleanReport",
    "JournalTable",
    "apply_frame",
    "configure",
    "ensure_java",
    "explain",
    "local_session",
    "per_job",
    "read",
    "register",
]

_HOMES = {
    "CleanReport": "clean",
    "JournalTable": "table",
    "apply_frame": "consume_frames",
    "configure": "session",
    "ensure_java": "session",
    "explain": "failure",
    "local_session": "session",
    "per_job": "consume_work",
    "read": "table",
    "register": "session",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
