"""Bytes of the log to columns: no Python loop over records.

field_kernel     the one reader of payloads, compiled
fields, groups   the fields of commands, and the members of groups, a chunk at a time
record_columns   Arrow batches of exactly the columns asked for
"""
