"""The connections of a blocking client: who uses which, and what happens when one breaks.

Rules:

1. Any number of threads may use a client: each call takes a connection of its own from a pool, so
   a thread that waits for a job holds nobody up.
2. A call that met a broken connection is tried again as `retrying` says; else `Unavailable` says
   that nobody knows.
3. A connection that broke while nobody used it costs nobody an error: what may be sent only once
   goes out on one that shows no sign of its end, what may be sent again goes on to such a one.
4. A closed client stays closed, whoever still holds a connection of it.
5. A forked child opens its own connections.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fastjournal.client.calls import SMALL, Call, check_size, sent_again
from fastjournal.client.link import Link
from fastjournal.client.retrying import Attempts
from fastjournal.client.urls import Target
from fastjournal.errors import Closed, JournalError, Unavailable

__all__ = ["Links"]

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
        attempts = Attempts(True, target.connect_timeout, time.monotonic())
        self._free.append(self._retrying(attempts, lambda _: self.open_link()))

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._closed = True
        self._close_free()

    def _close_free(self) -> None:
        free = self._free
        while free:
            try:
                free.pop().close()
            except IndexError:  # another thread was quicker
                return

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
            yield self._call(sent_again(call))
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
            return [self._call(sent_again(call)) for call in calls]
        for value in values:
            if isinstance(value, JournalError):
                raise value
        return values

    def _call(self, call: Call) -> Any:
        if len(call.data) > SMALL:
            check_size(call, self.about)
        began = time.monotonic()
        attempts: Attempts | None = None
        if call.again and self._forks == _forks:
            try:  # the connection used last, once, without a look whether it is still there
                link = self._free.pop()
            except IndexError:
                pass
            else:
                try:
                    return link.call(call)
                except JournalError as error:
                    attempts = Attempts(True, self.target.timeout, began)
                    attempts.out = True
                    attempts.failed(error, time.monotonic())
                finally:
                    self.give_back(link)

        def one(attempts: Attempts) -> Any:
            link = self.take_link()
            attempts.out = True
            try:
                return link.call(call, repeated=attempts.repeated)
            finally:
                self.give_back(link)

        return self._retrying(attempts or Attempts(call.again, self.target.timeout, began), one)

    def take_link(self) -> Link:
        """A connection for this thread alone; give it back."""
        if self._closed:
            raise Closed("the client is closed")
        if self._forks != _forks:
            self._free, self._forks = [], _forks
        while self._free:
            try:
                link = self._free.pop()
            except IndexError:  # another thread was quicker
                break
            if link.is_fresh:
                return link
            link.close()
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

    def base(self) -> int | None:
        """What the lengths of a call count from: None, the daemon's now when the call arrives.

        A daemon that takes no lengths is sent instants of its clock, as far as we know it.
        """
        return None if "lengths" in self.about.get("serves", ()) else self.server_now()

    def number_now(self) -> int:
        """The time for numbers of changes: ours, if the daemon judges it so, else the daemon's."""
        own = "client-time" in self.about.get("serves", ())
        return time.time_ns() if own else self.server_now()

    def give_back(self, link: Link) -> None:
        """Let others use the connection."""
        if not link.closed:
            self._free.append(link)
            if self._closed:
                self._close_free()

    def _retrying(self, attempts: Attempts, work: Callable[[Attempts], Any]) -> Any:
        """Try until it works, or may not be tried again."""
        while True:
            try:
                return work(attempts)
            except JournalError as error:
                pause = attempts.failed(error, time.monotonic())
            time.sleep(pause)
