"""By this package Spark finds the data source `fastjournal` by itself.

Spark imports every installed package named `pyspark_*` and takes its `DefaultSource`; so this file
stays light and the heavy imports wait until something is read.
"""

from __future__ import annotations

from fastjournal.spark.source.data_source import FastJournalDataSource as DefaultSource

__all__ = ["DefaultSource"]
