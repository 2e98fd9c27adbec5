"""Who waits for what: consumers for a ready row, callers for a result.

Rules:

1. Everything here happens under the journal's lock: whoever finds nothing registers before the lock
   is given up, so no wake-up is lost.
2. A ready row wakes at most one consumer, the one that has waited longest among those who asked for
   its queue. A woken consumer asks again; it is not promised anything.
3. A result wakes everybody who waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastjournal.model import Where

__all__ = ["Wake", "Wakeups"]

Wake = Callable[[], None]
"""Called once, under the journal's lock; must not block."""


class Wakeups:
    """The waiting consumers and callers of one journal."""

    def __init__(self) -> None:
        self._consumers: dict[int, tuple[Where, Wake]] = {}  # in order of arrival
        self._callers: dict[bytes, dict[int, Wake]] = {}
        self._next = 0

    def wait_for_row(self, where: Where, wake: Wake) -> int:
        """Register a consumer; returns a handle for `forget`."""
        self._next += 1
        self._consumers[self._next] = (where, wake)
        return self._next

    def wait_for_end(self, row_id: bytes, wake: Wake) -> int:
        """Register a caller that waits for a job's end; returns a handle for `forget`."""
        self._next += 1
        self._callers.setdefault(row_id, {})[self._next] = wake
        return self._next

    def forget(self, handle: int, row_id: bytes | None = None) -> None:
        """Take a registration back; harmless if it was woken."""
        if row_id is None:
            self._consumers.pop(handle, None)
        elif (callers := self._callers.get(row_id)) is not None:
            callers.pop(handle, None)
            if not callers:
                del self._callers[row_id]

    def ready(self, queues: Iterable[tuple[bytes, int]]) -> None:
        """Queues that have so many rows to give."""
        if not self._consumers:
            return
        for queue, count in queues:
            woken: list[tuple[int, Wake]] = []
            for handle, (where, wake) in self._consumers.items():
                if len(woken) >= count:
                    break
                if queue in where.names if where.names else queue.startswith(where.prefix):
                    woken.append((handle, wake))
            for handle, wake in woken:
                del self._consumers[handle]
                wake()

    def ended(self, row_id: bytes) -> None:
        """A job has its result, or is gone."""
        callers = self._callers.pop(row_id, None)
        if callers is not None:
            for wake in callers.values():
                wake()

    def all(self) -> None:
        """Wake everybody: the journal closes or has stopped."""
        consumers, self._consumers = self._consumers, {}
        callers, self._callers = self._callers, {}
        for _, wake in consumers.values():
            wake()
        for waiting in callers.values():
            for wake in waiting.values():
                wake()

    @property
    def awaited(self) -> bool:
        """Whether anybody waits for a job's end."""
        return bool(self._callers)

    def __len__(self) -> int:
        return len(self._consumers) + sum(map(len, self._callers.values()))
