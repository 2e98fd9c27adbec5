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
from fastjournal.client.link import Link, is_passing
from fastjournal.edges import Text, key_bytes
from fastjournal.entry import EntryChange
from fastjournal.errors import BadRequest, Closed, JournalError

if TYPE_CHECKING:
    from fastjournal.client.pool import Links

__all__ = ["SILENCE", "Watching", "subject"]

SILENCE = 15.0
"""Seconds without a word after which a connection is asked whether it is still there."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


def subject(
    key: Text | None, prefix: Text, lower: Text, upper: Text
) -> tuple[bytes, bytes | None, bytes]:
    """What to listen to: a key or the ends of a range, and the prefix that keys must have."""
    if sum((key is not None, bool(prefix), bool(lower or upper))) > 1:
        raise BadRequest("give one of key, prefix, and lower with upper")
    if key is not None:
        return key_bytes(key), None, b""
    low, high, start = (key_bytes(bound) if bound else b"" for bound in (lower, upper, prefix))
    if start:
        head = start.rstrip(b"\xff")
        return start, head[:-1] + bytes((head[-1] + 1,)) if head else b"", start
    return low, high, b""


class Watching:
    """Changes as they come; iterate over it, or ask `next`. Close it, or use `with`."""

    def __init__(self, links: Links, lower: bytes, upper: bytes | None, prefix: bytes) -> None:
        self._links = links
        self._listen = entry_calls.listen(lower, upper)
        self._prefix = prefix
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

    def _read(self, seconds: float) -> None:
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
            elif time.monotonic() - self._heard >= SILENCE:
                link.call(operating.ping())
                self._heard = time.monotonic()
        except JournalError:
            self._link = None
            link.close()
            raise
        for push in pushes:
            change = entry_calls.told(push)
            if change.lost or change.key.startswith(self._prefix):
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
