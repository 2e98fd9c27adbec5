"""Retention on Spark: what may go from many cold segments, and from archived history.

live_rows           the rows that live, small enough for every task
retention_columns   which records of a segment may go
clean, trim         rewriting segments; removing archived ones
"""
