"""The log to the state as of an instant, by the journal's own `apply`, split by row.

snapshots           where a replay may begin
fold, fold_kernel   the records of a share of the rows to their state
dealt, deal_kernel  the log dealt out by row, each byte of it read once
jobs                the state as rows of view `jobs`
"""
