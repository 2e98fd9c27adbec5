"""The lives of rows: what each command did to its row, and one line for every lease.

commands            the commands of a share of the rows, with their fields
walk, walk_kernel   their lives, from the first command to the last
seed                the rows of a journal whose beginning is gone
rows                lives as the tables `events` and `attempts`
"""
