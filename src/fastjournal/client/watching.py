"""Changes of entries as a daemon tells them.

Rules:

1. A watch has a connection of its own. When it breaks it is opened again and listens again; then
   one change with an empty key says that everything may have changed.
2. The same is told when more has changed than we took: a slow watcher is collapsed, never cut.
3. A connection that has been silent for long is asked whether it is still there.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from fastjournal.client import entry_calls, operating
from fastjournal.client.link import Link
from fastjournal.client.retrying import SILENCE, is_passing
from fastjournal.entry import EntryChange, Watched
from fastjournal.errors import Closed, JournalError, Unavailable

if TYPE_CHECKING:
    from fastjournal.client.pool import Links

__all__ = ["Watching"]

_ROUNDS = 64  # reads of what has arrived at once
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


class Watching:
    """Changes as they come; iterate over it, or ask `next`. Close it, or use `with`."""

    def __init__(self, links: Links, watched: Watched) -> None:
        self._links = links
        self._listen = entry_calls.listen(watched.lower, watched.upper)
        self._watched = watched
        self._changes: deque[EntryChange] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self._heard = 0.0
        self._link: Link | None = self._open()

    @property
    def closed(self) -> bool:
        """There will be no more changes."""
        return self._closed

    def next(self, wait: float | None = None) -> EntryChange | None:
        """The next change; None after `wait` seconds without one, or when closed."""
        give_up = None if wait is None else time.monotonic() + wait
        pause = _FIRST_PAUSE
        with self._lock:
            while not self._closed:
                if self._changes:
                    return self._changes.popleft()
                left = SILENCE if give_up is None else max(0.0, give_up - time.monotonic())
                try:
                    self._read(min(left, SILENCE))
                    pause = _FIRST_PAUSE
                except JournalError as error:
                    if self.closed or isinstance(error, Closed):
                        return None
                    if not is_passing(error):
                        raise
                    time.sleep(min(pause * random.uniform(0.5, 1.5), left))
                    pause = min(pause * 2, _LONGEST_PAUSE)
                if not self._changes and give_up is not None and time.monotonic() >= give_up:
                    return None
            return None

    def here(self, max_silence: float) -> list[EntryChange]:
        """The changes that have arrived, without waiting; `Unavailable` if the connection broke.

        One that was silent for `max_silence` seconds is asked first whether it is still there.
        """
        with self._lock:
            if self._link is None:
                raise Unavailable("the connection was lost")
            found: list[EntryChange] = []
            for _ in range(_ROUNDS):
                self._read(0.0, max_silence)
                if not self._changes:
                    break
                found += self._changes
                self._changes.clear()
            return found

    def _read(self, seconds: float, max_silence: float = SILENCE) -> None:
        """Take what comes within so many seconds; opens the connection again if it broke."""
        link = self._link
        if link is None:
            self._link = link = self._open()
            self._changes.append(EntryChange(b"", at=self._links.server_now()))
            return
        try:
            pushes = link.pushes(seconds)
            if pushes:
                self._heard = time.monotonic()
            elif time.monotonic() - self._heard >= max_silence:
                link.call(operating.ping())
                pushes = link.pushes(0.0)
                self._heard = time.monotonic()
        except JournalError:
            self._link = None
            link.close()
            raise
        for push in pushes:
            change = entry_calls.told(push)
            if change.lost or self._watched.holds(change.key):
                self._changes.append(change)

    def _open(self) -> Link:
        if self._closed:
            raise Closed("the watch is closed")
        link = self._links.open_link()
        try:
            link.call(self._listen)
        except BaseException:
            link.close()
            raise
        self._heard = time.monotonic()
        return link

    def __iter__(self) -> Iterator[EntryChange]:
        while (change := self.next()) is not None:
            yield change

    def close(self) -> None:
        """No more changes."""
        self._closed = True
        link = self._link
        if link is not None:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
