"""The journal: jobs and entries as rows, every change of which is a record of the log.

    journal    `Journal`, the embedded product; `Receiver`, which takes in numbered jobs
    entry_map  `journal.entries`, the face of entries
    look       jobs, queues and figures, without changing anything
    disk       from a directory to a state and back
    engine     decide, log, apply: one writer, one order
    decide     request + state + now -> commands, about jobs      entries  the same about entries
    spill      values left in the log
    state      rows and the ways to find them; `apply` alone changes them
    language   what can be said about rows, and its bytes

A room knows those below it.
"""
