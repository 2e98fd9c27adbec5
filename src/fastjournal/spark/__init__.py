"""The data pipeline: read, replay, audit and clean the log with Spark.

    from fastjournal.spark import JournalTable, local_session

    spark = local_session()
    jobs = JournalTable.for_path(spark, "./jobs")
    jobs.jobs(as_of="2026-01-31T12:00Z").groupBy("queue", "state").count().show()

Rules:

1. Names are resolved when first used: importing this package loads neither Spark nor Arrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastjournal.spark.clean import CleanReport
    from fastjournal.spark.failure import explain
    from fastjournal.spark.session import configure, ensure_java, local_session, register
    from fastjournal.spark.table import JournalTable, read

__all__ = [
    "CleanReport",
    "JournalTable",
    "configure",
    "ensure_java",
    "explain",
    "local_session",
    "read",
    "register",
]

_HOMES = {
    "CleanReport": "clean",
    "JournalTable": "table",
    "configure": "session",
    "ensure_java": "session",
    "explain": "failure",
    "local_session": "session",
    "read": "table",
    "register": "session",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
