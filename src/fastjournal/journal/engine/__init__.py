"""Decide, log, apply: the one place where requests become records and records become state.

    engine      one writer, one order: commits and batches      reserve  room for a full disk
    operations  requests of producers, consumers and operators, carried out at once
    entry_operations  the same for entries          job_keys  jobs named by their keys
    forwarding  jobs of spools, each of them once
    wakeups     consumers that wait, `waiting` how     events  who is told of changes
    counting    for metrics

Whoever calls holds the engine's lock.
"""
