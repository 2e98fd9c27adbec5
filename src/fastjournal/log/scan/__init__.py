"""Whole segments at a time: records as columns, for recovery, verification and Spark.

    scan            walks over a segment and judges damage
    engines         which of the ways to walk is there: numba, numpy, plain Python
    columns         what a scan gives
    resync          what stands where no record stands, and where records go on
    encode_columns  the other way: columns to records
    kernel          both ways, compiled by numba

All engines give the same columns and name the same damage.
"""
