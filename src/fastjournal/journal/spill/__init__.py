"""A journal larger than memory: values left in the log and read back.

    cache     which large values are held, and which may go
    fetching  the way back

What cannot be read is an error of that value alone.
"""
