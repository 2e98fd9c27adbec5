"""Retention on Spark: what may go from many cold segments, and from archived history.

row_files, fact_kernel   sets of rows larger than memory, in files that tasks write and map
live_rows                the rows that live
retention_columns        which records of a segment may go
clean, trim              rewriting segments; removing archived ones
"""
