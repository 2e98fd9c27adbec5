"""A consumer loop around your function: `Worker(journal, function, queues=[...]).run()`.

loop            leases in bulk, works side by side, stops in good order
jobs_in_hand    keeps the leases of what is worked on, says how each job ended
results         what a function may return
"""

from __future__ import annotations

from fastjournal.client.worker.jobs_in_hand import Failure, Retry, Source, WorkerCounts
from fastjournal.client.worker.loop import Worker

__all__ = ["Failure", "Retry", "Source", "Worker", "WorkerCounts"]
