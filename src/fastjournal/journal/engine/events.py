"""What subscribers are told.

Rules:

1. `due`: a queue has a row to hand out; at most one until somebody leases from that queue (D-16).
   `dead`: a row was given up; administrators want to know. `changed`: a row was written, ended or
   went.
2. A subscriber that falls behind by `backlog` events loses them and gets one `lost` instead:
   everything may have changed. A slow subscriber never slows the journal.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Self

from fastjournal.entry_model import EntryChange, Watched
from fastjournal.entry_value import VOID
from fastjournal.journal.state.apply import JournalState
from fastjournal.model import Event, State

__all__ = ["EntryWatch", "Event", "Subscription"]

_BACKLOG = 10_000  # changes of entries


class Subscription:
    """Events as they come; iterate over it, or ask `next`. Close it, or use it with `with`."""

    def __init__(
        self,
        kinds: frozenset[str],
        backlog: int,
        forget: Callable[[Subscription], None],
    ) -> None:
        self.kinds = kinds
        self._backlog = backlog
        self._forget = forget
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def push(self, event: Event) -> None:
        """Add an event; called by the journal."""
        with self._changed:
            if len(self._events) >= self._backlog:
                self._events.clear()
                self._events.append(Event("lost", at=event.at))
            else:
                self._events.append(event)
            self._changed.notify()

    def next(self, wait: float | None = None) -> Event | None:
        """The next event; None after `wait` seconds without one, or when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._events or self._closed, wait)
            return self._events.popleft() if self._events else None

    def __iter__(self) -> Iterator[Event]:
        while (event := self.next()) is not None:
            yield event

    def close(self) -> None:
        """No more events."""
        self._forget(self)
        self.end()

    def end(self) -> None:
        """The journal is closing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class EntryWatch(Subscription):
    """Changes of entries as they come; iterate over it, or ask `next`. Close it, or use `with`.

    A change names a key and what it is now: of an entry with several keys, each that is watched.
    A watcher that falls behind gets one change with an empty key.
    """

    def __init__(
        self, state: JournalState, watched: Watched, forget: Callable[[Subscription], None]
    ) -> None:
        super().__init__(frozenset(("changed",)), _BACKLOG, forget)
        self._state = state
        self._watched = watched
        self._changes: deque[EntryChange] = deque()

    def push(self, event: Event) -> None:
        """Called by the journal, under its lock."""
        if event.queue:
            return
        row = self._state.rows.get(event.id)
        keys = (event.key,) if row is None else (event.key, *row.rare.aliases)
        wanted = [key for key in keys if self._watched.holds(key)]
        if not wanted:
            return
        with self._changed:
            for key in wanted:
                now = self._state.keys.entry(key)
                gone = now is None or now.state is State.DELETED
                kind = VOID if now is None or gone else now.kind
                if len(self._changes) >= self._backlog:
                    self._changes.clear()
                    self._changes.append(EntryChange(b"", at=event.at))
                else:
                    self._changes.append(EntryChange(key, kind, gone, event.at))
            self._changed.notify()

    def next(self, wait: float | None = None) -> EntryChange | None:  # type: ignore[override]
        """The next change; None after `wait` seconds without one, or when closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._changes or self._closed, wait)
            return self._changes.popleft() if self._changes else None

    def __iter__(self) -> Iterator[EntryChange]:  # type: ignore[override]
        while (change := self.next()) is not None:
            yield change
