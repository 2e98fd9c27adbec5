"""The state of a journal: rows, and the ways to find them.

    row         the one stored thing, and its image as commands
    rows        all of them by id, as they came
    values      which values are in memory; the others lie in the log
    orders      rows in an order in which each knows its slot
    queue_rows  one queue's rows; queues by the moment of their next work
    keys        rows by key        entry_keys  the keys of entries in order
    selection   which row is handed out next
    placement   where a row stands, kept in step with all of the above
    numbered    changes that are made once though asked for twice      ends  how leases ended
    apply       the only code that changes rows: `JournalState`

Nothing here knows a clock, a file or a request.
"""
