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
from typing import Any, Final

from mypy_extensions import i64

from fastjournal.buffers import BytesWriter
from fastjournal.daemon.auth import EVERYTHING, Grant, allowed_functions, function_bits
from fastjournal.daemon.context import Context
from fastjournal.daemon.fj.dispatch import SERVED, carry_out
from fastjournal.daemon.session import Waiter
from fastjournal.daemon.transport import QUEUED, TURN, Connection
from fastjournal.errors import BadRequest, JournalError, NotFound, ReadOnly, Unauthorized
from fastjournal.wire.fj.functions import PERSIST, PERSIST_SET, STABLE, Function, Type
from fastjournal.wire.fj.hello import DESCRIBE, decode_hello
from fastjournal.wire.fj.json_values import dump
from fastjournal.wire.fj.replies import (
    Pair,
    encode_error,
    encode_ok,
    encode_push,
    encode_reply,
    error_text,
    write_error,
)
from fastjournal.wire.fj.requests import (
    BEFORE_HELLO,
    FRAME,
    LOST,
    MORE,
    FrameReader,
    Request,
    request_of,
)

__all__ = ["FjConnection"]

_HELLO: Final[i64] = int(Function.HELLO)
_LEASE: Final[i64] = int(Function.LEASE)
_READS: Final[i64] = function_bits(
    (
        Function.NOP, Function.QUIT, Function.PING, Function.HELLO, Function.GET, Function.STATUS,
        Function.RESULT, Function.INSPECT, Function.LIST, Function.LISTEN, Function.UNLISTEN,
    )
)  # fmt: skip
"""What is answered though the log has stopped."""
_connections = itertools.count(1)
_TOGETHER: Final = 16  # pushes
_PUSHES: Final = _TOGETHER * 66_000  # bytes that one write of pushes may add to what waits


