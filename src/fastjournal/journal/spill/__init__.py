"""A journal larger than memory: values left in the log and read back.

    records   the value in a record, and where those of a whole file stand
    fetching  the way back

What cannot be read is an error of that value alone.
"""
