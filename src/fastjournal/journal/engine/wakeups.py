"""Who waits for what: consumers for a ready row, callers for a result.

Rules:

1. Everything here happens under the journal's lock: whoever finds nothing registers before the lock
   is given up, so no wake-up is lost.
2. A ready row wakes at most one consumer, the one that has waited longest among those who asked for
   its queue. A woken consumer asks again; it is not promised anything, and it may find something
   else: so every lease looks whether the queues that others were `called` for still have rows.
   Who asked for a version is woken only while there is a ready row of it, and then perhaps more
   of them than there are such rows: those ask in vain, and wait again.
3. A result wakes everybody who waits for it.
"""

from collections.abc import Callable
from typing import final

from fastjournal.model import Where

__all__ = ["Wake", "Wakeups"]

Wake = Callable[[], None]
"""Called once, under the journal's lock; must not block."""


def any_version(queue: bytes, version: int) -> bool:
    """For `Wakeups`: whoever asks for a version may find one."""
    return True


@final
class Wakeups:
    """The waiting consumers and callers of one journal."""

    def __init__(self, has_version: Callable[[bytes, int], bool] = any_version) -> None:
        """`has_version`: whether a queue has a row with a payload of a version to give."""
        self._has_version = has_version
        self.consumers: dict[int, tuple[Where, Wake]] = {}
        """Who waits for a row, in order of arrival."""
        self.callers: dict[bytes, dict[int, Wake]] = {}
        """Who waits for the end of which job."""
        self.called: set[bytes] = set()
        """Queues for which somebody was woken and nobody has asked since."""
        self._next = 0

    def wait_for_row(self, where: Where, wake: Wake) -> int:
        """Register a consumer; returns a handle for `forget`."""
        self._next += 1
        self.consumers[self._next] = (where, wake)
        return self._next

    def wait_for_end(self, row_id: bytes, wake: Wake) -> int:
        """Register a caller that waits for a job's end; returns a handle for `forget`."""
        self._next += 1
        self.callers.setdefault(row_id, {})[self._next] = wake
        return self._next

    def forget(self, handle: int, row_id: bytes | None = None) -> None:
        """Take a registration back; harmless if it was woken."""
        if row_id is None:
            self.consumers.pop(handle, None)
        elif (callers := self.callers.get(row_id)) is not None:
            callers.pop(handle, None)
            if not callers:
                del self.callers[row_id]

    def ready(self, queues: list[tuple[bytes, int]]) -> None:
        """Queues that have so many rows to give."""
        if not self.consumers:
            return
        for queue, count in queues:
            woken: list[tuple[int, Wake]] = []
            for handle, (where, wake) in self.consumers.items():
                if len(woken) >= count:
                    break
                if not (queue in where.names if where.names else queue.startswith(where.prefix)):
                    continue
                if where.schema < 0 or self._has_version(queue, where.schema):
                    woken.append((handle, wake))
            if woken:
                self.called.add(queue)
            for handle, wake in woken:
                del self.consumers[handle]
                wake()

    def ended(self, row_id: bytes) -> None:
        """A job has its result, or is gone."""
        callers = self.callers.pop(row_id, None)
        if callers is not None:
            for wake in callers.values():
                wake()

    def all(self) -> None:
        """Wake everybody: the journal closes or has stopped."""
        consumers, self.consumers = self.consumers, {}
        callers, self.callers = self.callers, {}
        for _, wake in consumers.values():
            wake()
        for waiting in callers.values():
            for wake in waiting.values():
                wake()

    def __len__(self) -> int:
        return len(self.consumers) + sum([len(waiting) for waiting in self.callers.values()])
