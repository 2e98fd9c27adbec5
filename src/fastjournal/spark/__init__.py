"""The data pipeline: replay, audit, clean, export, report and stream the log with Spark."""
