"""The commit log for an event loop: futures instead of blocked threads.

The writer thread collects the outcomes of a whole group and wakes the loop once.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence

from fastjournal.errors import JournalError
from fastjournal.log.commitlog import CommitLog

__all__ = ["AsyncCommitLog"]


class AsyncCommitLog:
    """Writes to a `CommitLog` from the loop that made this object."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self._loop = asyncio.get_running_loop()
        self._outcomes: list[tuple[asyncio.Future[int], int, JournalError | None]] = []
        self._guard = threading.Lock()

    def write(self, payload: bytes) -> asyncio.Future[int]:
        """Queue one payload; the future gives its TIME once it is as safe as promised.

        So also under the strategy `behind`: whoever does not wait need not await.
        """
        return self.write_batch((payload,))

    def write_batch(self, payloads: Sequence[bytes]) -> asyncio.Future[int]:
        """Queue payloads that stand together; the future gives the TIME of the last one."""
        future: asyncio.Future[int] = self._loop.create_future()

        def done(time: int, error: JournalError | None) -> None:
            # On the writer thread. One wake-up serves everything that is collected before it runs.
            with self._guard:
                self._outcomes.append((future, time, error))
                first = len(self._outcomes) == 1
            if first:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                    self._loop.call_soon_threadsafe(self._deliver)

        self.log.submit(payloads, done)
        return future

    def _deliver(self) -> None:
        with self._guard:
            outcomes, self._outcomes = self._outcomes, []
        for future, time, error in outcomes:
            if future.done():  # cancelled by its owner
                continue
            if error is None:
                future.set_result(time)
            else:
                future.set_exception(error)
