"""One blocking connection to a daemon: sends a request, waits for its answer.

Rules:

1. One request at a time, or a pipeline of many. Those are numbered, each number is used again as
   late as possible, and an answer that is not the next one expected ends the connection: it is a
   stranger's.
2. While a pipeline is sent its answers are read, so that neither side waits for the other to read.
3. Every wait has an end. A connection that broke, timed out or said nonsense is closed and never
   used again: an answer that comes late must not be taken for the next one.
4. Plain sockets let the kernel keep the time (SO_RCVTIMEO): one system call less per answer.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fastjournal.client import operating
from fastjournal.client.calls import Call, numbered, read_answer, sent_again
from fastjournal.client.urls import Target, tls_context
from fastjournal.errors import JournalError, ProtocolError, Unavailable
from fastjournal.wire.fj.error_text import error_from
from fastjournal.wire.fj.replies import Reply, ReplyParser

__all__ = ["Link"]

_READ = 256 << 10
_FIRST = 64 << 10
"""Most answers are small, and a larger buffer costs a fresh mapping of memory each time."""
_TIMEVAL = struct.Struct("@ll")


class Link:
    """A connection that has said HELLO."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.about: dict[str, Any] = {}
        """What the server says of itself."""
        self.ahead = 0
        """The server's clock minus ours, ns; right to about half of what HELLO took."""
        self._parser = ReplyParser()
        self._awaited = 0
        self._early: list[Reply] = []
        self._ahead_of_us: deque[Reply] = deque()
        """Answers of a stream that came while more was sent."""
        self._number = 1
        self._timeout = -1.0
        self._plain = not target.tls
        self._sock = self._connect(target)
        try:
            sent = time.time_ns()
            hello = operating.hello(target.name, target.token, target.journal, sent)
            self.about, then = self.call(hello)
            self.ahead = then - (sent + time.time_ns()) // 2
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """It cannot be used any more."""
        return self._sock.fileno() < 0

    def call(self, call: Call, *, repeated: bool = False) -> Any:
        """Send a request and wait for its answer; `Unavailable` if nobody knows the outcome."""
        wait = call.wait + self.target.timeout
        if repeated:
            call = sent_again(call)
        try:
            if wait != self._timeout:
                self._set_timeout(wait)
            self._awaited = 1
            self._sock.sendall(call.data)
            reply = self._receive(self._sock.recv(_FIRST))
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        except BaseException:
            self._give_up()
            raise
        return read_answer(call, reply)

    def exchange(self, calls: Sequence[Call]) -> list[Any]:
        """Send requests that do not wait, together; gives their values in the same order.

        An error stands in the place of its value.
        """
        wait = self.target.timeout + sum([call.wait for call in calls])
        numbers = [self._next_number() for _ in calls]
        answers = _Answers(calls, numbers, self._parser, self._early)
        try:
            self._set_timeout(wait)
            self._awaited = len(calls)
            self._send(b"".join(map(numbered, calls, numbers)), answers.take)
            while len(answers.values) < len(calls):
                answers.take(self._sock.recv(_READ))
            self._awaited = 0
            return answers.values
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        except BaseException:
            self._give_up()
            raise

    def stream(self, calls: Iterable[Call], window: int = 4) -> Iterator[Any]:
        """Send calls as they are made, some of them ahead; gives the value of each in turn.

        While the daemon works on one, the next is made and sent. After `Unavailable` those that
        gave no value may have happened.
        """
        sent: deque[tuple[Call, int]] = deque()
        self._set_timeout(self.target.timeout)
        try:
            for call in calls:
                if len(sent) == window:
                    yield self._next(*sent.popleft())
                number = self._next_number()
                self._awaited += 1
                self._send(numbered(call, number), self._keep)
                sent.append((call, number))
            while sent:
                yield self._next(*sent.popleft())
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        except BaseException:
            self._give_up()
            raise

    def _next(self, call: Call, number: int) -> Any:
        """The value of the next answer of a stream."""
        while not self._ahead_of_us:
            self._keep(self._sock.recv(_FIRST))
        reply = self._ahead_of_us.popleft()
        if reply.identifier != number:
            raise _stranger(reply)
        self._awaited -= 1
        return read_answer(call, reply)

    def _keep(self, data: bytes) -> None:
        """Bytes that came while a stream is under way."""
        if not data:
            raise ConnectionResetError("the daemon closed the connection")
        for reply in self._parser.feed(data):
            if reply.is_push:
                self._early.append(reply)
            else:
                self._ahead_of_us.append(reply)
        if self._parser.fault is not None:
            raise self._parser.fault

    def _next_number(self) -> int:
        """The number of the next request of a pipeline; 1 is for those that go alone."""
        self._number = self._number + 1 if self._number < 0xFFFF else 2
        return self._number

    def _send(self, data: bytes, take: Callable[[bytes], None]) -> None:
        """Send all of it; whatever comes in meanwhile is taken."""
        rest = memoryview(data)
        timeout = self._timeout
        waiter: select.poll | None = None
        while rest:
            sent = self._send_some(rest)
            rest = rest[sent:]
            if sent:
                continue
            if waiter is None:
                waiter = select.poll()
                waiter.register(self._sock, select.POLLIN | select.POLLOUT)
            if not waiter.poll(timeout * 1000):
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                take(self._arrived())
        if self._timeout != timeout:  # TLS was not allowed to wait
            self._set_timeout(timeout)

    def _send_some(self, data: memoryview) -> int:
        """Send what can be sent without waiting; returns how many bytes."""
        try:
            if self._plain:
                return self._sock.send(data, socket.MSG_DONTWAIT)
            self._timeout = 0.0
            self._sock.settimeout(0)
            return self._sock.send(data)
        except OSError as error:
            if _would_wait(error):
                return 0
            raise

    @property
    def is_fresh(self) -> bool:
        """Nothing has come on this idle connection, not even its end."""
        if self.closed:
            return False
        waiter = select.poll()
        waiter.register(self._sock, select.POLLIN)
        return not waiter.poll(0)

    def pushes(self, seconds: float) -> list[Reply]:
        """Wait for pushes; none if nothing came in time. With 0, those that are here already."""
        if self._early:  # they came along with an answer
            early, self._early = self._early, []
            return early
        try:
            data = self._arrived() if not seconds else self._wait_for(seconds)
        except (BlockingIOError, TimeoutError):
            return []
        except OSError as error:
            self.close()
            raise Unavailable(f"{self.target.address}: {_why(error)}") from error
        if not data:
            self.close()
            raise Unavailable(f"{self.target.address}: the daemon closed the connection")
        replies = self._parser.feed(data)
        if self._parser.fault is not None:
            self.close()
            raise Unavailable(f"{self.target.address}: {self._parser.fault}")
        return [reply for reply in replies if reply.is_push]

    def _wait_for(self, seconds: float) -> bytes:
        self._set_timeout(seconds)
        return self._sock.recv(_READ)

    def _arrived(self) -> bytes:
        if self._plain:
            return self._sock.recv(_READ, socket.MSG_DONTWAIT)
        self._timeout = 0.0
        self._sock.settimeout(0)
        try:
            return self._sock.recv(_READ)
        except OSError as error:
            if _would_wait(error):
                raise BlockingIOError from None
            raise

    def close(self) -> None:
        """Give the connection up; whoever waits for something on it wakes up."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _receive(self, data: bytes) -> Reply:
        """Read until the answer to the only request is there."""
        parser = self._parser
        answer: Reply | None = None
        while True:
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
            for reply in parser.feed(data):
                if reply.is_push:
                    self._early.append(reply)
                elif answer is None and reply.identifier == 1:
                    answer = reply
                else:
                    raise _stranger(reply)
            if answer is not None:
                self._awaited = 0
                return answer
            if parser.fault is not None:
                raise parser.fault
            data = self._sock.recv(_READ)

    def _give_up(self) -> None:
        """An answer is still to come: nobody else may get it."""
        if self._awaited:
            self.close()

    def _connect(self, target: Target) -> socket.socket:
        try:
            if target.path:
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(target.connect_timeout)
                sock.connect(target.path)
            else:
                sock = socket.create_connection((target.host, target.port), target.connect_timeout)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            context = tls_context(target)
            if context is not None:
                sock = context.wrap_socket(sock, server_hostname=target.host)
            else:
                sock.settimeout(None)
        except OSError as error:
            raise Unavailable(f"{target.address}: {_why(error)}") from error
        return sock

    def _set_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        if not self._plain:
            self._sock.settimeout(seconds)
            return
        whole = max(0, int(seconds))
        value = _TIMEVAL.pack(whole, max(1000, int((seconds - whole) * 1_000_000)))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


class _Answers:
    """The answers to a pipeline, as they come in."""

    def __init__(
        self, calls: Sequence[Call], numbers: list[int], parser: ReplyParser, early: list[Reply]
    ) -> None:
        self.values: list[Any] = []
        self._calls = calls
        self._numbers = numbers
        self._parser = parser
        self._early = early

    def take(self, data: bytes) -> None:
        """Bytes of the daemon."""
        if not data:
            raise ConnectionResetError("the daemon closed the connection")
        parser, values = self._parser, self.values
        for reply in parser.feed(data):
            if reply.is_push:
                self._early.append(reply)
                continue
            at = len(values)
            if at == len(self._calls) or reply.identifier != self._numbers[at]:
                raise _stranger(reply)
            try:
                values.append(read_answer(self._calls[at], reply))
            except JournalError as error:
                values.append(error)
        if parser.fault is not None:
            raise parser.fault


def _stranger(reply: Reply) -> JournalError:
    """An answer to something that was not asked here."""
    if reply.error and not reply.identifier:
        return error_from(reply.error)
    return ProtocolError(f"reply to request {reply.identifier}, which was not the next one")


def _would_wait(error: OSError) -> bool:
    if isinstance(error, BlockingIOError):
        return True
    # By name: who does not use TLS does not load it.
    return type(error).__name__ in ("SSLWantReadError", "SSLWantWriteError")


def _why(error: OSError) -> str:
    if isinstance(error, (BlockingIOError, TimeoutError)):
        return "no answer in time"
    return error.strerror or str(error)
