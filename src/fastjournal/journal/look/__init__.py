"""Looking at a journal without changing it.

    inspection  jobs, queues, figures      listing  pages of jobs, bounded whoever asks
    read_only   a journal seen from another process      history  one job's whole life

Under `always` nothing is shown that is not safe.
"""
