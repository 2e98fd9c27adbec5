"""Worker threads: four of them share a journal; each domain is worked on by one at a time.

python examples/worker_threads.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter

from fastjournal import Journal

PAGES = 200
DOMAINS = 4


def work(journal: Journal, name: str, done: Counter[str]) -> None:
    """Lease until nothing comes for half a second."""
    while (job := journal.lease(wait=0.5, worker=name)) is not None:
        with job:  # done at the end of the block, failed by an exception
            done[job.queue] += 1


def main(directory: str) -> None:
    """Crawl: the queue of a page is the domain of its key, and queues take turns."""
    with Journal(directory) as journal:
        for domain in range(DOMAINS):
            journal.configure(f"site{domain}.example", concurrency=1)
        journal.put_many(
            {"payload": b"fetch", "key": f"https://site{page % DOMAINS}.example/{page}"}
            for page in range(PAGES)
        )
        done: Counter[str] = Counter()
        threads = [
            threading.Thread(target=work, args=(journal, f"worker {number}", done))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for queue, count in sorted(done.items()):
            print(f"{queue}: {count} pages")
        assert sum(done.values()) == PAGES
        assert journal.status().rows == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/jobs")
