"""Reading records one after another, and finding one among many.

    cursor   from a position or a time on, following the live tail
    search   where the first record of a time stands
    by_time  single records again, wherever a cleaner has moved them

Every record is checked by its CRC before anybody sees it.
"""
