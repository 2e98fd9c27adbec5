"""Changes of entries as they are made, for a watcher in the same process.

Rules:

1. A change names a key and what it is now: of an entry with several keys, each that is watched.
2. A watcher that falls behind by `backlog` loses its changes and gets one with an empty key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from fastjournal.entry_model import EntryChange, Watched
from fastjournal.entry_value import VOID
from fastjournal.journal.engine.events import Subscription
from fastjournal.journal.state.apply import JournalState
from fastjournal.model import Event, State

__all__ = ["EntryWatch"]

_BACKLOG = 10_000


class EntryWatch(Subscription):
    """Changes as they come; iterate over it, or ask `next`. Close it, or use `with`."""

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
