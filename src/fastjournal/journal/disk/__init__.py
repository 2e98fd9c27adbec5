"""A journal's directory: from files to state and back, and what is done about old records.

    replay           the newest snapshot, then the rest of the log
    playback         a stretch of either applied to a state
    snapshot         rows as a file, with a checkpoint that makes it count
    retention        which records may go      upkeep  cleaning, snapshots, archiving: when and how
    moving           where values go when files are rewritten
    archiving        segments kept elsewhere   generations  short-lived tables
    background       the threads of timer and upkeep
    directory_check  whether all of it fits together

Cleaning never changes the replayed state.
"""
