"""A daemon as the destination of numbered jobs: FORWARD requests, many under way at a time.

Rules:

1. Every request asks for stable storage (bit 9) unless told otherwise; an answer that does not say
   so then counts as a fault.
2. An error of the daemon ends the connection: the forwarder begins again behind what is marked.
3. The time limit of the URL holds for each answer.
4. Who delivers goes on when the daemon was away: a job whose mark is not above its sender's is not
   looked at again, so everything without an answer is sent again. Only when nothing has been
   answered for `patience` seconds a delivery fails.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from fastjournal.client.blocking_transport import open_socket
from fastjournal.client.retry import Search
from fastjournal.client.urls import Target, parse_url
from fastjournal.clock import SECOND, SYSTEM_CLOCK
from fastjournal.errors import (
    BadRequest,
    JournalError,
    Loading,
    ProtocolError,
    SettingError,
    Unavailable,
)
from fastjournal.model import NewJob
from fastjournal.spool.watch import readable
from fastjournal.wire.fj.bulk import (
    Forwarded,
    decode_forwarded,
    encode_forget,
    encode_forward,
)
from fastjournal.wire.fj.client import Conversation
from fastjournal.wire.fj.functions import PERSIST, Function, Type
from fastjournal.wire.fj.hello import Hello, encode_hello
from fastjournal.wire.fj.job_codec import encode_job, fitting_request
from fastjournal.wire.fj.replies import Reply, error_from

__all__ = ["DaemonDestination", "Delivered", "Delivery", "open_delivery"]

_READ = 256 << 10
_JOBS = 1000
_BYTES = 512 << 10
_WINDOW = 8
_PAUSE = 0.1  # seconds before another try
_T = TypeVar("_T")


class DaemonDestination:
    """One connection to a daemon, which has said HELLO."""

    def __init__(self, url: str | Target, *, durable: bool = True) -> None:
        target = parse_url(url) if isinstance(url, str) else url
        if not isinstance(target, Target):
            raise SettingError("a spool is forwarded to a daemon: fj://, fjs://, unix:", name="to")
        if target.group:
            raise SettingError("a spool is forwarded to one journal, not to a group", name="to")
        self._flags = PERSIST if durable else 0
        search = Search(target)
        while True:
            node = search.next()
            try:
                self._connect(node)
                return
            except Unavailable as error:
                search.failed(node, error)

    def _connect(self, target: Target) -> None:
        self.target = target
        self._conversation = Conversation()
        self._deadline = 0.0
        self._sock = open_socket(target)
        self._sock.settimeout(target.timeout)
        try:
            self._request(
                Function.HELLO,
                key=(target.name or "forwarder").encode(),
                value_type=Type.BUFFER,
                value=encode_hello(Hello(target.token, target.journal, time=SYSTEM_CLOCK.now())),
            )
            while not self._replies(target.timeout):
                pass
        except BaseException:
            self.close()
            raise

    def send(self, sender: bytes, value: bytes) -> None:
        """Send the value of a FORWARD."""
        self._request(
            Function.FORWARD, flags=self._flags, key=sender, value_type=Type.BUFFER, value=value
        )

    def receive(self, seconds: float) -> list[Forwarded]:
        """Wait for answers; none if nothing came in time."""
        answers = []
        for reply in self._replies(seconds):
            if self._flags and not reply.stable:
                self.close()
                raise ProtocolError("the daemon does not say that the jobs are safe")
            answers.append(decode_forwarded(reply.value or b""))
        return answers

    def fileno(self) -> int:
        """Readable when an answer is there."""
        return self._sock.fileno()

    def close(self) -> None:
        """Give the connection up."""
        self._sock.close()

    def _request(self, function: int, **fields: Any) -> None:
        data = self._conversation.request(None, function, **fields)
        if self._conversation.outstanding == 1:
            self._deadline = _now() + self.target.timeout
        try:
            self._sock.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def _replies(self, seconds: float) -> list[Reply]:
        conversation = self._conversation
        try:
            if not self._pending() and not readable([self._sock], seconds):
                if conversation.outstanding and _now() > self._deadline:
                    raise TimeoutError("no answer in time")
                return []
            data = self._sock.recv(_READ)
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
        except (OSError, ValueError) as error:
            raise self._lost(error) from error
        self._deadline = _now() + self.target.timeout
        try:
            replies = [answer.reply for answer in conversation.receive(data)]
            for reply in replies:
                if reply.error:
                    raise error_from(reply.error)
            if conversation.fault is not None:
                raise ProtocolError(str(conversation.fault))
        except JournalError:
            self.close()
            raise
        return replies

    def _pending(self) -> bool:
        """TLS has bytes that `select` does not know of."""
        pending = getattr(self._sock, "pending", None)
        return pending is not None and pending() > 0

    def _lost(self, error: Exception) -> Unavailable:
        self.close()
        return Unavailable(f"{self.target.address}: {error}")


class Delivered(NamedTuple):
    """What became of the jobs of one delivery."""

    mark: int
    outcomes: tuple[int, int, int, int]
    """How many are new, merged, twins, stale."""
    repeated: int
    refused: tuple[tuple[int, JournalError], ...]


class Delivery:
    """One journal of a daemon; close it, or use `open_delivery`."""

    def __init__(self, url: str, *, patience: float = 60.0) -> None:
        self._url = url
        self._patience = patience
        self._destination: DaemonDestination | None = None

    def put_from(self, sender: bytes, jobs: Iterable[tuple[int, NewJob]]) -> Delivered:
        """Deliver those (mark, job) of a sender whose marks are new, however often they come."""
        requests = _requests(jobs)
        waiting: deque[bytes] = deque()  # sent or to be sent, without an answer
        answers: list[Forwarded] = []
        more = True

        def carry(destination: DaemonDestination) -> None:
            nonlocal more
            for value in waiting:  # again, after a loss
                destination.send(sender, value)
            while more or waiting:
                while more and len(waiting) < _WINDOW:
                    fresh = next(requests, None)
                    more = fresh is not None
                    if fresh is not None:
                        waiting.append(fresh)
                        destination.send(sender, fresh)
                if waiting:
                    for answer in destination.receive(1.0):
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
        destination, self._destination = self._destination, None
        if destination is not None:
            destination.close()

    def _ask(self, sender: bytes, value: bytes) -> Forwarded:
        def ask(destination: DaemonDestination) -> Forwarded:
            destination.send(sender, value)
            while True:
                for answer in destination.receive(1.0):
                    return answer

        return self._insist(ask, lambda: 0)

    def _insist(self, work: Callable[[DaemonDestination], _T], done: Callable[[], int]) -> _T:
        """Work, and begin again on a new connection as long as that leads anywhere."""
        reached, since = done(), _now()
        while True:
            try:
                if self._destination is None:
                    self._destination = DaemonDestination(self._url)
                return work(self._destination)
            except (Unavailable, Loading):
                self.close()
                if done() > reached:
                    reached, since = done(), _now()
                if _now() - since > self._patience:
                    raise
            except BaseException:
                self.close()  # what is under way belongs to nobody
                raise
            time.sleep(_PAUSE)


@contextmanager
def open_delivery(url: str, patience: float = 60.0) -> Iterator[Delivery]:
    """Deliver to a daemon's journal: `fj://host:port/journal`."""
    delivery = Delivery(url, patience=patience)
    try:
        yield delivery
    finally:
        delivery.close()


def _now() -> float:
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
