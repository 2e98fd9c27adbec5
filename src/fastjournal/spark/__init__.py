"""The data pipeline: read, replay, audit, clean, stream, export and report on the log with Spark.

    from fastjournal.spark import JournalTable, local_session

    spark = local_session()
    jobs = JournalTable.for_path(spark, "./jobs")
    jobs.jobs(as_of="2026-01-31T12:00Z").groupBy("queue", "state").count().show()

Rooms, each on those below it:

    table                               a journal as an object with tables
    report, consume, lake               figures; Spark as a consumer; Parquet and Delta
    source                              `spark.read.format("fastjournal")` and its views
    sink, lifecycle, audit, maintain    rows to jobs; the lives of rows; findings; retention
    replay                              the log to the state as of an instant
    decode, stream                      bytes to columns; a log that grows
    storage                             the only code that opens files
    options, schema, partitions         what was asked for, and what travels to a task

Rule: names are resolved when first used: importing this package loads neither Spark nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from
from fastjournal.package.moved_names import MovedModules

if TYPE_CHECKING:
    from fastjournal.spark.consume.bulk_edit import apply_frame
    from fastjournal.spark.consume.executor_side import per_job
    from fastjournal.spark.errors import explain
    from fastjournal.spark.maintain.clean import CleanReport
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

__getattr__ = names_from(
    __name__,
    {
        "CleanReport": "maintain.clean",
        "JournalTable": "table",
        "apply_frame": "consume.bulk_edit",
        "configure": "session",
        "ensure_java": "session",
        "explain": "errors",
        "local_session": "session",
        "per_job": "consume.executor_side",
        "read": "table",
        "register": "session",
    },
)
MovedModules(
    {
        f"{__name__}.{name}": [f"{__name__}.{place}"]
        for name, place in {
            "adopting": "sink.commit",
            "archive": "maintain.trim",
            "attempts": "lifecycle.walk",
            "attempts_fields_numba": "decode.field_kernel",
            "attempts_numba": "lifecycle.walk_kernel",
            "attempts_parts": "lifecycle.commands",
            "batches": "sink.batch",
            "clean": "maintain.clean",
            "columns": "decode.record_columns",
            "consume_frames": "consume.bulk_edit",
            "consume_work": "consume.executor_side",
            "daemon": "warm_workers",
            "export": "lake.exporter",
            "export_delta": "lake.delta",
            "export_files": "lake.files",
            "export_schema": "lake.tables",
            "export_seed": "lifecycle.seed",
            "export_storage": "lake.history",
            "failure": "errors",
            "fields": "decode.fields",
            "fields_numba": "decode.field_kernel",
            "findings": "audit.rules",
            "fold": "replay.fold",
            "fold_numba": "replay.fold_kernel",
            "glance": "sink.glance",
            "judge": "maintain.retention_columns",
            "live": "maintain.live_rows",
            "plan": "storage.segments",
            "report_figures": "report.figures",
            "report_page": "report.page",
            "report_svg": "report.svg",
            "report_tally": "report.tally",
            "rows": "replay.jobs",
            "settings": "options",
            "shuffle": "replay.jobs",
            "sift": "audit.prefilter",
            "sift_numba": "audit.prefilter_kernel",
            "snapshots": "replay.snapshots",
            "spooled": "source.spool_frames",
            "staging": "sink.encode",
            "stamping": "sink.stamp",
            "stores": "storage.object_store",
            "surveys": "source.segment_survey",
            "tail": "stream.tail",
            "written": "storage.written_files",
        }.items()
    }
).install()
