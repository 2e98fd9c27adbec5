"""Being asked to stop by a signal.

Rules:

1. A handler runs in the middle of whatever the main thread does, with the locks that it holds. So
   it takes none: it sets a flag and puts into a queue whose `put` may interrupt itself.
"""

from __future__ import annotations

import contextlib
import queue
import signal

__all__ = ["SIGNALS", "Stop"]


SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Has somebody asked us to stop?"""

    def __init__(self) -> None:
        self.asked = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def listen(self) -> None:
        """From now on SIGTERM and Ctrl-C ask."""
        for number in SIGNALS:
            signal.signal(number, lambda *_: self.ask())

    def ask(self) -> None:
        """Ask; any thread may, and any signal handler."""
        self.asked = True
        self._wake.put(None)

    def set(self) -> None:
        """The same by the name that an event of `threading` has for it."""
        self.ask()

    def is_set(self) -> bool:
        """Whether asked."""
        return self.asked

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until asked; whether asked."""
        if not self.asked:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=seconds)
        return self.asked
