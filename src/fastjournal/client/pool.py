"""The connections of a blocking client: who uses which, and what happens when one breaks.

Rules:

1. Any number of threads may use a client: each call takes a connection of its own from a pool, so
   a thread that waits for a job holds nobody up.
2. A call that met a broken connection is tried again with a growing, jittered pause until its time
   limit is over, if it may be (see `protocol`); else `Unavailable` says that nobody knows.
3. A forked child opens its own connections.
"""

from __future__ import annotations

import os
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from fastjournal.client.link import Link, is_passing
from fastjournal.client.protocol import SMALL, Call, check_size, sent_again
from fastjournal.client.urls import Target
from fastjournal.errors import Closed, JournalError, Loading, Unavailable

__all__ = ["Links"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0

_forks = 0
"""How often this process was forked off; connections belong to one process."""


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Links:
    """Connections to one journal of a daemon."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._free: list[Link] = []
        self._forks = _forks
        self._closed = False
        self._ahead = 0
        self.about: dict[str, Any] = {}
        """What the daemon said of itself: version, journal, sync policy, roles, limits."""
        self._free.append(self._retrying(lambda _: self.open_link(), limit=target.connect_timeout))

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._closed = True
        while self._free:
            self._free.pop().close()

    def _stream(self, calls: Iterator[Call]) -> Iterator[Any]:
        """The values of calls that may be sent again, sent ahead of their answers."""
        kept: deque[Call] = deque()

        def keep() -> Iterator[Call]:
            for call in calls:
                if len(call.data) > SMALL:
                    check_size(call, self.about)
                kept.append(call)
                yield call

        try:
            link = self.take_link()
        except Unavailable:
            link = None
        if link is not None:
            try:
                for value in link.stream(keep()):
                    kept.popleft()
                    yield value
            except Unavailable:  # what gave no value is sent again, one by one
                pass
            finally:
                self.give_back(link)
        while kept:
            call = kept.popleft()
            yield self._call(call._replace(data=sent_again(call)))
        for call in calls:
            yield self._call(call)

    def call_many(self, calls: Sequence[Call]) -> list[Any]:
        """The values of calls that may be sent again, sent together; the first error is raised."""
        try:
            link = self.take_link()
            try:
                values = link.exchange(calls)
            finally:
                self.give_back(link)
        except Unavailable:
            return [self._call(call._replace(data=sent_again(call))) for call in calls]
        for value in values:
            if isinstance(value, JournalError):
                raise value
        return values

    def _call(self, call: Call) -> Any:
        if len(call.data) > SMALL:
            check_size(call, self.about)
        free = self._free
        if free and self._forks == _forks:
            try:  # the connection used last, once
                link = free.pop()
            except IndexError:  # another thread was quicker
                return self._retrying(lambda n: self._on_new_link(call, n > 0), call.again)
            try:
                value = link.call(call)
            except JournalError as error:
                if not link.closed:
                    free.append(link)
                if not (call.again and is_passing(error)):
                    raise
            else:
                free.append(link)
                return value
            return self._retrying(lambda _: self._on_new_link(call, True))
        return self._retrying(lambda n: self._on_new_link(call, n > 0), call.again)

    def _on_new_link(self, call: Call, repeated: bool) -> Any:
        link = self.take_link()
        try:
            return link.call(call, repeated=repeated)
        finally:
            self.give_back(link)

    def take_link(self) -> Link:
        """A connection for this thread alone; give it back."""
        if self._closed:
            raise Closed("the client is closed")
        if self._forks != _forks:
            self._free, self._forks = [], _forks
        while self._free:
            link = self._free.pop()
            if not link.closed:
                return link
        return self.open_link()

    def open_link(self) -> Link:
        """A connection of its own; close it."""
        if self._closed:
            raise Closed("the client is closed")
        link = Link(self.target)
        self._ahead = link.ahead
        self.about = link.about
        return link

    def server_now(self) -> int:
        """The daemon's time as far as we know it, ns since 1970."""
        return time.time_ns() + self._ahead

    def give_back(self, link: Link) -> None:
        """Let others use the connection."""
        if link.closed:
            return
        if self._closed:
            link.close()
        else:
            self._free.append(link)

    def _retrying(self, work: Any, again: bool = True, limit: float = 0.0) -> Any:
        """Try until it works, the error is not a passing one, or the time is over."""
        give_up = time.monotonic() + (limit or self.target.timeout)
        pause = _FIRST_PAUSE
        tries = 0
        while True:
            try:
                return work(tries)
            except JournalError as error:
                tries += 1
                pause_now = pause * random.uniform(0.5, 1.5)
                late = time.monotonic() + pause_now > give_up
                if late or not is_passing(error) or not (again or isinstance(error, Loading)):
                    raise
            time.sleep(pause_now)
            pause = min(pause * 2, _LONGEST_PAUSE)
