"""Connections to a daemon for threads: each call has one of its own, taken from a pool.

`asyncio_transport` has the same names, to be awaited.

Rules:

1. Any number of threads may use a pool: each call takes a connection for itself alone, so a thread
   that waits for a job holds nobody up.
2. One request at a time, or many together. Those are numbered, each number is used again as late as
   possible, and an answer that is not the next one expected ends the connection: it is a
   stranger's.
3. While many are sent their answers are read, so that neither side waits for the other to read.
4. Every wait has an end. A connection that broke, timed out or said nonsense is closed and never
   used again: an answer that comes late must not be taken for the next one.
5. Plain sockets let the kernel keep the time (SO_RCVTIMEO): one system call less per answer.
6. A closed pool stays closed, whoever still holds a connection of it. A forked child opens its own.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from time import sleep
from typing import Any, Final, TypeAlias

from fastjournal.client import operator_calls
from fastjournal.client.calls import Call, numbered, read_answer
from fastjournal.client.retry import Search, error_of_end
from fastjournal.client.urls import Target, tls_context
from fastjournal.errors import Closed, JournalError, ProtocolError, Unavailable
from fastjournal.wire.fj.replies import Reply, ReplyParser, error_from

__all__ = ["Connection", "Lock", "Pool", "Sent", "at_once", "open_socket", "sleep"]

_READ: Final = 256 << 10
_FIRST: Final = 64 << 10
"""Most answers are small, and a larger buffer costs a fresh mapping of memory each time."""
_TIMEVAL: Final = struct.Struct("@ll")
_ALONE: Final = 1
"""The number of a request that goes alone."""

Sent: TypeAlias = list[Call]
"""Calls on their way."""

_forks = 0
"""How often this process was forked off; connections belong to one process."""


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def at_once(work: Callable[[], Any]) -> None:
    """What a blocking constructor does before it returns."""
    work()


class Connection:
    """A connection that has said HELLO."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.about: dict[str, Any] = {}
        """What the server says of itself."""
        self.ahead = 0
        """The server's clock minus ours, ns; right to about half of what HELLO took."""
        self.closed = False
        """It cannot be used any more."""
        self._parser = ReplyParser()
        self._waiting: deque[tuple[Call, int]] = deque()
        """Calls without an answer, with their numbers."""
        self._values: list[Any] = []
        """Of calls that were sent together, those that nobody has asked for yet."""
        self._pushed: list[Reply] = []
        self._number = 1
        self._timeout = -1.0
        self._plain = not target.tls
        self._limit: float = target.timeout
        self._sock = open_socket(target)
        self._send_all: Any = self._sock.sendall
        self._recv: Any = self._sock.recv
        try:
            self._say_hello()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, target: Target) -> Connection:
        """Connect and say HELLO; of several nodes to the one that serves."""
        search = Search(target)
        while True:
            node = search.next()
            try:
                return cls(node)
            except Unavailable as error:
                search.failed(node, error)

    def _say_hello(self) -> None:
        target = self.target
        sent = time.time_ns()
        hello = operator_calls.hello(target, sent)
        self.about, then = self.ask(hello)
        self.ahead = then - (sent + time.time_ns()) // 2

    @property
    def is_sound(self) -> bool:
        """Nothing has come on this idle connection, not even its end."""
        if self.closed:
            return False
        waiter = select.poll()
        waiter.register(self._sock, select.POLLIN)
        return not waiter.poll(0)

    @property
    def is_usable(self) -> bool:
        """It is open, and every answer has come and was taken."""
        return not self.closed and not self._waiting and not self._values

    def ask(self, call: Call, *, listen: bool = False) -> Any:
        """Send a call and wait for its answer; `Unavailable` if nobody knows the outcome."""
        try:
            if self._timeout != self._limit:
                self._set_timeout(self._limit)
            self._send_all(call.data)
            reply = self._receive_one(call.wait)
        except BaseException as error:
            self._end(error)
            raise
        return read_answer(call, reply)

    def send(self, calls: Sequence[Call]) -> Sent:
        """Send calls that do not wait, together; `receive` gives what came of them."""
        numbers = [self._next_number() for _ in calls]
        try:
            self._set_timeout(self.target.timeout + sum([call.wait for call in calls]))
            self._waiting += zip(calls, numbers, strict=True)
            self._send(b"".join(map(numbered, calls, numbers)))
        except BaseException as error:
            self._end(error)
            raise
        return list(calls)

    def receive(self, sent: Sent) -> list[Any]:
        """The values of calls that were sent, in order; an error stands in the place of its value.

        Only those of the daemon: one of the connection is raised.
        """
        count = len(sent)
        try:
            while len(self._values) < count:
                self._take(self._sock.recv(_FIRST))
        except BaseException as error:
            self._end(error)
            raise
        values, self._values = self._values[:count], self._values[count:]
        return values

    def pushes(self, seconds: float) -> list[Reply]:
        """Wait for pushes; none if nothing came in time. With 0, those that are here already."""
        if not self._pushed:  # else they came along with an answer
            try:
                if seconds:
                    self._set_timeout(seconds)
                    data = self._sock.recv(_READ)
                else:
                    data = self._arrived()
                self._take(data)
            except (BlockingIOError, TimeoutError):
                return []
            except BaseException as error:
                self._end(error)
                raise
        pushed, self._pushed = self._pushed, []
        return pushed

    def close(self) -> None:
        """Give the connection up; whoever waits for something on it wakes up."""
        self.closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _end(self, error: BaseException) -> None:
        """The connection ends by an error; raises what is to be told instead of it."""
        self.close()
        found = Unavailable(_why(error)) if isinstance(error, OSError) else error
        if isinstance(found, JournalError):
            found_end = error_of_end(found, self.target.address, greeted=bool(self.about))
            if found_end is not error:
                raise found_end from error

    def _receive_one(self, wait: float) -> Reply:
        """Read until the answer to a call that went alone is there."""
        parser = self._parser
        size = _FIRST
        while True:
            data = self._read(size, wait)
            if not data:
                raise ConnectionResetError("the daemon closed the connection")
            found: Reply | None = None
            for reply in parser.feed(data):
                if reply.is_push:
                    self._pushed.append(reply)
                elif reply.identifier == _ALONE and found is None:
                    found = reply
                else:
                    raise _stranger(reply)
            if found is not None:
                return found
            if parser.fault is not None:
                raise parser.fault
            size = _READ

    def _read(self, size: int, wait: float) -> bytes:
        """Bytes that come within the usual time; what the daemon may `wait` is added behind it.

        So a consumer, whose calls wait or do not by turns, sets no time limit anew for each.
        """
        data: bytes
        try:
            data = self._recv(size)
        except (BlockingIOError, TimeoutError):
            if not wait:
                raise
            self._set_timeout(wait)
            data = self._recv(size)
        return data

    def _take(self, data: bytes) -> None:
        """Bytes that came: answers to what was sent together, and pushes."""
        if not data:
            raise ConnectionResetError("the daemon closed the connection")
        parser, waiting = self._parser, self._waiting
        for reply in parser.feed(data):
            if reply.is_push:
                self._pushed.append(reply)
                continue
            if not waiting or reply.identifier != waiting[0][1]:
                raise _stranger(reply)
            call, _ = waiting.popleft()
            try:
                self._values.append(read_answer(call, reply))
            except JournalError as error:
                self._values.append(error)
        if parser.fault is not None:
            raise parser.fault

    def _next_number(self) -> int:
        """The number of the next request of many; 1 is for those that go alone."""
        self._number = self._number + 1 if self._number < 0xFFFF else 2
        return self._number

    def _send(self, data: bytes) -> None:
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
                self._take(self._arrived())
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

    def _arrived(self) -> bytes:
        """What can be read without waiting; `BlockingIOError` if there is nothing."""
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

    def _set_timeout(self, seconds: float) -> None:
        if seconds == self._timeout:
            return
        self._timeout = seconds
        if not self._plain:
            self._sock.settimeout(seconds)
            return
        whole = max(0, int(seconds))
        value = _TIMEVAL.pack(whole, max(1000, int((seconds - whole) * 1_000_000)))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)


