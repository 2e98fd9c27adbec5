"""The few lines by which Spark finds the data source "fastjournal" by itself.

Spark imports every installed top-level package whose name begins with `pyspark_` and
takes from it the class called `DefaultSource`.
"""
