"""How a call is carried out though connections break: one rule, without I/O, for both clients.

A generator yields what is to be done next and is sent what came of it; errors are thrown in:

    Connect    take a sound connection                        nothing
    Call       send it there and wait for its answer          its value
    Send       send these calls together                      what `Receive` wants to know
    Receive    wait for the answers to one `Send`             their values, errors in their places
    Sleep      wait so many seconds                           nothing

What it returns is the value of the call. The drivers: `_async.caller` and its twin.

Rules:

1. An error that passes by itself is met by trying again, until the time is over: the daemon cannot
   be reached or is lost (`Unavailable`), is still loading (`Loading`), or has too many connections
   (`QueueFull`, where nothing went out yet).
2. A call whose earlier try may have happened is sent again only if it may be (`Call.again`), and
   then says so. One that never went out, or that was refused because the daemon is loading, did not
   happen: it may always be tried again. A later try that is refused for how things stand by then
   (its age, a full disk, a full or paused queue, a lock) says nothing of the earlier one: what
   became of it is unknown, as if the daemon were lost.
3. The pauses grow and are jittered. They stay short while nodes answer and none of them leads:
   another one is about to.
4. What may be sent again may be tried before the steps begin, on a connection of which nobody knows
   whether it still is one: if it is not, the next try comes at once (`failed`). Everything else
   goes out on a sound one only.
5. An answer that is none, or a stranger's, ends the connection like any other loss.
6. Of many calls some are on their way at a time. Each answer gives the others their time anew.
7. Of several nodes one serves. One that does not and knows who does is believed: that one is tried
   next, though nobody named it before. Else they are tried in turn. Who wants to look at one that
   does not lead goes on to the next.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from fastjournal.client.calls import SMALL, Call, check_size, sent_again
from fastjournal.client.urls import Target
from fastjournal.errors import (
    ClockSkew,
    Closed,
    GarbledAnswer,
    JournalError,
    JournalFault,
    Loading,
    Locked,
    NotPrimary,
    OutcomeUnknown,
    ProtocolError,
    QueueFull,
    QueuePaused,
    Unauthorized,
    Unavailable,
    VersionMismatch,
    because,
)

__all__ = [
    "LONGEST_SILENCE",
    "Attempts",
    "Backoff",
    "Connect",
    "Effect",
    "Receive",
    "Search",
    "Send",
    "Sleep",
    "Steps",
    "carry_out",
    "carry_out_many",
    "error_of_end",
    "is_passing",
    "reach",
]

LONGEST_SILENCE = 15.0
"""Seconds without a word after which a listener asks whether its daemon is still there."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0
_LEADERLESS_PAUSE = 0.2
_REDIRECTIONS = 4
"""Believed while one connection is made: nodes may each name another one while nobody leads."""


class Connect(NamedTuple):
    """Take a connection that shows no sign of its end."""


class Send(NamedTuple):
    """Send calls together."""

    calls: list[Call]


class Receive(NamedTuple):
    """Wait for the answers to what was sent."""

    sent: Any


class Sleep(NamedTuple):
    """Wait."""

    seconds: float


Effect: TypeAlias = Connect | Call | Send | Receive | Sleep
Steps: TypeAlias = Generator[Effect, Any, Any]

_CONNECT = Connect()


def is_passing(error: JournalError) -> bool:
    """Whether trying again later may help."""
    return isinstance(error, (Unavailable, Loading))


_OF_NOW: Final = (
    ClockSkew, Closed, JournalFault, Locked, QueueFull, QueuePaused, Unauthorized
)  # fmt: skip
"""What refuses a request before anybody looks whether it has been carried out already."""


class Backoff:
    """Pauses that grow and are jittered."""

    def __init__(self, first: float = _FIRST_PAUSE, longest: float = _LONGEST_PAUSE) -> None:
        self._first, self._longest = first, longest
        self._pause = first

    def next(self) -> float:
        """Seconds of the next pause."""
        pause = self._pause * random.uniform(0.5, 1.5)
        self._pause = min(self._pause * 2, self._longest)
        return pause

    def reset(self) -> None:
        """All is well: the next pause is a short one again."""
        self._pause = self._first


class Attempts:
    """The tries of one call; times are seconds of any clock that only goes forward."""

    def __init__(self, again: bool, limit: float, now: float) -> None:
        self._again = again
        self._give_up = now + limit
        self._backoff = Backoff()
        self.out = False
        """This try went out; set by who sends it."""
        self.repeated = False
        """An earlier try went out, and nobody knows what became of it."""

    def failed(self, error: JournalError, now: float) -> float:
        """Seconds until the next try; raises the error if there is none."""
        earlier = self.repeated
        passes = is_passing(error) or (isinstance(error, QueueFull) and not self.out)
        if self.out and not isinstance(error, Loading):
            self.repeated = True
        self.out = False
        pause = self._backoff.next()
        if isinstance(error, NotPrimary):
            pause = min(pause, _LEADERLESS_PAUSE * random.uniform(0.5, 1.5))
        late = now + pause > self._give_up
        if late or not passes or (self.repeated and not self._again):
            raise _of_earlier(error) if earlier else error
        return pause