class FjConnection(Connection):
    """One FJ connection."""

    def __init__(self, context: Context) -> None:
        super().__init__("fj", context)
        self.guarded = context.tokens is not None
        """It is a stranger yet."""
        self.own_name = b"\0connection %d" % next(_connections)
        self.allowed: i64 = 0 if self.guarded else EVERYTHING
        """The functions it may call, as bits."""
        self.is_admin = self.may_take = not self.guarded
        self.grant: Grant | None = None
        """What its token allows; None where no tokens are demanded, or before HELLO."""
        self.frames = FrameReader(BEFORE_HELLO if self.guarded else context.wire_limits)
        """The queue of requests, as bytes."""
        self._beginning = True
        """The first message is looked at alone: it may be the HELLO that chooses the journal."""
        self._pushes: deque[bytes] = deque()
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
        self.frames.feed(data)
        if self._beginning and not self._begin():
            return
        self.more = True
        self.go_on()
        if self.more:  # else `serve` has seen to it
            self.steer()

    def _begin(self) -> bool:
        """The first messages, one by one; returns whether the journal may have the others."""
        frames = self.frames
        while self._beginning:
            found = frames.next()
            if found == MORE:
                self._note_partial(False)
                return False
            if self.guarded or found == LOST or frames.function == _HELLO:
                self._greet(found, frames)
                if self.leaving:
                    return False
            else:
                frames.put_back()
            if not self.guarded:
                self._beginning = False
                frames.limits = self.context.wire_limits
        return True

    def _note_partial(self, progress: bool) -> None:
        """What is left of what was read is an incomplete message, or nothing."""
        if not self.frames.pending:
            self.partial_since = 0.0
        elif progress or not self.partial_since:
            self.partial_since = self.last_read

    def is_overfull(self) -> bool:
        """Whether enough requests wait: more than may, and than the message under way needs."""
        waiting: i64 = self.frames.pending
        return waiting > QUEUED and waiting > self.frames.need

    def _greet(self, found: i64, frame: FrameReader) -> None:
        """A message of a stranger, or of somebody who begins."""
        now = self.context.clock.now()
        identifier, function = int(frame.identifier), int(frame.function)
        if found != FRAME:
            self.context.count_error(frame.code)
            self.leaving = True
            self.send(encode_error(identifier, f"{frame.code} {frame.text}".strip(), now))
        elif function == _HELLO:
            try:
                reply = self._hello(request_of(frame))
            except JournalError as error:
                self.context.count_error(error.code)
                self.leaving = True
                reply = encode_error(identifier, error_text(error), now)
            self.send(reply)
        elif function in (Function.NOP, Function.PING):
            self.send(encode_ok(identifier, now))
        elif function == Function.QUIT:
            self.leaving = True
            self.send(encode_ok(identifier, now))
        else:
            self.leaving = True
            self.deny("no HELLO")
            self.context.count_error("DENIED")
            self.send(encode_error(identifier, "DENIED say HELLO with a token first", now))

    def _hello(self, request: Request) -> bytes:
        """Learn who the client is, and choose its journal."""
        said = decode_hello(request.value)
        context = self.context
        name = said.journal or context.settings.default_journal
        found = context.grant(said.token, name, self.peer)
        roles = frozenset({"admin"}) if found is None else found.roles
        chosen = context.journals.get(name)
        if chosen is None:
            raise NotFound(f"no journal {name!r}")
        if chosen is not self.journal_loop and not self._beginning:
            raise BadRequest("the journal is chosen by the first message of a connection")
        self.journal_loop = chosen
        self.use(chosen.journal)
        self.grant = found
        now = self.engine.clock.now()  # the journal's, which may be ahead of the machine's
        ahead = now - said.time if said.time else 0
        self.ahead = ahead if abs(ahead) > self.engine.ground.limits.max_skew else 0
        self.name = request.key
        self.allowed = allowed_functions(roles)
        self.is_admin = "admin" in roles
        self.may_take = self.allowed >> _LEASE & 1 != 0
        self.owner = b"" if self.is_admin or found is None else found.name.encode()
        self.guarded = False
        if not said.options & DESCRIBE:
            return encode_ok(request.identifier, now)
        sync = self.engine.log.options.sync
        pair = Pair(b"", Type.STRING, dump(context.describe(name, sync, sorted(roles))))
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

    def serve(self, now: i64, refusal: JournalError | None) -> None:
        """Carry out the requests that have come, under the lock, and write the answers."""
        frames = self.frames
        stopped = self.engine.log.failure
        progress = False
        while True:
            if len(self.out) > TURN:
                self.stop_at_limit()
                break
            found = frames.next()
            if found == MORE:
                self.more = False
                self._note_partial(progress)
                break
            progress = True
            self._carry_out(found, frames, stopped, refusal, now)
        self.steer()

    def _carry_out(
        self,
        found: i64,
        frame: FrameReader,
        stopped: JournalError | None,
        refusal: JournalError | None,
        now: i64,
    ) -> None:
        """Carry out one request and write its answer, unless it comes later."""
        out = self.out
        before: i64 = len(out)
        identifier = frame.identifier
        try:
            if found != FRAME:
                self.context.count_error(frame.code)
                write_error(out, identifier, f"{frame.code} {frame.text}".strip(), now)
                if found == LOST:
                    self.leaving = True
            elif refusal is not None:
                raise refusal
            elif self.waiters and self._is_outstanding(identifier):
                raise BadRequest(f"a request with identifier {identifier} is not answered yet")
            else:
                self._ask_for_sync(frame.flags & (PERSIST | PERSIST_SET) != 0)
                function = frame.function
                if not self.allowed >> function & 1 and SERVED >> function & 1:
                    self.deny(f"role does not allow {Function(int(function)).name}")
                    raise Unauthorized("the token does not allow this")
                if stopped is not None and not _READS >> function & 1:
                    # Not even "it is there already" may be acknowledged any more.
                    raise ReadOnly(str(stopped))
                if function == _HELLO:
                    out.write(self._hello(request_of(frame)))
                else:
                    carry_out(self, frame, now)
        except Exception as error:
            self._answer_error(identifier, before, error, now)
        if len(out) > before:
            self.answered.append(int(identifier))

    def _is_outstanding(self, identifier: i64) -> bool:
        """Whether a request of this identifier waits for its answer."""
        return any(waiter.identifier == identifier for waiter in self.waiters)

    def _ask_for_sync(self, wanted: bool) -> None:
        """Whether the request under way is to be on stable storage when it is answered."""
        self.wants_sync = wanted
        if wanted:
            self.holds_for_sync = True
        self.promise(STABLE if wanted or self.journal_loop.always else 0)

    def _answer_error(self, identifier: i64, before: i64, error: Exception, now: i64) -> None:
        """A request is refused, or a bug must not take the other connections down."""
        if isinstance(error, JournalError):
            self.context.count_error(error.code)
        else:
            self.context.report(error)
        self.out.truncate(before)
        write_error(self.out, identifier, error_text(error), now)

    def serve_waiter(self, waiter: Waiter, now: i64) -> None:
        """Ask once more about a request that waits; under the lock."""
        before: i64 = len(self.out)
        self._ask_for_sync(waiter.wants_sync)
        try:
            self.journal_loop.ask_again(waiter, now)
        except Exception as error:
            self.journal_loop.end_wait(waiter)
            self._answer_error(waiter.identifier, before, error, now)
        if len(self.out) > before:
            self.answered.append(waiter.identifier)

    def refusals(self, answered: Sequence[int], error: JournalError, now: i64) -> bytes:
        """The answers to requests that came to nothing."""
        self.context.count_error(error.code)
        text = error_text(error)
        out = BytesWriter()
        for identifier in answered:
            write_error(out, identifier, text, now)
        return out.getvalue()

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
