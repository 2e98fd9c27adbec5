"""The commit log for an event loop: futures instead of blocked threads.

The writer thread collects the outcomes of a whole group and wakes the loop once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from functools import partial

from fastjournal.errors import JournalError
from fastjournal.log.write.commit_log import CommitLog

__all__ = ["AsyncCommitLog"]


class AsyncCommitLog:
    """Writes to a `CommitLog` from the loop that made this object."""

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self._loop = asyncio.get_running_loop()
        self._outcomes: deque[tuple[asyncio.Future[int], int, JournalError | None]] = deque()
        self._called = False  # the loop will come for the outcomes

    def write(self, payload: bytes) -> asyncio.Future[int]:
        """Queue one payload; the future gives its TIME once it is as safe as promised.

        So also under the strategy `behind`: whoever does not wait need not await.
        """
        return self.write_batch((payload,))

    def write_batch(self, payloads: Sequence[bytes]) -> asyncio.Future[int]:
        """Queue payloads that stand together; the future gives the TIME of the last one."""
        future = self._loop.create_future()
        self.log.submit(payloads, partial(self._done, future))
        return future

    def _done(self, future: asyncio.Future[int], time: int, error: JournalError | None) -> None:
        # On the writer thread. One wake-up serves everything that is collected before it runs. No
        # lock: an outcome is in its place before `_called` is read, and `_deliver` clears that
        # before it looks.
        self._outcomes.append((future, time, error))
        if not self._called:
            self._called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._called = False
        outcomes = self._outcomes
        while outcomes:
            future, time, error = outcomes.popleft()
            if future.done():  # cancelled by its owner
                continue
            if error is None:
                future.set_result(time)
            else:
                future.set_exception(error)
