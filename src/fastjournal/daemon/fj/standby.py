"""What a node says to clients while another one leads: who does, and what may be looked at here.

Rules:

1. HELLO is answered with NOT-PRIMARY and the address of the primary, if that is known; then the
   connection ends. Where tokens are demanded, nobody without a good one is told.
2. Who says with HELLO that it only looks is let in, if what can be shown is at most as old as it
   says. That is looked at again before each answer; what is too old, or no look, is NOT-PRIMARY.
3. Shown is what a majority has, as the log says it. How old that is has been learnt from the
   primary: a node that is cut off, or that stood still, knows that it is.
4. The log is replayed when the first one wants to look, and followed until some time after the last
   one has gone: a node at which nobody looks pays nothing for it.
5. Requests of a connection are carried out one after the other, on the one thread that has the
   view; meanwhile nothing more is read from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from fastjournal.clock import MILLISECOND, SECOND
from fastjournal.daemon.auth import EVERYTHING, allowed_functions
from fastjournal.daemon.context import Context
from fastjournal.daemon.fj.looks import SeenJournal, carry_out_look
from fastjournal.errors import BadRequest, JournalError, NotFound, NotPrimary, Unauthorized
from fastjournal.journal.look.read_only import JournalView
from fastjournal.wire.fj.functions import Function, Type
from fastjournal.wire.fj.hello import DESCRIBE, FOLLOWER, decode_hello
from fastjournal.wire.fj.json_values import dump
from fastjournal.wire.fj.replies import Pair, encode_error, encode_ok, encode_reply, error_text
from fastjournal.wire.fj.requests import (
    BEFORE_HELLO,
    FRAME,
    LOST,
    MORE,
    FrameReader,
    Request,
    request_of,
)

__all__ = ["Progress", "Standby", "StandbyConnection"]

_REFRESH = 1.0  # seconds between two looks at the log while nobody asks
_LINGER = 60.0  # seconds that a view is kept for the next one who looks


class Progress(NamedTuple):
    """How far a node that follows is, at one moment."""

    rewritten: int
    """How often records of its log have gone."""
    commit: int
    """Up to this TIME a majority has the log."""
    lag: int
    """So many ns ago that was all that a majority had."""


class Standby:
    """A journal of which this node has a copy."""

    def __init__(
        self,
        context: Context,
        journal: str,
        path: Path,
        *,
        primary_address: Callable[[], str],
        progress: Callable[[], Progress],
        watch: Callable[[bool], None],
    ) -> None:
        """`watch`: whether `progress` is to know how old the log is."""
        self.context = context
        self.connections: set[StandbyConnection] = set()
        self.primary_address = primary_address
        self.progress = progress
        self.journal = journal
        """Its name."""
        self._path = path
        self._watch = watch
        self._pool = ThreadPoolExecutor(1, "fastjournal-look")
        self._keeping: asyncio.Task[None] | None = None
        self._ready = False
        self._view: JournalView | None = None
        self._seen: SeenJournal | None = None
        self._rewritten = 0

    def is_ready(self, max_lag: int) -> bool:
        """Whether somebody may look who wants nothing that is older; if not yet, soon (rule 4)."""
        if self._keeping is None:
            self._watch(True)
            self._keeping = self.context.loop.create_task(self._keep())
        return self._ready and self.progress().lag <= max_lag

    async def look(self, request: Request, max_lag: int) -> bytes:
        """Answer a request (rule 2)."""
        progress = self.progress()
        if not self._ready or progress.lag > max_lag:
            raise NotPrimary(self.primary_address())
        return await self._on_thread(lambda: self._answer(progress, request))

    def close(self) -> None:
        """Show nothing any more, and let everybody go."""
        for connection in list(self.connections):
            connection.cut()
        if self._keeping is not None:
            self._keeping.cancel()
        self._rest()

    def _rest(self) -> None:
        self._keeping = None
        self._ready = False
        self._watch(False)
        self._pool.submit(self._drop)

    async def _on_thread(self, work: Callable[[], bytes]) -> bytes:
        return await self.context.loop.run_in_executor(self._pool, work)

    async def _keep(self) -> None:
        """Follow the log, as long as somebody looks."""
        alone = 0.0
        while alone < _LINGER:
            progress = self.progress()

            def refresh(progress: Progress = progress) -> bytes:
                self._refreshed(progress)
                return b""

            try:
                await self._on_thread(refresh)
                self._ready = True
            except NotPrimary:
                self._ready = False
            await asyncio.sleep(_REFRESH)
            alone = alone + _REFRESH if not any(one.looks for one in self.connections) else 0.0
        self._rest()

    def _answer(self, progress: Progress, request: Request) -> bytes:
        """On the thread."""
        return carry_out_look(self._refreshed(progress), request, self.context.clock.now())

    def _refreshed(self, progress: Progress) -> SeenJournal:
        """The view up to where a majority was; on the thread."""
        try:
            if self._view is not None and self._rewritten != progress.rewritten:
                self._drop()  # what it has read ahead may be gone
            if self._view is None:
                self._rewritten = progress.rewritten
                self._view = JournalView(self._path, follow=True, until=progress.commit)
            else:
                self._view.refresh(progress.commit)
        except (JournalError, OSError) as error:
            self.context.log.info("nothing can be looked at here", error=str(error))
            self._drop()
            raise NotPrimary(self.primary_address()) from error
        if self._seen is None or self._seen.state is not self._view.state:
            limit = int(self.context.wire_limits.max_message)
            self._seen = SeenJournal(self._view, self._figures, limit)
        return self._seen

    def _drop(self) -> None:
        view, self._view, self._seen = self._view, None, None
        if view is not None:
            view.close()

    def _figures(self, view: JournalView) -> dict[str, Any]:
        settings = self.context.settings
        figures = view.status()._replace(sync=settings.journal.sync)
        return self.context.figures(figures, self.journal)


class StandbyConnection(asyncio.Protocol):
    """One FJ connection to a node that does not lead."""

    def __init__(self, standby: Standby) -> None:
        self.looks = False
        """It was let in."""
        self._standby = standby
        self._context = standby.context
        self._frames = FrameReader(BEFORE_HELLO)
        self._transport: asyncio.Transport = None  # type: ignore[assignment]
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._stuck = False
        self._max_lag = 0
        self._allowed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody is here."""
        self._transport = transport  # type: ignore[assignment]
        self._standby.connections.add(self)
        patience = self._context.settings.limits.hello_timeout
        self._timer = self._context.loop.call_later(patience, self.cut)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has gone."""
        self._standby.connections.discard(self)
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Requests."""
        self._frames.feed(data)
        self._go_on()

    def pause_writing(self) -> None:
        """It does not read: nothing more is read from it."""
        self._stuck = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        self._stuck = False
        self._resume()

    def cut(self) -> None:
        """End at once."""
        self._transport.abort()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _go_on(self) -> None:
        """Carry out what has come, until something takes time."""
        frames = self._frames
        while self._task is None and not self._stuck and not self._transport.is_closing():
            found = frames.next()
            if found == MORE:
                return
            if found != FRAME:
                self._refuse(int(frames.identifier), f"{frames.code} {frames.text}".strip())
                if found == LOST:
                    self._transport.close()
                continue
            self._take(request_of(frames))

    def _take(self, request: Request) -> None:
        identifier, now = request.identifier, self._context.clock.now()
        if request.function == Function.HELLO:
            try:
                self._transport.write(self._hello(request))
            except JournalError as error:
                self._refuse(identifier, error_text(error))
                self._transport.close()
        elif request.function == Function.QUIT:
            self._transport.write(encode_ok(identifier, now))
            self._transport.close()
        elif not self.looks:
            self._refuse(identifier, error_text(self._not_let_in()))
            self._transport.close()
        elif not self._allowed >> request.function & 1:
            self._refuse(identifier, error_text(Unauthorized("the token does not allow this")))
        else:
            self._transport.pause_reading()
            self._task = self._context.loop.create_task(self._look(request))

    def _not_let_in(self) -> JournalError:
        if self._context.tokens is not None:
            return Unauthorized("say HELLO with a token first")
        return NotPrimary(self._standby.primary_address())

    def _hello(self, request: Request) -> bytes:
        said = decode_hello(request.value)
        context = self._context
        name = said.journal or context.settings.default_journal
        peer = self._transport.get_extra_info("peername")
        found = context.grant(said.token, name, f"{peer}")
        if name != self._standby.journal:
            raise NotFound(f"no journal {name!r}")
        if self.looks:
            raise BadRequest("HELLO was said before")
        max_lag = said.max_lag * MILLISECOND
        if not said.options & FOLLOWER or not self._standby.is_ready(max_lag):
            raise NotPrimary(self._standby.primary_address())
        self.looks = True
        self._max_lag = max_lag
        self._allowed = EVERYTHING if found is None else allowed_functions(found.roles)
        self._frames.limits = context.wire_limits
        self._stop_timer()
        now = context.clock.now()
        if not said.options & DESCRIBE:
            return encode_ok(request.identifier, now)
        roles = ["admin"] if found is None else sorted(found.roles)
        about = context.describe(name, context.settings.journal.sync, roles)
        about["replica"]["lag"] = self._standby.progress().lag / SECOND
        pair = Pair(b"", Type.STRING, dump(about))
        return encode_reply(request.identifier, now, pairs=(pair,))

    async def _look(self, request: Request) -> None:
        try:
            answer = await self._standby.look(request, self._max_lag)
        except NotPrimary:
            error = NotPrimary(self._standby.primary_address())
            answer = self._error(request.identifier, error_text(error))
        except Exception as error:
            if not isinstance(error, JournalError):
                self._context.report(error)
            answer = self._error(request.identifier, error_text(error))
        self._task = None
        self._transport.write(answer)
        self._resume()

    def _resume(self) -> None:
        """Read on, if nothing is under way."""
        if self._task is None and not self._stuck and not self._transport.is_closing():
            self._transport.resume_reading()
            self._go_on()

    def _refuse(self, identifier: int, text: str) -> None:
        self._transport.write(self._error(identifier, text))

    def _error(self, identifier: int, text: str) -> bytes:
        self._context.count_error(text.partition(" ")[0])
        return encode_error(identifier, text, self._context.clock.now())
