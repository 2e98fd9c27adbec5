"""Bytes of the log to columns: no Python loop over records.

fields, field_kernel   the fields of commands, a chunk at a time
record_columns         Arrow batches of exactly the columns asked for
"""
