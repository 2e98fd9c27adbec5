"""History flows to the lake: new records become rows of Delta or Parquet tables, once.

history     which segments there are: a journal, its archive, a copy on an object store
tables      columns and versions of the tables
files       rows into Parquet files, inside a task, on a disk or a store
step        what one export added     steps  all of them: which files count, up to which record
kept_rows   what is known of each row between two steps
delta       Delta tables, by the package `deltalake`
exporter    all of it, again and again
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from

if TYPE_CHECKING:
    from fastjournal.spark.lake.exporter import (
        ExportReport,
        export,
        files_of,
    )

__all__ = ["ExportReport", "export", "files_of"]

__getattr__ = names_from(__name__, dict.fromkeys(__all__, "exporter"))