class Search:
    """Which node is tried next while a connection is made (rule 7)."""

    def __init__(self, target: Target) -> None:
        self._left = target.nodes()
        self._redirections = 0
        self._answered = False
        """Somebody said that it does not lead."""

    def next(self) -> Target:
        """The node to try."""
        return self._left.pop()

    def failed(self, node: Target, error: Unavailable) -> None:
        """It does not serve; raises the error if there is nobody else to try."""
        address = ""
        if isinstance(error, NotPrimary) and not node.follower:
            self._answered = True
            address = error.address
        if address and self._redirections < _REDIRECTIONS:
            self._redirections += 1
            primary = node.moved(address)
            where = (primary.host, primary.port)
            self._left = [one for one in self._left if (one.host, one.port) != where]
            self._left.append(primary)
        if not self._left:
            if self._answered or isinstance(error, NotPrimary):
                raise NotPrimary(f"{node.address}: nobody is known to lead the journal")
            raise error


def reach(limit: float, clock: Callable[[], float] = time.monotonic) -> Steps:
    """Have a connection."""
    attempts = Attempts(True, limit, clock())
    while True:
        try:
            yield _CONNECT
            return
        except JournalError as error:
            pause = attempts.failed(error, clock())
        yield Sleep(pause)


def carry_out(
    call: Call,
    about: Mapping[str, Any],
    limit: float,
    clock: Callable[[], float] = time.monotonic,
    *,
    failed: tuple[JournalError, float] | None = None,
) -> Steps:
    """One call; `about`: what the daemon said of itself, `limit`: seconds for all tries.

    `failed`: the error of a first try, and when it began.
    """
    if len(call.data) > SMALL:
        check_size(call, about)
    attempts = Attempts(call.again, limit, failed[1] if failed else clock())
    if failed:
        attempts.out = True
        attempts.failed(failed[0], clock())
    while True:
        if attempts.repeated:
            call = sent_again(call)
        try:
            yield _CONNECT
            attempts.out = True
            return (yield call)
        except JournalError as error:
            pause = attempts.failed(error, clock())
        yield Sleep(pause)


def carry_out_many(
    calls: Iterable[Call],
    about: Mapping[str, Any],
    limit: float,
    clock: Callable[[], float] = time.monotonic,
    *,
    again: bool,
    together: int,
    ahead: int,
) -> Steps:
    """Many calls; returns the values in their order, an error in the place of its value.

    They go out `together` in one piece, `ahead` such pieces before the answers to the first. They
    are asked for one after the other, so whoever makes them works while the daemon does. `again`:
    all of them may be sent again.
    """
    left = iter(calls)
    waiting: deque[list[Call]] = deque()  # sent or to be sent, without an answer
    sent: deque[Any] | None = None  # what is on its way; None: there is no connection
    values: list[Any] = []
    is_more = True
    repeated = 0  # of those waiting, whose earlier try may have happened
    attempts = Attempts(again, limit, clock())
    while True:
        # Outside of `try`: an error of whoever makes the calls is no error of ours.
        fresh: list[Call] = []
        if is_more and len(waiting) < ahead:
            fresh = list(islice(left, together))
            is_more = bool(fresh)
            for call in fresh:
                if len(call.data) > SMALL:
                    check_size(call, about)
            if fresh:
                waiting.append(fresh)
        if not waiting:
            return values
        try:
            if sent is None:
                yield _CONNECT
                attempts.out = True
                sent = deque()
                for piece in waiting:
                    sent.append((yield Send(piece)))
            elif fresh:
                attempts.out = True
                sent.append((yield Send(fresh)))
            else:
                answers = yield Receive(sent.popleft())
                if again:
                    _raise_passing(answers)
                waiting.popleft()
                if repeated:
                    repeated -= 1
                    answers = [_of_earlier(one) for one in answers]
                values += answers
                attempts = Attempts(again, limit, clock())
                attempts.out = bool(sent)
            continue
        except JournalError as error:
            pause = attempts.failed(error, clock())
        sent = None
        if attempts.repeated:
            repeated = len(waiting)
            waiting = deque([sent_again(call) for call in piece] for piece in waiting)
        yield Sleep(pause)


def error_of_end(error: JournalError, address: str, *, greeted: bool) -> JournalError:
    """What the end of a connection by `error` means for a call that was on it.

    `greeted`: HELLO was answered. Then the call may have happened, whatever the error is.
    """
    if isinstance(error, Closed):
        return Closed(str(error))
    text = f"{address}: {error}"
    if not greeted and not isinstance(error, Unavailable):
        return error
    if isinstance(error, (ProtocolError, VersionMismatch)):
        return GarbledAnswer(text)
    return Unavailable(text)


def _of_earlier(answer: Any) -> Any:
    """What the answer to a later try says of the earlier one, of which nobody heard."""
    if isinstance(answer, _OF_NOW) and not isinstance(answer, (Unavailable, OutcomeUnknown)):
        return because(
            Unavailable(f"it may have been done when it was sent first: {answer}"), answer
        )
    return answer


def _raise_passing(answers: list[Any]) -> None:
    for answer in answers:
        if isinstance(answer, JournalError) and is_passing(answer):
            raise answer
