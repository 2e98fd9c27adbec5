"""Decide, log, apply: the one place where requests become records and records become state.

    engine      one writer, one order: commits and batches      reserve  room for a full disk
    operations  requests of producers, consumers and operators, carried out at once
    entry_operations, entry_watch  the same for entries, and who is told of their changes
    forwarding  jobs of spools, each of them once
    wakeups     consumers that wait, `waiting` how     events  subscribers that are told
    counting    for metrics

Whoever calls holds the engine's lock.
"""
