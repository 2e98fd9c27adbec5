"""A connection that speaks the FJ protocol: who it is, what it may do, its pushes.

Rules:

1. Where tokens are demanded, a connection is a stranger until a HELLO with a good one: it is read
   one small message at a time, and gets nothing but HELLO, NOP, PING and QUIT; anything else ends
   the connection.
2. The journal is chosen by the first message, once. Why a token is refused is not told.
3. A function is carried out only if the role of the connection allows it.
4. Pushes never make the server wait: a peer that falls behind by `push_backlog` loses them and
   gets one push that says so.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fastjournal.daemon.auth import EVERYTHING, Grant, allowed_functions
from fastjournal.daemon.context import Context
from fastjournal.daemon.fj.dispatch import SERVED, carry_out
from fastjournal.daemon.session import Waiter
from fastjournal.daemon.transport import TURN, Connection
from fastjournal.errors import BadRequest, JournalError, NotFound, ReadOnly, Unauthorized
from fastjournal.wire.errortext import error_text
from fastjournal.wire.fj import (
    Pair,
    Refusal,
    Request,
    encode_error,
    encode_ok,
    encode_push,
    encode_reply,
)
from fastjournal.wire.functions import PERSIST, PERSIST_SET, STABLE, Function, Type
from fastjournal.wire.hello import DESCRIBE, decode_hello
from fastjournal.wire.pictures import dump
from fastjournal.wire.requests import BEFORE_HELLO, RequestParser

__all__ = ["FjConnection"]

_READS = frozenset(
    (
        Function.NOP, Function.QUIT, Function.PING, Function.HELLO, Function.GET, Function.STATUS,
        Function.RESULT, Function.INSPECT, Function.LIST, Function.LISTEN, Function.UNLISTEN,
    )
)  # fmt: skip
_connections = itertools.count(1)
_TOGETHER = 16  # pushes
_PUSHES = _TOGETHER * 66_000  # bytes that one write of pushes may add to what waits to be sent


class FjConnection(Connection):
    """One FJ connection."""

    protocol = "fj"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.guarded = context.tokens is not None
        """It is a stranger yet."""
        self.own_name = b"\0connection %d" % next(_connections)
        self.allowed: frozenset[int] = frozenset() if self.guarded else EVERYTHING
        """The functions it may call."""
        self.is_admin = self.may_take = not self.guarded
        self.grant: Grant | None = None
        """What its token allows; None where no tokens are demanded, or before HELLO."""
        # The first message is read alone: it may be the HELLO that chooses the journal.
        limits = BEFORE_HELLO if self.guarded else context.wire_limits
        self.parser = RequestParser(limits, guarded=True)
        self._pushes: deque[bytes] = deque()
        self._lost: int | None = None
        self._later = 0

    def turn_away(self) -> None:
        """The server is leaving."""
        self.send(encode_error(0, "CLOSED shutting down", self.context.clock.now()))

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer."""
        self.last_read = self._time()
        self.journal_loop.hear(self)
        if self.leaving:
            return
        parser = self.parser
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
                self._greet(first)
            else:
                self.ask(items, 0)
            if not self.guarded:
                parser.open(self.context.wire_limits)
            items = parser.feed(b"")
        return items

    def _greet(self, item: Request | Refusal) -> None:
        """A message of a stranger."""
        now = self.context.clock.now()
        if isinstance(item, Refusal):
            self.context.count_error(item.code)
            self.leaving = True
            self.send(item.encode(now))
        elif item.function == Function.HELLO:
            try:
                reply = self._hello(item)
            except JournalError as error:
                self.context.count_error(error.code)
                self.leaving = True
                reply = encode_error(item.identifier, error_text(error), now)
            self.send(reply)
        elif item.function in (Function.NOP, Function.PING):
            self.send(encode_ok(item.identifier, now))
        elif item.function == Function.QUIT:
            self.leaving = True
            self.send(encode_ok(item.identifier, now))
        else:
            self.leaving = True
            self.deny("no HELLO")
            self.context.count_error("DENIED")
            self.send(encode_error(item.identifier, "DENIED say HELLO with a token first", now))

    def _hello(self, request: Request) -> bytes:
        """Learn who the client is, and choose its journal."""
        said = decode_hello(request.value)
        context = self.context
        name = said.journal or context.settings.default_journal
        tokens = context.tokens
        found: Grant | None = None
        if tokens is None:
            roles = frozenset({"admin"})
        else:
            found = tokens.find(said.token)
            if found is None or not found.opens(name):
                self.deny("wrong token" if found is None else "wrong journal")
                raise Unauthorized("the token is missing, wrong, or not for this journal")
            roles = found.roles
        chosen = context.journals.get(name)
        if chosen is None:
            raise NotFound(f"no journal {name!r}")
        if chosen is not self.journal_loop and not self.parser.guarded:
            raise BadRequest("the journal is chosen by the first message of a connection")
        self.journal_loop = chosen
        self.use(chosen.journal)
        self.grant = found
        now = self.engine.clock.now()  # the journal's, which may be ahead of the machine's
        ahead = now - said.time if said.time else 0
        self.ahead = ahead if abs(ahead) > self.engine.jobs.limits.max_skew else 0
        self.name = request.key
        self.allowed = allowed_functions(roles)
        self.is_admin = "admin" in roles
        self.may_take = int(Function.LEASE) in self.allowed
        self.owner = b"" if self.is_admin or found is None else found.name.encode()
        self.guarded = False
        if not said.options & DESCRIBE:
            return encode_ok(request.identifier, now)
        pair = Pair(b"", Type.STRING, dump(context.describe(chosen, sorted(roles))))
        return encode_reply(request.identifier, now, pairs=(pair,))

    def check(self, now: float) -> None:
        """Strangers have less time."""
        limits = self.context.settings.limits
        if self.guarded and now - self.met > limits.hello_timeout:
            self.cut("stranger", "has not said who it is")
            return
        unread = self._transport.get_write_buffer_size()
        if not (self.listening and self.stuck_since and unread <= limits.high_water + _PUSHES):
            super().check(now)  # a slow listener costs no more than this: its pushes collapse

    def check_grant(self) -> None:
        """Tokens were read anew: cut the peer if its own is not among them as it was."""
        tokens = self.context.tokens
        if self.grant is not None and tokens is not None and self.grant not in tokens.grants:
            self.cut("token", "its token was removed or changed")

    def keeps_open(self) -> bool:
        """A listener may be silent for ever."""
        return bool(self.listening)

    def is_busy(self) -> bool:
        """Upkeep is under way for this peer."""
        return self._later > 0 or super().is_busy()

    def serve(self, items: list[Any], now: int) -> bytes:
        """Carry out requests under the lock; returns the replies."""
        stopped = self.engine.log.failure
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
        try:
            if isinstance(item, Refusal):
                self.context.count_error(item.code)
                return item.encode(now)
            waiter = item if isinstance(item, Waiter) else None
            request: Request = item if waiter is None else waiter.request
            flags = request.flags
            self.stable = STABLE if self.journal_loop.always else 0
            if flags & PERSIST or (flags & PERSIST_SET and request.value_type == Type.JOB):
                self.wants_sync = True
                self.stable = STABLE
            if waiter is not None:
                return self.journal_loop.ask_again(waiter, now)
            function = request.function
            if function not in self.allowed and function in SERVED:
                self.deny(f"role does not allow {Function(function).name}")
                raise Unauthorized("the token does not allow this")
            if stopped is not None and function not in _READS:
                # Not even "it is there already" may be acknowledged any more.
                raise ReadOnly(str(stopped))
            if function == Function.HELLO:
                return self._hello(request)
            return carry_out(self, request, now)
        except JournalError as error:
            self.context.count_error(error.code)
            return encode_error(_identifier(item), error_text(error), now)
        except Exception as error:  # a bug must not take the other connections down
            self.context.report(error)
            return encode_error(_identifier(item), error_text(error), now)

    def refuse(self, items: Sequence[Any], error: JournalError, now: int) -> bytes:
        """The replies to requests that came to nothing."""
        self.context.count_error(error.code)
        text = error_text(error)
        for item in items:
            if isinstance(item, Waiter):
                self.journal_loop.end_wait(item)
        return b"".join([encode_error(_identifier(item), text, now) for item in items])

    def do_later(
        self, identifier: int, work: Callable[[], Any], reply: Callable[[Any, int], bytes]
    ) -> None:
        """Do something beside the loop and answer when it is done."""
        self._later += 1

        def done(future: Any) -> None:
            self._later -= 1
            now = self.context.clock.now()
            error = future.exception()
            if error is None:
                self.send(reply(future.result(), now))
            else:
                self.context.count_error(getattr(error, "code", "SERVER-ERROR"))
                self.send(encode_error(identifier, error_text(error), now))

        self.journal_loop.in_thread(work).add_done_callback(done)

    def push(self, pushes: Sequence[tuple[int, bytes]], now: int) -> None:
        """Tell the peer what it did not just ask: the identifiers of its subscriptions, pushes."""
        if self.gone or self.leaving:
            return
        at = 0
        while at < len(pushes) and not self.stuck_since and not self._pushes:
            self._write(b"".join([data for _, data in pushes[at : at + _TOGETHER]]))
            at += _TOGETHER
        for identifier, data in pushes[at:]:
            if len(self._pushes) < self.context.settings.limits.push_backlog:
                self._pushes.append(data)
            else:
                self._pushes.clear()
                self._pushes.append(encode_push(identifier, now, b""))

    def resume_writing(self) -> None:
        """The peer reads again."""
        super().resume_writing()
        while self._pushes and not self.stuck_since and not self.gone:
            self._write(self._pushes.popleft())


def _identifier(item: Any) -> int:
    if isinstance(item, Waiter):
        return int(item.request.identifier)
    return int(item.identifier)
