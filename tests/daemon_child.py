"""Producers and workers as processes of their own; each writes what it was told to a file.

    python daemon_child.py produce URL FILE SEED    lines: put ID NOW
    python daemon_child.py work URL FILE SEED       lines: lease ID TOKEN NOW UNTIL, ending, done

A line is written when the answer came; `ending` before the question is asked.
"""

from __future__ import annotations

import random
import sys
import time

import fastjournal
from fastjournal.client.puts import new_id
from fastjournal.errors import JournalError, RequestError

AHEAD = 2000  # jobs


def main() -> None:
    kind, url, path, seed = sys.argv[1:5]
    chance = random.Random(int(seed))
    with open(path, "a", buffering=1) as out:

        def say(*words: object) -> None:
            out.write(" ".join(map(str, words)) + "\n")

        client = fastjournal.connect(url)
        if kind == "produce":
            produce(client, chance, say)
        else:
            work(client, chance, say)


def produce(client, chance, say) -> None:  # type: ignore[no-untyped-def]
    while True:
        ids = [new_id() for _ in range(chance.choice([1, 1, 1, 20]))]
        jobs = [{"payload": b"x" * chance.randint(0, 200), "queue": "q", "id": i} for i in ids]
        try:
            # Not too far ahead of the workers: what is replayed after each kill stays short.
            while any(queue.ready > AHEAD for queue in client.queues()):
                client.lease("nothing comes here", wait=0.05)
            receipts = client.put_many(jobs) if len(ids) > 1 else [client.put(**jobs[0])]
        except JournalError:
            continue
        for receipt in receipts:
            say("put", receipt.id.hex(), time.time_ns())


def work(client, chance, say) -> None:  # type: ignore[no-untyped-def]
    while True:
        try:
            jobs = client.lease_many(chance.choice([1, 5, 20]), "q", wait=0.5, lease=2)
        except JournalError:
            continue
        for job in jobs:
            say("lease", job.id.hex(), job.token, time.time_ns(), job.lease.until)
        for job in jobs:
            if chance.random() < 0.02:
                continue  # as if it had died: the lease ends by itself
            say("ending", job.id.hex())
            try:
                job.done()
            except RequestError:
                say("lost", job.id.hex())
            except JournalError:
                pass
            else:
                say("done", job.id.hex())


if __name__ == "__main__":
    main()
