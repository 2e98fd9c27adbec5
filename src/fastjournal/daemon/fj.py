"""A connection that speaks the FJ protocol: who it is, what it may do, its pushes.

Rules:

1. Where tokens are demanded, a connection is a stranger until a HELLO with a good one (`greeting`):
   it is read one small message at a time.
2. A function is carried out only if the role of the connection allows it.
3. Requests are carried out in the order in which they were sent, and answered so, except those
   that wait.
4. What one read asks for may be much larger than the read: after `_TURN` bytes of answers the rest
   of the requests waits until the peer has read them.
5. Pushes never make the server wait: a peer that falls behind by `push_backlog` loses them and
   gets one push that says so.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fastjournal.daemon.connection import Connection
from fastjournal.daemon.greeting import ALL, greet
from fastjournal.daemon.producing import set_run
from fastjournal.daemon.quick import FEW, is_quick, quick_answer
from fastjournal.daemon.requests import HANDLERS, Handler, reserved
from fastjournal.daemon.waiters import Waiter
from fastjournal.errors import JournalError, ReadOnly, Unauthorized
from fastjournal.wire.errortext import error_text
from fastjournal.wire.fj import (
    Refusal,
    Request,
    encode_error,
    encode_push,
)
from fastjournal.wire.functions import STABLE, Function, Type
from fastjournal.wire.requests import BEFORE_HELLO, RequestParser

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
_TURN = 1 << 20  # bytes
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
        self._held: Sequence[Any] = ()
        """Requests that wait until the peer has read the answers before them."""

    def turn_away(self) -> None:
        """The server is leaving."""
        self.send(encode_error(0, "CLOSED shutting down", self.server.clock.now()))

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer."""
        self.last_read = self._time()
        if self.leaving:
            return
        parser = self.parser
        if self.quick and not (self._held or parser.pending) and is_quick(self, data):
            host = self.host
            if host.peers > FEW or self.behind or self.asked or host.always:
                host.submit(self, data)
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
        if items:
            if self._held:
                self._held = [*self._held, *items]
            else:
                self.host.submit(self, items)
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
                self.host.submit(self, items)
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
        return self._later > 0 or bool(self._held) or super().is_busy()

    def is_single(self, items: Sequence[Any]) -> bool:
        """Whether they are one request that makes one command at most."""
        if items.__class__ is bytes or len(items) != 1:
            return items.__class__ is bytes
        item = items[0]
        if item.__class__ is Waiter:
            item = item.request
        if item.__class__ is not Request:
            return False
        # Bytes 2 and 3 of a LEASE are the number of jobs.
        return item[0] in _SINGLE or (item[0] == _LEASE and item[10][2:4] == b"\0\1")

    def serve(self, items: Sequence[Any], now: int) -> bytes:
        """Carry out requests under the lock; returns the replies.

        Bytes instead of requests are one message that `is_quick`.
        """
        stable = STABLE if self.host.always else 0
        if items.__class__ is bytes:
            reply = quick_answer(self, items, now, stable)
            if reply is not None:
                return reply
            items = self._parsed(items)
        handlers = self.handlers
        stopped = self.host.engine.log.failure
        out: list[bytes] = []
        if len(items) > 1 and self.may_put and stopped is None:
            while run := set_run(self, items, len(out), now):
                out += run
        size = sum(map(len, out))
        for item in items[len(out) :] if out else items:
            if size > _TURN:
                self._held = items[len(out) :]
                self._transport.pause_reading()
                break
            kind = item.__class__
            try:
                if kind is Request:
                    handler = handlers.get(item[0])
                    if handler is None:
                        handler = self._unserved(item)
                    if stopped is not None and item[0] not in _READS:
                        # Not even "it is there already" may be acknowledged any more.
                        raise ReadOnly(str(stopped))
                    if item[2] & 0x200 or (item[2] & 0x1000 and item[9] == Type.JOB):
                        self.wants_sync = True
                        self.stable = STABLE
                    else:
                        self.stable = stable
                    out.append(handler(self, item, now))
                elif kind is Waiter:
                    self.stable = stable
                    out.append(self._again(item, now))
                else:
                    self.server.count_error(item.code)
                    out.append(item.encode(now))
            except JournalError as error:
                self.server.count_error(error.code)
                out.append(encode_error(_identifier(item), error_text(error), now))
            except Exception as error:  # a bug must not take the other connections down
                self.server.report(error)
                out.append(encode_error(_identifier(item), error_text(error), now))
            size += len(out[-1])
        return b"".join(out) if len(out) != 1 else out[0]

    def send(self, data: bytes) -> None:
        """Send; then go on with what was held back."""
        if self.gone:
            return
        self._write(data)
        if self.leaving or self.stuck_since:
            self.watch_output()
        if self._held and not self.stuck_since:
            self._go_on()

    def _go_on(self) -> None:
        items, self._held = self._held, ()
        if not self.gone:
            if not self.leaving:
                self._transport.resume_reading()
            self.host.submit(self, items)

    def refuse(self, items: Sequence[Any], error: JournalError, now: int) -> bytes:
        """The replies to requests that came to nothing."""
        self.server.count_error(error.code)
        self._held = ()
        text = error_text(error)
        if items.__class__ is bytes:
            items = self._parsed(items)
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
        self._transport.pause_reading()
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
        if self._held and not self.stuck_since:
            self._go_on()
        while self._pushes and not self.stuck_since and not self.gone:
            self._write(self._pushes.popleft())

    def _parsed(self, message: Sequence[int]) -> Sequence[Any]:
        """The request in one whole message; the parser of the stream may have gone on already."""
        return RequestParser(self.parser.limits).feed(bytes(message))

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
            waiter.register()
        return reply

    def _unserved(self, request: Request) -> Handler:
        """Why a function is not served; raises."""
        if request.function in HANDLERS:
            self.server.denied(self, f"role does not allow {Function(request.function).name}")
            raise Unauthorized("the token does not allow this")
        return reserved


def _identifier(item: Any) -> int:
    if isinstance(item, Waiter):
        return int(item.request.identifier)
    return int(item.identifier)
