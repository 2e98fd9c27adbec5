"""A connection that speaks the FJ protocol: who it is, what it may do, its pushes.

Rules:

1. Where tokens are demanded, a connection is a stranger until a HELLO with a good one (`greeting`):
   it is read one small message at a time.
2. A function is carried out only if the role of the connection allows it.
3. Requests are carried out in the order in which they were sent, and answered so, except those
   that wait.
4. Pushes never make the server wait: a peer that falls behind by `push_backlog` loses them and
   gets one push that says so.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastjournal.daemon.connection import TURN, Connection
from fastjournal.daemon.greeting import ALL, greet
from fastjournal.daemon.quick import FEW, is_quick, quick_answer
from fastjournal.daemon.requests import HANDLERS, Handler, reserved
from fastjournal.daemon.waiters import Waiter
from fastjournal.errors import JournalError, ReadOnly, Unauthorized
from fastjournal.wire.fj.error_text import error_text
from fastjournal.wire.fj.functions import STABLE, Function, Type
from fastjournal.wire.fj.replies import encode_error, encode_push
from fastjournal.wire.fj.requests import BEFORE_HELLO, Refusal, Request, RequestParser

if TYPE_CHECKING:
    from fastjournal.daemon.pushes import Subject
    from fastjournal.daemon.server import Server
    from fastjournal.daemon.tokens import Grant

__all__ = ["FjConnection"]

_SINGLE = frozenset((Function.SET, Function.DONE, Function.NEXT, Function.TOUCH, Function.RELEASE))
_READS = frozenset(
    (
        Function.NOP, Function.QUIT, Function.PING, Function.HELLO, Function.GET, Function.STATUS,
        Function.RESULT, Function.INSPECT, Function.LIST, Function.LISTEN, Function.UNLISTEN,
    )
)  # fmt: skip
_LEASE = int(Function.LEASE)
_connections = itertools.count(1)
_TOGETHER = 16  # pushes
_PUSHES = _TOGETHER * 66_000  # bytes that one write of pushes may add to what waits to be sent


class FjConnection(Connection):
    """One FJ connection."""

    protocol = "fj"

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.guarded = server.tokens is not None
        self.name = b""
        """What the client calls itself; the worker of its leases unless it names another."""
        self.own_name = b"\0connection %d" % next(_connections)
        """Stands for it where it has no name; no other connection ever has the same."""
        self.ahead = 0
        """The journal's clock minus the client's, ns, where they differ by more than they may."""
        self.handlers: dict[int, Handler] = {} if self.guarded else ALL
        self.is_admin = not self.guarded
        self.grant: Grant | None = None
        """What its token allows; None where no tokens are demanded, or before HELLO."""
        self.quick = False
        """The short way may be tried."""
        self.may_put = self.may_take = not self.guarded
        # The first message is read alone: it may be the HELLO that chooses the journal.
        limits = BEFORE_HELLO if self.guarded else server.wire_limits
        self.parser = RequestParser(limits, guarded=True)
        self.stable = 0
        """Bit 9 for the replies of the request under way."""
        self.listening: dict[Subject, int] = {}
        """What it wants to be told of, and the identifier of the request that said so."""
        self._pushes: deque[bytes] = deque()
        self._lost: int | None = None
        self._later = 0

    def turn_away(self) -> None:
        """The server is leaving."""
        self.send(encode_error(0, "CLOSED shutting down", self.server.clock.now()))

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer."""
        self.last_read = self._time()
        self.host.hear(self)
        if self.leaving:
            return
        parser = self.parser
        if self.quick and not parser.pending and is_quick(self, data):
            host = self.host
            if host.peers > FEW or host.always or self._queue or self.asked or self.behind:
                self.ask((data,), len(data))
                return
            now = host.engine.clock.now()
            with host.engine.lock:
                reply = quick_answer(self, data, now)
            if reply is not None:
                host.singles += 1
                self._write(reply)
                return
        items = parser.feed(data)
        if parser.guarded:
            items = self._begin(items)
        self.ask(items, len(data))
        if parser.pending:
            if items or not self.partial_since:
                self.partial_since = self.last_read
        else:
            self.partial_since = 0.0
        if parser.closed:
            self.end()

    def _begin(self, items: list[Request | Refusal]) -> list[Request | Refusal]:
        """The first messages, one by one; returns what is left for the journal."""
        parser = self.parser
        while items and parser.guarded and not self.leaving:
            first = items[0]
            if self.guarded or (isinstance(first, Request) and first.function == Function.HELLO):
                greet(self, first)
            else:
                self.ask(items, 0)
            if not self.guarded:
                parser.open(self.server.wire_limits)
                self.quick = not self.host.closed
            items = parser.feed(b"")
        return items

    def check(self, now: float) -> None:
        """Strangers have less time."""
        limits = self.server.settings.limits
        if self.guarded and now - self.met > limits.hello_timeout:
            self.cut("stranger", "has not said who it is")
            return
        unread = self._transport.get_write_buffer_size()
        if not (self.listening and self.stuck_since and unread <= limits.high_water + _PUSHES):
            super().check(now)  # a slow listener costs no more than this: its pushes collapse

    @property
    def owner(self) -> bytes:
        """Whose senders it may use: those of its token; empty: anybody's."""
        return b"" if self.is_admin or self.grant is None else self.grant.name.encode()

    def check_grant(self) -> None:
        """Tokens were read anew: cut the peer if its own is not among them as it was."""
        tokens = self.server.tokens
        if self.grant is not None and tokens is not None and self.grant not in tokens.grants:
            self.cut("token", "its token was removed or changed")

    def keeps_open(self) -> bool:
        """A listener may be silent for ever."""
        return bool(self.listening)

    def is_busy(self) -> bool:
        """Upkeep is under way for this peer."""
        return self._later > 0 or super().is_busy()

    def is_single(self, items: Sequence[Any]) -> bool:
        """Whether they are one request that makes one command at most."""
        if len(items) != 1:
            return False
        item = items[0]
        if item.__class__ is Waiter:
            item = item.request
        if item.__class__ is not Request:
            return item.__class__ is bytes
        # Bytes 2 and 3 of a LEASE are the number of jobs.
        return item[0] in _SINGLE or (item[0] == _LEASE and item[10][2:4] == b"\0\1")

    def serve(self, items: list[Any], now: int) -> bytes:
        """Carry out requests under the lock; returns the replies.

        Bytes instead of a request are one message that `is_quick`.
        """
        stopped = self.host.engine.log.failure
        out: list[bytes] = []
        size = done = 0
        answered = []
        for item in items:
            if size > TURN:
                break
            done += 1
            reply = self._answer(item, stopped, now)
            if reply:
                out.append(reply)
                answered.append(item)
                size += len(reply)
        self.put_back(items[done:], size)
        items[:] = answered
        return b"".join(out) if len(out) != 1 else out[0]

    def _answer(self, item: Any, stopped: JournalError | None, now: int) -> bytes:
        """The reply to one request; empty if it comes later."""
        kind = item.__class__
        stable = STABLE if self.host.always else 0
        try:
            if kind is bytes:
                reply = quick_answer(self, item, now, stable)
                if reply is not None:
                    return reply
                # The parser of the stream may have gone on already.
                (item,) = RequestParser(self.parser.limits).feed(item)
                kind = item.__class__
            if kind is not Request and kind is not Waiter:
                self.server.count_error(item.code)
                refusal: bytes = item.encode(now)
                return refusal
            request = item if kind is Request else item.request
            if request[2] & 0x200 or (request[2] & 0x1000 and request[9] == Type.JOB):
                self.wants_sync = True
                stable = STABLE
            self.stable = stable
            if kind is Waiter:
                return self._again(item, now)
            handler = self.handlers.get(request[0])
            if handler is None:
                handler = self._unserved(request)
            if stopped is not None and request[0] not in _READS:
                # Not even "it is there already" may be acknowledged any more.
                raise ReadOnly(str(stopped))
            return handler(self, request, now)
        except JournalError as error:
            self.server.count_error(error.code)
            return encode_error(_identifier(item), error_text(error), now)
        except Exception as error:  # a bug must not take the other connections down
            self.server.report(error)
            return encode_error(_identifier(item), error_text(error), now)

    def refuse(self, items: Sequence[Any], error: JournalError, now: int) -> bytes:
        """The replies to requests that came to nothing."""
        self.server.count_error(error.code)
        text = error_text(error)
        for item in items:
            if isinstance(item, Waiter):
                item.end()
                self.waiters.discard(item)
        return b"".join([encode_error(_identifier(item), text, now) for item in items])

    def wait(self, waiter: Waiter, seconds: float) -> bytes:
        """Let a request wait; nothing is answered now."""
        self.waiters.add(waiter)
        waiter.register()
        waiter.limit(self.server.loop, seconds)
        return b""

    def later(self, request: Request, work: Any, reply: Any) -> bytes:
        """Do something beside the loop and answer when it is done; nothing is answered now."""
        self._later += 1

        def done(future: Any) -> None:
            self._later -= 1
            now = self.server.clock.now()
            error = future.exception()
            if error is None:
                self.send(reply(future.result(), now))
            else:
                self.server.count_error(getattr(error, "code", "SERVER-ERROR"))
                self.send(encode_error(request.identifier, error_text(error), now))

        self.host.in_thread(work).add_done_callback(done)
        return b""

    def quit(self) -> None:
        """The client has said goodbye: what waits is answered with what there is."""
        self.leaving = True
        self._steer()
        for waiter in list(self.waiters):
            waiter.expire()

    def push(self, pushes: Sequence[tuple[int, bytes]], now: int) -> None:
        """Tell the peer what it did not just ask: the identifiers of its subscriptions, pushes."""
        if self.gone or self.leaving:
            return
        at = 0
        while at < len(pushes) and not self.stuck_since and not self._pushes:
            self._write(b"".join([data for _, data in pushes[at : at + _TOGETHER]]))
            at += _TOGETHER
        for identifier, data in pushes[at:]:
            if len(self._pushes) < self.server.settings.limits.push_backlog:
                self._pushes.append(data)
            else:
                self._pushes.clear()
                self._pushes.append(encode_push(identifier, now, b""))

    def resume_writing(self) -> None:
        """The peer reads again."""
        super().resume_writing()
        while self._pushes and not self.stuck_since and not self.gone:
            self._write(self._pushes.popleft())

    def _again(self, waiter: Waiter, now: int) -> bytes:
        if waiter.answered:
            return b""
        if waiter.handle:
            self.host.engine.wakeups.forget(waiter.handle, waiter.row_id)
            waiter.handle = 0
        try:
            reply = waiter.retry(waiter, now)
        except JournalError:
            waiter.end()
            self.waiters.discard(waiter)
            raise
        if reply:
            waiter.end()
            self.waiters.discard(waiter)
        else:
            waiter.wait_on()
        return reply

    def _unserved(self, request: Request) -> Handler:
        """Why a function is not served; raises."""
        if request.function in HANDLERS:
            self.server.denied(self, f"role does not allow {Function(request.function).name}")
            raise Unauthorized("the token does not allow this")
        return reserved


def _identifier(item: Any) -> int:
    if isinstance(item, bytes):
        return int.from_bytes(item[6:8], "big")
    if isinstance(item, Waiter):
        return int(item.request.identifier)
    return int(item.identifier)
