# Made from src/fastjournal/client/_async/subscription.py by tools/unasync; do not edit.
"""Events of queues as a daemon tells them.

Rules:

1. A subscription has a connection of its own. When it breaks, whoever asks for the next event is
   told `Unavailable`: what happened since is not known.
2. A connection that has been silent for long is asked whether it is still there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Self

from fastjournal.arguments import Text
from fastjournal.client import operator_calls
from fastjournal.client.blocking_transport import Connection, Lock, Pool
from fastjournal.client.retry import LONGEST_SILENCE
from fastjournal.model import Event

__all__ = ["Listening"]


class Listening:
    """Events of queues as they come: iterate over it, or ask `next`. Close it, or use `with`.

    Several may ask; each event is told to one of them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._events: deque[Event] = deque()
        self._lock = Lock()

    @classmethod
    def open(cls, pool: Pool, queue: Text | None) -> Self:
        """Listen to a queue, or to all."""
        call = operator_calls.listen(queue)
        connection = pool.open()
        try:
            connection.ask(call, listen=True)
        except BaseException:
            connection.close()
            raise
        return cls(connection)

    def next(self, wait: float | None = None) -> Event | None:
        """The next event; None after `wait` seconds without one.

        `Unavailable` when the connection is lost: what happened since is not known.
        """
        heard = time.monotonic()
        give_up = None if wait is None else heard + wait
        with self._lock:
            while not self._events:
                left = LONGEST_SILENCE if give_up is None else max(0.0, give_up - time.monotonic())
                for push in self._connection.pushes(min(left, LONGEST_SILENCE)):
                    self._events.append(operator_calls.event(push))
                if self._events:
                    break
                if give_up is not None and time.monotonic() >= give_up:
                    return None
                if time.monotonic() - heard >= LONGEST_SILENCE:
                    self._connection.ask(operator_calls.ping())
                    heard = time.monotonic()
            return self._events.popleft()

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next()) is not None:
            yield event

    def close(self) -> None:
        """No more events."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
