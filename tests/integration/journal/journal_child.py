"""A process that puts, leases and completes from four threads until it is killed.

Writes what it was answered to its standard output, one line each, before it goes on:
`put ID`, `keyed ID` (which may go when newer work of its key waits), `lease ID`, `ending ID`,
`ended ID`.
"""

from __future__ import annotations

import os
import random
import sys
import threading

from fastjournal import Journal


def main(path: str, sync: str, seed: int) -> None:
    j = Journal(path, sync=sync, segment_size=8192, clean_interval=0.02, snapshot_bytes=32_768)
    guard = threading.Lock()

    def say(word: str, job_id: bytes) -> None:
        with guard:
            os.write(1, f"{word} {job_id.hex()}\n".encode())

    def work(number: int) -> None:
        chance = random.Random(seed * 10 + number)
        while True:
            what = chance.random()
            if what < 0.5:
                key = str(chance.randrange(50)) if what < 0.2 else None
                receipt = j.put(bytes(chance.randrange(300)), queue="q", key=key)
                say("keyed" if key else "put", receipt.id)
            elif what < 0.6:
                batch = [{"payload": b"x", "queue": "q"} for _ in range(5)]
                for receipt in j.put_many(batch):
                    say("put", receipt.id)
            else:
                count, length = chance.choice([1, 1, 4]), chance.choice([1, 60])
                for job in j.lease_many(count, "q", lease=length):
                    say("lease", job.id)
                    if chance.random() < 0.9:
                        say("ending", job.id)
                        job.done(b"result" if chance.random() < 0.1 else None)
                        say("ended", job.id)
                    else:
                        job.release()

    say("open", b"")
    for number in range(4):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    threading.Event().wait()


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
