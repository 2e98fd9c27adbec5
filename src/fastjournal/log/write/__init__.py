"""Appending: a payload becomes a record at the end of the newest segment.

    segment_writer    one open segment
    appender          the plain way: one caller, one segment after the other
    active_standby    two segments open at all times, so that a rotation makes no file
    commit_queue      writes that wait for the writer thread, and callers that wait for a sync
    log_writer        a stream opened for writing: what a journal stands on
    commit_log        many callers on one disk: group commit, rotation, failure policies
    async_commit_log  the same for event loops
    counters          what was done, for metrics

Nothing is acknowledged before it is as safe as the sync policy says.
"""
