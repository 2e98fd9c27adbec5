# Made from src/fastjournal/client/_async/caller.py by tools/unasync; do not edit.
"""Sends the calls of one client: does what `retry` says, on connections of the transport.

Rules:

1. What is to be done is said by the steps; here it is only done.
2. A connection is given back before anything else is decided: an error of the daemon leaves it
   whole, any other has ended it.
3. Looking is served by a node that does not lead, where the URL asks for that and one is there
   whose log is not too old. Otherwise by the primary; the others are tried again after a pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from fastjournal.client.blocking_transport import Connection, Pool, at_once, sleep
from fastjournal.client.calls import SMALL, Call
from fastjournal.client.retry import (
    Backoff,
    Connect,
    Send,
    Sleep,
    Steps,
    carry_out,
    carry_out_many,
    reach,
)
from fastjournal.client.urls import Target
from fastjournal.errors import JournalError, Unavailable
from fastjournal.wire.fj.entry_codec import ALL, ALL_READ
from fastjournal.wire.fj.functions import KEPT, PERSIST, PERSIST_SET

__all__ = ["Caller"]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
"""Seconds during which followers are not tried again."""
_monotonic: Final[Callable[[], float]] = time.monotonic


class Caller:
    """One journal of a daemon."""

    def __init__(self, target: Target, reach: bool = True) -> None:
        """`reach`: a blocking one connects at once."""
        self.target = replace(target, follower=False)
        self.pool = Pool(self.target)
        self._followers: Pool | None = Pool(target) if target.follower else None
        self._followers_from = 0.0
        self._pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        if reach:
            at_once(self.reach)

    def reach(self) -> None:
        """Have a connection, within the time for connecting."""
        self._perform(reach(self.target.connect_timeout))

    def call(self, call: Call, limit: float = -1.0) -> Any:
        """The value of a call; `limit`: seconds for all tries, unless that of the URL."""
        pool = self.pool
        failed: tuple[JournalError, float] | None = None
        if call.again and len(call.data) <= SMALL and (last := pool.used_last()) is not None:
            began = _monotonic()
            try:
                return last.ask(call)
            except JournalError as error:
                failed = error, began
            finally:
                pool.give_back(last)
        seconds = self.target.timeout if limit < 0 else limit
        return self._perform(carry_out(call, pool.about, seconds, failed=failed))

    def look(self, call: Call) -> Any:
        """The value of a call that changes nothing (rule 3)."""
        followers = self._followers
        if followers is not None and _monotonic() >= self._followers_from:
            try:
                connection = followers.take()
                try:
                    value = connection.ask(call)
                finally:
                    followers.give_back(connection)
                self._pauses.reset()
                return value
            except Unavailable:
                self._followers_from = _monotonic() + self._pauses.next()
        return self.call(call)

    @property
    def follows(self) -> bool:
        """Whether looking may be served by a node that does not lead."""
        return self._followers is not None

    def close(self) -> None:
        """Close the connections that are not in use, and make no more."""
        self.pool.close()
        if self._followers is not None:
            self._followers.close()

    def call_many(
        self, calls: Iterable[Call], *, again: bool = True, together: int = 1, ahead: int = 1
    ) -> list[Any]:
        """The values of many calls, see `retry.carry_out_many`."""
        about, limit = self.pool.about, self.target.timeout
        values: list[Any] = self._perform(
            carry_out_many(calls, about, limit, again=again, together=together, ahead=ahead)
        )
        return values

    def _perform(self, steps: Steps) -> Any:
        pool = self.pool
        connection: Connection | None = None
        came: Any = None
        try:
            step = steps.send(None)
            while True:
                try:
                    if isinstance(step, Connect):
                        if connection is not None:  # on which something was refused
                            pool.give_back(connection)
                            connection = None
                        connection = pool.take()
                    elif isinstance(step, Sleep):
                        sleep(step.seconds)
                    else:
                        assert connection is not None
                        if isinstance(step, Call):
                            came = connection.ask(step)
                        elif isinstance(step, Send):
                            came = connection.send(step.calls)
                        else:
                            came = connection.receive(step.sent)
                except JournalError as error:
                    if connection is not None:
                        pool.give_back(connection)
                        connection = None
                    step = steps.throw(error)
                else:
                    step = steps.send(came)
        except StopIteration as ended:
            return ended.value
        finally:
            if connection is not None:
                pool.give_back(connection)

    def server_now(self) -> int:
        """The daemon's time as far as we know it, ns since 1970."""
        return time.time_ns() + self.pool.ahead

    def base(self) -> int | None:
        """What the lengths of a call count from: None, the daemon's now when the call arrives.

        A daemon that takes no lengths is sent instants of its clock, as far as we know it.
        """
        return None if "lengths" in self.pool.about.get("serves", ()) else self.server_now()

    def lasting(self) -> int:
        """The bit that makes an entry persist without waiting for more than the policy promises.

        A daemon of 0.1.0 has another one; before any has answered, the bit that all of them know.
        """
        about = self.pool.about
        if "kept" in about.get("serves", ()):
            return KEPT
        return PERSIST_SET if about else PERSIST

    def entry_detail(self) -> int:
        """How much of an entry the daemon can tell."""
        return ALL_READ if "accessed" in self.pool.about.get("serves", ()) else ALL

    def number_now(self) -> int:
        """The time for numbers of changes: ours, if the daemon judges it so, else the daemon's."""
        own = "client-time" in self.pool.about.get("serves", ())
        return time.time_ns() if own else self.server_now()
