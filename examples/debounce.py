"""Debounce: many changes of a page, one job that runs when it has been quiet, or waited enough.

python examples/debounce.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
import time

from fastjournal import Journal


def main(directory: str) -> None:
    """A document is saved some fifty times, and indexed a few."""
    with Journal(directory) as journal:
        # Each save puts the work off by another 0.2 s, but never past 0.4 s after the first.
        journal.configure("docs", max_wait=0.4)
        saves = indexed = 0
        last = b""
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            saves += 1
            journal.put(b"revision %d" % saves, key="docs:handbook", delay=0.2)
            job = journal.lease("docs", wait=0.012)
            if job is not None:
                indexed, last = indexed + 1, job.payload
                print(f"indexed {last.decode()} after {saves} saves")
                job.done()
        job = journal.lease("docs", wait=1)
        if job is not None:
            indexed, last = indexed + 1, job.payload
            print(f"indexed {last.decode()} after {saves} saves")
            job.done()
        print(f"{saves} saves, indexed {indexed} times")
        assert last == b"revision %d" % saves


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/jobs")
