"""A daemon that takes in numbered jobs in bulk, and whoever delivers goes on when it was away.

Rules:

1. Jobs travel as those of a spool do (FORWARD): each request is answered when its jobs are on
   stable storage, and a job whose mark is not above its sender's is not looked at again.
2. So after a lost connection, or a daemon killed and started again, everything without an answer
   is sent again. Only when nothing has been answered for `patience` seconds the delivery fails.
3. Several requests are under way at a time, each of at most so many jobs and bytes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from fastjournal.clock import SECOND, SYSTEM_CLOCK
from fastjournal.errors import BadRequest, JournalError, Loading, Unavailable
from fastjournal.model import NewJob
from fastjournal.spool.target import DaemonTarget
from fastjournal.wire.fj.forward import Forwarded, encode_forget, encode_forward
from fastjournal.wire.fj.job_codec import encode_job, fitting_request

__all__ = ["Delivered", "Delivery", "open_target"]

_JOBS = 1000
_BYTES = 512 << 10
_WINDOW = 8
_PAUSE = 0.1  # seconds before another try
_T = TypeVar("_T")


class Delivered(NamedTuple):
    """What became of the jobs of one delivery."""

    mark: int
    outcomes: tuple[int, int, int, int]
    """How many are new, merged, twins, stale."""
    repeated: int
    refused: tuple[tuple[int, JournalError], ...]


class Delivery:
    """One journal of a daemon; close it, or use `open_target`."""

    def __init__(self, url: str, *, patience: float = 60.0) -> None:
        self._url = url
        self._patience = patience
        self._target: DaemonTarget | None = None

    def put_from(self, sender: bytes, jobs: Iterable[tuple[int, NewJob]]) -> Delivered:
        """Deliver those (mark, job) of a sender whose marks are new, however often they come."""
        requests = _requests(jobs)
        waiting: deque[bytes] = deque()  # sent or to be sent, without an answer
        answers: list[Forwarded] = []
        more = True

        def carry(target: DaemonTarget) -> None:
            nonlocal more
            for value in waiting:  # again, after a loss
                target.send(sender, value)
            while more or waiting:
                while more and len(waiting) < _WINDOW:
                    fresh = next(requests, None)
                    more = fresh is not None
                    if fresh is not None:
                        waiting.append(fresh)
                        target.send(sender, fresh)
                if waiting:
                    for answer in target.receive(1.0):
                        waiting.popleft()
                        answers.append(answer)

        self._insist(carry, lambda: len(answers))
        return _sum(answers)

    def mark_of(self, sender: bytes) -> int:
        """How far a sender has come; at most 1 for one that was not known."""
        return self._ask(sender, encode_forward((), ())).mark

    def forget_sender(self, sender: bytes) -> None:
        """Nothing of this sender will come again."""
        self._ask(sender, encode_forget())

    def close(self) -> None:
        """Give the connection up."""
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def _ask(self, sender: bytes, value: bytes) -> Forwarded:
        def ask(target: DaemonTarget) -> Forwarded:
            target.send(sender, value)
            while True:
                for answer in target.receive(1.0):
                    return answer

        return self._insist(ask, lambda: 0)

    def _insist(self, work: Callable[[DaemonTarget], _T], done: Callable[[], int]) -> _T:
        """Work, and begin again on a new connection as long as that leads anywhere."""
        reached, since = done(), _seconds()
        while True:
            try:
                if self._target is None:
                    self._target = DaemonTarget(self._url)
                return work(self._target)
            except (Unavailable, Loading):
                self.close()
                if done() > reached:
                    reached, since = done(), _seconds()
                if _seconds() - since > self._patience:
                    raise
            except BaseException:
                self.close()  # what is under way belongs to nobody
                raise
            time.sleep(_PAUSE)


@contextmanager
def open_target(url: str, patience: float = 60.0) -> Iterator[Delivery]:
    """Deliver to a daemon's journal: `fj://host:port/journal`."""
    delivery = Delivery(url, patience=patience)
    try:
        yield delivery
    finally:
        delivery.close()


def _seconds() -> float:
    return SYSTEM_CLOCK.monotonic() / SECOND


def _requests(jobs: Iterable[tuple[int, NewJob]]) -> Iterator[bytes]:
    marks: list[int] = []
    parts: list[bytes] = []
    size = 0
    for mark, job in jobs:
        marks.append(mark)
        parts.append(encode_job(fitting_request(job)))
        size += len(parts[-1])
        if len(marks) == _JOBS or size > _BYTES:
            yield encode_forward(marks, parts)
            marks, parts, size = [], [], 0
    if marks:
        yield encode_forward(marks, parts)


def _sum(answers: Iterable[Forwarded]) -> Delivered:
    found = list(answers)
    errors = [(mark, BadRequest(text)) for one in found for mark, text in one.errors]
    return Delivered(
        max((one.mark for one in found), default=0),
        (
            sum(one.new for one in found),
            sum(one.merged for one in found),
            sum(one.twin for one in found),
            sum(one.stale for one in found),
        ),
        sum(one.repeated for one in found),
        tuple(errors),
    )
