"""One connection as bytes: back-pressure, time limits, its end. What is said on it: `fj`, `workq`.

Rules:

1. A peer that does not read is not read from: when more than `high_water` bytes wait to be sent,
   reading pauses until they are fewer. Above `max_output`, or after `write_timeout` without
   progress, the connection is cut.
2. A message that stays incomplete for `message_timeout`, a stranger that has not said who it is
   within `hello_timeout`, and a peer that has said nothing for `idle_timeout` and waits for nothing
   are cut.
3. A peer that has vanished without a word is found within about two minutes: by TCP keep-alive if
   nothing is under way to it, else by what it does not acknowledge (TCP_USER_TIMEOUT).
4. Ending is in order: what was answered is sent first.
5. Requests stand in one queue from their reading to their carrying out, and are carried out in that
   order, whatever holds them up: `serve` takes them from its front as far as it comes. While more
   than `QUEUED` bytes wait in it, and more than the message under way needs, reading pauses.
6. What is asked for may be much larger than the question: after `TURN` bytes of answers the rest of
   the queue waits until they have been sent, also where they wait for a sync.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any, Final

from mypy_extensions import i64

from fastjournal.daemon.context import Context
from fastjournal.daemon.journal_loop import JournalLoop
from fastjournal.daemon.session import Session, Subject, Waiter

__all__ = ["QUEUED", "TURN", "Connection"]

TURN: Final[i64] = 1 << 20  # bytes of answers
QUEUED: Final[i64] = 1 << 20  # bytes of requests

# Seconds, but for the last one: milliseconds.
_KEEP_ALIVE = (
    ("TCP_KEEPIDLE", 60),
    ("TCP_KEEPINTVL", 15),
    ("TCP_KEEPCNT", 4),
    ("TCP_USER_TIMEOUT", 120_000),
)


class Connection(Session):
    """What all protocols share; has the methods of `asyncio.Protocol`."""

    def __init__(self, protocol: str, context: Context) -> None:
        super().__init__(protocol, context.default.journal)
        self.context = context
        self.journal_loop: JournalLoop = context.default
        self.met = 0.0
        """Loop time of its beginning."""
        self.last_read = 0.0
        """Loop time of the last bytes from the peer."""
        self.stuck_since = 0.0
        """Loop time since which the peer does not read; 0: it does."""
        self.partial_since = 0.0
        """Loop time since which a message is incomplete; 0: none is."""
        self.more = False
        """The queue may hold requests that can be carried out."""
        self._full = False
        """The last answers were cut at `TURN` and are not sent yet."""
        self._reads = True
        self._transport: Any = None
        self._write: Any = None
        self._time: Any = context.loop.time

    def connection_made(self, transport: Any) -> None:
        """The peer is here."""
        self._transport = transport
        self._write = transport.write
        transport.set_write_buffer_limits(high=self.context.settings.limits.high_water)
        self.gone = False
        self.journal_loop.hear(self)
        self.met = self.last_read = self._time()
        self.peer = _peer(transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE:
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if not self.context.admit(self):
            self.leaving = True
            self.turn_away()

    def turn_away(self) -> None:
        """The server is leaving."""
        self.end()

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer is gone."""
        self.gone = True
        for waiter in list(self.waiters):
            self.abandon(waiter)
        if self.listening:
            self.journal_loop.subscriptions.leave(self)
        self.context.dismiss(self, exc)

    def abandon(self, waiter: Waiter) -> None:
        """The peer left while this request of it waited."""
        self.journal_loop.end_wait(waiter)

    def eof_received(self) -> bool:
        """The peer sends no more: answer what it sent, give up what waits, then close.

        It has most likely left: a job leased for it now would be lost until its lease ends.
        """
        for waiter in list(self.waiters):
            self.abandon(waiter)
        self.end()
        return True

    def pause_writing(self) -> None:
        """The peer does not read."""
        self.stuck_since = self._time()
        self.steer()

    def resume_writing(self) -> None:
        """The peer reads again."""
        self.stuck_since = 0.0
        self.steer()
        self.go_on()

    def go_on(self) -> None:
        """Have the next requests carried out, if they may be."""
        if self.more and not self.asked and self.may_go_on():
            self.journal_loop.submit(self)

    def may_go_on(self) -> bool:
        """Whether the next requests may be carried out; see rules 1 and 6."""
        if self._full or self.gone or self.unsynced > TURN:
            return False
        return self.stuck_since == 0.0

    def stop_at_limit(self) -> None:
        """The answers are many: the rest of the queue waits until they have been sent."""
        self._full = True

    def is_overfull(self) -> bool:
        """Whether enough requests wait; see rule 5."""
        raise NotImplementedError

    def steer(self) -> None:
        """Read from the peer, or do not."""
        reads = self.stuck_since == 0.0 and not self.leaving and not self.is_overfull()
        if reads != self._reads and not self.gone and not self._transport.is_closing():
            self._reads = reads
            if reads:
                if self.partial_since:  # it was not the peer who let the message wait
                    self.partial_since = self._time()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def send(self, data: bytes) -> None:
        """Send, unless the peer is gone; then go on with what was held back."""
        if self.gone:
            return
        self._write(data)
        self._full = False
        if self.leaving or self.stuck_since != 0.0:
            self.watch_output()
            self.steer()
        if self.more:
            self.go_on()

    def watch_output(self) -> None:
        """Something was sent to a peer that is to leave, or that does not read."""
        if self.leaving:
            self.finish()
        else:
            limit = self.context.settings.limits.max_output
            if self._transport.get_write_buffer_size() > limit:
                self.cut("slow", "too much output waits")

    def end(self) -> None:
        """Read no more; close when everything has been answered and sent."""
        if self.gone or self._transport.is_closing():
            return
        self.leaving = True
        self.steer()
        self.finish()

    def finish(self) -> None:
        """Close, if the peer is to leave and nothing is left to be said."""
        if self.leaving and not self.waiters and not self.behind and not self.is_busy():
            self._transport.close()

    def is_busy(self) -> bool:
        """Requests are under way that no waiter stands for."""
        return self.asked or self.more

    def cut(self, reason: str, text: str) -> None:
        """End at once."""
        if not self.gone:
            self.context.note_cut(self, reason, text)
            self._transport.abort()

    def check(self, now: float) -> None:
        """Cut the peer if a limit of time has passed; called every second or so."""
        limits = self.context.settings.limits
        if self.stuck_since and now - self.stuck_since > limits.write_timeout:
            self.cut("slow", "does not read")
        elif (
            self.partial_since
            and not self.more
            and self._reads
            and now - self.partial_since > limits.message_timeout
        ):
            self.cut("partial", "a message stays incomplete")
        elif (
            limits.idle_timeout
            and not self.waiters
            and not self.keeps_open()
            and now - self.last_read > limits.idle_timeout
        ):
            self.cut("idle", "says nothing")

    def check_grant(self) -> None:
        """Tokens were read anew: cut the peer if its own is not among them as it was."""

    def push(self, pushes: Sequence[tuple[int, bytes]], now: int) -> None:
        """Tell the peer what it did not just ask: the identifiers of its subscriptions, pushes."""

    def keeps_open(self) -> bool:
        """The peer waits for something of its own accord."""
        return False

    def quit(self) -> None:
        """The client has said goodbye: what waits is answered with what there is."""
        self.leaving = True
        self.steer()
        for waiter in list(self.waiters):
            self.expire(waiter)

    def wait(self, waiter: Waiter, seconds: float) -> None:
        """Let a request wait for so long."""
        self.journal_loop.begin_wait(waiter, seconds)

    def expire(self, waiter: Waiter) -> None:
        """Ask a waiter a last time."""
        self.journal_loop.expire(waiter)

    def listen(self, subject: Subject, identifier: int) -> None:
        """Be told of something from now on."""
        self.journal_loop.subscriptions.listen(self, subject, identifier)

    def unlisten(self, subject: Subject) -> None:
        """Be told of it no more."""
        self.journal_loop.subscriptions.unlisten(self, subject)

    def status(self) -> dict[str, Any]:
        """Figures of the journal and of the server."""
        return self.context.status(self.journal_loop)

    def max_message(self) -> int:
        """Most bytes of a message."""
        return self.context.wire_limits.max_message

    def deny(self, reason: str) -> None:
        """Somebody tried what it may not: say so in the log."""
        self.context.deny(self, reason)


def _peer(transport: Any) -> str:
    name = transport.get_extra_info("peername")
    peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unix"
    if isinstance(transport.get_extra_info("ssl_object"), ssl.SSLObject):
        peer += " (TLS)"
    return peer
