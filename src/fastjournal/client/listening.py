"""Events of a daemon as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Self

from fastjournal.arguments import Text
from fastjournal.client import operating
from fastjournal.client.link import Link
from fastjournal.client.retrying import SILENCE
from fastjournal.model import (
    Event,
)

__all__ = ["Listening"]


class Listening:
    """Events of queues as they come; iterate over it, or ask `next`. Close it, or use `with`."""

    def __init__(self, link: Link, queue: Text | None) -> None:
        self._link = link
        self._events: list[Event] = []
        self._lock = threading.Lock()
        link.call(operating.listen(queue))

    def next(self, wait: float | None = None) -> Event | None:
        """The next event; None after `wait` seconds without one.

        `Unavailable` when the connection is lost: what happened since is not known.
        """
        give_up = None if wait is None else time.monotonic() + wait
        heard = time.monotonic()
        with self._lock:
            while not self._events:
                left = SILENCE if give_up is None else max(0.0, give_up - time.monotonic())
                for reply in self._link.pushes(min(left, SILENCE)):
                    self._events.append(operating.event(reply))
                if self._events:
                    break
                if give_up is not None and time.monotonic() >= give_up:
                    return None
                if time.monotonic() - heard >= SILENCE:
                    self._link.call(operating.ping())
                    heard = time.monotonic()
            return self._events.pop(0)

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next()) is not None:
            yield event

    def close(self) -> None:
        """No more events."""
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
