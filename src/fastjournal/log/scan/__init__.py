"""Whole segments at a time: records as columns, for recovery, verification and Spark.

    scan            walks over a segment and judges damage
    engines         which of the ways to walk is there: numba, numpy, plain Python
    columns         what a scan gives
    kernel          the walk, compiled by numba
    encode_columns  the other way: columns to records      encode_kernel  the same by numba

All engines give the same columns and name the same damage.
"""
