"""Decisions about key/value entries, on the same rows: values, counters and locks under keys.

    ground  what all of them share: finds rows, makes rows, refuses; what a decision comes to
    writes  storing, deleting, renaming               once       adding, flipping, cutting
    reads   one entry, ranges, patterns, leases       key_query  which keys, and its cursor
    locks   who has a key

An entry is a row without a queue. Each of `writes`, `once` and `reads` stands on one ground;
`engine.entry_operations` asks them and carries out what they decide.
"""
