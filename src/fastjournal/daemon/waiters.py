"""One request that waits: for a job, or for the end of one.

Rules:

1. A waiter is answered once. It is registered and asked again under the journal's lock only.
2. Its time limit is a timer of the loop; when it rings the waiter is asked a last time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastjournal.model import Where

if TYPE_CHECKING:
    from fastjournal.daemon.hosting import Hosted, Speaker

__all__ = ["Waiter"]


class Waiter:
    """A request of a connection that has no answer yet."""

    __slots__ = (
        "answered",
        "expired",
        "handle",
        "host",
        "last",
        "request",
        "retry",
        "row_id",
        "speaker",
        "timer",
        "where",
    )

    def __init__(
        self,
        host: Hosted,
        speaker: Speaker,
        request: Any,
        retry: Callable[[Waiter, int], bytes],
        *,
        where: Where | None = None,
        row_id: bytes | None = None,
    ) -> None:
        self.host = host
        self.speaker = speaker
        self.request = request
        self.retry = retry
        """Asks again; empty bytes if there still is no answer."""
        self.where = where
        self.row_id = row_id
        self.handle = 0
        self.timer: asyncio.TimerHandle | None = None
        self.expired = False
        """Its time is over: answer with what there is."""
        self.answered = False
        self.last = False
        """Its answer takes the job away: others who wait for the same are served first."""

    def register(self) -> None:
        """Be woken at the next chance; under the lock."""
        wakeups = self.host.engine.wakeups
        if self.row_id is None:
            assert self.where is not None
            self.handle = wakeups.wait_for_row(self.where, self.wake)
        else:
            self.handle = wakeups.wait_for_end(self.row_id, self.wake)

    def wait_on(self) -> None:
        """There still is no answer; under the lock."""
        self.register()
        if self.expired:
            self.host.late.append(self)

    def wake(self) -> None:
        """Called by the journal."""
        self.host.wake(self)

    def limit(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        """Give up after so long."""
        self.timer = loop.call_later(seconds, self.expire)

    def expire(self) -> None:
        """Ask a last time."""
        self.expired = True
        self.end_timer()
        if not self.answered:
            self.host.wake(self)

    def end(self) -> None:
        """It has its answer, or nobody wants it any more."""
        self.answered = True
        self.end_timer()
        if self.handle:
            self.host.forget(self)
            self.handle = 0

    def end_timer(self) -> None:
        """Stop the clock."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
