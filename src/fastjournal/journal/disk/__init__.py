"""A journal's directory: from files to state and back, and what is done about old records.

    replay           the newest snapshot, then the rest of the log
    playback         a stretch of either applied to a state
    snapshot         rows as a file, with a checkpoint that makes it count
    retention        which records may go      upkeep  cleaning and snapshots: when and how
    moving           where values go when files are rewritten
    archived         the shipper of a journal  generations  short-lived tables
    background       the threads of timer and upkeep
    directory_check  whether all of it fits together

Cleaning never changes the replayed state.
"""
