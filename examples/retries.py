"""Retries: work that fails is tried again after a growing wait, then dead, then redriven.

python examples/retries.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile

from fastjournal import Journal, State


def main(directory: str) -> None:
    """A letter that cannot be sent until somebody mends the mail server."""
    mended = False

    def send(letter: bytes) -> None:
        if not mended:
            raise ConnectionError("no route to the mail server")
        print(f"sent: {letter.decode()}")

    with Journal(directory) as journal, journal.subscribe("dead") as deaths:
        journal.configure("mail", max_fails=3, backoff_base=0.05, backoff_factor=2)
        journal.put(b"dear reader", queue="mail")
        while (job := journal.lease("mail", wait=1)) is not None:
            try:
                send(job.payload)
            except ConnectionError as error:
                state = job.fail(str(error))
                word = "dead" if state is State.FAILED else "will be tried again"
                print(f"attempt {job.attempt}: {error}; {word}")
            else:
                job.done()
        death = deaths.next(wait=5)
        assert death is not None
        dead = journal.job(death.id)
        print(f"dead after {dead.fails} failures: {dead.result.decode()}")
        assert dead.state is State.FAILED

        mended = True
        journal.redrive(queue="mail")
        job = journal.lease("mail")
        assert job is not None
        with job:
            send(job.payload)
        assert journal.status().rows == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(sys.argv[1] if len(sys.argv) > 1 else f"{temporary}/jobs")