def open_socket(target: Target) -> socket.socket:
    """A socket that is connected, behind TLS where the target is; `Unavailable` if it cannot be.

    Without TLS it blocks for ever; with it, as long as the target gives for connecting.
    """
    sock: socket.socket | None = None
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
            return context.wrap_socket(sock, server_hostname=target.host)
        sock.settimeout(None)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise Unavailable(f"{target.address}: {_why(error)}") from error
    return sock


class Pool:
    """The connections of a client: who uses which."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.about: dict[str, Any] = {}
        """What the daemon said of itself: version, journal, sync policy, roles, limits."""
        self.ahead = 0
        """The server's clock minus ours, ns."""
        self._closed = False
        self._free: list[Connection] = []
        self._forks = _forks

    @property
    def closed(self) -> bool:
        """It gives no connection any more."""
        return self._closed

    def used_last(self) -> Connection | None:
        """The connection used last, for this thread alone; it may have broken since. Give it back.

        None: there is none.
        """
        if self._forks != _forks:
            return None
        try:
            return self._free.pop()
        except IndexError:
            return None

    def take(self) -> Connection:
        """A connection that shows no sign of its end, for this thread alone; give it back."""
        if self._forks != _forks:
            self._free, self._forks = [], _forks
        while (found := self.used_last()) is not None:
            if found.is_sound:
                return found
            found.close()
        return self.open()

    def give_back(self, connection: Connection) -> None:
        """Let others use the connection; one on which an answer is still to come is ended."""
        if not connection.is_usable:
            connection.close()
            return
        self._free.append(connection)
        if self._closed:
            self._close_free()

    def open(self) -> Connection:
        """A connection of its own; close it."""
        if self._closed:
            raise Closed("the client is closed")
        made = Connection.open(self.target)
        if self.closed:  # meanwhile
            made.close()
            raise Closed("the client is closed")
        self.about, self.ahead = made.about, made.ahead
        return made

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._closed = True
        self._close_free()

    def _close_free(self) -> None:
        while (free := self.used_last()) is not None:
            free.close()


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
