"""What `spark.read.format("fastjournal")` reads: a view is planned on the driver, read in tasks.

data_source      the entry for Spark: options to a reader, a stream or a writer
life_rows        views `events` and `attempts`: what happened to each job
segment_survey   view `segments`: one row for each file
spool_frames     view `spool`: the jobs in the spools of producers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastjournal.package.lazy_names import names_from

if TYPE_CHECKING:
    from fastjournal.spark.source.data_source import FastJournalDataSource, JournalReader

__all__ = ["FastJournalDataSource", "JournalReader"]

__getattr__ = names_from(__name__, dict.fromkeys(__all__, "data_source"))
