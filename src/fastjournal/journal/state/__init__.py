"""The state of a journal: rows, and the ways to find them.

    row         the one stored thing, and its image as commands
    orders      rows in an order in which each knows its slot
    queue_rows  one queue's rows; queues by the moment of their next work
    keys        rows by key        entry_keys  the keys of entries in order
    selection   which row is handed out next
    placement   where a row stands, kept in step with all of the above
    stored      where a value lies that is not in memory
    numbered    changes that are made once though asked for twice      ends  how leases ended
    apply       the only code that changes rows: `JournalState`

Nothing here knows a clock, a file or a request.
"""
