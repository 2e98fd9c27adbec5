"""History flows to the lake: new records become Parquet, once, and Delta over the same files.

history          which segments there are: a journal, its archive, a copy on an object store
tables           columns and versions of the tables
parquet_files    rows into files, inside a task
commits          which files count, and up to which record
delta_log        the same files as Delta tables
exporter         all of it, again and again
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from

if TYPE_CHECKING:
    from fastjournal.spark.lake.exporter import (
        ExportReport,
        export,
        export_directory,
        files_of,
    )

__all__ = ["ExportReport", "export", "export_directory", "files_of"]

__getattr__ = names_from(__name__, dict.fromkeys(__all__, "exporter"))
