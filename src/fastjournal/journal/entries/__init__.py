"""Decisions about key/value entries, on the same rows: values, counters and locks under keys.

    ground  what all of them share                     entries  all of them together
    writes  storing and deleting                       changes  adding, flipping, cutting
    reads   one entry, ranges, patterns, leases        cursor   where a scan goes on
    locks   who holds a key

An entry is a row without a queue.
"""
